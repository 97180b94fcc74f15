"""Install the packages and jars that this checkout needs, if they are missing.

    python3.11 environment.py runtime        packages and jars for jobs
    python3.11 environment.py development    also for tests, lint and types
    python3.11 environment.py documents      also what builds the site of docs/
    python3.11 environment.py airflow        also an Airflow, for the tests of the DAGs
    python3.11 environment.py cluster        also an S3 server that checks signatures, for the cluster tests (needs Go)
    python3.11 environment.py spark-4.1      also packages and jars with another Spark, in build/spark-4.1

`.venv` holds the packages of setup.cfg at the versions of constraints.txt. `.jars` holds the jars of conf/jars/pom.xml
and one jar with the classes of lib/java, which the compiler inside Spark makes (no JDK needed). Each has a stamp with
the hash of its inputs. If the stamp matches, nothing is installed and no network is needed. One process installs at a
time, the others wait. After a killed installation, a mark makes the next start create `.venv` again; jars appear all at
once or not at all. This file runs first, so it uses only the standard library.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent
VENV = REPOSITORY / ".venv"
PYTHON = VENV / "bin" / "python"
JARS = REPOSITORY / ".jars"
POM = REPOSITORY / "conf" / "jars" / "pom.xml"
AIRFLOW = REPOSITORY / ".venv-airflow"
AIRFLOW_REQUIREMENTS = REPOSITORY / "conf" / "airflow" / "requirements.txt"
AIRFLOW_CONSTRAINTS = REPOSITORY / "conf" / "airflow" / "constraints.txt"
JAVA_SOURCES = REPOSITORY / "lib" / "java"
TOOLS = REPOSITORY / ".tools"
VERSITYGW = TOOLS / "versitygw"
VERSITYGW_MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
OWN_JAR = "coldlog-log-store.jar"
CONSTRAINTS = REPOSITORY / "constraints.txt"
INSTALLING = VENV / "coldlog-installing"

EXTRAS = {
    "runtime": "[records,s3,spark,validate]",
    "development": "[all,test,lint]",
    "documents": "[records,s3,spark,validate,docs]",
}
PACKAGES = {
    "runtime": "runtime",
    "development": "development",
    "documents": "documents",
    "airflow": "runtime",
    "cluster": "development",
}
"""Which of `EXTRAS` a kind of environment needs."""
OTHER_SPARKS = {"4.0": "4.0.5", "4.1": "4.1.4"}
"""The versions that are tested beside that of constraints.txt, by series (`coldlog.runtime.spark.spark_versions`)."""
PACKAGES |= {f"spark-{series}": "development" for series in OTHER_SPARKS}
MINIMUM_PYTHON = (3, 11)
MINIMUM_JAVA = 17


class SetupError(Exception):
    """The installation failed; the message says what to do."""


def main(argv: list[str]) -> int:
    """Install what `argv[0]` needs, a key of `PACKAGES`; return an exit code."""
    if len(argv) != 1 or argv[0] not in PACKAGES:
        print(f"usage: environment.py {' | '.join(PACKAGES)}", file=sys.stderr)
        return 2
    try:
        check_python()
        check_java()
        install_missing(argv[0])
    except SetupError as error:
        print(f"coldlog: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def install_missing(kind: str) -> None:
    """Install missing packages and jars; for some kinds also Airflow or an S3 server."""
    packages = PACKAGES[kind]
    if has_packages(packages) and has_jars() and has_extra_program(kind):
        return
    with only_one_process() as lock:
        if not has_packages(packages):
            install_packages(packages, lock)
        if not has_jars():
            resolve_jars(lock)
        if not has_extra_program(kind):
            _EXTRA_PROGRAMS[kind][1](lock)


def check_python() -> None:
    """Refuse a Python that is too old."""
    if sys.version_info < MINIMUM_PYTHON:
        raise SetupError(f"Python 3.11 or newer is needed, but this is {sys.version.split()[0]}")


def check_java() -> None:
    """Refuse a Java that is missing or too old."""
    java = find_java()
    version = java_version(Path(java).resolve())
    if version < MINIMUM_JAVA:
        raise SetupError(f"Java {MINIMUM_JAVA} or newer is needed, but {java} is {version}; set JAVA_HOME")


def find_java() -> str:
    """Find the program `java` that Spark will start."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        raise SetupError(f"Java {MINIMUM_JAVA} or newer is needed, but was not found; set JAVA_HOME or PATH")
    return java


