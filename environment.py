"""environment: is everything installed that this checkout needs, and if not, how does it get there?

    python3.11 environment.py runtime        what jobs need
    python3.11 environment.py development    tests, lint and types too
    python3.11 environment.py documents      what builds the site of docs/ too
    python3.11 environment.py airflow        an Airflow beside it, to test the DAGs with
    python3.11 environment.py cluster        a server of S3 that checks signatures, to test a cluster with (needs Go)

`.venv` holds the packages of setup.cfg at the versions of constraints.txt, `.jars` the jars of conf/jars/pom.xml and
one with the classes of lib/java, made by the compiler that Spark brings (no JDK needed). Each has a stamp with the hash
of what it was made from; a stamp that fits means that nothing is done (and nothing needs a network). Only one process
installs at a time, the others wait. An installation that was killed leaves a mark, and the next start makes `.venv`
anew; jars appear all at once or not at all. Only the standard library is used: this runs first.
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
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

EXTRAS = {"runtime": "", "development": "[kafka,notebook,test,lint]", "documents": "[docs]"}
PACKAGES = {
    "runtime": "runtime",
    "development": "development",
    "documents": "documents",
    "airflow": "runtime",
    "cluster": "development",
}
"""Which of `EXTRAS` a kind of environment needs."""
MINIMUM_PYTHON = (3, 11)
MINIMUM_JAVA = 17
MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
MAVEN_NAMESPACE = {"m": "http://maven.apache.org/POM/4.0.0"}


class SetupError(Exception):
    """The environment cannot be made; the message says what the user can do."""


def main(argv: list[str]) -> int:
    """Install what is missing for `argv[0]`, a key of `PACKAGES`; returns an exit code."""
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
    """Packages and jars; beside them Airflow, or a server of S3."""
    packages = PACKAGES[kind]
    if has_packages(packages) and has_jars() and has_beside(kind):
        return
    with only_one_process() as lock:
        if not has_packages(packages):
            install_packages(packages, lock)
        if not has_jars():
            resolve_jars(lock)
        if not has_beside(kind):
            _BESIDE[kind][1](lock)


def check_python() -> None:
    """Refuse a Python that is too old."""
    if sys.version_info < MINIMUM_PYTHON:
        raise SetupError(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}")


def check_java() -> None:
    """Refuse a Java that is missing or too old."""
    java = find_java()
    version = java_version(Path(java).resolve())
    if version < MINIMUM_JAVA:
        raise SetupError(f"Java {MINIMUM_JAVA} or newer is needed, {java} is {version}; set JAVA_HOME")


def find_java() -> str:
    """The program `java` that Spark will start."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        raise SetupError(f"Java {MINIMUM_JAVA} or newer is needed and none was found; set JAVA_HOME or PATH")
    return java


def java_version(java: Path) -> int:
    """The major version: from the file `release` of the installation (no JVM to start), else by asking."""
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
    """Hold the installation's lock; yields its descriptor, which children inherit so that they hold it too."""
    with (REPOSITORY / ".setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another start that is installing")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def has_packages(kind: str) -> bool:
    """`.venv` was made for this checkout, at this place, to the end."""
    return not INSTALLING.exists() and PYTHON.exists() and read_stamp(packages_stamp(kind)) == packages_hash()


def has_jars() -> bool:
    """`.jars` holds what the pom names."""
    return read_stamp(JARS / "stamp") == jars_hash()


def has_beside(kind: str) -> bool:
    """What that kind needs beside packages and jars is there."""
    return kind not in _BESIDE or _BESIDE[kind][0]()


def has_airflow() -> bool:
    """`.venv-airflow` holds what conf/airflow names, for this place."""
    return read_stamp(AIRFLOW / "coldlog-stamp") == airflow_hash()


def has_versitygw() -> bool:
    """`.tools` holds the program at its version."""
    return VERSITYGW.exists() and read_stamp(TOOLS / "versitygw-stamp") == VERSITYGW_MODULE


def packages_stamp(kind: str) -> Path:
    """Where the hash of an installation is kept."""
    return VENV / f"coldlog-{kind}-stamp"


def packages_hash() -> str:
    """What an installation depends on; the place counts, since scripts in `.venv` name it."""
    content = b"\0".join(
        (REPOSITORY / name).read_bytes() for name in ("setup.cfg", "pyproject.toml", "constraints.txt")
    )
    return hashlib.sha256(str(REPOSITORY).encode() + b"\0" + content).hexdigest()


def jars_hash() -> str:
    """What the jars depend on."""
    sources = [POM, *sorted(JAVA_SOURCES.rglob("*.java"))]
    return hashlib.sha256(b"\0".join(each.read_bytes() for each in sources)).hexdigest()


def airflow_hash() -> str:
    """What the installation of Airflow depends on; the place counts, since its scripts name it."""
    content = AIRFLOW_REQUIREMENTS.read_bytes() + b"\0" + AIRFLOW_CONSTRAINTS.read_bytes()
    return hashlib.sha256(str(REPOSITORY).encode() + b"\0" + content).hexdigest()


