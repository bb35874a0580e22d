"""`python -m tests.judges`: sabotages histories, asks a judge, shows the share found by kind.

Exit code 0: nothing missed, and no alarm in a legal history; 1: something was; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from analytics.command.differences import Difference
from tests.judges.alterations import altered, told_of
from tests.judges.chance import random_parts
from tests.judges.detection import (
    KindTally,
    Sabotaged,
    Trial,
    detect,
    kinds_named,
    sabotaged,
    shares,
    verdicts,
)
from tests.judges.judges import JUDGES, SPARK, TWINS, JudgesVerdict, judge_of
from tests.judges.kinds import KINDS, UNKNOWN
from tests.judges.page import page
from tests.judges.world import legal

SHOWN_MAX = 3
DIFFERENCES_SHOWN_MAX = 20  # of one merged record
MERGED = 250  # some 50,000 lines: the most that is judged as a short history is


def main() -> int:
    """Do what the arguments say."""
    options = parser().parse_args()
    if options.list:
        for kind in KINDS.values():
            print(f"{kind.name:32} {kind.check or kind.verdict:20} {kind.sentence}")
        return 0
    unknown = sorted(set(options.kind) - set(KINDS))
    if unknown:
        parser().error(f"no such kind: {', '.join(unknown)} (--list)")
    with tempfile.TemporaryDirectory(prefix="flotilla-judges-") as scratch:
        directory = Path(scratch) / "run"
        trial = Trial(judge_of(options.judge), directory)
        if options.show is not None:
            return show(trial, options)
        begun_s = time.monotonic()
        print(f"judge {options.judge}, seed {options.seed}")
        if options.judge == SPARK:
            bad = compared(directory, options)
        else:
            legal_ones = alarms(trial, options)
            tallies = dict[str, KindTally]()
            bad = legal_ones + missed(trial, options, tallies)
            if options.altered:
                alter(trial, options)
            if options.table is not None:
                options.table.write_text(page(sys.argv[1:], options.legal, legal_ones, tallies))
        print(f"{time.monotonic() - begun_s:.0f} s")
    return 1 if bad else 0


def alarms(trial: Trial, options: argparse.Namespace) -> int:
    """Judge legal histories; return how many were called invalid."""
    if not options.legal:
        return 0
    counted, found = verdicts(trial, range(options.seed, options.seed + options.legal))
    said = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(counted.items()))
    print(f"{options.legal:,} legal histories: {said}; {len(found)} alarms")
    for seed, one in found[: 5 * SHOWN_MAX]:
        print(f"  alarm: seed {seed}: {words(one)}")
    return len(found)


def missed(trial: Trial, options: argparse.Namespace, tallies: dict[str, KindTally]) -> int:
    """Sabotage; print the table, and note it in `tallies`; return how many were not found."""
    if not options.histories:
        return 0
    kinds = kinds_named(tuple(options.kind))
    made = found = 0
    print(f"{'kind':32} {'must come to':22} {'made':>6} {'found':>6} {'share':>7}")
    for kind, tally in detect(trial, options.histories, options.seed, kinds):
        made, found = made + tally.made, found + tally.found
        tallies[kind.name] = tally
        tell(kind.name, f"{kind.check} {kind.word}" if kind.check else kind.verdict, tally)
    print(f"{len(kinds)} kinds, {made:,} histories, {found:,} found ({found / max(1, made):.2%})")
    return made - found


def alter(trial: Trial, options: argparse.Namespace) -> None:
    """Alter fields; print by line and alteration what that came to. None of it is wrong: much of
    what is valid is what another legal run would have recorded.
    """
    verdicts_of: dict[str, Counter[str]] = defaultdict(Counter)
    tried: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.altered):
        one = altered(seed, trial.is_fit, tried)
        verdicts_of[one.name][trial.ask(one.history).verdict] += 1
    for line in told_of(verdicts_of):
        print(line)


def compared(directory: Path, options: argparse.Namespace) -> int:
    """Let Spark judge many at once, beside the other judge; return how much is wrong."""
    from analytics.common import session
    from tests.judges.together import LEGAL, Comparison, judged_together

    kinds = list(shares(options.histories, options.seed, kinds_named(tuple(options.kind))))
    seeds = range(options.seed, options.seed + options.legal)
    comparison = Comparison(directory, options.merge)
    is_fit = Trial(judge_of(TWINS), directory).is_fit
    begun_s = time.monotonic()
    with session.opened():
        for told in comparison.take(seeds, [one for one in kinds if one[0].check]):
            seconds = time.monotonic() - begun_s
            print(f"  {len(told.parts)} histories, {told.lines:,} lines judged, {seconds:.0f} s")
            show_differences(told.differing)
        for kind, own in kinds:
            if not kind.check:
                before = len(comparison.differing)
                comparison.take_alone(kind, own[: options.alone], is_fit)
                show_differences(comparison.differing[before:])
        random_seeds = range(options.seed, options.seed + options.random)
        for told in judged_together(random_parts(random_seeds), options.merge, directory):
            print(f"  {len(told.parts)} random histories, {told.lines:,} lines judged")
            show_differences(told.differing)
            comparison.differing += told.differing
    print(f"{'kind':32} {'must come to':22} {'made':>6} {'found':>6} {'share':>7}")
    for name, tally in comparison.tallies.items():
        kind = KINDS.get(name)
        due = "no row" if kind is None else f"{kind.check} {kind.word}" if kind.check else UNKNOWN
        tell(name, due, tally)
    wrong = sum(tally.made - tally.found for tally in comparison.tallies.values())
    made = sum(tally.made for tally in comparison.tallies.values())
    alarms_ = len(comparison.tallies[LEGAL].missed)
    print(
        f"{comparison.runs} merged runs, {comparison.lines:,} lines, {made:,} histories: ", end=""
    )
    print(f"{alarms_} alarms, {wrong - alarms_} missed, {len(comparison.differing)} differences")
    return wrong + len(comparison.differing)


def show_differences(differing: Sequence[tuple[str, Difference]]) -> None:
    """Print the first ones."""
    for which, one in differing[:DIFFERENCES_SHOWN_MAX]:
        print(f"  {which}: {one.run}: {one.what}: {one.first} | {one.second}", flush=True)


def tell(name: str, due: str, tally: KindTally) -> None:
    """Print a line of the table, and what was missed."""
    share = f"{tally.found / tally.made:.1%}" if tally.made else "-"
    print(f"{name:32} {due:22} {tally.made:6} {tally.found:6} {share:>7}", flush=True)
    for seed, said in tally.missed[:SHOWN_MAX]:
        print(f"  missed: --kind {name} --show {seed}: {words(said)}")


def words(said: JudgesVerdict) -> str:
    """Return what a judge said, in a line."""
    rows = ", ".join(f"{name} {sorted(set(rows))}" for name, rows in said.rows.items())
    return f"{said.verdict}; {rows or 'no rows'}; {'; '.join(said.reasons[:SHOWN_MAX]) or '-'}"


def show(trial: Trial, options: argparse.Namespace) -> int:
    """Write one history to --out, and print what is said of it."""
    out = options.out or Path(f"history-{options.show}")
    if options.kind:
        kind = KINDS[options.kind[0]]
        made: Sabotaged = sabotaged(kind, options.show, out, trial.is_fit)
        print(f"{kind.name}: {kind.sentence}; legal seed {made.base_seed}; in {out}")
    else:
        legal(options.show).write(out)
        print(f"legal seed {options.show}; in {out}")
    print(words(judge_of(options.judge)(out)))
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    made = argparse.ArgumentParser(prog="python -m tests.judges", description=__doc__)
    made.add_argument("--histories", type=int, default=0, metavar="N", help="sabotage so many")
    made.add_argument("--legal", type=int, default=0, metavar="N", help="judge so many legal ones")
    made.add_argument(
        "--altered",
        type=int,
        default=0,
        metavar="N",
        help="alter one field of so many legal ones, and say what that comes to",
    )
    made.add_argument("--judge", choices=JUDGES, default=JUDGES[0])
    made.add_argument(
        "--merge",
        type=int,
        default=MERGED,
        help="of Spark: histories in one run (default: %(default)s)",
    )
    made.add_argument(
        "--alone",
        type=int,
        default=1,
        help="of Spark: histories of a kind that can't be merged (default: %(default)s)",
    )
    made.add_argument(
        "--random",
        type=int,
        default=0,
        metavar="N",
        help="of Spark: compare so many random histories of each form",
    )
    made.add_argument("--seed", type=int, default=1, help="decides everything (default: 1)")
    made.add_argument("--kind", action="append", default=[], help="only this kind; repeatable")
    made.add_argument("--table", type=Path, help="where to write the share found as a page")
    made.add_argument("--list", action="store_true", help="list the kinds")
    made.add_argument("--show", type=int, metavar="SEED", help="write one history, and judge it")
    made.add_argument("--out", type=Path, help="where --show writes it")
    return made


if __name__ == "__main__":
    sys.exit(main())
