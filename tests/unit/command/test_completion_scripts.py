"""Test what can be known of the completion scripts without their shells, which complete in tests/system."""

from __future__ import annotations

import re
import shlex

import pytest

from coldlog.command.main import main

# What each shell has of the words before the cursor, and of the one that is typed.
WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    "zsh": {'"${(@Q)words[2,CURRENT-1]}"': ("cat", "orders"), '"${(Q)PREFIX}"': ("--gr",)},
    "fish": {"$words[2..-1]": ("cat", "orders", "--gr")},
}
REGISTERED = {
    "bash": "complete -o default -F _coldlog coldlog",
    "zsh": "compdef _coldlog coldlog",
    "fish": "complete -c coldlog -f -a '(__coldlog_complete)'",
}


def _script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", WORDS)
def test_the_command_that_a_script_runs_suggests_what_can_follow(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (called,) = re.findall(r" (__complete .*?) 2>/dev/null\)", _script(shell, capsys))
    for of_shell, words in WORDS[shell].items():
        assert of_shell in called, f"{shell} divides the line into words"
        called = called.replace(of_shell, shlex.join(words))
    assert main(shlex.split(called)) == 0
    assert capsys.readouterr().out == "--grep\n"


@pytest.mark.parametrize("shell", REGISTERED)
def test_a_script_registers_the_function_that_it_defines(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = _script(shell, capsys)
    assert script.splitlines()[-1] == REGISTERED[shell]
    (defined,) = re.findall(r"^(?:function )?(\w+)(?:\(\) \{)?$", script.partition("\n")[0])
    assert defined in REGISTERED[shell]


@pytest.mark.parametrize("shell", REGISTERED)
def test_quotes_and_blocks_of_a_script_are_closed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = _script(shell, capsys)
    pairs = [script.count(opening) - script.count(closing) for opening, closing in ("()", "{}", "[]")]
    assert pairs == [0, 0, 0]
    assert [script.count(quote) % 2 for quote in "'\""] == [0, 0]
    lines = [line.split() for line in script.splitlines()]
    begun = sum(line[0] in ("function", "if") for line in lines)
    assert begun == sum(line[0] in ("end", "fi") for line in lines)