def java_version(java: Path) -> int:
    """Return the major version: from the file `release` of the installation, else from `java -version`."""
    release = java.parent.parent / "release"
    if release.is_file():
        text = release.read_text(encoding="utf-8", errors="replace")
        found = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', text)
    else:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=False)
        found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(found[1]) if found else 0


@contextmanager
def only_one_process() -> Iterator[int]:
    """Hold the installation's lock; yield its descriptor, which child processes inherit so that they hold it too."""
    with (REPOSITORY / ".setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that is installing")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def has_packages(kind: str) -> bool:
    """Whether `.venv` is complete and was made for this checkout at this path."""
    return not INSTALLING.exists() and PYTHON.exists() and read_stamp(packages_stamp(kind)) == packages_hash()


def has_jars() -> bool:
    """Whether `.jars` holds the jars of the pom."""
    return read_stamp(JARS / "stamp") == jars_hash()


def has_extra_program(kind: str) -> bool:
    """Whether the program that this kind needs beside packages and jars is installed."""
    return kind not in _EXTRA_PROGRAMS or _EXTRA_PROGRAMS[kind][0]()


def has_airflow() -> bool:
    """Whether `.venv-airflow` holds the packages of conf/airflow and was made for this path."""
    return read_stamp(AIRFLOW / "coldlog-stamp") == airflow_hash()


def other_spark(series: str) -> Path:
    """Where the packages and jars with another Spark are; coldlog finds the jars there."""
    return REPOSITORY / "build" / f"spark-{series}"


def has_other_spark(series: str) -> bool:
    """Whether packages and jars with this Spark are installed, and were made for this path."""
    return read_stamp(other_spark(series) / "stamp") == other_spark_hash(series)


def has_versitygw() -> bool:
    """Whether `.tools` holds this version of the program."""
    return VERSITYGW.exists() and read_stamp(TOOLS / "versitygw-stamp") == VERSITYGW_MODULE


def packages_stamp(kind: str) -> Path:
    """The file with the hash of an installation."""
    return VENV / f"coldlog-{kind}-stamp"


def packages_hash() -> str:
    """Hash the inputs of an installation, with its path, because scripts in `.venv` contain the path."""
    content = b"\0".join(
        (REPOSITORY / name).read_bytes() for name in ("setup.cfg", "pyproject.toml", "constraints.txt")
    )
    return hashlib.sha256(str(REPOSITORY).encode() + b"\0" + content).hexdigest()


def jars_hash() -> str:
    """Hash the inputs of the jars."""
    sources = [POM, *sorted(JAVA_SOURCES.rglob("*.java"))]
    return hashlib.sha256(b"\0".join(each.read_bytes() for each in sources)).hexdigest()


def airflow_hash() -> str:
    """Hash the inputs of Airflow's installation, with its path, because its scripts contain the path."""
    content = AIRFLOW_REQUIREMENTS.read_bytes() + b"\0" + AIRFLOW_CONSTRAINTS.read_bytes()
    return hashlib.sha256(str(REPOSITORY).encode() + b"\0" + content).hexdigest()


def other_spark_hash(series: str) -> str:
    """Hash the inputs of an environment with another Spark; the jars' own versions are in the library."""
    versions = (REPOSITORY / "lib/coldlog/runtime/spark/spark_versions.py").read_bytes()
    content = b"\0".join([OTHER_SPARKS[series].encode(), versions, packages_hash().encode(), jars_hash().encode()])
    return hashlib.sha256(content).hexdigest()


