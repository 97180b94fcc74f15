"""Keep PyArrow from importing pandas in this process.

PyArrow imports pandas where it makes its first array, to see whether values are those of pandas. That takes as long as
all else that a question does. It looks once: if pandas cannot be imported then, PyArrow goes on without. Other imports
of pandas are not affected.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(f"no module named {fullname!r}", name=fullname)


def keep_pandas_out() -> None:
    """Let PyArrow find no pandas."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
