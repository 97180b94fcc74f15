import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.TransactionIndex;

/**
 * Ask a cluster everything that its archive may be asked, and write down what it answers.
 *
 *   ClusterTruth BOOTSTRAP ARCHIVE OUT MOST    ARCHIVE is .../kafka-tiered-storage, MOST the timestamps asked per partition
 *
 *   rlmm-events.jsonl.gz          the metadata topic, decoded by Kafka's RemoteLogMetadataSerde
 *   segments.jsonl.gz             every segment ever announced; of finished ones what Kafka's classes read in its files
 *   partitions.jsonl.gz           special offsets at both isolation levels, and offsets that consumers are refused
 *   records/TOPIC-PARTITION.jsonl.gz  every record that a consumer gets; rc: at read_committed too
 *   queries.jsonl.gz              ListOffsets by timestamp at both isolation levels
 */
public final class ClusterTruth {
    private static final String METADATA_TOPIC = "__remote_log_metadata";
    private static final long READ_MS = 120_000;
    private static final Map<String, OffsetSpec> SPECIAL = new LinkedHashMap<>();

    static {
        SPECIAL.put("earliest", OffsetSpec.earliest());
        SPECIAL.put("latest", OffsetSpec.latest());
        SPECIAL.put("max_timestamp", OffsetSpec.maxTimestamp());
        SPECIAL.put("earliest_local", OffsetSpec.earliestLocal());
        SPECIAL.put("latest_tiered", OffsetSpec.latestTiered());
        SPECIAL.put("earliest_pending_upload", OffsetSpec.earliestPendingUpload());
    }

    /** A segment as it was announced, with all states in order. */
    private record Segment(RemoteLogSegmentMetadata announced, List<String> states) {
        boolean isFinished() {
            return states.get(states.size() - 1).equals("COPY_SEGMENT_FINISHED");
        }

        TopicPartition place() {
            return announced.topicIdPartition().topicPartition();
        }

        String path() {
            return String.format("%s-%s/%020d-%s", place(), announced.topicIdPartition().topicId(),
                announced.startOffset(), announced.remoteLogSegmentId().id());
        }
    }

    private final Map<String, Segment> segments = new LinkedHashMap<>();
    private final Map<TopicPartition, Set<Long>> timestamps = new HashMap<>();
    private final Map<TopicPartition, Set<Long>> refused = new HashMap<>();
    private final Random chance = new Random(20261124);
    private final String bootstrapServers;
    private final Admin admin;
    private final Path archive;
    private final Path out;

    private ClusterTruth(String bootstrapServers, Path archive, Path out) {
        this.bootstrapServers = bootstrapServers;
        this.admin = Admin.create(Map.of("bootstrap.servers", bootstrapServers, "request.timeout.ms", "60000"));
        this.archive = archive;
        this.out = out;
    }

    public static void main(String[] args) throws IOException, ExecutionException, InterruptedException {
        ClusterTruth truth = new ClusterTruth(args[0], Path.of(args[1]), Path.of(args[2]));
        Files.createDirectories(truth.out.resolve("records"));
        truth.writeEvents();
        truth.writeSegments();
        truth.writePartitions();
        truth.writeQueries(Integer.parseInt(args[3]));
        System.exit(0);
    }

