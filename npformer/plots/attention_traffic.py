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
        "limit": "${multiple}d^2$",
        "backward": "One head of {N} tokens and width {d}, the backward pass; every point is "
        "counted by walking through the blocks. The standard schedule reads and writes the weights "
        "and their gradients and moves $7N^2+8Nd$ numbers, whatever $M$ is. The blocked ones "
        "compute the weights again and fall like $1/M$ (the theorem says $N^2d^2/M$); they are "
        "ahead from about $M=3d^2$ on. Square blocks that also hold their scores grow only like "
        "$\\sqrt{{M}}$ in the end.",
        "forward": "One head of {N} tokens and width {d}, the forward pass; every point is counted "
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
        "limit": "${multiple}d^2$",
        "backward": "一个头，{N} 个 token，宽度 {d}，反向；每个点都是逐块走完调度数出来的。"
        "标准调度要读写权重矩阵及其梯度，共搬运 $7N^2+8Nd$ 个数，与 $M$ 无关。"
        "分块调度重新计算权重，随 $1/M$ 下降（定理为 $N^2d^2/M$），约从 $M=3d^2$ 起更省。"
        "方块若还要容纳分数，边长最终只按 $\\sqrt{{M}}$ 增长。",
        "forward": "一个头，{N} 个 token，宽度 {d}，前向；每个点都是逐块走完调度数出来的。"
        "标准调度要写出分数矩阵和权重矩阵，共搬运 $4(N^2+Nd)$ 个数，与 $M$ 无关。"
        "分块调度随 $1/M$ 下降（定理为 $N^2d^2/M$），约从 $M=3d^2$ 与 $2d^2$ 起更省。"
        "方块若还要容纳分数，边长最终只按 $\\sqrt{{M}}$ 增长。",
    },
}


def traffic_by_memory(
    rows: Sequence[Traffic], lang: str = "en", *, backward: bool = False
) -> Figure:
    """Draw the numbers moved against the size of the fast memory, a line a schedule.

    Parameters
    ----------
    rows : sequence of Traffic
        As `attention_traffic` returns them: one N and one d.
    lang : {"en", "zh"}
    backward : bool
        Whether they are of the backward pass, so that the texts say so.

    Returns
    -------
    matplotlib.figure.Figure
    """
    text, N, d = TEXT[lang], rows[0].N, rows[0].d
    figure = new_figure(8, 6)
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
    multiple = 3 if backward else 2  # where the first of the blocked schedules gets ahead
    limit = multiple * d * d
    ax.axvline(limit, color="0.6", linewidth=1, zorder=0)
    ax.annotate(
        text["limit"].format(multiple=multiple), (limit, 1), (4, -4), va="top", color="0.35",
        xycoords=ax.get_xaxis_transform(), textcoords="offset points",
    )  # fmt: skip
    # Above the panel: inside, whatever N and d are, some line would run through it.
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.3)
    caption = text["backward" if backward else "forward"]
    add_texts(figure, text["title"], caption.format(N=f"{N:,}", d=d))
    return figure