def read_stamp(path: Path) -> str:
    """Return the text of the stamp, empty if it is missing."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def install_packages(kind: str, lock: int) -> None:
    """Make or complete `.venv`."""
    start = time.monotonic()
    report(f"installing Python packages into {VENV} (1.7 GB; half a minute, on a slow network some minutes)")
    if INSTALLING.exists() or not PYTHON.exists():
        make_venv(lock)
    INSTALLING.touch()
    run_pip(["install", constraint("uv")], lock)
    target = f"{REPOSITORY}{EXTRAS[kind]}"
    if not install_with_uv(target, lock):
        report("uv failed; trying pip, which takes a few minutes")
        run_pip(["install", "--editable", target], lock)
    for each in ("runtime", kind):
        packages_stamp(each).write_text(packages_hash(), encoding="utf-8")
    # The first job keeps Java's classes here (lib/coldlog/runtime/spark/class_archive.py).
    (VENV / "java-classes").mkdir(exist_ok=True)
    INSTALLING.unlink()
    report(f"installed in {time.monotonic() - start:.0f} s")


def make_venv(lock: int) -> None:
    """Replace `.venv` by an empty one."""
    # The running interpreter may be in the `.venv` that is removed.
    base = str(getattr(sys, "_base_executable", sys.executable))
    shutil.rmtree(VENV, ignore_errors=True)
    run([base, "-m", "venv", str(VENV)], lock)
    INSTALLING.touch()


def install_with_uv(target: str, lock: int) -> bool:
    """Install with uv, several times faster than pip. Compile bytecode, because Spark starts many Python workers."""
    options = ["--quiet", "--python", str(PYTHON), "--compile-bytecode"]
    pinned = ["--constraints", str(CONSTRAINTS), "--build-constraints", str(CONSTRAINTS)]
    command = [str(PYTHON), "-m", "uv", "pip", "install", *options, *pinned, "--editable", target]
    return subprocess.run(command, env=uv_environment(), pass_fds=[lock], check=False).returncode == 0


def install_airflow(lock: int) -> None:
    """Make `.venv-airflow` again: the packages of Airflow and coldlog do not fit into one environment."""
    start = time.monotonic()
    report(f"installing Airflow into {AIRFLOW} (660 MB)")
    shutil.rmtree(AIRFLOW, ignore_errors=True)
    run([str(getattr(sys, "_base_executable", sys.executable)), "-m", "venv", str(AIRFLOW)], lock)
    python = str(AIRFLOW / "bin" / "python")
    wanted = ["--requirement", str(AIRFLOW_REQUIREMENTS), "--constraint", str(AIRFLOW_CONSTRAINTS)]
    with_uv = [str(PYTHON), "-m", "uv", "pip", "install", "--quiet", "--python", python, "--compile-bytecode", *wanted]
    if subprocess.run(with_uv, env=uv_environment(), pass_fds=[lock], check=False).returncode != 0:
        report("uv failed; trying pip, which takes a few minutes")
        run([python, "-m", "pip", "--quiet", "install", *wanted], lock)
    (AIRFLOW / "coldlog-stamp").write_text(airflow_hash(), encoding="utf-8")
    report(f"installed in {time.monotonic() - start:.0f} s")


def install_other_spark(series: str, lock: int) -> None:
    """Make build/spark-SERIES again: packages as in `.venv` but for pyspark, its jars, and the classes of lib/java as
    they were compiled for the newest Spark, as in a wheel."""
    start = time.monotonic()
    folder = other_spark(series)
    report(f"installing packages with Spark {OTHER_SPARKS[series]} into {folder} (1.7 GB)")
    shutil.rmtree(folder, ignore_errors=True)
    run([str(getattr(sys, "_base_executable", sys.executable)), "-m", "venv", str(folder / "venv")], lock)
    python, constraints = str(folder / "venv" / "bin" / "python"), folder / "constraints.txt"
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if not line.startswith(("pyspark==", "py4j=="))]
    constraints.write_text("\n".join([*pinned, f"pyspark=={OTHER_SPARKS[series]}"]), encoding="utf-8")
    options = ["--quiet", "--python", python, "--compile-bytecode", "--constraints", str(constraints)]
    packages = ["--build-constraints", str(CONSTRAINTS), "--editable", f"{REPOSITORY}{EXTRAS['development']}"]
    run([str(PYTHON), "-m", "uv", "pip", "install", *options, *packages], lock, uv_environment())
    (folder / "jars").mkdir()
    run([python, "-P", "-m", "coldlog.launch.jars", str(folder / "jars")], lock)
    shutil.copyfile(JARS / OWN_JAR, folder / "jars" / OWN_JAR)
    (folder / "stamp").write_text(other_spark_hash(series), encoding="utf-8")
    report(f"installed in {time.monotonic() - start:.0f} s")


def install_versitygw(lock: int) -> None:
    """Build the program from its sources with Go's proxy and checksums; it appears when it is complete."""
    start = time.monotonic()
    go = shutil.which("go")
    if go is None:
        raise SetupError("Go 1.24 or newer is needed to build the S3 server of the cluster tests; set PATH")
    report(f"building versitygw in {TOOLS} (three minutes of CPU time)")
    partial = TOOLS / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    run([go, "install", VERSITYGW_MODULE], lock, {**os.environ, "GOBIN": str(partial)})
    (partial / "versitygw").replace(VERSITYGW)
    shutil.rmtree(partial)
    (TOOLS / "versitygw-stamp").write_text(VERSITYGW_MODULE, encoding="utf-8")
    report(f"built in {time.monotonic() - start:.0f} s")


