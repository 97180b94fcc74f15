package coldlog;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.nio.file.CopyOption;
import java.util.Iterator;
import java.util.UUID;
import java.util.zip.CRC32;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.delta.storage.HadoopFileSystemLogStore;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;

/**
 * How does a commit get into a Delta table in a folder, so that a loss of power leaves all of it or nothing?
 *
 * The data files that the commit adds are synchronized to the disk, then the complete commit under another name. Then
 * the commit is linked to the name of its version, which fails if that name exists, so that of all writers exactly one
 * wins. Then the folder is synchronized. Delta's own store renames, after it has looked whether the name exists, and
 * synchronizes nothing. Hadoop's checksums are written after the commit, as coldlog.tables.delta.log_files does it; those
 * that a lost commit of the same name left behind are removed before.
 *
 * Janino compiles this (see environment.py): no lambdas, and casts where javac would infer.
 */
public class SynchronizedLogStore extends HadoopFileSystemLogStore {

    private static final int CHUNK_BYTES = 512;
    private static final ObjectMapper JSON = new ObjectMapper();

    public SynchronizedLogStore(Configuration hadoopConf) {
        super(hadoopConf);
    }

    /**
     * Writes all of `actions`, a line each, or nothing.
     *
     * Throws java.nio.file.FileAlreadyExistsException where another writer was first, as Delta expects.
     */
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
            throws IOException {
        java.nio.file.Path target = Paths.get(path.toUri().getPath(), new String[0]);
        java.nio.file.Path folder = target.getParent();
        Files.createDirectories(folder, new java.nio.file.attribute.FileAttribute[0]);
        ByteArrayOutputStream content = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            String line = (String) actions.next();
            if (line.startsWith("{\"add\"")) {
                synchronizeAdded(folder.getParent(), line);
            }
            content.write(line.getBytes(StandardCharsets.UTF_8));
            content.write('\n');
        }
        synchronize(folder.getParent());
        java.nio.file.Path complete = write(target, content.toByteArray());
        java.nio.file.Path checksums = folder.resolve("." + target.getFileName() + ".crc");
        try {
            if (overwrite.booleanValue()) {
                Files.deleteIfExists(checksums);
                move(complete, target);
            } else {
                if (!Files.exists(target, new LinkOption[0])) {
                    Files.deleteIfExists(checksums);
                }
                link(complete, target);
            }
        } finally {
            Files.deleteIfExists(complete);
        }
        synchronize(folder);
        try {
            move(write(checksums, checksumsOf(content.toByteArray())), checksums);
        } catch (IOException useless) {
            // The commit is made, and can be read without checksums.
            Files.deleteIfExists(checksums);
        }
    }

    /** Checkpoints are files that others see while they are written, so Delta writes them under another name. */
    public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
        return Boolean.TRUE;
    }

    private static void link(java.nio.file.Path complete, java.nio.file.Path target) throws IOException {
        try {
            Files.createLink(target, complete);
        } catch (FileAlreadyExistsException exists) {
            throw exists;
        } catch (UnsupportedOperationException noLinks) {
            moveIfAbsent(complete, target);
        } catch (FileSystemException noLinks) {
            moveIfAbsent(complete, target);
        }
    }

    /** For file systems without links. */
    private static void moveIfAbsent(java.nio.file.Path complete, java.nio.file.Path target) throws IOException {
        if (Files.exists(target, new LinkOption[0])) {
            throw new FileAlreadyExistsException(target.toString());
        }
        move(complete, target);
    }

    private static void move(java.nio.file.Path from, java.nio.file.Path to) throws IOException {
        Files.move(from, to, new CopyOption[] {StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING});
    }

    private static java.nio.file.Path write(java.nio.file.Path target, byte[] content) throws IOException {
        java.nio.file.Path complete =
            target.getParent().resolve("." + target.getFileName() + "." + UUID.randomUUID() + ".tmp");
        FileChannel channel = FileChannel.open(
            complete, new OpenOption[] {StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE});
        try {
            ByteBuffer left = ByteBuffer.wrap(content);
            while (left.hasRemaining()) {
                channel.write(left);
            }
            channel.force(true);
        } catch (IOException failed) {
            Files.deleteIfExists(complete);
            throw failed;
        } finally {
            channel.close();
        }
        return complete;
    }

    private static void synchronizeAdded(java.nio.file.Path table, String line) throws IOException {
        JsonNode added = JSON.readTree(line).get("add");
        String path = new Path(java.net.URI.create(added.get("path").asText())).toUri().getPath();
        java.nio.file.Path file = table.resolve(path);
        synchronizeIfThere(file);
        synchronizeIfThere(file.resolveSibling("." + file.getFileName() + ".crc"));
    }

    /** A file that is missing is for readers to refuse; not every file has checksums. */
    private static void synchronizeIfThere(java.nio.file.Path file) throws IOException {
        try {
            synchronize(file);
        } catch (NoSuchFileException missing) {
            return;
        }
    }

    /** Of a folder, these are its names. */
    private static void synchronize(java.nio.file.Path path) throws IOException {
        FileChannel channel = FileChannel.open(path, new OpenOption[] {StandardOpenOption.READ});
        try {
            channel.force(true);
        } finally {
            channel.close();
        }
    }

    /** Hadoop's: "crc" and 0, the size of a chunk, and the CRC-32 of each chunk. */
    private static byte[] checksumsOf(byte[] content) {
        int count = (content.length + CHUNK_BYTES - 1) / CHUNK_BYTES;
        ByteBuffer checksums = ByteBuffer.allocate(8 + 4 * count);
        checksums.put(new byte[] {'c', 'r', 'c', 0});
        checksums.putInt(CHUNK_BYTES);
        for (int at = 0; at < content.length; at += CHUNK_BYTES) {
            CRC32 checksum = new CRC32();
            checksum.update(content, at, Math.min(CHUNK_BYTES, content.length - at));
            checksums.putInt((int) checksum.getValue());
        }
        return checksums.array();
    }
}
