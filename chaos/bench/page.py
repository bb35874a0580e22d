"""A run as a page that stands alone: the table, and a plot of each curve.

What lives here: HTML and plots. What must not: arithmetic, or words for figures (report.py).
"""

from __future__ import annotations

from html import escape
from typing import Any, Final

from chaos.bench.figures import BenchError, Curve
from chaos.bench.report import COLUMNS, BenchReport, about, comparisons, remarks

HEIGHT_PX: Final = 380
STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "td,th{padding:.1rem .7rem;text-align:left;white-space:nowrap}"
    "td:nth-child(2),td:nth-child(3),td:nth-child(4),td:nth-child(6),td:nth-child(7)"
    "{text-align:right;font-variant-numeric:tabular-nums}.table{overflow-x:auto}"
)


def page(report: BenchReport) -> str:
    """Return the page. It needs nothing from elsewhere; plotly's script is in it once.

    Raises BenchError where plotly is not installed.
    """
    plots = [
        f"<h2>{escape(curve.title)}</h2>{_plot(curve, is_first=number == 0)}"
        for number, curve in enumerate(report.curves)
    ]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f"<title>Benchmark</title><style>{STYLE}</style></head><body><h1>Benchmark</h1>",
            *(f"<p>{escape(line)}</p>" for line in about(report)),
            *plots,
            "<h2>Figures</h2>",
            _table(report),
            *(f"<p>{escape(line)}</p>" for line in remarks(report)),
            "</body></html>",
            "",
        ]
    )


def _table(report: BenchReport) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in comparisons(report)
    )
    return f'<div class="table"><table><tr>{head}</tr>{rows}</table></div>'


def _plot(curve: Curve, is_first: bool) -> str:
    figure = _figures().Figure()
    for label, line in curve.lines.items():
        x, y = [point[0] for point in line], [point[1] for point in line]
        if curve.is_bars:
            figure.add_scatter(
                name=escape(label), x=x, y=y, line_shape="vh", fill="tozeroy", mode="lines"
            )
        else:
            figure.add_scatter(name=escape(label), x=x, y=y, mode="lines+markers")
    kind = "log" if curve.is_log else "linear"
    figure.update_layout(
        template="plotly_white",
        height=HEIGHT_PX,
        margin={"l": 60, "r": 20, "t": 10, "b": 50},
        legend={"orientation": "h", "y": -0.2},
    )
    # The classes of a histogram grow by factors.
    figure.update_xaxes(title=escape(curve.x), type="log" if curve.is_bars else kind)
    figure.update_yaxes(title=escape(curve.y), type=kind, rangemode="tozero")
    return str(figure.to_html(full_html=False, include_plotlyjs=is_first, div_id=curve.name))


def require_plotly() -> None:
    """Raise BenchError where plotly is not installed: before minutes of measuring."""
    _figures()


def _figures() -> Any:
    try:
        from plotly import graph_objects
    except ImportError:
        raise BenchError("--html: plotly is missing: pip install '.[analytics]'") from None
    return graph_objects
