package org.apache.kafka.streams.processor.internals;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.CumulativeCount;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.streams.errors.LogAndFailExceptionHandler;
import org.apache.kafka.streams.processor.LogAndSkipOnInvalidTimestamp;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.processor.internals.TopologyMetadata.Subtopology;
import org.apache.kafka.streams.processor.internals.metrics.StreamsMetricsImpl;

/**
 * Which record does Kafka Streams choose next, when may it choose, and which partitions make a task?
 *
 * Every line of the input is answered by one line. Both are words with spaces between. A partition is TOPIC:NUMBER,
 * RECORDS are OFFSET@TIMESTAMP joined by commas.
 *
 *   order PARTITION=RECORDS ...      all are buffered at once, in that order: PARTITION:OFFSET of each record as chosen
 *   trace IDLE PARTITION,... STEP ...
 *       +PARTITION=RECORDS           are buffered
 *       ~PARTITION=LAG               is its lag; ?: it is not known
 *       !TIME                        two letters: w nothing may be chosen, r something, e though a partition is empty;
 *                                    first as if each partition were in a group of its own with one that always has
 *                                    records, and all groups had to agree, then of the group as it is
 *       next                         PARTITION:OFFSET of the record that is chosen
 *   tasks TOPIC=COUNT,...;...        TASK=PARTITION,... of each task of the groups of topics
 *
 * Of records that are dropped at the end of what is buffered Kafka keeps the last in their stead, so that its offset is
 * committed. A task takes it at once and does not process it; here it goes at once.
 */
public final class StreamsChoice {
    private static final TopicPartition ALWAYS_BUFFERED = new TopicPartition("always-buffered", 0);
    private static final Metrics METRICS = new Metrics();
    private static final LogContext LOG = new LogContext();
    private static final InternalProcessorContext<?, ?> CONTEXT = context();

