"""Print a script that completes commands, options, their choices, settings and topics in a shell.

    source <(coldlog completion bash)
    source <(coldlog completion zsh)
    coldlog completion fish | source

The script starts the command as the line has it, so that `.venv/bin/coldlog` is completed too. Topics are those of the
warehouse that the line names by -w, --set, --config or --env, else that of the settings.
"""

from __future__ import annotations

import argparse

from coldlog.command.shared.outputs import standard_output

_SCRIPTS = {
    "bash": """\
_coldlog() {
  local IFS=$'\\n'
  COMPREPLY=($("$1" __complete line "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null))
  [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace 2>/dev/null
}
complete -o default -F _coldlog coldlog
""",
    "zsh": """\
_coldlog() {
  local -a found
  found=(${(f)"$("${(Q)words[1]}" __complete words "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)"})
  if (( $#found )); then
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
  else
    _files
  fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _coldlog coldlog
""",
    "fish": """\
function __coldlog_complete
  set -l words (commandline -opc) (commandline -ct)
  set -l found ($words[1] __complete words $words[2..-1] 2>/dev/null)
  if test (count $found) -gt 0
    printf '%s\\n' $found
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c coldlog -f -a '(__coldlog_complete)'
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="the shell")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    standard_output().write(_SCRIPTS[arguments.shell])
    return 0
