"""dag_facts: what does Airflow understand of a folder of DAG files?

Runs in Airflow's Python; its last line is one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from airflow.dag_processing.dagbag import BundleDagBag

folder = Path(sys.argv[1])
bag = BundleDagBag(folder, bundle_path=folder)
dags = {
    dag_id: {
        "schedule": str(dag.schedule),
        "catchup": dag.catchup,
        "max_active_runs": dag.max_active_runs,
        "tags": sorted(dag.tags),
        "doc": dag.doc_md,
        "params": sorted(dag.params),
        "tasks": [
            {
                "id": task.task_id,
                "class": type(task).__mro__[1].__name__,
                "job": task.job,
                "conn_id": task._conn_id,
                "pool": task.pool,
                "retries": task.retries,
                "retry_delay_s": task.retry_delay.total_seconds(),
                "backoff": task.retry_exponential_backoff,
                "max_retry_delay_s": task.max_retry_delay.total_seconds(),
                "timeout_s": task.execution_timeout.total_seconds(),
                "outlets": {outlet.name: outlet.uri for outlet in task.outlets},
            }
            for task in dag.topological_sort()
        ],
        "edges": sorted([task.task_id, below] for task in dag.tasks for below in task.downstream_task_ids),
    }
    for dag_id, dag in bag.dags.items()
}
print()
print(json.dumps({"import_errors": bag.import_errors, "warnings": list(map(str, bag.dag_warnings)), "dags": dags}))
