import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Collectors;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.server.common.serialization.BytesApiMessageSerde;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogSegmentMetadataSnapshot;
import org.apache.kafka.server.log.remote.metadata.storage.generated.MetadataRecordType;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteMetadata;
import org.apache.kafka.server.log.remote.storage.RemotePartitionDeleteState;

/**
 * What do Kafka's own classes read from, and write to, the remote log metadata topic?
 *
 * Every line of the input is answered by one line. Fields are separated by tabs; topics and bytes are hexadecimal, null
 * bytes are "null", states are ids, leader epochs are "epoch:offset" joined by commas.
 *
 *   write  EVENT   the value that Kafka writes
 *   read   VALUE   the event that Kafka reads, or "refused" and why
 *   again  VALUE   the value that Kafka's message of it writes, tagged fields that it does not know included
 *
 *   segment   topic, topic id, partition, segment id, FIELDS
 *   snapshot  segment id, FIELDS
 *   update    topic, topic id, partition, segment id, broker, event timestamp, custom metadata, state
 *   delete    topic, topic id, partition, broker, event timestamp, state
 *   FIELDS    start, end, broker, max timestamp, event timestamp, leader epochs, size, custom metadata, state, txn index empty
 */
public final class MetadataEvents {
    private static final HexFormat HEX = HexFormat.of();
    private static final RemoteLogMetadataSerde SERDE = new RemoteLogMetadataSerde();
    private static final BytesApiMessageSerde MESSAGES = new BytesApiMessageSerde() {
        @Override
        public ApiMessage apiMessageFor(short apiKey) {
            return MetadataRecordType.fromId(apiKey).newMetadataRecord();
        }
    };

