"""Put the jars that jobs need into the user's cache, once for each version of coldlog's jars.

    coldlog setup
    coldlog setup --from /mnt/jars

Maven resolves them, or the Ivy inside Spark. Without a network, give a folder that has them, such as the folder that
coldlog setup prints on another machine, or set COLDLOG_JARS to it. Questions such as coldlog lookup need no jars.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from coldlog.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--from", dest="source", metavar="FOLDER", help="copy the jars of FOLDER; no network is used")


def run(arguments: argparse.Namespace) -> int:
    """Resolve or copy the jars, unless they are there; print their folder."""
    from coldlog.launch.jars import find_jars, resolve_jars
    from coldlog.runtime.installation import CHECKOUT, default_jar_directory

    if CHECKOUT is not None:
        raise UsageError(f"{CHECKOUT} is a checkout: run `make setup` there")
    # Looked at in any case, so that a wrong folder is told even if nothing is to do.
    given = None if arguments.source is None else find_jars(Path(arguments.source))
    directory = default_jar_directory()
    if directory.is_dir():
        print("coldlog setup: the jars are there already", file=sys.stderr)
    else:
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            # All jars appear at once, also if the command is killed or runs twice.
            with tempfile.TemporaryDirectory(dir=directory.parent, ignore_cleanup_errors=True) as made:
                jars = Path(made) / "jars"
                jars.mkdir()
                if given is None:
                    resolve_jars(jars)
                for jar in given or ():
                    shutil.copyfile(jar, jars / jar.name)
                if not directory.is_dir():
                    shutil.move(jars, directory)
        except OSError as failed:
            raise UsageError(f"{failed.filename}: {failed.strerror}; set COLDLOG_CACHE") from failed
    print(directory)
    return 0
