package coldlog;

import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Iterator;

import io.delta.storage.HadoopFileSystemLogStore;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * How does a commit get into a Delta table on S3 when several drivers write at once?
 *
 * A commit is one object whose name is the next version. It is put on the condition that no object has that name
 * (If-None-Match: *), so that of all writers exactly one wins and the others are told, and Delta tries the next
 * version. S3 shows an object whole or not at all, and lists what was written before, so that reading needs nothing of
 * its own. Needs hadoop-aws 3.4.2 or newer and a store that honours the condition; coldlog.tables.delta.warehouse_lease
 * refuses one that does not.
 *
 * A put whose answer was lost is sent again by S3A and then finds its own object. A commit has an id of its own
 * (commitInfo.txnId), so equal bytes are this very commit: it has won.
 *
 * Janino compiles this (see environment.py): no lambdas, and casts where javac would infer.
 */
public class ConditionalPutLogStore extends HadoopFileSystemLogStore {

    private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
    private static final int TRIES = 5;
    private static final long FIRST_PAUSE_MS = 100;

    public ConditionalPutLogStore(Configuration hadoopConf) {
        super(hadoopConf);
    }

    /**
     * Puts all of `actions`, a line each, or nothing.
     *
     * Throws java.nio.file.FileAlreadyExistsException where another writer was first, as Delta expects.
     */
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration hadoopConf)
            throws IOException {
        FileSystem fs = path.getFileSystem(hadoopConf);
        byte[] content = encode(actions);
        if (overwrite.booleanValue()) {
            FSDataOutputStream stream = fs.create(path, true);
            putAll(stream, content);
            return;
        }
        for (int attempt = 1; ; attempt++) {
            try {
                FSDataOutputStreamBuilder builder = fs.createFile(path);
                builder.overwrite(true);
                builder.opt(CONDITIONAL, true);
                putAll((FSDataOutputStream) builder.build(), content);
                return;
            } catch (IOException refused) {
                byte[] winner = find(fs, path);
                if (winner != null) {
                    if (Arrays.equals(winner, content)) {
                        return;
                    }
                    java.nio.file.FileAlreadyExistsException exists =
                        new java.nio.file.FileAlreadyExistsException(path.toString());
                    exists.initCause(refused);
                    throw exists;
                }
                // Two puts at the same moment may both be told to come again (409).
                if (attempt == TRIES || refused instanceof java.nio.file.AccessDeniedException) {
                    throw refused;
                }
            }
            pause(attempt);
        }
    }

    /** An object is there whole or not at all. */
    public Boolean isPartialWriteVisible(Path path, Configuration hadoopConf) {
        return Boolean.FALSE;
    }

    private static byte[] encode(Iterator<String> actions) throws IOException {
        ByteArrayOutputStream content = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            content.write(((String) actions.next()).getBytes(StandardCharsets.UTF_8));
            content.write('\n');
        }
        return content.toByteArray();
    }

    /** Nothing is put before the stream is closed, and a stream that broke is not closed. */
    private static void putAll(FSDataOutputStream stream, byte[] content) throws IOException {
        try {
            stream.write(content);
        } catch (IOException broken) {
            stream.abort();
            throw broken;
        }
        stream.close();
    }

    private static byte[] find(FileSystem fs, Path path) throws IOException {
        FSDataInputStream stream;
        try {
            stream = fs.open(path);
        } catch (FileNotFoundException missing) {
            return null;
        }
        try {
            ByteArrayOutputStream content = new ByteArrayOutputStream();
            byte[] buffer = new byte[65536];
            int length = stream.read(buffer);
            while (length >= 0) {
                content.write(buffer, 0, length);
                length = stream.read(buffer);
            }
            return content.toByteArray();
        } finally {
            stream.close();
        }
    }

    private static void pause(int attempt) throws IOException {
        try {
            Thread.sleep((long) (Math.random() * (FIRST_PAUSE_MS << attempt)));
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new java.io.InterruptedIOException("interrupted while waiting to commit again");
        }
    }
}
