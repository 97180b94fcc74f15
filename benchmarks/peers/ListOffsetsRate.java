// How many timestamps a second does a broker look up? Kafka's own admin client, several requests in flight, each for
// some partitions of a topic at random times. Prints one line a turn: "<answers> <seconds>".
//
//   java -cp 'jars/*' ListOffsetsRate.java <bootstrap> <topic> <partitions> <first ms> <last ms> <turns> <requests a turn>
//       <partitions a request>

import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.TopicPartition;

public class ListOffsetsRate {
    private static final int IN_FLIGHT = 4;

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        int partitions = Integer.parseInt(arguments[2]);
        long first = Long.parseLong(arguments[3]);
        long span = Long.parseLong(arguments[4]) - first;
        int together = Integer.parseInt(arguments[7]);
        Random random = new Random(7);
        try (Admin admin = Admin.create(properties)) {
            for (int turn = 0; turn < Integer.parseInt(arguments[5]); turn++) {
                long started = System.nanoTime();
                long answers = 0;
                ArrayDeque<ListOffsetsResult> waiting = new ArrayDeque<>();
                for (int request = 0; request < Integer.parseInt(arguments[6]); request++) {
                    Map<TopicPartition, OffsetSpec> asked = new HashMap<>();
                    for (int number = 0; number < together; number++) {
                        int partition = (request * together + number) % partitions;
                        long timestamp = first + (long) (random.nextDouble() * span);
                        asked.put(new TopicPartition(arguments[1], partition), OffsetSpec.forTimestamp(timestamp));
                    }
                    waiting.add(admin.listOffsets(asked));
                    if (waiting.size() == IN_FLIGHT) {
                        answers += waiting.poll().all().get().size();
                    }
                }
                while (!waiting.isEmpty()) {
                    answers += waiting.poll().all().get().size();
                }
                System.out.println(answers + " " + (System.nanoTime() - started) / 1e9);
            }
        }
    }
}
