"""Stand for a Spark session that has not been started, and start it when a query needs it.

Most runs find few new segments, and do their work in this process. Spark's JVM takes seconds to start, so they go
without. `LateSession` has the options with which the session would start; anything else that is asked of it starts it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LateSession:
    """A Spark session of the `options`, which `start` starts."""

    def __init__(self, options: Mapping[str, str], start: Callable[[], SparkSession]) -> None:
        self._conf = _LateConf(options)
        self._start = start
        self._started: SparkSession | None = None
        self._lock = RLock()

    @property
    def conf(self) -> Any:
        """The options of the session."""
        return self._conf if self._started is None else self._started.conf

    def started(self) -> SparkSession:
        """Start Spark, unless it was started before."""
        with self._lock:
            if self._started is None:
                session = self._start()
                for key, value in self._conf.changed.items():
                    session.conf.set(key, value)
                self._started = session
            return self._started

    def started_before(self) -> SparkSession | None:
        """The session, if it was started."""
        return self._started

    def as_session(self) -> SparkSession:
        """Itself, where a session is wanted."""
        return cast("SparkSession", self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by copy and pickle
            raise AttributeError(name)
        return getattr(self.started(), name)


class _LateConf:
    """As pyspark's RuntimeConfig. `changed` are the options that were set since."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self.changed: dict[str, str] = {}

    def get(self, key: str, default: str | None = None) -> str | None:
        return self.getAll.get(key, default)

    @property
    def getAll(self) -> dict[str, str]:  # noqa: N802 - pyspark's name
        return self._options | self.changed

    def set(self, key: str, value: str) -> None:
        self.changed[key] = value

    def unset(self, key: str) -> None:
        self.changed.pop(key, None)


def is_late(spark: object) -> bool:
    """Whether the session has not been started."""
    return isinstance(spark, LateSession) and spark.started_before() is None
