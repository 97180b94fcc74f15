import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.stream.Collectors;

import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;

/**
 * Read topics with Flink's Kafka source in this JVM, and print each record as a line of JSON.
 *
 *   ReadTopics LEVEL ADDRESS TOPIC,TOPIC,... [TIME]   from the beginning, or the time in milliseconds, to the end
 */
public final class ReadTopics {
    public static void main(String[] args) throws Exception {
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
        environment.setParallelism(2);
        KafkaSource<String> source = KafkaSource.<String>builder()
            .setBootstrapServers(args[1])
            .setTopics(args[2].split(","))
            .setStartingOffsets(args.length < 4 ? OffsetsInitializer.earliest() : OffsetsInitializer.timestamp(Long.parseLong(args[3])))
            .setBounded(OffsetsInitializer.latest())
            .setProperty("isolation.level", args[0])
            .setDeserializer(new Lines())
            .build();
        StringBuilder lines = new StringBuilder();
        try (CloseableIterator<String> found = environment.fromSource(source, WatermarkStrategy.noWatermarks(), "archive").executeAndCollect()) {
            found.forEachRemaining(line -> lines.append(line).append('\n'));
        }
        System.out.print(lines);
    }

    /** A record as a line. */
    public static final class Lines implements KafkaRecordDeserializationSchema<String> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<String> lines) {
            List<String> headers = new ArrayList<>();
            for (Header each : record.headers()) {
                headers.add(String.format("{\"name\": %s, \"value\": %s}", quoted(each.key()), content(each.value())));
            }
            lines.collect(String.format("{\"topic\": %s, \"partition\": %d, \"offset\": %d, \"timestamp_ms\": %d, \"key\": %s, \"value\": %s, \"headers\": %s}",
                quoted(record.topic()), record.partition(), record.offset(), record.timestamp(), content(record.key()), content(record.value()), headers));
        }

        @Override
        public TypeInformation<String> getProducedType() {
            return Types.STRING;
        }

        private static String content(byte[] bytes) {
            return bytes == null ? "null" : "\"" + Base64.getEncoder().encodeToString(bytes) + "\"";
        }

        private static String quoted(String text) {
            return text.chars().mapToObj(each -> String.format("\\u%04x", each)).collect(Collectors.joining("", "\"", "\""));
        }
    }
}
