import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Read partitions with Java's consumer, and print each record as a line of JSON.
 *
 *   ReadPartitions read LEVEL GROUP ADDRESS TOPIC:PARTITION ...   from the beginning to the end; GROUP is - for none, else
 *                                                                 it subscribes to the topics, and commits at the end
 *   ReadPartitions times ADDRESS TOPIC:PARTITION:TIME ...         print the offset at each time, or null
 */
public final class ReadPartitions {
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    public static void main(String[] args) {
        List<String> given = Arrays.asList(args);
        if (args[0].equals("times")) {
            printOffsets(args[1], given.subList(2, given.size()));
        } else {
            Set<TopicPartition> places = given.subList(4, given.size()).stream().map(ReadPartitions::place).collect(Collectors.toSet());
            printRecords(args[1], args[2].equals("-") ? null : args[2], args[3], places);
        }
    }

    private static TopicPartition place(String text) {
        int colon = text.lastIndexOf(':');
        return new TopicPartition(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String address, Map<String, Object> options) {
        Map<String, Object> all = new HashMap<>(options);
        all.putAll(Map.of("bootstrap.servers", address, "enable.auto.commit", false));
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void printOffsets(String address, List<String> asked) {
        Map<TopicPartition, Long> times = new HashMap<>();
        for (String each : asked) {
            int colon = each.lastIndexOf(':');
            times.put(place(each.substring(0, colon)), Long.parseLong(each.substring(colon + 1)));
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(address, Map.of())) {
            for (Map.Entry<TopicPartition, OffsetAndTimestamp> each : consumer.offsetsForTimes(times, PATIENCE).entrySet()) {
                Long offset = each.getValue() == null ? null : each.getValue().offset();
                TopicPartition place = each.getKey();
                System.out.printf("{\"topic\": %s, \"partition\": %d, \"offset\": %d}%n", quoted(place.topic()), place.partition(), offset);
            }
        }
    }

    private static void printRecords(String level, String group, String address, Set<TopicPartition> places) {
        Map<String, Object> options = new HashMap<>(Map.of("isolation.level", level, "auto.offset.reset", "earliest"));
        if (group != null) {
            options.putAll(Map.of("group.id", group, "group.protocol", "classic"));
        }
        StringBuilder lines = new StringBuilder();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(address, options)) {
            if (group == null) {
                consumer.assign(places);
                consumer.seekToBeginning(places);
            } else {
                consumer.subscribe(places.stream().map(TopicPartition::topic).collect(Collectors.toSet()));
            }
            Map<TopicPartition, Long> ends = consumer.endOffsets(places, PATIENCE);
            Set<TopicPartition> open = new HashSet<>(places);
            while (!open.isEmpty()) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(500))) {
                    lines.append(line(each)).append('\n');
                }
                Set<TopicPartition> assigned = consumer.assignment();
                open.removeIf(each -> assigned.contains(each) && consumer.position(each, PATIENCE) >= ends.get(each));
            }
            if (group != null) {
                consumer.commitSync(PATIENCE);
            }
        }
        System.out.print(lines);
    }

    private static String line(ConsumerRecord<byte[], byte[]> record) {
        List<String> headers = new ArrayList<>();
        for (Header each : record.headers()) {
            headers.add(String.format("{\"name\": %s, \"value\": %s}", quoted(each.key()), content(each.value())));
        }
        return String.format("{\"topic\": %s, \"partition\": %d, \"offset\": %d, \"timestamp_ms\": %d, \"key\": %s, \"value\": %s, \"headers\": %s}",
            quoted(record.topic()), record.partition(), record.offset(), record.timestamp(), content(record.key()), content(record.value()), headers);
    }

    private static String content(byte[] bytes) {
        return bytes == null ? "null" : "\"" + Base64.getEncoder().encodeToString(bytes) + "\"";
    }

    private static String quoted(String text) {
        return text.chars().mapToObj(each -> String.format("\\u%04x", each)).collect(Collectors.joining("", "\"", "\""));
    }
}
