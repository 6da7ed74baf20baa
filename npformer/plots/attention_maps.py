"""Attention maps: one head with its tokens, or a grid of heads and layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from ..arrays import Array
from ..experiments.attention_maps import Maps
from .inspection_text import TEXT
from .style import add_texts, chinese_font, new_figure

READABLE = 72
"""Tokens that can be named at an axis."""

MOST_PANELS = 600

TOKEN_INCH, WIDEST = 0.13, 16.0
"""What a token needs at an axis of a grid, and how wide a grid with tokens may be."""


def attention_maps(
    maps: Sequence[Maps],
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    subject: str = "",
    data: str = "attention.csv",
    lang: str = "en",
) -> Figure:
    """Draw maps: a single head large and with its tokens, several as a grid.

    Parameters
    ----------
    maps : sequence of Maps
    queries, keys : sequences of str
        The tokens.
    subject, data : str
        For the caption: what was measured, and the file with the numbers.
    lang : {"en", "zh"}
    """
    panels = sum(len(m.heads) for m in maps)
    if panels > MOST_PANELS:
        raise ValueError(
            f"{panels} attention maps are too many for one figure: choose some, at most "
            f"{MOST_PANELS}"
        )
    text = TEXT[lang]
    if panels == 1:
        return _single(maps[0], queries, keys, subject, data, text)
    return _grid(maps, queries, keys, subject, data, text)


def _single(
    m: Maps, queries: Sequence[str], keys: Sequence[str], subject: str, data: str,
    text: dict[str, Any],
) -> Figure:  # fmt: skip
    P, head = m.P[m.heads[0]], m.heads[0]
    T, S = P.shape
    side = min(8.0, max(3.6, 0.21 * max(T, S)))
    figure = new_figure(max(7.2, side * S / max(T, S) + 2.2), side * T / max(T, S) + 2.6)
    ax = figure.subplots()
    image = _map(ax, P, text)
    bar = figure.colorbar(image, ax=ax, shrink=0.8, pad=0.02)
    bar.set_label(text["weight"])
    bar.ax.spines["outline"].set_visible(False)
    ax.set(xlabel=text["key"], ylabel=text["query"])
    _tokens(ax, "x", keys[:S])
    _tokens(ax, "y", queries[:T])
    add_texts(
        figure,
        text["map_title"].format(name=m.name, head=head),
        text["map_caption"].format(subject=subject, data=data),
    )
    return figure


def _grid(
    maps: Sequence[Maps], queries: Sequence[str], keys: Sequence[str], subject: str, data: str,
    text: dict[str, Any],
) -> Figure:  # fmt: skip
    columns = max(len(m.heads) for m in maps)
    rows = len(maps)
    if rows == 1 and columns > 4:  # one layer: its heads in lines of their own
        columns = _columns(columns)
        cells = [(maps[0], h) for h in maps[0].heads]
        rows = math.ceil(len(cells) / columns)
        placed = {divmod(i, columns): cell for i, cell in enumerate(cells)}
    else:
        placed = {(i, j): (m, h) for i, m in enumerate(maps) for j, h in enumerate(m.heads)}
    side = min(2.0, max(0.8, 11 / columns))
    tokens = max(len(queries), len(keys))
    named = TOKEN_INCH * tokens * columns <= WIDEST  # the tokens stand at the outer panels
    side = max(side, TOKEN_INCH * tokens) if named else side
    size = min(9.0, 60 * side / max(1, tokens))
    figure = new_figure(max(7.2, side * columns + 1.6), side * rows + 2.3)
    grid = figure.subplots(rows, columns, squeeze=False)
    image: Any = None
    for (i, j), ax in np.ndenumerate(grid):
        if (i, j) not in placed:
            ax.set_axis_off()
            continue
        m, h = placed[i, j]
        image = _map(ax, m.P[h], text)
        ax.set(xticks=[], yticks=[])
        if named and j == 0:
            _tokens(ax, "y", queries[: m.P[h].shape[0]], size)
        if named and (i + 1, j) not in placed:
            _tokens(ax, "x", keys[: m.P[h].shape[1]], size)
        first = i == 0 or len({tuple(m.heads) for m in maps}) > 1 or len(maps) == 1
        if first:
            ax.set_title(text["head"].format(head=h), fontsize=9)
        if j == 0:
            ax.set_ylabel(m.name.replace(".blocks", ".\nblocks") if len(maps) > 1 else "",
                          fontsize=9)  # fmt: skip
    bar = figure.colorbar(image, ax=grid, shrink=min(1.0, 2.4 / (side * rows)), pad=0.015)
    bar.set_label(text["weight"])
    bar.ax.spines["outline"].set_visible(False)
    title = text["grid_title"] if len(maps) > 1 else f"{text['grid_title']}: {maps[0].name}"
    add_texts(figure, title, text["grid_caption"].format(subject=subject, data=data))
    return figure


def _columns(n: int) -> int:
    """Return in how many columns n panels stand, all lines full if that is possible."""
    least = math.ceil(n**0.5)
    return next((c for c in range(least, 9) if n % c == 0), min(8, least))


def _map(ax: Axes, P: Array, text: dict[str, Any]) -> Any:
    """Draw the weights, grey where they are exactly 0: what a mask hides is."""
    colours = mpl.colormaps["viridis"].with_extremes(bad="0.88")
    ax.grid(visible=False)
    for side in ax.spines.values():
        side.set_visible(False)
    if not np.isfinite(P).all():
        ax.text(0.5, 0.5, text["bad"], transform=ax.transAxes, ha="center", va="center")
    shown = np.ma.masked_where(~(P > 0), P.astype(float))
    return ax.imshow(shown, cmap=colours, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")


def _tokens(ax: Axes, name: str, tokens: Sequence[str], size: float | None = None) -> None:
    """Write the tokens at an axis, or numbers where they are too many."""
    axis = ax.xaxis if name == "x" else ax.yaxis
    if len(tokens) > READABLE:
        return
    size = max(5.0, min(10.0, 300 / max(1, len(tokens)))) if size is None else size
    families = [*mpl.rcParams["font.family"], *([font] if (font := chinese_font()) else [])]
    long = max(map(len, tokens)) > 2
    axis.set_ticks(range(len(tokens)), [drawable(t, families) for t in tokens])
    for label in axis.get_ticklabels():
        label.set(fontsize=size, fontfamily=families, parse_math=False)
        if name == "x" and long:
            label.set_rotation(90)
    axis.set_tick_params(length=0)


def drawable(token: str, families: Sequence[str]) -> str:
    """Return a token in which characters that no font has are written as their number."""
    return "".join(c if _has(c, families) else f"⟨{ord(c):x}⟩" for c in token)


def _has(character: str, families: Sequence[str]) -> bool:
    for family in families:
        path = font_manager.findfont(family, fallback_to_default=True)
        if FT2Font(path).get_char_index(ord(character)):
            return True
    return False
