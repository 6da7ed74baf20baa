"""What all figures share: fonts for a language, colours, captions, files."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from ..files import atomic_write
from ..labels import LANGUAGES, wrap

PRE, POST, THEORY = "#0072B2", "#D55E00", "#000000"
"""Blue, vermilion and black of Okabe & Ito's palette, which colour-blind readers can tell apart."""

MARKERS = "osD^vPX*<>"
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.2)), (0, (3, 1, 1, 1)), (0, (1.2, 1)), (0, (7, 2, 2, 2)))

CJK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Noto Sans CJK JP",  # the first face of the collection, and all that matplotlib reads of it
    "SimHei",
    "Heiti SC",
    "STHeiti",
    "Droid Sans Fallback",
)
_CJK_FILES = ("cjk", "notosanssc", "sourcehan", "wqy", "msyh", "pingfang", "hiragino", "simhei",
              "heiti", "droidsansfallback")  # fmt: skip

FONT_SIZE = 11
DPI = 150


@contextmanager
def language(lang: str) -> Iterator[str]:
    """Set the fonts for a language while figures are made and saved; yield the one in force.

    Without a Chinese font "zh" becomes "en", with one warning. The Chinese font stands before the
    Latin one: matplotlib takes the first of the list for text that also holds a formula, and draws
    boxes for what it lacks.
    """
    if lang not in LANGUAGES:
        raise ValueError(f"the language must be one of {', '.join(LANGUAGES)}, but is {lang!r}")
    families = ["DejaVu Sans"]
    if lang == "zh":
        font = chinese_font()
        if font is None:
            warnings.warn(
                "no Chinese font was found, so the labels are English; install Noto Sans CJK SC "
                "or WenQuanYi Micro Hei",
                stacklevel=3,
            )
            lang = "en"
        else:
            families.insert(0, font)
    settings: Any = {
        "font.family": families,
        "font.size": FONT_SIZE,
        "mathtext.fontset": "dejavusans",
        "axes.titlesize": FONT_SIZE + 1,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "0.9",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 5.5,
        "axes.ymargin": 0.07,
        "legend.fontsize": FONT_SIZE - 1.5,
        "legend.frameon": False,
        "legend.handlelength": 3.2,
        "svg.hashsalt": "npformer",  # the same figure, the same file
    }
    with mpl.rc_context(settings):
        yield lang


def chinese_font() -> str | None:
    """Return the name of the first installed font of `CJK_FONTS`."""
    if (font := _first_known()) is not None:
        return font
    # matplotlib's list of fonts may be older than the font.
    for path in font_manager.findSystemFonts():
        if any(part in Path(path).name.lower() for part in _CJK_FILES):
            try:
                font_manager.fontManager.addfont(path)
            except (OSError, RuntimeError):
                continue  # a file that is no font after all
    return _first_known()


def _first_known() -> str | None:
    known = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in CJK_FONTS if name in known), None)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches that arranges its parts by itself."""
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def add_texts(figure: Figure, title: str, caption: str) -> None:
    """Put a title above and a caption below the panels, and make room for both."""
    width, height = figure.get_size_inches()
    size, margin = FONT_SIZE - 0.5, 0.12
    columns = int((width - 2 * margin) * 72 / (size * 0.545))  # the mean width of a letter
    lines = wrap(caption, columns)
    below = (len(lines) * size * 1.42 / 72 + 2 * margin) / height
    above = (FONT_SIZE * 1.9 / 72 + margin) / height
    engine: Any = figure.get_layout_engine()
    engine.set(rect=(0, below, 1, 1 - below - above))
    left = margin / width
    figure.text(left, 1 - margin / height, title, va="top", fontsize=FONT_SIZE + 2.5)
    figure.text(
        left, margin / height, "\n".join(lines), va="bottom", fontsize=size, linespacing=1.3,
        color="0.2",
    )  # fmt: skip


class _PlainLocator(LogLocator):
    """1, 2, 3, 5 and 10, or a finer scale where the axis would show less than three of them."""

    def tick_values(self, vmin: float, vmax: float) -> Any:
        coarse: Any = super().tick_values(vmin, vmax)
        if np.count_nonzero((coarse >= vmin) & (coarse <= vmax)) >= 3:
            return coarse
        return MaxNLocator(nbins=6, steps=(1, 2, 5, 10)).tick_values(vmin, vmax)


def log_axis(ax: Axes, name: str, ticks: Sequence[float] | None = None) -> None:
    """Make the x or y axis logarithmic, with plain numbers at 1, 2, 3, 5, 10 or at ``ticks``.

    A range that holds less than three of these gets a linear scale's numbers: one alone leaves a
    reader without a scale.
    """
    ax.set(**{f"{name}scale": "log"})
    axis: Axis = ax.xaxis if name == "x" else ax.yaxis
    axis.set_major_locator(FixedLocator(ticks) if ticks else _PlainLocator(subs=(1, 2, 3, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_formatter(NullFormatter())


def depth_styles(count: int) -> list[dict[str, Any]]:
    """Return line styles for so many depths: dark to light, each with its marker and dashes."""
    colours = mpl.colormaps["viridis"]
    return [
        {
            "color": colours(0.85 * i / max(1, count - 1)),
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": DASHES[i % len(DASHES)],
        }
        for i in range(count)
    ]


def share_y(panels: Sequence[Axes]) -> None:
    """Give all panels the range of values that holds each of theirs."""
    low = min(ax.get_ylim()[0] for ax in panels)
    high = max(ax.get_ylim()[1] for ax in panels)
    for ax in panels:
        ax.set_ylim(low, high)


def save_figure(figure: Figure, stem: str | os.PathLike[str]) -> list[Path]:
    """Write ``stem.svg`` and ``stem.png`` and return their paths.

    Both are drawn before the first is written, and each appears whole or not at all. Call it
    inside `language`, which says with which fonts.
    """
    figure.draw_without_rendering()  # arranges the panels
    figure.set_layout_engine("none")  # once is enough for both files
    drawn = {}
    for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=DPI, facecolor="white", metadata=metadata)
        drawn[kind] = buffer.getvalue()
    paths = []
    for kind, content in drawn.items():
        path = Path(f"{os.fspath(stem)}.{kind}")
        with atomic_write(path, binary=True) as file:
            file.write(content)
        paths.append(path)
    return paths
