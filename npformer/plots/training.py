"""How a run went: the figure of ``npformer train``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..arrays import Array
from .style import DASHES, POST, PRE, THEORY, add_texts, log_axis, new_figure

TEXT: dict[str, dict[str, Any]] = {
    "en": {
        "title": "Training",
        "step": "step",
        "loss": "loss (nats a token)",
        "norm": "norm of the gradient",
        "each": "each step",
        "mean": "mean of {window} steps",
        "held_out": "held out: {last:.3f} at the end",
        "uniform": "all tokens alike",
        "clip": "clipped above {clip:g}",
        "lr": "learning rate",
        "caption": "Left: mean cross-entropy of each step's batch, before the step, and on text "
        "that was not trained on; below the dotted line the model knows more than the size of its "
        "vocabulary. Middle: L2 norm of the whole gradient before clipping. Data: steps.csv, "
        "held_out.csv.",
    },
    "zh": {
        "title": "训练过程",
        "step": "步数",
        "loss": "损失（奈特／token）",
        "norm": "梯度范数",
        "each": "每一步",
        "mean": "{window} 步平均",
        "held_out": "留出数据，最终为 {last:.3f}",
        "uniform": "所有 token 等概率",
        "clip": "超过 {clip:g} 则裁剪",
        "lr": "学习率",
        "caption": "左：每步更新之前，该批数据的平均交叉熵，以及在未参与训练的文本上的交叉熵；"
        "低于点线，说明模型学到的不只是词表大小。中：裁剪前全部梯度的 L2 范数。"
        "数据：steps.csv、held_out.csv。",
    },
}


def training_curves(
    steps: Sequence[Sequence[float]],
    held_out: Sequence[Sequence[float]] = (),
    *,
    V: int | None = None,
    clip: float = 0.0,
    lang: str = "en",
) -> Figure:
    """Draw the loss and the norm of the gradient over the steps.

    Parameters
    ----------
    steps, held_out : rows of the tables of these names
        See `npformer.training.log`: step, loss, norm, learning rate, ...; step, loss, ...
    V : int, optional
        The size of the vocabulary, for the line at log V.
    clip : float
        For a line at this norm; 0 for none.
    lang : {"en", "zh"}

    Returns
    -------
    matplotlib.figure.Figure
    """
    text = TEXT[lang]
    table = np.array([row[:4] for row in steps], float).reshape(-1, 4)
    t, loss, norm, lr = table.T
    window = max(1, len(t) // 50)
    figure = new_figure(12, 5.6)
    left, middle, right = figure.subplots(1, 3, width_ratios=(5, 5, 4))
    for ax, y in ((left, loss), (middle, norm)):
        ax.plot(t, y, ".", color=PRE, alpha=0.35, ms=2.5, label=text["each"])
        if window > 1:
            label = text["mean"].format(window=window)
            ax.plot(t[window - 1 :], running_mean(y, window), color=PRE, label=label)
    right.plot(t, lr, color=PRE)
    if len(held_out):
        places = np.array([row[:2] for row in held_out], float)
        label = text["held_out"].format(last=places[-1, 1])
        left.plot(*places.T, "D--", color=POST, label=label)
    if V is not None:
        left.axhline(np.log(V), color=THEORY, ls=DASHES[3], lw=1.4, label=text["uniform"])
    log_axis(middle, "y")
    if clip:
        middle.axhline(
            clip, color=THEORY, ls=DASHES[2], lw=1.4, label=text["clip"].format(clip=clip)
        )
    right.set_ylim(0, 1.05 * max(lr.max(initial=0), 1e-30))
    for ax, name in ((left, "loss"), (middle, "norm"), (right, "lr")):
        ax.set(xlabel=text["step"], ylabel=text[name])
    for ax in (left, middle):
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=1)
    add_texts(figure, text["title"], text["caption"])
    return figure


def running_mean(y: Array, window: int) -> Array:
    """Return the (n - window + 1,) means of ``window`` neighbours."""
    sums = np.cumsum(np.concatenate([[0.0], y]))
    return (sums[window:] - sums[:-window]) / window
