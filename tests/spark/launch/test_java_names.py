"""Test that a session asks the JVM for each name of Java once."""

from __future__ import annotations

import pytest
from py4j.java_gateway import JavaClass, JavaPackage, JVMView
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def test_a_class_or_package_that_was_found_is_not_looked_up_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm = spark._jvm
    assert jvm is not None

    def use_names() -> None:
        spark.range(2).select(F.col("id") + F.lit(1)).where("id > 0")
        assert isinstance(jvm.org.apache.hadoop.fs.Path, JavaClass)

    use_names()
    asked: list[str] = []
    for owner in (JVMView, JavaPackage):
        look_up = owner.__getattr__

        def noting(self: object, name: str, look_up=look_up) -> object:  # type: ignore[no-untyped-def]
            asked.append(name)
            return look_up(self, name)

        monkeypatch.setattr(owner, "__getattr__", noting)
    use_names()
    assert asked == []
    # A jar that has it may be added later.
    for _ in range(2):
        assert isinstance(jvm.coldlog.NoSuchClass, JavaPackage)
    assert asked.count("NoSuchClass") == 2
