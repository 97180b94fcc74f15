"""Run notebooks/explore_archive.ipynb and keep its outputs.

    .venv/bin/python notebooks/execute.py [WAREHOUSE]      (make notebook; the default is ../warehouse)

The outputs are committed, so that the pictures show where people look at the notebook. Times of execution are not kept:
they would differ in each run. Refused are outputs that name a path of this machine or are larger than 300 KB in all.
"""

from __future__ import annotations

import os
import sys
import tempfile
from copy import deepcopy
from pathlib import Path

import matplotlib.font_manager
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOK = Path(__file__).parent / "explore_archive.ipynb"
MOST_BYTES = 300_000


def main() -> int:
    """Execute the notebook and write it back."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    metadata = deepcopy(notebook.metadata)
    warehouse = sys.argv[1] if len(sys.argv) > 1 else "../warehouse"
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, warehouse, Path(folder))
    # The kernel adds its exact version.
    notebook.metadata = metadata
    text = nbformat.writes(notebook) + "\n"
    if len(text) > MOST_BYTES or str(NOTEBOOK.parents[1]) in text:
        print(f"not written: {len(text):,} bytes, at most {MOST_BYTES:,}; or a path of this machine", file=sys.stderr)
        return 1
    NOTEBOOK.write_text(text, encoding="utf-8")
    return 0


def execute(notebook: NotebookNode, warehouse: str, own: Path) -> None:
    """Run every cell over `warehouse`; the outputs are then in `notebook`. Jupyter keeps its files below `own`."""
    # Made once for a user, with a warning where that takes long.
    matplotlib.font_manager.findfont("DejaVu Sans")
    environment = {
        **os.environ,
        "COLDLOG_WAREHOUSE": warehouse,
        "MASTER": "local[2]",
        "SPARK_DRIVER_MEMORY": "1g",
        "IPYTHONDIR": str(own / "ipython"),
        "JUPYTER_CONFIG_DIR": str(own / "config"),
    }
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=600,
        startup_timeout=300,
        record_timing=False,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    )
    client.execute(env=environment)


if __name__ == "__main__":
    sys.exit(main())
