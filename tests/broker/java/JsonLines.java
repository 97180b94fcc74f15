import java.io.IOException;
import java.io.OutputStream;
import java.io.OutputStreamWriter;
import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.zip.CRC32;
import java.util.zip.GZIPOutputStream;

/** Write compressed JSON lines: maps, lists, texts that need no escapes, numbers and nulls. */
final class JsonLines {
    private JsonLines() {
    }

    /** A file below the directory. */
    static PrintWriter open(Path directory, String name) throws IOException {
        OutputStream packed = new GZIPOutputStream(Files.newOutputStream(directory.resolve(name)));
        return new PrintWriter(new OutputStreamWriter(packed, StandardCharsets.UTF_8));
    }

    static String base64(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    static Map<String, Object> lengthAndChecksum(byte[] bytes) {
        if (bytes == null) {
            return null;
        }
        CRC32 checksum = new CRC32();
        checksum.update(bytes);
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("len", bytes.length);
        found.put("crc32", checksum.getValue());
        return found;
    }

    static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(each -> json(each.getKey().toString()) + ":" + json(each.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Iterable<?> values) {
            List<String> parts = new ArrayList<>();
            values.forEach(each -> parts.add(json(each)));
            return "[" + String.join(",", parts) + "]";
        }
        // Names, identifiers and base64 need no escapes.
        return value instanceof String text ? "\"" + text + "\"" : String.valueOf(value);
    }
}
