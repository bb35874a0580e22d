"""The page of one run: what stands on it, and in which order. How it looks is in templates/.

`write_report` is what `flotilla-check` calls. Judges nothing, and draws from Spark only what
series.py and operations.py aggregate.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from plotly.offline import get_plotlyjs

from analytics.common.storage import Place, place_of
from analytics.common.verdict import (
    CheckResult,
    InjectedFault,
    Observations,
    Quantiles,
    Report,
    Verdict,
    Witness,
)
from analytics.judge.load import History
from analytics.report import html, operations
from analytics.report.data import Band, Series
from analytics.report.facts import ReportFacts, facts_of
from analytics.report.figures import Plot, plots
from analytics.report.series import collect

PAGE, JSON = "report.html", "report.json"
FAULTS_SHOWN_MAX: Final = 50  # the longest blackouts; report.json has every fault
NO_FIGURES_OF_HOSTS: Final = (
    "Nothing is plotted: the history was recorded on several hosts, whose clocks cannot be"
    " compared."
)
NO_FIGURES_OF_TWINS: Final = (
    "Nothing is plotted: a small run was judged in plain Python, which draws no figures;"
    " `flotilla-check --judge spark` does, and measures latencies."
)
CHECKED_WITH: Final = ("flotilla-broker", "pyspark", "plotly")
MARKS: Final = {Verdict.VALID: "✓", Verdict.INVALID: "✗", Verdict.UNKNOWN: "?", None: "–"}


@dataclass(frozen=True, slots=True)
class Tile:
    """A number that the verdict rests on."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A fault in the table. `share`: its blackout by the longest one's; None: no end was seen."""

    at_s: float
    name: str
    targets: str
    blackout_ms: float | None
    share: float


@dataclass(frozen=True, slots=True)
class Proof:
    """A witness with its operations on a timeline, if any of them was found."""

    witness: Witness
    timeline: operations.Timeline | None


def write_report(history: History, report: Report) -> Report:
    """Write `report.html` and `report.json` into the run's directory; return what they say.

    Needs the Spark session that `history` was read with. A page that can't be made is a reason for
    doubt in the report that is returned, as a check that crashes is: it never hides the verdict.
    """
    directory = place_of(history.events.sparkSession, report.directory)
    try:
        _write(directory / PAGE, _page_of(history, report, directory))
    except Exception as failure:  # noqa: BLE001  (the boundary of the page, see above)
        reason = f"no page was made: {type(failure).__name__}: {failure}".partition("\n")[0]
        report = replace(report, reasons=(*report.reasons, reason))
    _write(directory / JSON, json.dumps(report.as_dict(), indent=2) + "\n")
    return report


def _write(place: Place, text: str) -> None:
    if isinstance(place, Path):
        place.write_text(text, encoding="utf-8")
    else:
        place.write_text(text)


def _page_of(history: History, report: Report, directory: Place) -> str:
    witnesses = [witness for check in report.checks for witness in check.witnesses]
    series = collect(history.events, history.tables, report.observations)
    events = operations.fetch(history.events, witnesses)
    return page(report, facts_of(directory), series, events)


def page(
    report: Report,
    facts: ReportFacts,
    series: Series | None,
    events: operations.Events,
    no_figures: str = NO_FIGURES_OF_HOSTS,
) -> str:
    """Return the page as HTML. `series` None: nothing is plotted, and `no_figures` says why."""
    shown = plots(series, facts.nodes) if series else ()
    origin_ns = series.axis.origin_ns if series else 0
    return html.rendered(
        "page.html.j2",
        scripts=(_plotly(), html.asset("page.js")) if shown else (),
        report=report,
        facts=facts,
        mark=MARKS,
        summary=_summary(report),
        tiles=_tiles(report, facts),
        plots=shown,
        no_figures=no_figures,
        figures=html.data_block(_figures(shown)),
        durations=_durations(report.observations),
        liveness=report.observations.liveness,
        faults=_faults(report, origin_ns),
        fault_count=len(report.observations.faults),
        proofs=_proofs(report.checks, events, origin_ns, series.bands if series else ()),
        tools=_tools(),
    )


@cache
def _plotly() -> str:
    """Return plotly's script as a page's parser reads it: it makes every end of line a \\n."""
    return str(get_plotlyjs()).replace("\r\n", "\n").replace("\r", "\n")


