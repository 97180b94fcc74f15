"""Look each name of Java up once.

pyspark asks the JVM for `PythonUtils`, `functions` or `org.apache.spark...` each time that it uses them. For the name
of a package, and for a name without a package, the JVM searches all jars of the class path. These are some hundreds. In
a run over a small archive this took an eighth of the JVM's processor time. `keep_names` makes py4j's views and packages
keep what they found.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaPackage, JVMView


class _KeepingView(JVMView):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


class _KeepingPackage(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


def keep_names(jvm: Any) -> None:
    """Let a view of a JVM, `SparkContext._jvm`, keep the classes and packages that it found."""
    if type(jvm) is JVMView:
        jvm.__class__ = _KeepingView


def _kept(owner: JVMView | JavaPackage, name: str, found: Any) -> Any:
    # A class that is missing looks like a package; a jar that is added later may have it.
    if type(found) is JavaPackage and name[:1].islower():
        found.__class__ = _KeepingPackage
        owner.__dict__[name] = found
    elif type(found) is JavaClass:
        owner.__dict__[name] = found
    return found
