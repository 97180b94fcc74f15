package coldlog;

import java.io.IOException;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.WeakHashMap;

import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.catalyst.expressions.ExpressionSet;
import org.apache.spark.sql.catalyst.expressions.ExpressionSet$;
import org.apache.spark.sql.catalyst.plans.logical.Command;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Subquery;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.delta.DeltaTableUtils;
import org.apache.spark.sql.delta.OptimisticTransaction;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.VersionChecksum;
import org.apache.spark.sql.delta.actions.AddFile;
import org.apache.spark.sql.delta.files.TahoeLogFileIndex;
import org.apache.spark.sql.delta.stats.DataSize;
import org.apache.spark.sql.delta.stats.DeltaDataSkippingType$;
import org.apache.spark.sql.delta.stats.DeltaScan;
import org.apache.spark.sql.delta.stats.PreparedDeltaFileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import scala.Function1;
import scala.None$;
import scala.Option;
import scala.Some;
import scala.collection.immutable.ArraySeq$;
import scala.collection.immutable.Seq;
import scala.collection.immutable.Set$;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/**
 * Which files of a small table does a query read?
 *
 * Delta runs a Spark job for each scan, to choose the files whose statistics fit the filters. A lookup has seven scans,
 * so that most of its time goes into choosing among a handful of files. This rule takes all files of a small table of
 * coldlog, and asks Delta for them once a version. Larger tables are left to Delta.
 *
 * All scans of a table in one query read the same version. Plans with subqueries, which are optimized one by one, and
 * plans within a transaction, which notes what it read, are left to Delta too.
 *
 * Janino compiles this (see environment.py): no lambdas, and raw types where javac would make bridges.
 */
public final class SmallTables extends Rule {

    /** In a bucket each file costs a request of some 30 ms, on a disk less than one. */
    private static final long MOST_FILES_ON_DISK = 64;
    private static final long MOST_FILES_IN_BUCKET = 8;
    private static final long MOST_BYTES = 8L << 20;
    private static final Map INSTALLED = Collections.synchronizedMap(new WeakHashMap());
    private static final Map WAREHOUSES = Collections.synchronizedMap(new HashMap());
    /** By snapshot: its files; null where they are many. */
    private static final Map FILES = Collections.synchronizedMap(new WeakHashMap());

    /** From now on, for the tables in this folder, in all sessions that share the extensions of this one. */
    public static void install(SparkSession session, String warehouse) throws IOException {
        Path folder = new Path(warehouse);
        WAREHOUSES.put(folder.getFileSystem(session.sessionState().newHadoopConf()).makeQualified(folder), Boolean.TRUE);
        if (INSTALLED.put(session.extensions(), Boolean.TRUE) == null) {
            session.extensions().injectOptimizerRule(new Making());
        }
    }

    public TreeNode apply(TreeNode plan) {
        if (plan instanceof Subquery || plan instanceof Command
            || plan.containsPattern(TreePattern.PLAN_EXPRESSION())
            || OptimisticTransaction.getActive().nonEmpty()) {
            return plan;
        }
        return ((LogicalPlan) plan).transform(new Choice());
    }

    /** All files of a snapshot; null where they are many, or have rows that are marked as deleted. */
    private static AddFile[] filesOf(Snapshot snapshot) {
        if (!FILES.containsKey(snapshot)) {
            FILES.put(snapshot, isSmall(snapshot) ? withoutDeletedRows((AddFile[]) snapshot.allFiles().collect()) : null);
        }
        return (AddFile[]) FILES.get(snapshot);
    }

    private static boolean isSmall(Snapshot snapshot) {
        // Not numOfFilesIfKnown, which starts a job where it is not known.
        if (snapshot.checksumOpt().isEmpty()) {
            return false;
        }
        VersionChecksum known = (VersionChecksum) snapshot.checksumOpt().get();
        boolean isOnDisk = "file".equals(snapshot.dataPath().toUri().getScheme());
        return known.numFiles() <= (isOnDisk ? MOST_FILES_ON_DISK : MOST_FILES_IN_BUCKET)
            && known.tableSizeBytes() <= MOST_BYTES;
    }

    private static AddFile[] withoutDeletedRows(AddFile[] files) {
        for (int i = 0; i < files.length; i++) {
            if (files[i].deletionVector() != null) {
                return null;
            }
        }
        return files;
    }

    private static final class Making extends AbstractFunction1 {
        public Object apply(Object session) {
            return new SmallTables();
        }
    }

    /** For one query: by the table's log, the snapshot that all its scans read. */
    private static final class Choice extends AbstractPartialFunction {
        private final Map snapshots = new HashMap();

        public boolean isDefinedAt(Object node) {
            if (!(node instanceof LogicalRelation) || !(((LogicalRelation) node).relation() instanceof HadoopFsRelation)) {
                return false;
            }
            Object index = ((HadoopFsRelation) ((LogicalRelation) node).relation()).location();
            return index instanceof TahoeLogFileIndex
                && ((TahoeLogFileIndex) index).partitionFilters().isEmpty()
                && WAREHOUSES.containsKey(((TahoeLogFileIndex) index).path().getParent());
        }

        public Object applyOrElse(Object node, Function1 otherwise) {
            return isDefinedAt(node) ? chosen((LogicalRelation) node) : otherwise.apply(node);
        }

        private Object chosen(LogicalRelation relation) {
            TahoeLogFileIndex index = (TahoeLogFileIndex) ((HadoopFsRelation) relation.relation()).location();
            Snapshot snapshot = snapshotOf(index);
            AddFile[] files = filesOf(snapshot);
            return files == null ? relation : DeltaTableUtils.replaceFileIndex(relation, new AllFilesIndex(index, snapshot, files));
        }

        private Snapshot snapshotOf(TahoeLogFileIndex index) {
            if (index.isTimeTravelQuery()) {
                return index.getSnapshot();
            }
            Object log = index.deltaLog().compositeId();
            if (!snapshots.containsKey(log)) {
                snapshots.put(log, index.getSnapshot());
            }
            return (Snapshot) snapshots.get(log);
        }
    }

    /** The files of one scan, whatever its filters. */
    private static final class AllFilesIndex extends PreparedDeltaFileIndex {
        AllFilesIndex(TahoeLogFileIndex index, Snapshot snapshot, AddFile[] files) {
            super(index.spark(), index.deltaLog(), index.path(), index.catalogTableOpt(),
                scanOf(snapshot, files), index.versionToUse());
        }

        public Seq matchingFiles(Seq partitionFilters, Seq dataFilters) {
            return preparedScan().files();
        }

        private static DeltaScan scanOf(Snapshot snapshot, AddFile[] files) {
            long bytes = 0;
            for (int i = 0; i < files.length; i++) {
                bytes += files[i].size();
            }
            Option none = None$.MODULE$;
            DataSize size = new DataSize(new Some(Long.valueOf(bytes)), none, new Some(Long.valueOf(files.length)), none);
            ExpressionSet noFilters = ExpressionSet$.MODULE$.apply();
            return new DeltaScan(snapshot.version(), (Seq) ArraySeq$.MODULE$.unsafeWrapArray(files), size, size, size,
                snapshot, noFilters, noFilters, noFilters, Set$.MODULE$.emptyInstance(), noFilters, 0L,
                DeltaDataSkippingType$.MODULE$.noSkippingV1());
        }
    }
}
