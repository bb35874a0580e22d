"""The plots, as plotly figures. What they show comes from data.py; the page arranges them.

Colours are names (`var(--ack)`): the page's style sheet says what they are in light and in dark,
its script puts the values in. Every text that comes from a history is escaped here, because plotly
takes HTML in labels.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from plotly import graph_objects as go

from analytics.report.data import Axis, Band, PhaseSpan, Series, Spread, Values

HEIGHT_PX: Final = 270
LANE_PX: Final = 34
BANDS_MAX: Final = 300  # rectangles in one plot; a browser draws these in a blink
LANES_MAX: Final = 24
PHASE_SHARE_MIN: Final = 0.05  # of the width, from one phase's label to the next
LABEL_CHARACTERS_MAX: Final = 40
SLIVER_SHARE: Final = 0.003  # of the width: the least that a bar has, or it could not be seen
FAULT_COLOURS: Final = ("var(--fault-1)", "var(--fault-2)", "var(--fault-3)", "var(--fault-4)")
LEAD_COLOURS: Final = ("var(--lead-1)", "var(--lead-2)")


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot with its words. `alt`: what is to be seen in it, in numbers, for who cannot see it."""

    id: str
    title: str
    caption: str
    alt: str
    figure: go.Figure

    @property
    def height_px(self) -> int:
        """Return how high it is drawn."""
        return int(self.figure.layout.height)


def plots(series: Series, nodes: Sequence[str]) -> tuple[Plot, ...]:
    """Return the plots of a run. `nodes`: those it is known to have had, leaders or not."""
    return (
        throughput(series),
        unseen(series),
        latency(series),
        staleness(series),
        roles(series, nodes),
    )


def throughput(series: Series) -> Plot:
    """Return publications a second: acknowledged, delivered, and what went wrong if anything."""
    colours = {
        "delivered": "var(--deliver)",
        "acknowledged": "var(--ack)",
        "unknown": "var(--unknown)",
        "refused": "var(--refused)",
    }
    shown = {
        name: colour
        for name, colour in colours.items()
        if name in ("acknowledged", "delivered") or any(series.rates[name])
    }
    figure = _figure(series, "publications / s")
    for name, colour in shown.items():
        figure.add_trace(_line(series.axis, name, series.rates[name], colour, "%{y:,.0f} / s"))
    alt = "; ".join(f"{name}: {_in_words(series.rates[name], '/s')}" for name in shown)
    caption = (
        f"Publications a second, in slices of {_width(series.axis)}. Deliveries count once for "
        "each subscriber, acknowledgments once."
    )
    return Plot("throughput", "Throughput", caption, alt, figure)


def unseen(series: Series) -> Plot:
    """Return how many acknowledged publications subscribers did not have yet."""
    figure = _figure(series, "publications")
    line = _line(series.axis, "unseen so far", series.unseen, "var(--unseen)", "%{y:,.0f}")
    line.update(fill="tozeroy", line_shape="hv")
    figure.add_trace(line)
    left = series.unseen[-1] or 0
    end = f"{left:,.0f} at the end" if left else "none at the end"
    alt = f"Unseen so far: {_in_words(series.unseen, '')}, {end}."
    caption = (
        "Acknowledged, but not yet delivered: how far each subscription that never ended is "
        "behind the highest acknowledged id, all of them added up. It has to end at nought."
    )
    return Plot("unseen", "Unseen so far", caption, alt, figure)


def latency(series: Series) -> Plot:
    """Return how long PUTs took until they were acknowledged."""
    caption = (
        "From before a PUT's first send to its acknowledgment, retries included, by when it was "
        f"acknowledged, in slices of {_width(series.axis)}. Logarithmic."
    )
    return _spread_plot(series, series.latency, "latency", "Latency of PUT", caption)


def staleness(series: Series) -> Plot:
    """Return how long publications took from their acknowledgment to a subscriber."""
    caption = (
        "From a publication's acknowledgment until it was first handed to a subscriber, by when "
        "that was; 0.1 ms or less is drawn as 0.1 ms: the subscriber was as fast. Logarithmic."
    )
    return _spread_plot(series, series.staleness, "staleness", "Staleness", caption)