    public static void main(String[] args) throws IOException {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.US_ASCII);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Fields fields = new Fields(line);
            String asked = fields.next();
            answers.println(switch (asked) {
                case "write" -> HEX.formatHex(SERDE.serialize(event(fields)));
                case "read" -> read(HEX.parseHex(fields.next()));
                case "again" -> HEX.formatHex(MESSAGES.serialize(MESSAGES.deserialize(HEX.parseHex(fields.next()))));
                default -> throw new IllegalArgumentException(asked);
            });
        }
        answers.flush();
    }

    private static String read(byte[] value) {
        RemoteLogMetadata event;
        try {
            event = SERDE.deserialize(value);
        } catch (RuntimeException refusal) {
            return "refused\t" + refusal.getClass().getSimpleName();
        }
        return line(event);
    }

    private static RemoteLogMetadata event(Fields fields) {
        String kind = fields.next();
        switch (kind) {
            case "segment": {
                RemoteLogSegmentId id = fields.segmentId();
                long start = fields.int64(), end = fields.int64();
                int broker = fields.int32();
                long maxTimestamp = fields.int64(), eventTimestamp = fields.int64();
                Map<Integer, Long> epochs = fields.epochs();
                int size = fields.int32();
                return new RemoteLogSegmentMetadata(id, start, end, maxTimestamp, broker, eventTimestamp, size,
                    fields.customMetadata(), fields.segmentState(), epochs, fields.isTrue());
            }
            case "snapshot": {
                Uuid id = fields.uuid();
                long start = fields.int64(), end = fields.int64();
                int broker = fields.int32();
                long maxTimestamp = fields.int64(), eventTimestamp = fields.int64();
                Map<Integer, Long> epochs = fields.epochs();
                int size = fields.int32();
                return new RemoteLogSegmentMetadataSnapshot(id, start, end, maxTimestamp, broker, eventTimestamp, size,
                    fields.customMetadata(), fields.segmentState(), epochs, fields.isTrue());
            }
            case "update": {
                RemoteLogSegmentId id = fields.segmentId();
                int broker = fields.int32();
                return new RemoteLogSegmentMetadataUpdate(id, fields.int64(), fields.customMetadata(),
                    fields.segmentState(), broker);
            }
            case "delete": {
                TopicIdPartition partition = fields.partition();
                int broker = fields.int32();
                long eventTimestamp = fields.int64();
                RemotePartitionDeleteState state = RemotePartitionDeleteState.forId((byte) fields.int32());
                return new RemotePartitionDeleteMetadata(partition, state, eventTimestamp, broker);
            }
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    private static String line(RemoteLogMetadata event) {
        if (event instanceof RemoteLogSegmentMetadata each) {
            return joined("segment", text(each.remoteLogSegmentId()), each.startOffset(), each.endOffset(), each.brokerId(),
                each.maxTimestampMs(), each.eventTimestampMs(), text(each.segmentLeaderEpochs()),
                each.segmentSizeInBytes(), text(each.customMetadata()), each.state().id(), each.isTxnIdxEmpty());
        }
        if (event instanceof RemoteLogSegmentMetadataSnapshot each) {
            return joined("snapshot", each.segmentId(), each.startOffset(), each.endOffset(), each.brokerId(),
                each.maxTimestampMs(), each.eventTimestampMs(), text(each.segmentLeaderEpochs()),
                each.segmentSizeInBytes(), text(each.customMetadata()), each.state().id(), each.isTxnIdxEmpty());
        }
        if (event instanceof RemoteLogSegmentMetadataUpdate each) {
            return joined("update", text(each.remoteLogSegmentId()), each.brokerId(), each.eventTimestampMs(),
                text(each.customMetadata()), each.state().id());
        }
        RemotePartitionDeleteMetadata each = (RemotePartitionDeleteMetadata) event;
        return joined("delete", text(each.topicIdPartition()), each.brokerId(), each.eventTimestampMs(), each.state().id());
    }

    private static String joined(Object... fields) {
        return java.util.Arrays.stream(fields).map(String::valueOf).collect(Collectors.joining("\t"));
    }

    private static String text(RemoteLogSegmentId id) {
        return joined(text(id.topicIdPartition()), id.id());
    }

    private static String text(TopicIdPartition partition) {
        String topic = HEX.formatHex(partition.topic().getBytes(StandardCharsets.UTF_8));
        return joined(topic, partition.topicId(), partition.partition());
    }

    private static String text(Map<Integer, Long> epochs) {
        return new TreeMap<>(epochs).entrySet().stream()
            .map(entry -> entry.getKey() + ":" + entry.getValue())
            .collect(Collectors.joining(","));
    }

    private static String text(Optional<CustomMetadata> customMetadata) {
        return customMetadata.map(each -> HEX.formatHex(each.value())).orElse("null");
    }

    /** The fields of a line, one after another. */
    private static final class Fields {
        private final String[] fields;
        private int count = 0;

        Fields(String line) {
            fields = line.split("\t", -1);
        }

        String next() {
            return fields[count++];
        }

        int int32() {
            return Integer.parseInt(next());
        }

        long int64() {
            return Long.parseLong(next());
        }

        boolean isTrue() {
            return Boolean.parseBoolean(next());
        }

        Uuid uuid() {
            return Uuid.fromString(next());
        }

        TopicIdPartition partition() {
            String topic = new String(HEX.parseHex(next()), StandardCharsets.UTF_8);
            Uuid topicId = uuid();
            return new TopicIdPartition(topicId, int32(), topic);
        }

        RemoteLogSegmentId segmentId() {
            TopicIdPartition partition = partition();
            return new RemoteLogSegmentId(partition, uuid());
        }

        Map<Integer, Long> epochs() {
            Map<Integer, Long> epochs = new TreeMap<>();
            for (String each : next().split(",")) {
                String[] pair = each.split(":");
                epochs.put(Integer.parseInt(pair[0]), Long.parseLong(pair[1]));
            }
            return epochs;
        }

        Optional<CustomMetadata> customMetadata() {
            String text = next();
            return text.equals("null") ? Optional.empty() : Optional.of(new CustomMetadata(HEX.parseHex(text)));
        }

        RemoteLogSegmentState segmentState() {
            return RemoteLogSegmentState.forId((byte) int32());
        }
    }
}
