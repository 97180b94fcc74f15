import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata.CustomMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * A remote tier that is a directory, for versions of Kafka whose test jars, and LocalTieredStorage with them, are not
 * published. Its files are laid out and named as that one's. Segments of tests are small: they are read as a whole.
 */
public final class DirectoryStorage implements RemoteStorageManager {
    private static final String LOG = ".log";
    private static final Map<IndexType, String> INDEXES =
            Map.of(
                    IndexType.OFFSET, ".index",
                    IndexType.TIMESTAMP, ".timeindex",
                    IndexType.TRANSACTION, ".txnindex",
                    IndexType.PRODUCER_SNAPSHOT, ".snapshot",
                    IndexType.LEADER_EPOCH, ".leader_epoch_checkpoint");

    private Path root;

    @Override
    public void configure(Map<String, ?> configs) {
        root = Path.of((String) configs.get("dir"), "kafka-tiered-storage");
    }

    @Override
    public Optional<CustomMetadata> copyLogSegmentData(RemoteLogSegmentMetadata segment, LogSegmentData data)
            throws RemoteStorageException {
        try {
            Files.createDirectories(path(segment, LOG).getParent());
            Files.copy(data.offsetIndex(), path(segment, IndexType.OFFSET));
            Files.copy(data.timeIndex(), path(segment, IndexType.TIMESTAMP));
            if (data.transactionIndex().isPresent()) {
                Files.copy(data.transactionIndex().get(), path(segment, IndexType.TRANSACTION));
            }
            Files.copy(data.producerSnapshotIndex(), path(segment, IndexType.PRODUCER_SNAPSHOT));
            byte[] epochs = new byte[data.leaderEpochIndex().remaining()];
            data.leaderEpochIndex().duplicate().get(epochs);
            Files.write(path(segment, IndexType.LEADER_EPOCH), epochs);
            Files.copy(data.logSegment(), path(segment, LOG));
            return Optional.empty();
        } catch (IOException failed) {
            throw new RemoteStorageException(failed);
        }
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start) throws RemoteStorageException {
        return fetchLogSegment(segment, start, Integer.MAX_VALUE - 1);
    }

    @Override
    public InputStream fetchLogSegment(RemoteLogSegmentMetadata segment, int start, int last)
            throws RemoteStorageException {
        byte[] log = read(path(segment, LOG));
        return new ByteArrayInputStream(Arrays.copyOfRange(log, start, Math.min(log.length, last + 1)));
    }

    @Override
    public InputStream fetchIndex(RemoteLogSegmentMetadata segment, IndexType type) throws RemoteStorageException {
        return new ByteArrayInputStream(read(path(segment, type)));
    }

    @Override
    public void deleteLogSegmentData(RemoteLogSegmentMetadata segment) throws RemoteStorageException {
        try {
            Files.deleteIfExists(path(segment, LOG));
            for (IndexType type : List.copyOf(INDEXES.keySet())) {
                Files.deleteIfExists(path(segment, type));
            }
        } catch (IOException failed) {
            throw new RemoteStorageException(failed);
        }
    }

    @Override
    public void close() {}

    private static byte[] read(Path path) throws RemoteStorageException {
        if (!Files.exists(path)) {
            throw new RemoteResourceNotFoundException(path + " is not there");
        }
        try {
            return Files.readAllBytes(path);
        } catch (IOException failed) {
            throw new RemoteStorageException(failed);
        }
    }

    private Path path(RemoteLogSegmentMetadata segment, IndexType type) {
        return path(segment, INDEXES.get(type));
    }

    private Path path(RemoteLogSegmentMetadata segment, String suffix) {
        var id = segment.remoteLogSegmentId();
        var partition = id.topicIdPartition();
        String folder = "%s-%d-%s".formatted(partition.topic(), partition.partition(), partition.topicId());
        return root.resolve(folder).resolve("%020d-%s%s".formatted(segment.startOffset(), id.id(), suffix));
    }
}