def _tools() -> list[tuple[str, str]]:
    """Return the versions of what checked the run, here and now."""
    # By way of a list: a checkout that was not installed is in none.
    found = {one.metadata["Name"]: one.version for one in distributions()}
    return [(f"{name} (checks)", found[name]) for name in CHECKED_WITH if name in found]


def _figures(shown: Sequence[Plot]) -> str:
    figures = ",".join(f"{json.dumps(plot.id)}:{plot.figure.to_json()}" for plot in shown)
    return "{" + figures + "}"


def _summary(report: Report) -> str:
    """Return the verdict in a sentence."""
    judged = [check for check in report.checks if check.verdict is not None]
    failed = [check for check in judged if check.verdict is Verdict.INVALID]
    count = _checks(len(judged), len(report.checks))
    if failed:
        pieces = _pieces(sum(check.count for check in failed))
        return f"{len(failed)} of {count} found {pieces} of evidence against this run."
    found = sum(check.count for check in judged)
    if found:
        return f"{count} found {_pieces(found)} of evidence, which is no proof here:"
    if report.reasons:
        return f"{count} found no evidence, but that proves nothing:"
    return (
        f"{count} read {report.lines:,} lines of what every client saw, and found nothing "
        "lost, doubled, skipped, reordered or invented."
    )


def _pieces(count: int) -> str:
    return "one piece" if count == 1 else f"{count:,} pieces"


def _checks(judged: int, all_: int) -> str:
    noun = "check" if judged == 1 else "checks"
    left = all_ - judged
    return f"{judged} {noun} ({left} could not judge this run)" if left else f"{judged} {noun}"


def _tiles(report: Report, facts: ReportFacts) -> list[Tile]:
    seen = report.observations
    rows = seen.rows
    standing = rows.get("drains", 0) + seen.undrained_count
    torn = f"{report.torn_lines:,} torn, {report.malformed_lines:,} malformed"
    return [
        Tile(f"{seen.acknowledged:,}", "acknowledged", "publications, each once"),
        Tile(f"{seen.delivered:,}", "delivered", "publications, repeats included"),
        Tile(f"{seen.recovered:,}", "recovered", "outcome unknown, seen later"),
        Tile(f"{rows.get('puts', 0):,}", "PUTs", "each of one or more publications"),
        Tile(f"{rows.get('gets', 0):,}", "GETs", "answered or not"),
        Tile(f"{rows.get('drains', 0):,} of {standing:,}", "subscriptions drained", "to the end"),
        Tile(f"{len(seen.faults):,}", "faults", _progress(seen)),
        Tile(f"{report.lines:,}", "lines of history", torn),
        Tile(*facts.truth),
    ]


def _progress(seen: Observations) -> str:
    if seen.progress_share is None:
        return "injected"
    return f"injected; PUTs were acknowledged in {seen.progress_share:.1%} of the time"


def _durations(seen: Observations) -> list[tuple[str, Quantiles]]:
    of = [(one.of.upper(), one) for one in seen.latencies]
    return of if seen.staleness is None else [*of, ("staleness", seen.staleness)]


def _faults(report: Report, origin_ns: int) -> list[FaultRow]:
    """Return the faults with the longest blackouts, in the order of their injection."""
    faults = report.observations.faults
    worst = sorted(faults, key=_length_ms, reverse=True)
    longest_ms = max((fault.blackout_ms or 0 for fault in faults), default=0) or 1
    return [
        FaultRow(
            at_s=(fault.t_ns - origin_ns) / 1e9,
            name=fault.name,
            targets=", ".join(fault.targets),
            blackout_ms=fault.blackout_ms,
            share=1 if fault.blackout_ms is None else fault.blackout_ms / longest_ms,
        )
        for fault in sorted(worst[:FAULTS_SHOWN_MAX], key=lambda fault: fault.t_ns)
    ]


def _length_ms(fault: InjectedFault) -> float:
    """Return how long a blackout was; one whose end was not seen is the longest of all."""
    return math.inf if fault.blackout_ms is None else fault.blackout_ms


def _proofs(
    checks: Sequence[CheckResult],
    events: operations.Events,
    origin_ns: int,
    bands: Sequence[Band],
) -> list[tuple[CheckResult, list[Proof]]]:
    def proof(witness: Witness) -> Proof:
        drawn = operations.timeline(witness.operations, events, origin_ns, bands)
        return Proof(witness, drawn)

    return [(check, [*map(proof, check.witnesses)]) for check in checks if check.witnesses]
