"""Wavelengths of rotary positions, and scores by distance."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ..experiments.rotation import STARTS, Rotation
from .style import DASHES, MARKERS, PRE, add_texts, log_axis, new_figure

COLOURS = ("#000000", "#D55E00", "#56B4E9")

TEXT = {
    "en": {
        "title": "Rotary positions: {name}",
        "pair": "pair of features $i$",
        "wavelength": "tokens of a whole turn, $2\\pi/\\theta_i$",
        "plain": "without scaling",
        "scaled": "in force",
        "longest": "longest text, {T:,}",
        "distance": "distance of the key, tokens + 1",
        "score": "score over its value at distance 0",
        "caption": "Left: low pairs turn fast and tell neighbours apart; pairs above the dotted "
        "line do not turn once in the longest text. Right: the score of a query of ones with keys "
        "of ones; three queries, each {gap} tokens or more later than the one before, give one "
        "curve, since a score depends on the distance alone. Data: rotation.csv, "
        "rotation_scores.csv.",
        "query": "query at {m:,}",
    },
    "zh": {
        "title": "旋转位置编码：{name}",
        "pair": "维度对 $i$",
        "wavelength": "转一圈所需的 token 数 $2\\pi/\\theta_i$",
        "plain": "未缩放",
        "scaled": "实际使用",
        "longest": "最长文本，{T:,}",
        "distance": "与键的距离（token）+ 1",
        "score": "分数与距离为 0 时之比",
        "caption": "左：序号小的维度对转得快，能分辨相邻的 token；虚线以上的维度对在最长的文本里也"
        "转不满一圈。右：全 1 的查询与全 1 的键的分数；三个查询的位置依次相隔至少 {gap} 个 token，"
        "曲线却完全重合，因为分数只取决于距离。数据：rotation.csv、rotation_scores.csv。",
        "query": "查询在 {m:,}",
    },
}


def rotation_figure(found: Rotation, name: str, lang: str = "en") -> Figure:
    """Draw wavelengths by pair on the left, scores by distance on the right."""
    text = TEXT[lang]
    figure = new_figure(9.6, 5.4)
    left, right = figure.subplots(1, 2)
    pairs = np.arange(len(found.plain))
    few = {"markevery": max(1, len(pairs) // 12)}
    scaled = not np.array_equal(found.plain, found.wavelengths)
    if scaled:
        left.plot(pairs, found.plain, color="0.45", marker="s", linestyle=DASHES[1],
                  label=text["plain"], **few)  # fmt: skip
    label = text["scaled"] if scaled else None
    left.plot(pairs, found.wavelengths, color=PRE, marker="o", label=label, **few)
    left.axhline(found.T, color="black", linestyle=":", linewidth=1.3,
                 label=text["longest"].format(T=found.T))  # fmt: skip
    left.set_yscale("log")
    left.set(xlabel=text["pair"], ylabel=text["wavelength"])
    left.legend(loc="upper left")
    every = max(1, len(found.distances) // 10)
    for i, start in enumerate(STARTS):
        right.plot(
            found.distances + 1, found.scores[i], color=COLOURS[i], linestyle=DASHES[i],
            marker=MARKERS[i], markevery=(i * every // 3, every), linewidth=2.6 - 0.8 * i,
            label=text["query"].format(m=start + found.distances[-1]),
        )  # fmt: skip
    log_axis(right, "x", [10**e for e in range(7) if 10**e <= found.distances[-1] + 1])
    right.set(xlabel=text["distance"], ylabel=text["score"])
    right.legend(loc="lower left")
    add_texts(
        figure, text["title"].format(name=name), text["caption"].format(gap=STARTS[1] - STARTS[0])
    )
    return figure