def read_stamp(path: Path) -> str:
    """The stamp's text, empty where there is none."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def install_packages(kind: str, lock: int) -> None:
    """Make or complete `.venv`."""
    start = time.monotonic()
    say(f"installing Python packages into {VENV} (1.7 GB; half a minute, on a slow network minutes)")
    if INSTALLING.exists() or not PYTHON.exists():
        make_venv(lock)
    INSTALLING.touch()
    run_pip(["install", constraint("uv")], lock)
    target = f"{REPOSITORY}{EXTRAS[kind]}"
    if not install_with_uv(target, lock):
        say("uv could not install; trying pip, which takes a few minutes")
        run_pip(["install", "--editable", target], lock)
    for each in ("runtime", kind):
        packages_stamp(each).write_text(packages_hash(), encoding="utf-8")
    INSTALLING.unlink()
    say(f"installed in {time.monotonic() - start:.0f} s")


def make_venv(lock: int) -> None:
    """An empty `.venv`, whatever was there."""
    # The interpreter that is running may be the one that is about to be removed.
    base = str(getattr(sys, "_base_executable", sys.executable))
    shutil.rmtree(VENV, ignore_errors=True)
    run([base, "-m", "venv", str(VENV)], lock)
    INSTALLING.touch()


def install_with_uv(target: str, lock: int) -> bool:
    """Several times faster than pip; bytecode is compiled now, because Spark starts many Python workers."""
    options = ["--quiet", "--python", str(PYTHON), "--compile-bytecode"]
    pinned = ["--constraints", str(CONSTRAINTS), "--build-constraints", str(CONSTRAINTS)]
    command = [str(PYTHON), "-m", "uv", "pip", "install", *options, *pinned, "--editable", target]
    return subprocess.run(command, env=uv_environment(), pass_fds=[lock], check=False).returncode == 0


def install_airflow(lock: int) -> None:
    """Make `.venv-airflow` anew: Airflow's packages and coldlog's do not fit into one environment."""
    start = time.monotonic()
    say(f"installing Airflow into {AIRFLOW} (660 MB)")
    shutil.rmtree(AIRFLOW, ignore_errors=True)
    run([str(getattr(sys, "_base_executable", sys.executable)), "-m", "venv", str(AIRFLOW)], lock)
    python = str(AIRFLOW / "bin" / "python")
    wanted = ["--requirement", str(AIRFLOW_REQUIREMENTS), "--constraint", str(AIRFLOW_CONSTRAINTS)]
    with_uv = [str(PYTHON), "-m", "uv", "pip", "install", "--quiet", "--python", python, "--compile-bytecode", *wanted]
    if subprocess.run(with_uv, env=uv_environment(), pass_fds=[lock], check=False).returncode != 0:
        say("uv could not install; trying pip, which takes a few minutes")
        run([python, "-m", "pip", "--quiet", "install", *wanted], lock)
    (AIRFLOW / "coldlog-stamp").write_text(airflow_hash(), encoding="utf-8")
    say(f"installed in {time.monotonic() - start:.0f} s")


def install_versitygw(lock: int) -> None:
    """Build the program from its sources, where Go's own proxy and checksums are used; it appears when it is whole."""
    start = time.monotonic()
    go = shutil.which("go")
    if go is None:
        raise SetupError("Go 1.24 or newer is needed for the S3 server of the cluster tests; set PATH")
    say(f"building versitygw in {TOOLS} (three minutes of a processor)")
    partial = TOOLS / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    run([go, "install", VERSITYGW_MODULE], lock, {**os.environ, "GOBIN": str(partial)})
    (partial / "versitygw").replace(VERSITYGW)
    shutil.rmtree(partial)
    (TOOLS / "versitygw-stamp").write_text(VERSITYGW_MODULE, encoding="utf-8")
    say(f"built in {time.monotonic() - start:.0f} s")