def roles(series: Series, nodes: Sequence[str]) -> Plot:
    """Return who led when, and which faults were in force at whom."""
    names = sorted({*nodes, *(lead.node for lead in series.leads)})
    targets = {target for band in series.bands for target in band.targets or ("all",)}
    lanes = [*names, *sorted(targets - set(names))][:LANES_MAX]
    figure = _figure(series, "")
    figure.layout.annotations = ()  # the bars stand where the phases' names would
    _add_leads(figure, series, set(lanes))
    _add_faults(figure, series, set(lanes))
    order = [_label(lane) for lane in reversed(lanes)]
    figure.update_yaxes(type="category", categoryorder="array", categoryarray=order, title=None)
    figure.update_yaxes(range=[-0.6, len(lanes) - 0.4], showgrid=False, rangemode="normal")
    figure.update_layout(
        height=130 + LANE_PX * len(lanes), barmode="overlay", bargap=0.3, hovermode="closest"
    )
    caption = (
        "Who answered as leader, from its first answer in a term to its last (terms take turns in "
        "two shades), and the faults in force at each node. Between the bars nobody answered."
    )
    return Plot("roles", "Who led, and what was done to whom", caption, _roles_alt(series), figure)


# --- parts ------------------------------------------------------------------------------------


def _figure(series: Series, unit: str) -> go.Figure:
    """Return an empty figure over the run's time, with fault bands and phase marks."""
    layout: dict[str, Any] = {
        "template": go.layout.Template(),
        "height": HEIGHT_PX,
        "margin": {"l": 56, "r": 12, "t": 44, "b": 40},
        "font": {"family": "inherit", "size": 12, "color": "var(--ink)"},
        "paper_bgcolor": "var(--plot)",
        "plot_bgcolor": "var(--plot)",
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--line)"},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font_size": 12},
        "showlegend": True,
        "shapes": [*_fault_shapes(series.bands), *_phase_shapes(series.phases)],
        "annotations": _phase_labels(series.phases, series.axis),
    }
    figure = go.Figure(layout=layout)
    axis = {"gridcolor": "var(--grid)", "zeroline": False, "linecolor": "var(--line)"}
    end_s = max(series.axis.end_s, series.axis.width_s)
    figure.update_xaxes(**axis, range=[0, end_s], title={"text": "seconds", "standoff": 6})
    figure.update_yaxes(**axis, title=unit, rangemode="tozero", automargin=True)
    return figure


def _line(axis: Axis, name: str, values: Values, colour: str, hover: str) -> go.Scatter:
    return go.Scatter(
        x=axis.times_s(),
        y=list(values),
        name=name,
        mode="lines",
        line={"color": colour, "width": 1.8},
        hovertemplate=hover,
    )


def _spread_plot(series: Series, spread: Spread, id_: str, title: str, caption: str) -> Plot:
    figure = _figure(series, "ms")
    for name, values, colour, dash in (
        ("median", spread.p50, "var(--p50)", "solid"),
        ("99 %", spread.p99, "var(--p99)", "solid"),
        ("longest", spread.most, "var(--most)", "dot"),  # dotted: it often is the 99 %
    ):
        line = _line(series.axis, name, _drawable(values), colour, "%{y:,.1f} ms")
        # Markers too: a lone slice between empty ones has no line to be seen by.
        line.update(mode="lines+markers", marker={"size": 3, "color": colour}, line_dash=dash)
        figure.add_trace(line)
    figure.update_yaxes(type="log", rangemode="normal", tickformat="~g")
    alt = (
        f"{title}: medians of slices: {_in_words(spread.p50, ' ms')}; "
        f"99 % within: {_in_words(spread.p99, ' ms')}; longest: {_in_words(spread.most, ' ms')}."
    )
    return Plot(id_, title, caption, alt, figure)


def _drawable(values: Values) -> list[float | None]:
    """Return `values` fit for a logarithmic axis."""
    return [None if value is None else max(value, 0.1) for value in values]


def _fault_shapes(bands: Sequence[Band]) -> list[dict[str, Any]]:
    shape = {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "line_width": 0, "layer": "below"}
    return [
        {**shape, "x0": band.begin_s, "x1": band.end_s, "fillcolor": "var(--band)"}
        for band in bands[:BANDS_MAX]
    ]


def _phase_shapes(phases: Sequence[PhaseSpan]) -> list[dict[str, Any]]:
    shape = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    line = {"color": "var(--mark)", "width": 1, "dash": "dot"}
    return [
        {**shape, "x0": phase.begin_s, "x1": phase.begin_s, "line": line}
        for phase in phases[:BANDS_MAX]
    ]


