"""Print the progress and the results of a job.

Progress is written to stderr, one line per stage when the stage has ended: its name, its facts, its duration. Results
are written to stdout as plain tables. A terminal also shows the stage that is running. Elsewhere the text is the same
without control characters. A quiet console writes warnings, errors and results only.

With `is_json` each line of stderr is a JSON object: `time` (ISO 8601, UTC), `level` (info, warning, error), `message`.
That of a stage also has `stage`, `facts`, `seconds` and `failed`, that of an error `program` and perhaps `traceback`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TextIO

_STAGE_WIDTH = 12
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Stage:
    """A running stage; its line shows the facts that were added."""

    facts: list[str] = field(default_factory=list)

    def add(self, *facts: str) -> None:
        """Add facts, in the order in which they are shown."""
        self.facts.extend(facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Console:
    """Writes progress and results. The streams are looked up at construction, so that tests can capture them."""

    progress: TextIO = field(default_factory=lambda: sys.stderr)
    results: TextIO = field(default_factory=lambda: sys.stdout)
    clock: Callable[[], float] = time.monotonic
    now_s: Callable[[], float] = time.time
    is_quiet: bool = False
    is_json: bool = False

    @contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Run a stage: `with console.stage("scan") as stage: ...; stage.add(counted(251, "segment"))`."""
        stage = Stage()
        start = self.clock()
        is_terminal = self.progress.isatty() and not self.is_json
        if is_terminal and not self.is_quiet:
            self._write(f"{name:<{_STAGE_WIDTH}}...")
        end = "FAILED"
        try:
            yield stage
            end = ""
        except KeyboardInterrupt:
            end = "stopped"
            raise
        finally:
            self._write_stage(name, stage, self.clock() - start, is_terminal=is_terminal, end=end)

    def note(self, text: str) -> None:
        """Write a line of progress that is not a stage."""
        if not self.is_quiet:
            self._write_line("info", text, text)

    def warn(self, text: str) -> None:
        """Write a line about something that is wrong, also if the console is quiet."""
        self._write_line("warning", text, text)

    def error(self, program: str, text: str, *, traceback: str | None = None) -> None:
        """Write why the program ends, also if the console is quiet: the traceback if there is one, else the text."""
        more = {"program": program, **({"traceback": traceback} if traceback else {})}
        self._write_line("error", text, traceback.rstrip("\n") if traceback else f"{program}: {text}", **more)

    def result(self, text: str = "") -> None:
        """Write a line of the result."""
        print(text, file=self.results, flush=True)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Write rows as a plain table: numbers right-aligned, None as an empty cell."""
        self.result(plain_table(headers, rows))

    def _write_stage(self, name: str, stage: Stage, seconds: float, *, is_terminal: bool, end: str) -> None:
        if self.is_quiet:
            return
        facts = ", ".join([*stage.facts, end] if end else stage.facts)
        line = f"{name:<{_STAGE_WIDTH}}{facts}   {human_duration(seconds)}"
        self._write_line(
            "info",
            f"{name}: {facts}",
            f"\r\x1b[K{line}" if is_terminal else line,
            stage=name,
            facts=stage.facts,
            seconds=round(seconds, 3),
            failed=bool(end),
        )

    def _write_line(self, level: str, message: str, text: str, **more: str | float | list[str]) -> None:
        if self.is_json:
            time_ms = int(self.now_s() * 1000)
            values = {"time": human_timestamp(time_ms), "level": level, "message": message, **more}
            text = json.dumps(values, ensure_ascii=False)
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self.progress.write(text)
        self.progress.flush()


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format the table as text: two spaces between columns, no trailing blanks."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(headers, *cells, strict=True)]
    is_right = [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(headers))]

    def line(texts: Sequence[str]) -> str:
        aligned = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, is_right, strict=True)
        ]
        return "  ".join(aligned).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, cells)])


def human_bytes(size_bytes: int) -> str:
    """Format 12943023 as "12.9 MB"; units are decimal, as for disks and networks."""
    if abs(size_bytes) < 1000:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if abs(size) < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} PB"


def human_duration(seconds: float) -> str:
    """Format 1.23 as "1.2 s", 136 as "2 m 16 s", 7500 as "2 h 5 m"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} m {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} m"


def human_timestamp(timestamp_ms: int | None) -> str:
    """Format epoch milliseconds as ISO 8601 in UTC; a time outside the years 1 to 9999 stays a number."""
    if timestamp_ms is None:
        return ""
    try:
        return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(timestamp_ms)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Format 251 and "segment" as "251 segments", with separators for thousands."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
