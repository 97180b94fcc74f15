package coldlog;

import java.lang.reflect.Field;
import java.util.Collections;
import java.util.Map;
import java.util.WeakHashMap;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/**
 * Which records does each scan of a Python data source read?
 *
 * Spark keeps the tasks that a source planned for pushed filters in one place for all that was made of one load():
 * of two filters of a DataFrame in one query both scans read the records of the last, and a query without a filter
 * reads those of the filter before it. This rule gives every scan of coldlog a place of its own, before filters are
 * pushed down; so each query is planned anew as well.
 *
 * Janino compiles this (see environment.py): no lambdas, and raw types where javac would make bridges.
 */
public final class SeparateScans extends Rule {

    private static final String SHORT_NAME = "coldlog";
    private static final Map INSTALLED = Collections.synchronizedMap(new WeakHashMap());

    /** From now on, in all sessions that share the extensions; again does nothing. */
    public static void install(SparkSessionExtensions extensions) {
        if (INSTALLED.put(extensions, Boolean.TRUE) == null) {
            extensions.injectOptimizerRule(new Making());
        }
    }

    public TreeNode apply(TreeNode plan) {
        return ((LogicalPlan) plan).transform(new Separation());
    }

    private static final class Making extends AbstractFunction1 {
        public Object apply(Object session) {
            return new SeparateScans();
        }
    }

    private static final class Separation extends AbstractPartialFunction {
        public boolean isDefinedAt(Object node) {
            if (!(node instanceof DataSourceV2Relation)) {
                return false;
            }
            Object table = ((DataSourceV2Relation) node).table();
            return table instanceof PythonTable
                && !(table instanceof OwnTable)
                && SHORT_NAME.equals(((PythonTable) table).name());
        }

        public Object applyOrElse(Object node, Function1 otherwise) {
            return isDefinedAt(node) ? separated((DataSourceV2Relation) node) : otherwise.apply(node);
        }

        private static Object separated(DataSourceV2Relation relation) {
            PythonTable table = (PythonTable) relation.table();
            return relation.copy(
                new OwnTable(ownSource(table), table.name(), table.schema()),
                relation.output(),
                relation.catalog(),
                relation.identifier(),
                relation.options(),
                relation.timeTravelSpec());
        }

        /** As Spark would make it, with what Python said of the options. */
        private static PythonDataSourceV2 ownSource(PythonTable table) {
            PythonDataSourceV2 own = new PythonDataSourceV2();
            own.setShortName(table.name());
            try {
                Field source = PythonTable.class.getDeclaredField("ds");
                source.setAccessible(true);
                Field created = PythonDataSourceV2.class.getDeclaredField("dataSourceInPython");
                created.setAccessible(true);
                created.set(own, created.get(source.get(table)));
            } catch (NoSuchFieldException unknown) {
                throw new IllegalStateException("this version of Spark holds Python data sources in another way", unknown);
            } catch (IllegalAccessException refused) {
                throw new IllegalStateException("Spark's Python data source cannot be read", refused);
            }
            return own;
        }
    }

    /** The table of one scan. */
    private static final class OwnTable extends PythonTable {
        OwnTable(PythonDataSourceV2 source, String shortName, StructType schema) {
            super(source, shortName, schema);
        }
    }
}
