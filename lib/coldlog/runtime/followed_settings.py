"""Read settings again while a job runs, when it gets SIGHUP.

Files and variables are read as at the start; `--set` stays. If they are unfit, a warning says so, and the settings stay
as they are. A signal that was ignored when the process started stays ignored, as under nohup.
"""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coldlog.errors import ColdlogError
from coldlog.runtime.console import Console
from coldlog.runtime.job import PlainJob
from coldlog.runtime.settings import Settings
from coldlog.runtime.settings_sources import load_settings


@dataclass(slots=True, kw_only=True)
class FollowedSettings:
    """The settings of a job, as they are now."""

    settings: Settings
    arguments: argparse.Namespace
    console: Console
    _is_old: bool = False

    @property
    def current(self) -> Settings:
        """Return the settings, read again if a SIGHUP came. Call it in one thread."""
        if self._is_old:
            self._is_old = False
            try:
                asked = self.arguments
                self.settings = load_settings(asked.env, asked.set, config=asked.config)
            except ColdlogError as unfit:
                self.console.warn(f"the settings stay as they are: {unfit}")
        return self.settings

    def read_again(self) -> None:
        """Read the settings again when they are asked for."""
        self._is_old = True


@contextmanager
def following_settings(job: PlainJob) -> Iterator[FollowedSettings]:
    """Follow the settings of a job in the block. Outside of the main thread they stay as they are."""
    followed = FollowedSettings(settings=job.settings, arguments=job.arguments, console=job.console)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield followed
        return
    previous = signal.signal(signal.SIGHUP, lambda *_: followed.read_again())
    try:
        yield followed
    finally:
        signal.signal(signal.SIGHUP, previous)
