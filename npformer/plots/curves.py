"""The figures of ``npformer curves`` (chapter 2.5.3); `ScaleCurves` in, figures out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..experiments.gradient_scale import ScaleCurves, TheorySetup
from ..experiments.theory import POST_SUM, last_gradient, loglog_slope, mean_field
from .curves_text import TEXT
from .style import (
    POST,
    PRE,
    THEORY,
    add_texts,
    depth_styles,
    log_axis,
    new_figure,
    share_y,
)

_PLACEMENT: dict[str, dict[str, Any]] = {
    "pre": {"color": PRE, "marker": "o", "linestyle": "-", "label": "Pre-LN"},
    "post": {"color": POST, "marker": "s", "linestyle": (0, (5, 1.2)), "label": "Post-LN"},
}
_GUIDE: dict[str, Any] = {"color": "0.55", "linewidth": 1.2, "linestyle": ":", "zorder": 1}


def gradient_by_layer(curves: ScaleCurves, lang: str = "en", parameter: str = "W2") -> Figure:
    """Gradient norm of every layer, one line a depth: Pre-LN on the left, Post-LN on the right."""
    text = TEXT[lang]
    figure = new_figure(8.8, 5.6)
    panels = figure.subplots(1, 2)
    for ax, placement in zip(panels, ("pre", "post"), strict=True):
        _gradient_panel(ax, curves, placement, parameter, text)
    panels[1].set_ylabel("")
    share_y(panels)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside right center",
        title=text["depth"],
    )
    name = curves.setup.name
    add_texts(
        figure,
        text["gradient_title"][name],
        text["gradient_caption"].format(
            see=text["gradient_see"][name],
            parameter=f"$W_{parameter[1]}$",
            setup=_setup(curves, text, _seeds(curves)[0]),
        ),
    )
    return figure


def last_layer_gradient(both: Sequence[ScaleCurves], lang: str = "en") -> Figure:
    """Gradient norm of the last layer against depth, log-log, with the recursion drawn over."""
    text = TEXT[lang]
    figure = new_figure(8.8, 5.8)
    panels = list(figure.subplots(1, len(both), squeeze=False)[0])
    for ax, curves in zip(panels, both, strict=True):
        _last_panel(ax, curves, text)
        ax.set_title(text["setup"][curves.setup.name], loc="left")
    for ax in panels[1:]:
        ax.set_ylabel("")
    _legends(panels)
    setups = text["between"].join(_setup(c, text, _seeds(c)[0]) for c in both)
    add_texts(figure, text["last_title"], text["last_caption"].format(setups=setups))
    return figure


def activation_by_layer(both: Sequence[ScaleCurves], lang: str = "en") -> Figure:
    """Activation norm of every layer's output in the deepest stack, with what theory expects."""
    text = TEXT[lang]
    figure = new_figure(8.8, 5.8)
    panels = list(figure.subplots(1, len(both), squeeze=False)[0])
    for ax, curves in zip(panels, both, strict=True):
        _activation_panel(ax, curves, text)
        ax.set_title(text["setup"][curves.setup.name], loc="left")
    for ax in panels[1:]:
        ax.set_ylabel("")
    _legends(panels)
    setups = text["between"].join(_setup(c, text, _seeds(c)[1]) for c in both)
    caption = text["activation_caption"].format(depth=both[0].depths[-1], setups=setups)
    add_texts(figure, text["activation_title"], caption)
    return figure


def overview(curves: ScaleCurves, lang: str = "en") -> Figure:
    """All three questions in one row, for one set-up: the figure to show first."""
    text = TEXT[lang]
    figure = new_figure(11.5, 5.2)
    panels = figure.subplots(1, 3)
    L = curves.depths[-1]
    for placement in ("pre", "post"):
        g = curves.gradients[placement, L][:, :, 1].mean(axis=0)
        panels[0].plot(np.arange(1, L + 1), g, **_sparse(L), **_PLACEMENT[placement])
    log_axis(panels[0], "x", _ticks(L))
    log_axis(panels[0], "y")
    panels[0].set(xlabel=text["layer"], ylabel=text["grad_norm"].format(parameter="2"))
    _last_panel(panels[1], curves, text)
    _activation_panel(panels[2], curves, text)
    for ax, title in zip(panels, text["overview_panels"], strict=True):
        ax.set_title(title.format(depth=L), loc="left")
    _legends(panels)
    seeds = text["two_seeds"].format(*_seeds(curves))
    caption = text["overview_caption"].format(setup=_setup(curves, text, seeds))
    add_texts(figure, text["overview_title"][curves.setup.name], caption)
    return figure


# ------------------------------------------------------------------------------------- panels


