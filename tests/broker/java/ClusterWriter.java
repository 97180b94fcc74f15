import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Write records with Kafka's own producers, as told line by line.
 *
 * Every line of the input is answered by one line, "done", when all its records are acknowledged. Fields are separated
 * by spaces; TIMES are milliseconds joined by commas, one a record. The records of one line are one batch. Keys, values and headers
 * follow from SEED.
 *
 *   ClusterWriter BOOTSTRAP SEED
 *
 *   batch  TOPIC PARTITION CODEC BYTES TIMES   outside transactions, to all in-sync replicas
 *   begin  ID CODEC                            a transaction; ends one that an earlier producer of the id left open
 *   send   ID TOPIC PARTITION BYTES TIMES      a batch in it
 *   commit ID
 *   abort  ID
 *   leave  ID                                  forgets the producer and leaves its transaction open
 */
public final class ClusterWriter {
    private static final String[] WORDS = "alpha bravo charlie delta echo foxtrot golf hotel caf\u00e9 \u6771\u4eac".split(" ");

    private final Map<String, KafkaProducer<byte[], byte[]>> byCodec = new HashMap<>();
    private final Map<String, KafkaProducer<byte[], byte[]>> byTransaction = new HashMap<>();
    private final String bootstrapServers;
    private final Random chance;

    private ClusterWriter(String bootstrapServers, long seed) {
        this.bootstrapServers = bootstrapServers;
        this.chance = new Random(seed);
    }

    public static void main(String[] args) throws IOException, ExecutionException, InterruptedException {
        ClusterWriter writer = new ClusterWriter(args[0], Long.parseLong(args[1]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            writer.obey(line.split(" "));
            System.out.println("done");
        }
        // Closing a producer would abort a transaction that is meant to stay open.
        Runtime.getRuntime().halt(0);
    }

    private void obey(String[] words) throws ExecutionException, InterruptedException {
        switch (words[0]) {
            case "batch" -> send(byCodec.computeIfAbsent(words[3], codec -> producer(codec, null)),
                words[1], Integer.parseInt(words[2]), Integer.parseInt(words[4]), words[5]);
            case "begin" -> begin(words[1], words[2]);
            case "send" -> send(byTransaction.get(words[1]),
                words[2], Integer.parseInt(words[3]), Integer.parseInt(words[4]), words[5]);
            case "commit" -> byTransaction.get(words[1]).commitTransaction();
            case "abort" -> byTransaction.get(words[1]).abortTransaction();
            case "leave" -> byTransaction.remove(words[1]);
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private void begin(String id, String codec) {
        KafkaProducer<byte[], byte[]> known = byTransaction.get(id);
        if (known == null) {
            known = producer(codec, id);
            known.initTransactions();
            byTransaction.put(id, known);
        }
        known.beginTransaction();
    }

    private void send(KafkaProducer<byte[], byte[]> producer, String topic, int partition, int bytes, String times)
            throws ExecutionException, InterruptedException {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (String time : times.split(",")) {
            ProducerRecord<byte[], byte[]> each =
                new ProducerRecord<>(topic, partition, Long.parseLong(time), key(), value(bytes));
            if (chance.nextInt(8) == 0) {
                each.headers().add("trace", text(12)).add("empty", null);
            }
            sent.add(producer.send(each));
        }
        producer.flush();
        for (Future<RecordMetadata> each : sent) {
            each.get();
        }
    }

    private KafkaProducer<byte[], byte[]> producer(String codec, String transactionalId) {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrapServers,
            "key.serializer", ByteArraySerializer.class.getName(),
            "value.serializer", ByteArraySerializer.class.getName(),
            "compression.type", codec,
            "acks", "all",
            // A batch is what is sent before a flush.
            "linger.ms", "60000",
            "batch.size", "1000000",
            "delivery.timeout.ms", "180000",
            "max.in.flight.requests.per.connection", "1"));
        settings.put("metadata.max.age.ms", "2000");
        settings.put("enable.idempotence", transactionalId != null);
        if (transactionalId != null) {
            settings.put("transactional.id", transactionalId);
            settings.put("transaction.timeout.ms", "900000");
        }
        return new KafkaProducer<>(settings);
    }

    private byte[] key() {
        return chance.nextInt(10) == 0 ? null : ("key-" + chance.nextInt(500)).getBytes(StandardCharsets.UTF_8);
    }

    private byte[] value(int bytes) {
        return chance.nextInt(30) == 0 ? null : text(bytes / 2 + chance.nextInt(bytes));
    }

    /** Words that a codec can shorten, and numbers that it cannot. */
    private byte[] text(int bytes) {
        StringBuilder text = new StringBuilder();
        while (text.length() < bytes) {
            text.append(WORDS[chance.nextInt(WORDS.length)]).append(Integer.toString(chance.nextInt(1 << 30), 36));
        }
        return text.toString().getBytes(StandardCharsets.UTF_8);
    }
}
