"""How a run went: the figures of ``npformer train``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..arrays import Array
from .style import DASHES, POST, PRE, THEORY, add_texts, depth_styles, log_axis, new_figure

TEXT: dict[str, dict[str, Any]] = {
    "en": {
        "title": "Training",
        "step": "step",
        "loss": "loss (nats a token)",
        "norm": "norm of the gradient",
        "each": "each step",
        "mean": "mean of {window} steps",
        "held_out": "held out: {last:.3f} at the end",
        "uniform": "all tokens alike: {loss:.2f}",
        "clip": "clipped above {clip:g}",
        "lr": "learning rate",
        "norms_title": "Norms by layer",
        "grad_norm": "norm of the gradient",
        "value_norm": "norm of the parameters",
        "part": {"encoder": "encoder {layer}", "decoder": "layer {layer}", "rest": "the rest"},
        "norms_caption": "L2 norm of all gradients (left, before clipping) and of all parameters "
        "(right, before the step) of each block, and of what is in no block: embeddings, last norm "
        "and output. Data: norms.csv.",
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
        "uniform": "所有 token 等概率：{loss:.2f}",
        "clip": "超过 {clip:g} 则裁剪",
        "lr": "学习率",
        "norms_title": "各层范数",
        "grad_norm": "梯度范数",
        "value_norm": "参数范数",
        "part": {"encoder": "编码器 {layer}", "decoder": "第 {layer} 层", "rest": "其余"},
        "norms_caption": "每个块的全部梯度（左，裁剪前）与全部参数（右，更新前）的 L2 范数；“其余”"
        "为块外的部分：嵌入、最后的归一化与输出层。数据：norms.csv。",
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
        left.axhline(
            np.log(V),
            color=THEORY,
            ls=DASHES[3],
            lw=1.4,
            label=text["uniform"].format(loss=np.log(V)),
        )
    if np.any(norm > 0):
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


def norms_by_layer(rows: Sequence[Sequence[Any]], lang: str = "en") -> Figure:
    """Draw the norms of each layer's gradients and parameters over the steps.

    Parameters
    ----------
    rows : rows of the table of this name
        See `npformer.training.log`: step, name of a tensor, norm of its values, of its gradient.
    lang : {"en", "zh"}

    Returns
    -------
    matplotlib.figure.Figure
    """
    text = TEXT[lang]
    steps = sorted({row[0] for row in rows})
    squares: dict[tuple[str, int], Array] = {}
    for step, name, value, grad in rows:
        sums = squares.setdefault(part_of(name), np.zeros((2, len(steps))))
        sums[:, steps.index(step)] += (grad**2, value**2)
    figure = new_figure(11, 5.2)
    panels = figure.subplots(1, 2)
    styles = depth_styles(len(squares))
    for (part, sums), style in zip(sorted(squares.items()), styles, strict=True):
        label = text["part"][part[0]].format(layer=part[1])
        for ax, y in zip(panels, np.sqrt(sums), strict=True):
            ax.plot(steps, y, label=label, markevery=max(1, len(steps) // 8), **style)
    for ax, name in zip(panels, ("grad_norm", "value_norm"), strict=True):
        log_axis(ax, "y")
        ax.set(xlabel=text["step"], ylabel=text[name])
    panels[1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    add_texts(figure, text["norms_title"], text["norms_caption"])
    return figure


def part_of(name: str) -> tuple[str, int]:
    """Return where a tensor belongs: ("encoder" or "decoder", layer from 1 on), or ("rest", 0).

    >>> part_of("stack.blocks.3.attn.Wq.W"), part_of("embedding.tokens.E")
    (('decoder', 4), ('rest', 0))
    """
    found = re.match(r"(encoder\.)?stack\.blocks\.(\d+)\.", name)
    if not found:
        return "rest", 0
    return "encoder" if found[1] else "decoder", int(found[2]) + 1


def running_mean(y: Array, window: int) -> Array:
    """Return the (n - window + 1,) means of ``window`` neighbours."""
    sums = np.cumsum(np.concatenate([[0.0], y]))
    return (sums[window:] - sums[:-window]) / window