    public static void main(String[] args) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            answers.println(String.join(" ", switch (words[0]) {
                case "order" -> order(words);
                case "trace" -> trace(words);
                case "tasks" -> tasks(words[1]);
                default -> throw new IllegalArgumentException(line);
            }));
        }
        answers.flush();
    }

    private static List<String> order(String[] words) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (int at = 1; at < words.length; at++) {
            partitions.add(partition(words[at].split("=", -1)[0]));
        }
        Group group = new Group(partitions, 0);
        for (int at = 1; at < words.length; at++) {
            group.add(words[at]);
        }
        List<String> chosen = new ArrayList<>();
        for (String next = group.next(); next != null; next = group.next()) {
            chosen.add(next);
        }
        return chosen;
    }

    private static List<String> trace(String[] words) {
        long maxTaskIdleMs = Long.parseLong(words[1]);
        List<TopicPartition> partitions = new ArrayList<>();
        for (String each : words[2].split(",")) {
            partitions.add(partition(each));
        }
        Group whole = new Group(partitions, maxTaskIdleMs);
        Map<TopicPartition, Group> alone = new LinkedHashMap<>();
        for (TopicPartition each : partitions) {
            Group group = new Group(List.of(each, ALWAYS_BUFFERED), maxTaskIdleMs);
            group.add(text(ALWAYS_BUFFERED) + "=0@" + Long.MAX_VALUE);
            alone.put(each, group);
        }
        List<String> answers = new ArrayList<>();
        for (int at = 3; at < words.length; at++) {
            String step = words[at], rest = step.substring(1);
            switch (step.charAt(0)) {
                case '+' -> {
                    whole.add(rest);
                    alone.get(partition(rest.split("=", -1)[0])).add(rest);
                }
                case '~' -> {
                    whole.learn(rest);
                    alone.get(partition(rest.split("=")[0])).learn(rest);
                }
                case '!' -> {
                    List<Character> each = new ArrayList<>();
                    for (Group group : alone.values()) {
                        each.add(group.ask(Long.parseLong(rest)));
                    }
                    char all = each.contains('w') || whole.group.numBuffered() == 0 ? 'w' : each.contains('e') ? 'e' : 'r';
                    answers.add("" + all + whole.ask(Long.parseLong(rest)));
                }
                default -> {
                    String chosen = whole.next();
                    if (!chosen.equals(alone.get(partition(chosen.substring(0, chosen.lastIndexOf(':')))).next())) {
                        throw new IllegalStateException(chosen);
                    }
                    answers.add(chosen);
                }
            }
        }
        return answers;
    }

    private static List<String> tasks(String groups) {
        Map<Subtopology, Set<String>> topics = new HashMap<>();
        List<PartitionInfo> partitions = new ArrayList<>();
        for (String group : groups.split(";")) {
            Set<String> names = new HashSet<>();
            topics.put(new Subtopology(topics.size(), null), names);
            for (String each : group.split(",")) {
                String[] pair = each.split("=");
                names.add(pair[0]);
                for (int number = 0; number < Integer.parseInt(pair[1]); number++) {
                    partitions.add(new PartitionInfo(pair[0], number, Node.noNode(), new Node[0], new Node[0]));
                }
            }
        }
        Cluster cluster = new Cluster("cluster", Collections.<Node>emptyList(), partitions, Set.of(), Set.of());
        return new TreeMap<>(new PartitionGrouper().partitionGroups(topics, cluster)).entrySet().stream()
            .map(task -> task.getKey() + "=" + task.getValue().stream()
                .map(StreamsChoice::text).sorted().collect(Collectors.joining(",")))
            .toList();
    }

    private static TopicPartition partition(String text) {
        String[] pair = text.split(":");
        return new TopicPartition(pair[0], Integer.parseInt(pair[1]));
    }

    private static String text(TopicPartition partition) {
        return partition.topic() + ":" + partition.partition();
    }

    private static InternalProcessorContext<?, ?> context() {
        StreamsMetricsImpl metrics = new StreamsMetricsImpl(METRICS, "client", Time.SYSTEM);
        Class<?>[] kinds = {InternalProcessorContext.class};
        return (InternalProcessorContext<?, ?>) Proxy.newProxyInstance(kinds[0].getClassLoader(), kinds, (self, method, given) ->
            switch (method.getName()) {
                case "metrics" -> metrics;
                case "taskId" -> new TaskId(0, 0);
                default -> throw new UnsupportedOperationException(method.getName());
            });
    }

    /** A PartitionGroup of Kafka Streams, its lags, and how often it was ready though a partition was empty. */
    private static final class Group {
        private static int count = 0;

        private final Map<TopicPartition, OptionalLong> lags = new HashMap<>();
        private final Map<TopicPartition, RecordQueue> queues = new LinkedHashMap<>();
        private final CumulativeCount enforced = new CumulativeCount();
        private final PartitionGroup group;

        Group(Collection<TopicPartition> partitions, long maxTaskIdleMs) {
            for (TopicPartition each : partitions) {
                SourceNode<byte[], byte[]> source =
                    new SourceNode<>(each.topic(), new ByteArrayDeserializer(), new ByteArrayDeserializer());
                queues.put(each, new RecordQueue(each, source, new LogAndSkipOnInvalidTimestamp(),
                    new LogAndFailExceptionHandler(), CONTEXT, LOG));
            }
            Sensor counting = METRICS.sensor("enforced-" + ++count);
            counting.add(METRICS.metricName("enforced-" + count, "enforced"), enforced);
            group = new PartitionGroup(LOG, queues, partition -> lags.getOrDefault(partition, OptionalLong.empty()),
                METRICS.sensor("lateness"), counting, maxTaskIdleMs);
        }

        void add(String text) {
            String[] pair = text.split("=", -1);
            TopicPartition partition = partition(pair[0]);
            List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
            for (String each : pair[1].isEmpty() ? new String[0] : pair[1].split(",")) {
                String[] stamp = each.split("@");
                records.add(new ConsumerRecord<>(partition.topic(), partition.partition(), Long.parseLong(stamp[0]),
                    Long.parseLong(stamp[1]), TimestampType.CREATE_TIME, 0, 0, new byte[0], new byte[0],
                    new RecordHeaders(), java.util.Optional.empty()));
            }
            group.addRawRecords(partition, records);
            takeDropped();
        }

        void learn(String text) {
            String[] pair = text.split("=");
            lags.put(partition(pair[0]), pair[1].equals("?") ? OptionalLong.empty() : OptionalLong.of(Long.parseLong(pair[1])));
        }

        char ask(long wallClockTime) {
            double before = enforced.measure(null, wallClockTime);
            group.updateLags();
            if (!group.readyToProcess(wallClockTime).isReady() || group.numBuffered() == 0) {
                return 'w';
            }
            return enforced.measure(null, wallClockTime) > before ? 'e' : 'r';
        }

        String next() {
            PartitionGroup.RecordInfo info = new PartitionGroup.RecordInfo();
            StampedRecord record = group.nextRecord(info, 0);
            takeDropped();
            return record == null ? null : text(info.partition()) + ":" + record.offset();
        }

        private void takeDropped() {
            for (RecordQueue queue : queues.values()) {
                if (!queue.isEmpty() && queue.headRecordTimestamp() == RecordQueue.UNKNOWN) {
                    PartitionGroup.RecordInfo info = new PartitionGroup.RecordInfo();
                    StampedRecord dropped = group.nextRecord(info, 0);
                    if (info.queue() != queue || !(dropped instanceof CorruptedRecord)) {
                        throw new IllegalStateException(String.valueOf(dropped));
                    }
                }
            }
        }
    }
}