def uv_environment() -> dict[str, str]:
    """Pass the index of pip's configuration to uv, which does not read that configuration."""
    asked = subprocess.run(
        [str(PYTHON), "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    index = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip()
    return {**({"UV_DEFAULT_INDEX": index} if index else {}), **os.environ}


def run_pip(arguments: list[str], lock: int) -> None:
    """Run pip in `.venv`. PIP_CONSTRAINT also applies to the packages that builds need."""
    environment = {**os.environ, "PIP_CONSTRAINT": CONSTRAINTS.as_uri(), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run([str(PYTHON), "-m", "pip", "--quiet", *arguments], lock, environment)


def constraint(name: str) -> str:
    """Return the requirement `name==version` of constraints.txt."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


def resolve_jars(lock: int) -> None:
    """Fill `.jars` with the jars of the pom and that of lib/java."""
    start = time.monotonic()
    report(f"resolving jars into {JARS} (22 MB)")
    partial = JARS.with_name(".jars.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    run([str(PYTHON), "-P", "-m", "coldlog.launch.jars", str(partial)], lock)
    compile_own_jar(partial, lock)
    (partial / "stamp").write_text(jars_hash(), encoding="utf-8")
    shutil.rmtree(JARS, ignore_errors=True)
    partial.rename(JARS)
    report(f"resolved in {time.monotonic() - start:.0f} s")


def compile_own_jar(directory: Path, lock: int) -> None:
    """Compile lib/java against Spark and the jars in `directory`, with the compiler of Spark's generated code."""
    spark_jars = next(VENV.glob("lib/python*/site-packages/pyspark")) / "jars"
    compiler = [str(each) for name in ("janino", "commons-compiler") for each in spark_jars.glob(f"{name}-*.jar")]
    needed = [*spark_jars.glob("*.jar"), *directory.glob("delta-*.jar")]
    sources = [str(each) for each in sorted(JAVA_SOURCES.rglob("*.java"))]
    classes = directory / "classes"
    program = [find_java(), "-cp", os.pathsep.join(compiler), "org.codehaus.commons.compiler.samples.CompilerDemo"]
    options = ["-encoding", "UTF-8", "-classpath", os.pathsep.join(map(str, needed)), "-d", str(classes)]
    run([*program, *options, *sources], lock)
    with zipfile.ZipFile(directory / OWN_JAR, "w") as jar:
        for each in sorted(classes.rglob("*.class")):
            # Without a date, so that every machine makes the same jar.
            jar.writestr(zipfile.ZipInfo(each.relative_to(classes).as_posix()), each.read_bytes())
    shutil.rmtree(classes)


def run(command: list[str], lock: int, environment: dict[str, str] | None = None) -> None:
    """Run a program; show its output only if it fails."""
    answer = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[lock], check=False
    )
    if answer.returncode != 0:
        sys.stderr.write(answer.stdout.decode(errors="replace"))
        raise SetupError(
            f"{' '.join(command)}\nfailed with exit code {answer.returncode}, see above; fix that and start again"
        )


def report(text: str) -> None:
    """Print a line of progress."""
    print(f"coldlog: {text}", file=sys.stderr, flush=True)


_EXTRA_PROGRAMS: dict[str, tuple[Callable[[], bool], Callable[[int], None]]] = {
    "airflow": (has_airflow, install_airflow),
    "cluster": (has_versitygw, install_versitygw),
    **{
        f"spark-{series}": (partial(has_other_spark, series), partial(install_other_spark, series))
        for series in OTHER_SPARKS
    },
}
"""By kind: a check whether the program is installed, and a function that installs it."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
