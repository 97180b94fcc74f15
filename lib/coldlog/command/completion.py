"""Print a script that completes commands, options and topics in a shell.

    source <(coldlog completion bash)
    source <(coldlog completion zsh)
    coldlog completion fish | source

Topics are those of the warehouse of the settings; options are read from the help of each command. After `--set`, the
names of settings are completed.
"""

from __future__ import annotations

import argparse

from coldlog.command.outputs import standard_output

_BASH = """\
_coldlog() {
  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]}
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "COMMANDS" -- "$word"))
  elif [ "${COMP_WORDS[COMP_CWORD-1]}" = --set ]; then
    compopt -o nospace 2>/dev/null
    COMPREPLY=($(compgen -S = -W "$(coldlog config show --csv 2>/dev/null | tail -n +2 | cut -d, -f1)" -- "$word"))
  elif [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$(coldlog "$command" --help 2>/dev/null | grep -oE -- '--[a-z-]+' | sort -u)" -- "$word"))
  elif [ "$COMP_CWORD" -eq 2 ] && [[ " ASKING " == *" $command "* ]]; then
    COMPREPLY=($(compgen -W "$(coldlog topics --csv 2>/dev/null | tail -n +2 | cut -d, -f1)" -- "$word"))
  else
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}
complete -F _coldlog coldlog
"""
_ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
_FISH = """\
complete -c coldlog -f -n __fish_use_subcommand -a 'COMMANDS'
complete -c coldlog -f -n '__fish_seen_subcommand_from ASKING; and test (count (commandline -opc)) -eq 2' \\
  -a '(coldlog topics --csv 2>/dev/null | tail -n +2 | cut -d, -f1)'
complete -c coldlog -l set -x -a '(coldlog config show --csv 2>/dev/null | tail -n +2 | cut -d, -f1)='
complete -c coldlog -n 'test (count (commandline -opc)) -ge 2' \\
  -a '(coldlog (commandline -opc)[2] --help 2>/dev/null | string match -ar -- "--[a-z-]+")'
"""
_ASKING = ("lookup", "offsets", "cat", "topics", "partitions", "segments", "problems")
"""Commands whose first argument is a topic."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from coldlog.command.main import COMMANDS, JOBS, PROGRAMS

    script = {"bash": _BASH, "zsh": _ZSH + _BASH, "fish": _FISH}[arguments.shell]
    names = " ".join((*COMMANDS, *PROGRAMS, *JOBS))
    standard_output().write(script.replace("COMMANDS", names).replace("ASKING", " ".join(_ASKING)))
    return 0
