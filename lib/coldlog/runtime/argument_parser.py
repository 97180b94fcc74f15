"""Parse the arguments of a command: the docstring is its help, and an error is one line."""

from __future__ import annotations

import argparse
import re
import textwrap
from typing import NoReturn

EXIT_USAGE = 2
_BEFORE_NOW = re.compile(r"unrecognized arguments:.* -([0-9]+[a-z]+)\b")
"""An option by its form, but most likely a time: -2h."""


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line that names the help, without the usage."""

    def __init__(self, prog: str, documentation: str | None) -> None:
        super().__init__(
            prog=prog,
            description=textwrap.dedent(documentation or "").strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Print the error, and end with the exit code of wrong arguments."""
        if before := _BEFORE_NOW.search(message):
            message += f"; did you mean '{before[1]} ago'?"
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}; see {self.prog} --help\n")
