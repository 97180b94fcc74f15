"""Test completion in each shell itself; what the scripts say is tested in tests/unit/command."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

COMPLETED = {
    "coldlog off": "coldlog offsets",
    "{program} off": "{program} offsets",
    "coldlog cat --gr": "coldlog cat --grep",
    "coldlog lookup orders --set archive.u": "coldlog lookup orders --set archive.uri=",
    "coldlog cat --isolation-level=read_c": "coldlog cat --isolation-level=read_committed",
    "coldlog lookup -w '{uri}' ord": "coldlog lookup -w '{uri}' orders",
}
"""A line before the tabulator key, and after it."""
_DEADLINE_S = 60


def _of_bash(lines: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    script = """
    source <(coldlog completion bash)
    for line; do
      COMP_LINE=$line; COMP_POINT=${#line}; COMPREPLY=(); _coldlog "${line%% *}"; echo "${COMPREPLY[@]}"
    done
    """
    return _words_put_in(lines, ["bash", "-c", script, "bash", *lines], environment)


def _of_fish(lines: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    script = "coldlog completion fish | source; for line in $argv; complete --do-complete=$line; end"
    return _words_put_in(lines, ["fish", "--no-config", "-c", script, *lines], environment)


def _words_put_in(lines: list[str], command: list[str], environment: dict[str, str]) -> list[str]:
    """The lines with the words that the shell found, one for each line, in place of their last words."""
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=_DEADLINE_S)
    found = ran.stdout.splitlines()
    # bash divides a word at its = and completes what stands behind it.
    return [line[: -len(word)] + text for line, word, text in zip(lines, map(_typed, lines, found), found, strict=True)]


def _typed(line: str, found: str) -> str:
    last = line.rpartition(" ")[2]
    return last if found.startswith(last) else last.rpartition("=")[2]


def _of_zsh(lines: list[str], folder: Path, environment: dict[str, str]) -> list[str]:
    """zsh completes only in its line editor, so it gets a terminal; another key writes the line to a file."""
    told = folder / "told"
    (folder / ".zshrc").write_text(
        "unset zle_bracketed_paste\nPROMPT='is ready'\nsource <(coldlog completion zsh)\n"
        f'told() {{ print -r -- "$BUFFER" >>{shlex.quote(str(told))}; BUFFER=; }}\n'
        "zle -N told\nbindkey '^T' told\nbindkey '^I' complete-word\n"
    )
    told.touch()
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe("zsh", ["zsh", "-i"], environment | {"ZDOTDIR": str(folder), "TERM": "dumb"})
    try:
        screen = _screen_until(lambda screen: "is ready" in screen, terminal)
        os.write(terminal, "".join(f"{line}\t\x14" for line in lines).encode())
        screen += _screen_until(lambda _: len(told.read_text().splitlines()) == len(lines), terminal)
        assert "command not found" not in screen
        return told.read_text().splitlines()
    finally:
        os.close(terminal)  # zsh ends
        os.waitpid(process, 0)


def _screen_until(is_there: Callable[[str], bool], terminal: int) -> str:
    """What the shell writes until then."""
    screen = ""
    end = time.monotonic() + _DEADLINE_S
    while not is_there(screen):
        assert time.monotonic() < end, screen
        if select.select([terminal], [], [], 0.1)[0]:
            screen += os.read(terminal, 65536).decode(errors="replace")
    return screen


SHELLS = {"bash": _of_bash, "zsh": _of_zsh, "fish": _of_fish}


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completes_commands_options_settings_choices_and_topics(
    shell: str, golden_uri: str, tmp_path: Path
) -> None:
    assert shutil.which(shell) is not None, f"{shell} is not installed"
    programs = tmp_path / "programs"
    programs.mkdir()
    command = programs / "coldlog"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m coldlog "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    places = {"uri": golden_uri, "program": str(command)}
    completed = SHELLS[shell]([line.format(**places) for line in COMPLETED], tmp_path, environment)
    assert [line.rstrip() for line in completed] == [line.format(**places) for line in COMPLETED.values()]
