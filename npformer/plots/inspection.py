"""The norms that ``npformer inspect`` found, by layer."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogFormatterMathtext, LogLocator

from ..experiments.inspection import Inspection, Row
from .inspection_text import TEXT
from .style import DASHES, MARKERS, add_texts, log_axis, new_figure

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe & Ito's palette, which colour-blind readers can tell apart."""

MOST = 2 * len(COLOURS)
"""Names, apart from the number of a layer, that one figure can tell apart."""

Families = dict[str, list[tuple[float, Row]]]
"""A name with ``*`` for the layer to its rows, each with its place on the axis."""

PANELS: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
    ("value", lambda row: row.value.rms),
    ("gradient", lambda row: None if row.kind == "parameter" else _norm(row)),
    ("parameters", lambda row: _norm(row) if row.kind == "parameter" else row.parameters),
)


def _norm(row: Row) -> float | None:
    return None if row.gradient is None else row.gradient.norm


def norms(found: Inspection, subject: str = "", lang: str = "en") -> Figure:
    """Draw what was measured, one line a name: activation, gradient by it, by its parameters.

    A logarithmic axis has no place for zeros and for what is not finite: they are marked at its
    lower and its upper edge.
    """
    text = TEXT[lang]
    last = max((layer for r in found.rows if (layer := layer_of(r.name)) is not None), default=0)
    families = grouped(found.rows, last)
    shown = dict(list(families.items())[:MOST])
    panels = [p for p in PANELS if any(p[1](r) is not None for f in shown.values() for _, r in f)]
    figure = new_figure(max(7.2, 3.5 * len(panels) + 0.9), 5.6)
    axes = list(figure.subplots(1, len(panels), squeeze=False)[0])
    marked = False
    for ax, (name, number) in zip(axes, panels, strict=True):
        marked |= _panel(ax, shown, number, text, thin=name == "value")
        _layers(ax, last, text)
        ax.set(ylabel=text[name])
        ax.set_title(text["panels"][name], loc="left")
    caption = text["norms_caption"].format(subject=subject)
    caption += text["marks"] if marked else ""
    if len(shown) < len(families):
        caption += text["more"].format(shown=len(shown), all=len(families))
    add_texts(figure, text["norms_title"], caption)
    _legend(figure, axes[0])
    return figure


def _legend(figure: Figure, ax: Axes) -> None:
    """Put one legend for all panels between the title and the panels."""
    handles, labels = ax.get_legend_handles_labels()
    inches = 0.85 + 0.075 * max(map(len, labels))
    columns = max(1, min(len(labels), int(figure.get_size_inches()[0] / inches)))
    engine: Any = figure.get_layout_engine()
    left, bottom, width, height = engine.get()["rect"]
    rows = math.ceil(len(labels) / columns)
    room = (0.24 * rows + 0.1) / figure.get_size_inches()[1]
    engine.set(rect=(left, bottom, width, height - room))
    figure.legend(
        handles, labels, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, bottom + height),
        borderaxespad=0,
    ).set_in_layout(False)  # fmt: skip


def layer_of(name: str) -> int | None:
    """Return the number of the block in a name."""
    match = re.search(r"\bblocks\.(\d+)", name)
    return int(match[1]) if match else None


def step_of(last: int) -> int:
    """Return how far the numbers of layers stand apart that an axis can hold."""
    return max(1, math.ceil((last + 1) / 8))


def grouped(rows: Sequence[Row], last: int) -> Families:
    """Put rows that differ only in the layer under one name, and what has no layer at the ends."""
    families: Families = {}
    for row in rows:
        layer = layer_of(row.name)
        place: float = layer if layer is not None else -step_of(last)
        if layer is None and "embedding" not in row.name:
            place = last + step_of(last)
        name = re.sub(r"\bblocks\.\d+", "blocks.*", row.name, count=1)
        families.setdefault(name, []).append((place, row))
    return families


def _panel(
    ax: Axes,
    families: Families,
    number: Callable[[Row], float | None],
    text: dict[str, Any],
    *,
    thin: bool,
) -> bool:
    """Draw a panel and return whether it has marks at its edges."""
    values = [number(row) for rows in families.values() for _, row in rows]
    known = [v for v in values if v is not None]
    if not any(map(_drawable, known)):
        reasons = [text["zero" if v == 0 else "bad"] for v in known]
        what = text["between"].join(dict.fromkeys(reasons))
        ax.text(0.5, 0.5, text["nothing"].format(what=what), transform=ax.transAxes, ha="center",
                va="center", color="0.35")  # fmt: skip
        ax.set_yticks([])
    else:
        log_axis(ax, "y")
    marks: Counter[tuple[float, bool]] = Counter()
    for i, (name, rows) in enumerate(families.items()):
        colour = COLOURS[i % len(COLOURS)]
        style: dict[str, Any] = {
            "color": colour,
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": DASHES[i % len(DASHES)],
            "markerfacecolor": colour if i < len(COLOURS) else "white",
            "markersize": max(4.5, 9 - i),  # so that lines on one another can be told
        }
        places = [place for place, _ in rows]
        step = step_of(len(rows) - 1)
        style["markevery"] = (i % step, step)  # each name its own layers, where they are many
        numbers = [number(row) for _, row in rows]
        good = [v if v is not None and _drawable(v) else math.nan for v in numbers]
        ax.plot(places, good, label=name, **style)
        if thin:
            largest = [r.value.max if _drawable(r.value.max) else math.nan for _, r in rows]
            ax.plot(places, largest, color=colour, linewidth=0.8, linestyle=style["linestyle"],
                    alpha=0.7, zorder=1)  # fmt: skip
        for place, v in zip(places, numbers, strict=True):
            if v is not None and not _drawable(v):
                from_edge = 0.02 + 0.045 * marks[place, v == 0]  # those of one place side by side
                marks[place, v == 0] += 1
                height, marker = (from_edge, "v") if v == 0 else (1 - from_edge, "x")
                ax.plot(
                    place, height, marker, color=colour, transform=ax.get_xaxis_transform(),
                    markersize=8, markeredgewidth=2, markerfacecolor="white", zorder=5,
                )  # fmt: skip
    if any(map(_drawable, known)):
        low, high = ax.get_ylim()
        if high / low > 100:  # 1, 2 and 5 would be too many
            ax.yaxis.set_major_locator(LogLocator(subs=(1,), numticks=9))
            ax.yaxis.set_major_formatter(LogFormatterMathtext())
    return bool(marks)


def _drawable(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _layers(ax: Axes, last: int, text: dict[str, Any]) -> None:
    """Number the layers, few enough to read, with the places before and after them."""
    step = step_of(last)
    numbers = list(range(0, last + 1, step))
    names = {-step: text["before"], last + step: text["after"]}
    ax.xaxis.set_major_locator(FixedLocator([-step, *numbers, last + step]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: names.get(int(x), f"{x:g}")))
    ax.set_xlim(-1.5 * step, last + 1.5 * step)
    ax.set_xlabel(text["layer"])