def uv_environment() -> dict[str, str]:
    """uv reads no configuration of pip: an index that pip is told to use is handed on."""
    asked = subprocess.run(
        [str(PYTHON), "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    index = os.environ.get("PIP_INDEX_URL") or asked.stdout.strip()
    return {**({"UV_DEFAULT_INDEX": index} if index else {}), **os.environ}


def run_pip(arguments: list[str], lock: int) -> None:
    """pip in `.venv`; PIP_CONSTRAINT holds for what packages need to be built, too."""
    environment = {**os.environ, "PIP_CONSTRAINT": CONSTRAINTS.as_uri(), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    run([str(PYTHON), "-m", "pip", "--quiet", *arguments], lock, environment)


def constraint(name: str) -> str:
    """The requirement `name==version` of constraints.txt."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


def resolve_jars(lock: int) -> None:
    """Fill `.jars`, by Maven or, where there is none, by the Ivy that Spark brings."""
    start = time.monotonic()
    say(f"resolving jars into {JARS} (22 MB)")
    partial = JARS.with_name(".jars.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    if maven := shutil.which("mvn"):
        copy = [
            "--quiet",
            "--batch-mode",
            "-Dstyle.color=never",
            "--file",
            str(POM),
            MAVEN_COPY,
            f"-DoutputDirectory={partial}",
        ]
        run([maven, *copy], lock)
    else:
        resolve_jars_with_ivy(partial, lock)
    compile_own_jar(partial, lock)
    (partial / "stamp").write_text(jars_hash(), encoding="utf-8")
    shutil.rmtree(JARS, ignore_errors=True)
    partial.rename(JARS)
    say(f"resolved in {time.monotonic() - start:.0f} s")


def resolve_jars_with_ivy(directory: Path, lock: int) -> None:
    """spark-submit resolves packages before it runs a program; the program here is empty."""
    say("no Maven (mvn) found: using Spark's own Ivy")
    program = directory / "empty.py"
    program.touch()
    ivy = directory / "ivy"
    conf = {
        "spark.jars.ivy": str(ivy),
        "spark.jars.packages": ",".join(pom_packages()),
        "spark.jars.excludes": IVY_EXCLUDES,
    }
    options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    environment = {**os.environ, "PYSPARK_PYTHON": str(PYTHON), "SPARK_LOCAL_IP": "127.0.0.1"}
    # Named here, because Spark's own search for it stumbles over a space in the path.
    environment["SPARK_HOME"] = str(next(VENV.glob("lib/python*/site-packages/pyspark")))
    run([str(VENV / "bin" / "spark-submit"), "--master", "local[1]", *options, str(program)], lock, environment)
    for jar in (ivy / "jars").glob("*.jar"):
        if jar.name.startswith(IVY_GROUPS):
            jar.rename(directory / jar.name)
    shutil.rmtree(ivy)
    program.unlink()


def compile_own_jar(directory: Path, lock: int) -> None:
    """The classes of lib/java, against Spark and the jars in `directory`, by the compiler of Spark's generated code."""
    spark_jars = next(VENV.glob("lib/python*/site-packages/pyspark")) / "jars"
    compiler = [str(each) for name in ("janino", "commons-compiler") for each in spark_jars.glob(f"{name}-*.jar")]
    needed = [*spark_jars.glob("*.jar"), *directory.glob("*delta-storage-*.jar")]
    sources = [str(each) for each in sorted(JAVA_SOURCES.rglob("*.java"))]
    classes = directory / "classes"
    program = [find_java(), "-cp", os.pathsep.join(compiler), "org.codehaus.commons.compiler.samples.CompilerDemo"]
    options = ["-encoding", "UTF-8", "-classpath", os.pathsep.join(map(str, needed)), "-d", str(classes)]
    run([*program, *options, *sources], lock)
    with zipfile.ZipFile(directory / OWN_JAR, "w") as jar:
        for each in sorted(classes.rglob("*.class")):
            # A date of its own would make every machine's jar another one.
            jar.writestr(zipfile.ZipInfo(each.relative_to(classes).as_posix()), each.read_bytes())
    shutil.rmtree(classes)


IVY_EXCLUDES = ",".join(
    (
        "org.scala-lang:scala-library",
        "io.delta:delta-kernel-api",
        "io.delta:delta-kernel-defaults",
        "io.delta:delta-kernel-unitycatalog",
        "software.amazon.awssdk:bundle",
        "org.wildfly.openssl:wildfly-openssl",
    )
)
"""What is large, and in Spark or not used here; Ivy's exclusions know no wildcard for a single package."""

IVY_GROUPS = ("io.delta_", "org.apache.hadoop_hadoop-aws", "software.amazon.", "org.reactivestreams_")
"""The jars kept of those that Ivy brings; the others are in Spark, in versions of its own."""


def pom_packages() -> list[str]:
    """The pom's dependencies as group:artifact:version."""
    pom = ElementTree.parse(POM).getroot()
    text = {
        f"${{{each.tag.split('}')[1]}}}": each.text or "" for each in pom.iterfind("m:properties/*", MAVEN_NAMESPACE)
    }
    parts = [
        [each.findtext(f"m:{part}", "", MAVEN_NAMESPACE) for part in ("groupId", "artifactId", "version")]
        for each in pom.iterfind("m:dependencies/m:dependency", MAVEN_NAMESPACE)
    ]
    return [f"{group}:{artifact}:{text.get(version, version)}" for group, artifact, version in parts]


def run(command: list[str], lock: int, environment: dict[str, str] | None = None) -> None:
    """Run a program; what it says is shown only when it fails."""
    answer = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[lock], check=False
    )
    if answer.returncode != 0:
        sys.stderr.write(answer.stdout.decode(errors="replace"))
        raise SetupError(
            f"{' '.join(command)}\nfailed with exit code {answer.returncode}, see above; mend that and start again"
        )


def say(text: str) -> None:
    """A line of progress."""
    print(f"coldlog: {text}", file=sys.stderr, flush=True)


_BESIDE: dict[str, tuple[Callable[[], bool], Callable[[int], None]]] = {
    "airflow": (has_airflow, install_airflow),
    "cluster": (has_versitygw, install_versitygw),
}
"""By kind: whether it is there, and what installs it."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