def _phase_labels(phases: Sequence[PhaseSpan], axis: Axis) -> list[dict[str, Any]]:
    """Return the names of phases at their first mark, where there is room, from the left.

    Not that of `fault`: the bands say it.
    """
    labels: list[dict[str, Any]] = []
    first = {phase.name: phase for phase in reversed(phases)}
    free_from_s = 0.0
    for phase in phases[:BANDS_MAX]:
        is_late = phase.begin_s > axis.end_s * (1 - PHASE_SHARE_MIN / 2)
        if phase.begin_s < free_from_s or is_late or first[phase.name] != phase:
            continue
        if phase.name == "fault":
            continue
        free_from_s = phase.begin_s + axis.end_s * PHASE_SHARE_MIN
        labels.append(
            {
                "x": phase.begin_s,
                "y": 1,
                "yref": "paper",
                "text": escape(phase.name),
                "textangle": -90,
                "xanchor": "left",
                "yanchor": "top",
                "showarrow": False,
                "font": {"size": 10, "color": "var(--soft)"},
            }
        )
    return labels


def _add_leads(figure: go.Figure, series: Series, lanes: set[str]) -> None:
    leads = [lead for lead in series.leads if lead.node in lanes]
    terms = sorted({lead.term for lead in leads})
    shade = {term: LEAD_COLOURS[place % 2] for place, term in enumerate(terms)}
    hover = [
        f"{_label(lead.node)} leads term {lead.term}<br>{lead.begin_s:,.2f} to "
        f"{lead.end_s:,.2f} s, {lead.answers:,} answers"
        for lead in leads
    ]
    spans = [(lead.node, lead.begin_s, lead.end_s) for lead in leads]
    bar = _bar(series.axis, "leads", spans, hover)
    bar.update(
        marker={"color": [shade[lead.term] for lead in leads]},
        text=[f"term {lead.term}" for lead in leads],
        textposition="inside",
        insidetextanchor="middle",
        textfont={"color": "var(--on-lead)", "size": 11},
        constraintext="both",
        width=0.62,
    )
    figure.add_trace(bar)


def _add_faults(figure: go.Figure, series: Series, lanes: set[str]) -> None:
    names = list(dict.fromkeys(band.name for band in series.bands))
    for place, name in enumerate(names):
        spans, hover = [], []
        for band in series.bands[:BANDS_MAX]:
            if band.name != name:
                continue
            until = f"{band.end_s:,.2f} s" if band.healed else "the end, not healed"
            for target in band.targets or ("all",):
                if target in lanes:
                    spans.append((target, band.begin_s, band.end_s))
                    hover.append(
                        f"{_label(name)} at {_label(target)}<br>{band.begin_s:,.2f} to {until}"
                    )
        bar = _bar(series.axis, _label(name), spans, hover)
        colour = FAULT_COLOURS[place % len(FAULT_COLOURS)]
        pattern = {"shape": "/", "fillmode": "replace", "size": 6, "solidity": 0.3}
        bar.update(
            marker={"pattern": {**pattern, "bgcolor": colour, "fgcolor": "var(--plot)"}},
            width=0.3,
        )
        figure.add_trace(bar)


def _bar(
    axis: Axis, name: str, spans: Iterable[tuple[str, float, float]], hover: list[str]
) -> go.Bar:
    spans = list(spans)
    least_s = axis.end_s * SLIVER_SHARE
    return go.Bar(
        name=name,
        orientation="h",
        y=[_label(lane) for lane, _, _ in spans],
        base=[begin_s for _, begin_s, _ in spans],
        x=[max(end_s - begin_s, least_s) for _, begin_s, end_s in spans],
        customdata=hover,
        hovertemplate="%{customdata}<extra></extra>",
    )


def _label(text: str) -> str:
    """Return a name from a history as plotly may show it: escaped, and not too long."""
    cut = text if len(text) <= LABEL_CHARACTERS_MAX else text[: LABEL_CHARACTERS_MAX - 1] + "…"
    return escape(cut)


def _width(axis: Axis) -> str:
    return f"{axis.width_s:g} s"


def _in_words(values: Values, unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "nothing"
    median, most = statistics.median(known), max(known)
    return f"median {median:,.0f}{unit}, highest {most:,.0f}{unit}"


def _roles_alt(series: Series) -> str:
    leads = "; ".join(
        f"{lead.node} led term {lead.term} from {lead.begin_s:,.1f} to {lead.end_s:,.1f} s"
        for lead in series.leads[:LANES_MAX]
    )
    faults = "; ".join(
        f"{band.name} at {', '.join(band.targets) or 'all'} from {band.begin_s:,.1f} to "
        f"{band.end_s:,.1f} s"
        for band in series.bands[:LANES_MAX]
    )
    return f"Leaders: {leads or 'none was seen'}. Faults: {faults or 'none'}."
