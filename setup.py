"""Put the files beside the library into a built package: conf, jobs, DAGs, a sample, and the jar of lib/java's classes.

Names, versions and dependencies are in setup.cfg. `coldlog.runtime.installation` finds these files again. The jar is
compiled by `make setup`, so a package is built by `make wheel`.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

REPOSITORY = Path(__file__).resolve().parent
OWN_JAR = REPOSITORY / ".jars" / "coldlog-log-store.jar"
COPIED = (
    *("conf/*.toml", "conf/*.properties", "conf/*.conf", "conf/jars/*", "conf/expectations/**/*"),
    *("conf/systemd/*", "jobs/*.py", "dags/*.py", "dags/.airflowignore"),
)
ONLY_IN_A_CHECKOUT = {"conf/sample.toml"}
SAMPLE = REPOSITORY / "tests" / "golden" / "kafka-sample" / "archive"
SAMPLE_TOPICS = ("orders", "payments", "crashy-upload")
"""What `coldlog demo` indexes; the last has a segment whose upload was not finished."""


class BuildWithFiles(build_py):  # type: ignore[misc]
    """Build the library and copy the other files into it; an editable installation uses those of the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib) / "coldlog"
        for name in sorted(
            each for pattern in COPIED for each in list_files(pattern) if each not in ONLY_IN_A_CHECKOUT
        ):
            self.mkpath(str((package / name).parent))
            self.copy_file(str(REPOSITORY / name), str(package / name))
        for name in sorted(each for topic in SAMPLE_TOPICS for each in list_files(f"*/{topic}-[0-9]-*/*", SAMPLE)):
            self.mkpath(str((package / "sample" / name).parent))
            self.copy_file(str(SAMPLE / name), str(package / "sample" / name))
        if not OWN_JAR.is_file():
            raise SystemExit(f"{OWN_JAR} is missing: run `make wheel` in a checkout")
        self.mkpath(str(package / "jars"))
        self.copy_file(str(OWN_JAR), str(package / "jars" / "coldlog.jar"))


def list_files(pattern: str, folder: Path = REPOSITORY) -> list[str]:
    """The files in a folder that match, relative to it."""
    return [str(each.relative_to(folder)) for each in folder.glob(pattern) if each.is_file()]


setup(cmdclass={"build_py": BuildWithFiles})