def _gradient_panel(
    ax: Axes, curves: ScaleCurves, placement: str, parameter: str, text: dict[str, Any]
) -> None:
    for L, style in zip(curves.depths, depth_styles(len(curves.depths)), strict=True):
        g = curves.gradients[placement, L][:, :, int(parameter[1]) - 1].mean(axis=0)
        ax.plot(np.arange(1, L + 1), g, label=f"$L = {L}$", **_sparse(L), **style)
    log_axis(ax, "x", _ticks(curves.depths[-1]))
    log_axis(ax, "y")
    ax.set(xlabel=text["layer"], ylabel=text["grad_norm"].format(parameter=parameter[1]))
    ax.set_title({"pre": "Pre-LN", "post": "Post-LN"}[placement], loc="left")


def _last_panel(ax: Axes, curves: ScaleCurves, text: dict[str, Any]) -> None:
    depths, setup = np.array(curves.depths), curves.setup
    for placement, style in _PLACEMENT.items():
        g = curves.last_gradients(placement)
        mean = g.mean(axis=0)
        label = style["label"]
        if len(depths) > 1:
            slope = f"{loglog_slope(depths, mean):+.2f}".replace("-", "−")
            label = text["with_slope"].format(label=label, slope=slope)
        error = g.std(axis=0, ddof=1) / math.sqrt(len(g)) if len(g) > 1 else None
        ax.errorbar(depths, mean, error, capsize=3, **(style | {"label": label}))
    if isinstance(setup, TheorySetup):
        grid = np.unique(np.geomspace(depths[0], depths[-1], 60).round().astype(int))
        streams = {"pre": mean_field(int(grid[-1]), setup.n).s[grid], "post": POST_SUM + 0.0 * grid}
        for placement, s in streams.items():
            expected = last_gradient(setup.d, setup.n, setup.B, s)
            label = text["recursion"] if placement == "pre" else None
            ax.plot(grid, expected, ":", **_single(len(grid)), color=THEORY, linewidth=1.5,
                    zorder=3, label=label)  # fmt: skip
    elif len(depths) > 1:
        start = curves.last_gradients("pre").mean(axis=0)[0]
        ax.plot(depths, start * (depths / depths[0]) ** -0.5, label=text["inverse_root"], **_GUIDE)
    log_axis(ax, "x", _ticks(int(depths[-1]), list(curves.depths)))
    log_axis(ax, "y")
    ax.set(xlabel=text["depth_axis"], ylabel=text["last_grad_norm"])


def _activation_panel(ax: Axes, curves: ScaleCurves, text: dict[str, Any]) -> None:
    L, d = curves.depths[-1], curves.setup.d
    layers = np.arange(1, L + 1)
    for placement, style in _PLACEMENT.items():
        norm = curves.activations[placement][:, :, 0].mean(axis=0)
        ax.plot(layers, norm, **_sparse(L), **style)
    before = np.sqrt(curves.activations["post"][:, :, 2].mean(axis=0) * d)
    ax.plot(layers, before, color=POST, marker="^", linestyle=":", label=text["sum"], **_sparse(L))
    if isinstance(curves.setup, TheorySetup):
        s = mean_field(L, curves.setup.n).s[1:]
        style = {"color": THEORY, "linewidth": 1.5, **_single(L)}
        ax.plot(layers, np.sqrt(s * d), ":", label=text["recursion"], **style)
        ax.plot(layers, np.full(L, math.sqrt(POST_SUM * d)), ":", **style)
    elif L > 1:
        first = curves.activations["pre"][:, 0, 0].mean()
        ax.plot(layers, first * np.sqrt(layers), label=text["root"], **_GUIDE)
    log_axis(ax, "x", _ticks(L))
    log_axis(ax, "y")
    ax.set_ylim(top=1.7 * ax.get_ylim()[1])  # room for the legend above the rising line
    ax.set(xlabel=text["layer"], ylabel=text["activation_norm"])


def _legends(panels: Sequence[Axes]) -> None:
    for ax in panels:
        handles, labels = ax.get_legend_handles_labels()
        order = sorted(range(len(labels)), key=lambda i: "LN" not in labels[i])  # measured first
        ax.legend([handles[i] for i in order], [labels[i] for i in order], loc="best")


def _ticks(L: int, wanted: list[int] | None = None) -> list[float]:
    """Powers of 2 up to L, or the depths themselves where they are few enough to read."""
    if wanted is not None and len(wanted) <= 8:
        return list(wanted)
    return [2**i for i in range(L.bit_length())]


def _sparse(L: int) -> dict[str, Any]:
    """Markers at the powers of 2 only: a marker a layer would hide the line."""
    return {"markevery": sorted({2**i - 1 for i in range(L.bit_length())} | {L - 1})}


def _single(points: int) -> dict[str, Any]:
    """A mark for a line that would be one point long, and so not there."""
    return {"marker": "_", "markersize": 16, "markeredgewidth": 1.5} if points == 1 else {}


def _seeds(curves: ScaleCurves) -> tuple[int, int]:
    """How many seeds the gradients and the activations have."""
    gradients = next(iter(curves.gradients.values()))
    return len(gradients), len(curves.activations["pre"])


def _setup(curves: ScaleCurves, text: dict[str, Any], seeds: object) -> str:
    caption: str = text["setup_caption"][curves.setup.name]
    return caption.format(**curves.setup.describe(), seeds=seeds)
