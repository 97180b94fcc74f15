"""Run mutants: `make mutants` (all), `make mutants ARGUMENTS=--by-hand`, `ARGUMENTS="--seeded --count 100"`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mutants.by_hand import read_hand_mutants, run_hand_mutants
from mutants.forked_pytest import warm_up
from mutants.seeded import (
    REACH,
    Reach,
    as_named,
    by_room,
    explained_survivors,
    pool,
    record_reach,
    run_seeded,
    run_tests_of_processes,
)
from mutants.shadow import SHADOW, ShadowTree


def main(argv: Sequence[str]) -> int:
    """Exit code 1 if a mutant survives that no reason is given for."""
    parser = argparse.ArgumentParser(prog="mutants", allow_abbrev=False, description=__doc__)
    parser.add_argument("--seeded", action="store_true", help="only the mutants made by seed")
    parser.add_argument("--by-hand", action="store_true", help="only those of by_hand.toml")
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--count", type=int, default=800)
    parser.add_argument("--cpu-minutes", type=float, default=240)
    parser.add_argument("--only", default="", help="mutants whose path::function has this text")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="which test calls what is not recorded anew, what was killed or may survive not tried again",
    )
    parser.add_argument(
        "--elsewhere", action="store_true", help="also try those that survivors.toml says are killed by slow tests"
    )
    arguments = parser.parse_args(argv)
    tree = ShadowTree()
    warm_up(tree)
    is_all = arguments.seeded == arguments.by_hand
    code = 0
    if arguments.by_hand or is_all:
        code |= _by_hand(tree, arguments)
    if arguments.seeded or is_all:
        code |= _seeded(tree, arguments)
    return code


def _by_hand(tree: ShadowTree, arguments: argparse.Namespace) -> int:
    mutants = [each for each in read_hand_mutants() if arguments.only in each.function]
    survivors = 0
    for mutant, run in run_hand_mutants(tree, mutants):
        is_killed = run.exit_code != 0
        survivors += not is_killed
        print(
            f"{'killed  ' if is_killed else 'SURVIVED'} {run.cpu_s:6.1f} s  {mutant.function}: {mutant.mistake}",
            flush=True,
        )
    print(f"{len(mutants)} mutants by hand, {survivors} survivors")
    return int(bool(survivors))


def _seeded(tree: ShadowTree, arguments: argparse.Namespace) -> int:
    if not (arguments.keep and REACH.exists()):
        record_reach(tree)
    run_tests_of_processes()
    ordered = sorted(pool(), key=lambda each: each.rank(arguments.seed))[: arguments.count]
    results = run_seeded(
        tree,
        Reach.read(tree),
        [each for each in ordered if arguments.only in f"{each.path}::{each.function}"],
        cpu_s=arguments.cpu_minutes * 60,
        output=SHADOW / "seeded.jsonl",
        keeps_killed=arguments.keep,
        tries_elsewhere=arguments.elsewhere,
    )
    print(*by_room(results), sep="\n")
    explained = explained_survivors()
    unexplained = [
        each.mutant
        for each in results
        if each.outcome in ("survived", "unreached") and as_named(each.mutant) not in explained
    ]
    for each in unexplained:
        print(f"{each.path}:{each.line} {each.function}\n  - {each.old_line}\n  + {each.new_line}")
    print(f"{len(results)} mutants, {len(unexplained)} survivors without a reason, {SHADOW / 'seeded.jsonl'}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
