"""Where the parameters of models go: the figure of ``npformer account``."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ..accounting import Parameters
from .style import add_texts, new_figure

COLOURS = {
    "embedding": "#E69F00",
    "attention": "#0072B2",
    "feed-forward": "#009E73",
    "norm": "#000000",
    "head": "#CC79A7",
}
"""Orange, blue, green, black and purple of Okabe & Ito's palette."""

HATCHES = {"embedding": "//", "attention": "", "feed-forward": "", "norm": "", "head": "\\\\"}

TEXT: dict[str, dict[str, Any]] = {
    "en": {
        "embedding": "embedding tables",
        "attention": "attention",
        "feed-forward": "feed-forward",
        "norm": "norms",
        "head": "output",
        "title": "Where the parameters go",
        "axis": "share of the parameters (%)",
        "block": "{name}, one block",
        "active": "{name}, used by one token",
        "caption": "Each bar is all of a model's parameters; their number stands at its end. The "
        "feed-forward networks usually take most of a block: two thirds where $d_{ff}=4d$ and "
        "every query head has keys and values of its own. A large vocabulary weighs most in a "
        "small model. A table that is the output matrix too is counted once, as embedding. Norms "
        "are too thin to be seen. Shares below 4 % are not written. Data: parameters.csv.",
    },
    "zh": {
        "embedding": "嵌入表",
        "attention": "注意力",
        "feed-forward": "前馈网络",
        "norm": "归一化",
        "head": "输出层",
        "title": "参数在哪里",
        "axis": "占全部参数的百分比（%）",
        "block": "{name}，单块",
        "active": "{name}，单个 token 用到的",
        "caption": "每条横条是一个模型的全部参数，末端为其总数。块内参数大部分通常在前馈网络："
        "$d_{ff}=4d$ 且每个查询头各有键值时占三分之二。词表大的小模型中，嵌入的占比最高。"
        "与输出层绑定的嵌入表只算一次，计入嵌入。归一化的参数太少，图上看不见。"
        "不足 4 % 的占比不标数字。数据：parameters.csv。",
    },
}


def where_parameters_go(accounts: dict[str, Parameters], lang: str = "en") -> Figure:
    """Draw a bar of 100 % for each model, cut into embedding, attention, feed-forward and so on.

    Parameters
    ----------
    accounts : dict of name to Parameters
        A single model gets a second bar for one block; a model with experts gets one for the
        parameters that a token uses.
    lang : {"en", "zh"}

    Returns
    -------
    matplotlib.figure.Figure
    """
    text = TEXT[lang]
    bars = list(_bars(accounts, text))
    figure = new_figure(10, 2.7 + 0.46 * len(bars))
    engine: Any = figure.get_layout_engine()
    engine.set(w_pad=0.12)
    ax = figure.subplots()
    for row, (_, groups) in enumerate(bars):
        total, left = sum(groups.values()), 0.0
        for group, n in groups.items():
            share = 100 * n / total
            ax.barh(
                row,
                share,
                0.72,
                left,
                color=COLOURS[group],
                hatch=HATCHES[group],
                edgecolor="white",
                linewidth=0.6,
            )
            if share >= 4:
                ax.text(
                    left + share / 2, row, f"{share:.1f}", ha="center", va="center",
                    color="white" if group in ("attention", "feed-forward") else "black",
                    bbox=None if not HATCHES[group] else _BACK | {"facecolor": COLOURS[group]},
                )  # fmt: skip
            left += share
        ax.text(101, row, _short(total, lang), va="center")
    ax.set_yticks(range(len(bars)), [name for name, _ in bars])
    ax.set(xlim=(0, 100), ylim=(len(bars) - 0.5, -0.5), xlabel=text["axis"])
    ax.grid(visible=False)
    ax.tick_params(left=False)
    ax.spines["left"].set_visible(False)
    used = [g for g in COLOURS if any(_visible(groups, g) for _, groups in bars)]
    ax.legend(
        [Patch(facecolor=COLOURS[g], hatch=HATCHES[g], edgecolor="white") for g in used],
        [text[g] for g in used],
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
        ncols=len(used),
        handlelength=1.8,
        columnspacing=1.6,
    )
    add_texts(figure, text["title"], text["caption"])
    return figure


def _visible(groups: dict[str, int], group: str) -> bool:
    return groups.get(group, 0) > 0.002 * sum(groups.values())


_BACK = {"boxstyle": "round,pad=0.15", "edgecolor": "none"}


def _bars(accounts: dict[str, Parameters], text: dict[str, Any]) -> Any:
    """Yield the name and the numbers of each bar."""
    for name, account in accounts.items():
        yield name, account.groups
        if account.active < account.total:
            groups = dict.fromkeys(COLOURS, 0)
            for r in account.rows:
                groups[r.group] += r.active
            yield text["active"].format(name=name), groups
        if len(accounts) == 1 and account.block is not None:
            groups = dict.fromkeys(COLOURS, 0)
            for r in account.rows:
                groups[r.group] += r.per_layer or 0
            yield text["block"].format(name=name), groups


def _short(n: int, lang: str) -> str:
    """Write a number in three digits, with the unit that readers of the language count in."""
    units = (8, " 亿"), (4, " 万")
    for power, unit in units if lang == "zh" else ((12, " T"), (9, " B"), (6, " M"), (3, " k")):
        if n >= 10**power:
            digits = max(0, 2 - len(str(n // 10**power)) + 1)
            return f"{n / 10**power:,.{digits}f}{unit}"
    return str(n)