    private void writeEvents() throws IOException {
        RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(IsolationLevel.READ_UNCOMMITTED);
             PrintWriter lines = JsonLines.open(out, "rlmm-events.jsonl.gz")) {
            int count = consumer.partitionsFor(METADATA_TOPIC).size();
            for (int partition = 0; partition < count; partition++) {
                for (ConsumerRecord<byte[], byte[]> each : readAll(consumer, new TopicPartition(METADATA_TOPIC, partition))) {
                    lines.println(event(each, serde.deserialize(each.value())));
                }
            }
        }
    }

    private String event(ConsumerRecord<byte[], byte[]> from, RemoteLogMetadata event) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("mp", from.partition());
        line.put("mo", from.offset());
        line.put("broker", event.brokerId());
        line.put("event_ts", event.eventTimestampMs());
        if (event instanceof RemoteLogSegmentMetadata started) {
            String id = started.remoteLogSegmentId().id().toString();
            segments.put(id, new Segment(started, new ArrayList<>(List.of(started.state().name()))));
            line.putAll(announced(started));
            line.put("state", started.state().name());
        } else if (event instanceof RemoteLogSegmentMetadataUpdate update) {
            String id = update.remoteLogSegmentId().id().toString();
            segments.get(id).states().add(update.state().name());
            line.put("segment_id", id);
            line.put("state", update.state().name());
        } else {
            throw new IllegalStateException("no broker writes such an event: " + event);
        }
        return JsonLines.json(line);
    }

    private static Map<String, Object> announced(RemoteLogSegmentMetadata segment) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("topic", segment.topicIdPartition().topic());
        line.put("topic_id", segment.topicIdPartition().topicId().toString());
        line.put("partition", segment.topicIdPartition().partition());
        line.put("segment_id", segment.remoteLogSegmentId().id().toString());
        line.put("start_offset", segment.startOffset());
        line.put("end_offset", segment.endOffset());
        line.put("max_ts", segment.maxTimestampMs());
        line.put("size", segment.segmentSizeInBytes());
        line.put("leader_epochs", segment.segmentLeaderEpochs());
        line.put("txn_idx_empty", segment.isTxnIdxEmpty());
        return line;
    }

    private void writeSegments() throws IOException {
        try (PrintWriter lines = JsonLines.open(out, "segments.jsonl.gz")) {
            for (Segment each : segments.values()) {
                Map<String, Object> line = announced(each.announced());
                line.put("path", each.path());
                line.put("states", each.states());
                line.put("state", each.states().get(each.states().size() - 1));
                if (each.isFinished()) {
                    line.putAll(filesOf(each));
                }
                lines.println(JsonLines.json(line));
            }
        }
    }

    private Map<String, Object> filesOf(Segment segment) throws IOException {
        Map<String, Object> line = new LinkedHashMap<>();
        Set<String> codecs = new TreeSet<>();
        Set<String> timestampTypes = new TreeSet<>();
        int batches = 0;
        int controlBatches = 0;
        try (FileRecords log = FileRecords.open(archive.resolve(segment.path() + ".log").toFile(), false)) {
            Set<Long> found = timestamps.computeIfAbsent(segment.place(), place -> new TreeSet<>());
            for (FileChannelRecordBatch batch : log.batches()) {
                batches++;
                controlBatches += batch.isControlBatch() ? 1 : 0;
                codecs.add(batch.compressionType().name);
                timestampTypes.add(batch.timestampType().name);
                batch.forEach(each -> found.add(each.timestamp()));
            }
        }
        line.put("batches", batches);
        line.put("control_batches", controlBatches);
        line.put("codecs", codecs);
        line.put("timestamp_types", timestampTypes);
        line.put("aborted", aborted(segment));
        return line;
    }

    private List<Map<String, Object>> aborted(Segment segment) throws IOException {
        List<Map<String, Object>> entries = new ArrayList<>();
        Path file = archive.resolve(segment.path() + ".txnindex");
        if (Files.exists(file)) {
            // Kafka's class opens the file for writing.
            Path copy = Files.createTempFile("copy", ".txnindex");
            Files.copy(file, copy, StandardCopyOption.REPLACE_EXISTING);
            try (TransactionIndex index = new TransactionIndex(segment.announced().startOffset(), copy.toFile())) {
                for (AbortedTxn each : index.allAbortedTxns()) {
                    Map<String, Object> entry = new LinkedHashMap<>();
                    entry.put("pid", each.producerId());
                    entry.put("first", each.firstOffset());
                    entry.put("last", each.lastOffset());
                    entry.put("lso", each.lastStableOffset());
                    entries.add(entry);
                }
            }
            Files.delete(copy);
        }
        return entries;
    }

    /** Every partition that has a finished segment. */
    private NavigableMap<TopicPartition, Long> archiveEnds() {
        NavigableMap<TopicPartition, Long> ends = new TreeMap<>(
            Comparator.comparing(TopicPartition::topic).thenComparing(TopicPartition::partition));
        segments.values().stream().filter(Segment::isFinished)
            .forEach(each -> ends.merge(each.place(), each.announced().endOffset(), Math::max));
        return ends;
    }

    private void writePartitions() throws IOException, ExecutionException, InterruptedException {
        NavigableMap<TopicPartition, Long> ends = archiveEnds();
        Set<String> topics = ends.keySet().stream().map(TopicPartition::topic).collect(Collectors.toCollection(TreeSet::new));
        Map<String, TopicDescription> described = admin.describeTopics(topics).allTopicNames().get();
        try (KafkaConsumer<byte[], byte[]> all = consumer(IsolationLevel.READ_UNCOMMITTED);
             KafkaConsumer<byte[], byte[]> committed = consumer(IsolationLevel.READ_COMMITTED);
             PrintWriter lines = JsonLines.open(out, "partitions.jsonl.gz")) {
            for (TopicPartition place : ends.keySet()) {
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("topic", place.topic());
                line.put("partition", place.partition());
                line.put("topic_id", described.get(place.topic()).topicId().toString());
                line.put("leader", described.get(place.topic()).partitions().get(place.partition()).leader().id());
                line.put("archive_end", ends.get(place));
                for (IsolationLevel level : IsolationLevel.values()) {
                    for (Map.Entry<String, OffsetSpec> each : SPECIAL.entrySet()) {
                        String suffix = level == IsolationLevel.READ_COMMITTED ? "_rc" : "_ru";
                        line.put(each.getKey() + suffix, ask(place, each.getValue(), level));
                    }
                }
                writeRecords(place, readAll(all, place), readAll(committed, place), ends.get(place));
                line.put("refused", refused.getOrDefault(place, Set.of()));
                lines.println(JsonLines.json(line));
            }
        }
    }

    private void writeRecords(TopicPartition place, List<ConsumerRecord<byte[], byte[]>> all,
            List<ConsumerRecord<byte[], byte[]>> committed, long archiveEnd) throws IOException {
        Set<Long> offsets = new HashSet<>();
        committed.forEach(each -> offsets.add(each.offset()));
        try (PrintWriter lines = JsonLines.open(out, "records/" + place + ".jsonl.gz")) {
            for (ConsumerRecord<byte[], byte[]> each : all) {
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("o", each.offset());
                line.put("ts", each.timestamp());
                line.put("tt", each.timestampType().name);
                line.put("le", each.leaderEpoch().orElse(null));
                line.put("k", JsonLines.base64(each.key()));
                line.put("v", JsonLines.lengthAndChecksum(each.value()));
                List<List<String>> headers = new ArrayList<>();
                for (Header header : each.headers()) {
                    headers.add(Arrays.asList(header.key(), JsonLines.base64(header.value())));
                }
                if (!headers.isEmpty()) {
                    line.put("h", headers);
                }
                line.put("rc", offsets.contains(each.offset()));
                line.put("arch", each.offset() <= archiveEnd);
                lines.println(JsonLines.json(line));
            }
        }
    }

    private void writeQueries(int most) throws IOException, InterruptedException {
        NavigableMap<TopicPartition, Long> ends = archiveEnds();
        try (PrintWriter lines = JsonLines.open(out, "queries.jsonl.gz")) {
            for (TopicPartition place : ends.keySet()) {
                for (long timestamp : asked(place, most)) {
                    Map<String, Object> line = new LinkedHashMap<>();
                    Map<String, Object> found = ask(place, OffsetSpec.forTimestamp(timestamp), IsolationLevel.READ_UNCOMMITTED);
                    line.put("topic", place.topic());
                    line.put("partition", place.partition());
                    line.put("ts", timestamp);
                    line.put("ru", found);
                    line.put("rc", ask(place, OffsetSpec.forTimestamp(timestamp), IsolationLevel.READ_COMMITTED));
                    line.put("archive", found != null && (long) found.get("offset") <= ends.get(place));
                    lines.println(JsonLines.json(line));
                }
            }
        }
    }

    /** Timestamps of archived records and those beside them, and some that are earlier or later than all. */
    private Set<Long> asked(TopicPartition place, int most) {
        List<Long> known = new ArrayList<>(timestamps.get(place));
        Collections.shuffle(known, chance);
        Set<Long> asked = new TreeSet<>(List.of(0L, Long.MAX_VALUE));
        segments.values().stream().filter(each -> each.isFinished() && each.place().equals(place))
            .forEach(each -> asked.addAll(List.of(each.announced().maxTimestampMs(), each.announced().maxTimestampMs() + 1)));
        for (long each : known) {
            if (asked.size() < most) {
                asked.addAll(List.of(each - 1, each, each + 1));
            }
        }
        return asked;
    }

    /** Null where nothing is found, or where the broker does not know the question. */
    private Map<String, Object> ask(TopicPartition place, OffsetSpec spec, IsolationLevel level) throws InterruptedException {
        ListOffsetsResult result = admin.listOffsets(Map.of(place, spec), new ListOffsetsOptions(level));
        try {
            ListOffsetsResultInfo info = result.partitionResult(place).get();
            if (info.offset() < 0) {
                return null;
            }
            Map<String, Object> found = new LinkedHashMap<>();
            found.put("offset", info.offset());
            found.put("ts", info.timestamp());
            found.put("epoch", info.leaderEpoch().orElse(null));
            return found;
        } catch (ExecutionException refused) {
            if (refused.getCause() instanceof UnsupportedVersionException) {
                return null;
            }
            throw new IllegalStateException(place + " " + spec, refused);
        }
    }

    private KafkaConsumer<byte[], byte[]> consumer(IsolationLevel level) {
        return new KafkaConsumer<>(Map.of(
            "bootstrap.servers", bootstrapServers,
            "key.deserializer", ByteArrayDeserializer.class.getName(),
            "value.deserializer", ByteArrayDeserializer.class.getName(),
            "isolation.level", level.toString(),
            "auto.offset.reset", "none",
            "fetch.max.wait.ms", "200",
            "enable.auto.commit", "false",
            "exclude.internal.topics", "false"));
    }

    /** Every record; offsets that the cluster refuses to read, though they are in its log, are noted and skipped. */
    private List<ConsumerRecord<byte[], byte[]>> readAll(KafkaConsumer<byte[], byte[]> consumer, TopicPartition place) {
        consumer.assign(List.of(place));
        consumer.seekToBeginning(List.of(place));
        long end = consumer.endOffsets(List.of(place)).get(place);
        long until = System.currentTimeMillis() + READ_MS;
        List<ConsumerRecord<byte[], byte[]>> read = new ArrayList<>();
        while (consumer.position(place) < end) {
            try {
                read.addAll(consumer.poll(Duration.ofMillis(300)).records(place));
            } catch (OffsetOutOfRangeException refusal) {
                long offset = refusal.offsetOutOfRangePartitions().get(place);
                refused.computeIfAbsent(place, each -> new TreeSet<>()).add(offset);
                consumer.seek(place, offset + 1);
            }
            if (System.currentTimeMillis() > until) {
                throw new IllegalStateException(place + " is read to " + consumer.position(place) + " of " + end);
            }
        }
        return read;
    }
}
