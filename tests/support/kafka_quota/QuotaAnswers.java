import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.function.Supplier;

import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.log.remote.quota.RLMQuotaManager;
import org.apache.kafka.server.log.remote.quota.RLMQuotaManagerConfig;
import org.apache.kafka.server.quota.QuotaType;

/**
 * What does Kafka's own RLMQuotaManager answer while bytes are read and time passes?
 *
 *   QuotaAnswers SEEDS
 *
 * Every seed is a line of JSON: {"quota": bytes a second, "samples": n, "seconds": of a sample, "steps": [...]}. A step
 * is [ms that pass, bytes that are recorded], or [ms that pass, null, throttle time, rate] for a question.
 */
public final class QuotaAnswers {
    private static final int[] PAUSES = {0, 0, 1, 499, 500, 999, 1000, 1001, 1999, 2000, 2001};

    public static void main(String[] args) {
        for (int seed = 0; seed < Integer.parseInt(args[0]); seed++) {
            System.out.println(play(new Random(seed)));
        }
    }

    private static String play(Random random) {
        Clock clock = new Clock();
        int samples = random.nextInt(3) == 0 ? 11 : 1 + random.nextInt(5);
        int seconds = random.nextInt(3) == 0 ? 2 : 1;
        long quota = 1 + random.nextInt(random.nextBoolean() ? 50 : 20_000);
        Metrics metrics = new Metrics(new MetricConfig(), List.of(), clock);
        RLMQuotaManager manager = new RLMQuotaManager(
            new RLMQuotaManagerConfig(quota, samples, seconds), metrics, QuotaType.RLM_FETCH, "reads", clock);
        int windowMs = samples * seconds * 1000;
        int[] edges = {windowMs - 1, windowMs, windowMs + 1};
        boolean asksOften = random.nextBoolean();
        List<String> steps = new ArrayList<>();
        for (int step = 0; step < 40; step++) {
            int pauseMs = switch (random.nextInt(10)) {
                case 0 -> edges[random.nextInt(edges.length)];
                case 1 -> random.nextInt(windowMs + 2000);
                case 2, 3, 4 -> random.nextInt(400);
                default -> PAUSES[random.nextInt(PAUSES.length)];
            };
            clock.nowMs += pauseMs;
            if (random.nextInt(asksOften ? 2 : 5) == 0) {
                steps.add("[" + pauseMs + ", null, " + manager.getThrottleTimeMs() + ", " + rate(metrics) + "]");
            } else {
                int bytes = random.nextInt((int) (quota * (1 + random.nextInt(3))) + 1);
                manager.record(bytes);
                steps.add("[" + pauseMs + ", " + bytes + "]");
            }
        }
        metrics.close();
        return "{\"quota\": " + quota + ", \"samples\": " + samples + ", \"seconds\": " + seconds + ", \"steps\": ["
            + String.join(", ", steps) + "]}";
    }

    private static double rate(Metrics metrics) {
        for (KafkaMetric metric : metrics.metrics().values()) {
            if (metric.isMeasurable() && metric.measurable() instanceof Rate) {
                return (double) metric.metricValue();
            }
        }
        throw new IllegalStateException("there is no rate");
    }

    private static final class Clock implements Time {
        private long nowMs = 1_700_000_000_000L;

        @Override
        public long milliseconds() {
            return nowMs;
        }

        @Override
        public long nanoseconds() {
            return nowMs * 1_000_000;
        }

        @Override
        public void sleep(long ms) {
            nowMs += ms;
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException();
        }
    }
}
