"""What attention moves, against the size of the fast memory (`experiments.attention_traffic`)."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ..experiments.attention_traffic import Traffic
from .style import DASHES, MARKERS, add_texts, new_figure

COLOURS = ("#000000", "#D55E00", "#0072B2", "#56B4E9")
"""Black, vermilion, blue and light blue of Okabe & Ito's palette."""

TEXT = {
    "en": {
        "standard": "standard",
        "flash-1": "FlashAttention-1, $B_c=M/4d$, $B_r\\leq d$",
        "flash-2": "FlashAttention-2, square blocks, $B=M/4d$",
        "flash-2, scores too": "FlashAttention-2, square blocks, $4Bd+B^2=M$",
        "title": "What attention moves between slow and fast memory",
        "x": "numbers that the fast memory holds, $M$",
        "y": "numbers read and written",
        "limit": "$2d^2$",
        "caption": "One head of {N} tokens and width {d}, the forward pass; every point is counted "
        "by walking through the blocks. The standard schedule writes the scores and the weights "
        "down and moves $4(N^2+Nd)$ numbers, whatever $M$ is. The blocked ones fall like $1/M$ "
        "(the theorem says $N^2d^2/M$) and are ahead from about $M=3d^2$ and $2d^2$ on. Square "
        "blocks that also hold their scores grow only like $\\sqrt{{M}}$ in the end.",
    },
    "zh": {
        "standard": "标准调度",
        "flash-1": "FlashAttention-1，$B_c=M/4d$，$B_r\\leq d$",
        "flash-2": "FlashAttention-2，方块 $B=M/4d$",
        "flash-2, scores too": "FlashAttention-2，方块 $4Bd+B^2=M$",
        "title": "注意力在慢速与快速存储之间搬运多少数",
        "x": "快速存储可容纳的数的个数 $M$",
        "y": "读写的数的个数",
        "limit": "$2d^2$",
        "caption": "一个头，{N} 个 token，宽度 {d}，前向；每个点都是逐块走完调度数出来的。"
        "标准调度要写出分数矩阵和权重矩阵，共搬运 $4(N^2+Nd)$ 个数，与 $M$ 无关。"
        "分块调度随 $1/M$ 下降（定理为 $N^2d^2/M$），约从 $M=3d^2$ 与 $2d^2$ 起更省。"
        "方块若还要容纳分数，边长最终只按 $\\sqrt{{M}}$ 增长。",
    },
}


def traffic_by_memory(rows: Sequence[Traffic], lang: str = "en") -> Figure:
    """Draw the numbers moved against the size of the fast memory, a line a schedule.

    Parameters
    ----------
    rows : sequence of Traffic
        As `attention_traffic` returns them: one N and one d.
    lang : {"en", "zh"}

    Returns
    -------
    matplotlib.figure.Figure
    """
    text, N, d = TEXT[lang], rows[0].N, rows[0].d
    figure = new_figure(8, 5.6)
    ax = figure.subplots()
    ax.set(xscale="log", yscale="log", xlabel=text["x"], ylabel=text["y"])
    for n, name in enumerate(dict.fromkeys(row.schedule for row in rows)):
        mine = [row for row in rows if row.schedule == name]
        ax.plot(
            [row.M for row in mine],
            [row.total for row in mine],
            label=text[name],
            color=COLOURS[n],
            marker=MARKERS[n],
            linestyle=DASHES[n],
        )
    ax.axvline(2 * d * d, color="0.6", linewidth=1, zorder=0)
    ax.annotate(
        text["limit"], (2 * d * d, 1), (4, -4), xycoords=ax.get_xaxis_transform(), va="top",
        textcoords="offset points", color="0.35",
    )  # fmt: skip
    ax.legend()
    add_texts(figure, text["title"], text["caption"].format(N=f"{N:,}", d=d))
    return figure
