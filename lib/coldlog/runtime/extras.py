"""Name the extra of the package that has what is missing.

`setup.cfg` says which packages an extra has; here are the modules that are imported of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from coldlog.errors import UsageError
from coldlog.runtime.installation import CHECKOUT

MODULES = {
    "records": ("numba", "cramjam", "lz4", "zstandard", "isal", "cryptography", "Crypto"),
    "s3": ("s3fs", "fsspec", "botocore", "aiohttp"),
    "spark": ("pyspark", "py4j", "delta", "pandas"),
    "validate": ("great_expectations",),
    "kafka": ("kafka",),
    "serve": ("kio", "prometheus_client"),
}
"""Top modules by extra."""


def require_extras(extras: Iterable[str]) -> None:
    """Refuse with `UsageError` if a package of these extras is missing."""
    for extra in extras:
        for module in MODULES[extra]:
            if find_spec(module) is None:
                raise UsageError(_advice(module, extra))


def missing_extra(error: BaseException) -> UsageError | None:
    """The error for a module of an extra that is not installed, None for any other error."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    module = error.name.partition(".")[0]
    return next((UsageError(_advice(module, extra)) for extra, modules in MODULES.items() if module in modules), None)


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra."""
    return f"pip install 'coldlog[{extra}]'" if CHECKOUT is None else "make setup"


def _advice(module: str, extra: str) -> str:
    return f"the Python package {module} is missing: {install_command(extra)}"
