"""The tables and sentences that ``npformer curves`` prints, by language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..experiments.findings import Claim, Finding
from ..experiments.gradient_scale import ScaleCurves, TheorySetup
from ..experiments.theory import POST_SUM, last_gradient, mean_field
from ..labels import table, wrap

TEXT: dict[str, dict[str, Any]] = {
    "en": {
        "numbers": "Last layer's gradient norm |dL/dW2| and E|x_L|^2/d by depth (Pre-LN, Post-LN)",
        "numbers_header": (
            "set-up", "depth", "Pre |dL/dW2|", "recursion", "Post |dL/dW2|", "recursion",
            "Pre E|x_L|^2/d", "recursion",
        ),
        "findings": "Theory and measurement",
        "findings_header": (
            "set-up", "norm", "quantity", "measured", "recursion", "theorem", "tolerance",
            "verdict",
        ),
        "setup": {"theory": "theory", "transformer": "transformer"},
        "quantity": {
            "slope": "last |dL/dW2| against L: log-log slope",
            "constancy": "|dL/dW2| sqrt(s): worst off its mean",
            "size": "|dL/dW2| / sqrt(d/(2nBs)): worst off 1",
            "stream": "E|x_l|^2/d / recursion: worst off 1",
            "sum": "E|x + Sub(x)|^2/d before the last norm",
            "growth": "|x_l|: last layer over first",
            "flatness": "|x_l|: largest layer over smallest",
        },
        "verdict": {"holds": "holds", "misses": "MISSES", "unclear": "too few seeds"},
        "tolerance_note": "Tolerances are for 5 seeds of gradients and 20 of activations or more; "
        "this run has {seeds}. ± is one standard error. ",
        "seeds": "{setup} {gradients} and {activations}",
        "theorem_note": "The theorem (Xiong et al., 2020, Theorem 1) bounds stacks of many layers; "
        "the recursion is exact at infinite width for the depths measured here.",
        "claims": "What is said about these curves, and does it show in this run?",
        "claim": {
            "post_decay": "Post-LN: gradients shrink by sqrt(2/3) = 0.816 a layer towards the "
            "input (Xiong et al., 2020, appendix F)",
            "pre_flat": "Pre-LN: gradients of late layers do not depend on the layer (the same "
            "appendix)",
            "pre_depth": "Pre-LN: the gradient scale is about independent of depth (chapter, "
            "theorem 2.5.2)",
            "post_depth": "Post-LN: factors that grow with depth pile up in the gradient (chapter, "
            "2.5.3, argument 1)",
        },
        "shown": {
            "post_decay": "{setup}, {depth} layers: factor a layer {values}",
            "pre_flat": "{setup}, {depth} layers: layer L/2 over layer L {values}",
            "pre_depth": "{setup}: last layer, depth {first} over depth {last} {values}",
            "post_depth": "{setup}: last layer, depth {last} over depth {first} {values}",
        },
        "reproduces": {"yes": "shows", "no": "DOES NOT REPRODUCE", "slightly": "only slightly"},
        "between": ", ",
        "colon": ": ",
    },
    "zh": {
        "numbers": "各深度下最后一层的梯度范数 |dL/dW2| 与 E|x_L|^2/d（Pre-LN、Post-LN）",
        "numbers_header": (
            "设定", "深度", "Pre |dL/dW2|", "递推", "Post |dL/dW2|", "递推", "Pre E|x_L|^2/d",
            "递推",
        ),
        "findings": "理论与测量",
        "findings_header": ("设定", "布局", "量", "测量值", "递推", "定理", "容差", "结论"),
        "setup": {"theory": "理论设定", "transformer": "真实文本"},
        "quantity": {
            "slope": "最后一层 |dL/dW2| 对 L 的双对数斜率",
            "constancy": "|dL/dW2| sqrt(s)：偏离均值最多",
            "size": "|dL/dW2| / sqrt(d/(2nBs))：偏离 1 最多",
            "stream": "E|x_l|^2/d 与递推之比：偏离 1 最多",
            "sum": "末次归一化之前的 E|x + Sub(x)|^2/d",
            "growth": "|x_l|：最后一层与第一层之比",
            "flatness": "|x_l|：最大的层与最小的层之比",
        },
        "verdict": {"holds": "成立", "misses": "不成立", "unclear": "种子太少"},
        "tolerance_note": "容差适用于梯度不少于 5 个、激活不少于 20 个随机种子；本次为 {seeds}。"
        "± 后是一个标准误。",
        "seeds": "{setup} {gradients} 与 {activations}",
        "theorem_note": "定理（Xiong 等，2020，定理 1）给出层数很多时的上界；递推在宽度无穷时对这"
        "里的每个深度精确成立。",
        "claims": "关于这些曲线的说法，本次测量能否复现？",
        "claim": {
            "post_decay": "Post-LN：梯度向输入方向每层缩小为 sqrt(2/3) = 0.816 倍"
            "（Xiong 等，2020，附录 F）",
            "pre_flat": "Pre-LN：靠后各层的梯度与层的位置无关（同上附录）",
            "pre_depth": "Pre-LN：梯度尺度与网络深度基本无关（本章定理 2.5.2）",
            "post_depth": "Post-LN：梯度里累积出随深度增长的因子（本章 2.5.3 论证 (1)）",
        },
        "shown": {
            "post_decay": "{setup}，{depth} 层：每层的倍数 {values}",
            "pre_flat": "{setup}，{depth} 层：第 L/2 层与第 L 层之比 {values}",
            "pre_depth": "{setup}：最后一层，深度 {first} 与深度 {last} 之比 {values}",
            "post_depth": "{setup}：最后一层，深度 {last} 与深度 {first} 之比 {values}",
        },
        "reproduces": {"yes": "可见", "no": "不能复现", "slightly": "只略微可见"},
        "between": "，",
        "colon": "：",
    },
}  # fmt: skip


def report(
    both: Sequence[ScaleCurves],
    found: Sequence[Finding],
    said: Sequence[Claim],
    lang: str,
) -> str:
    """Return all that the command prints about its numbers."""
    text = TEXT[lang]
    seeds = text["between"].join(
        text["seeds"].format(
            setup=text["setup"][c.setup.name],
            gradients=len(c.last_gradients("pre")),
            activations=len(c.activations["pre"]),
        )
        for c in both
    )
    parts = [
        text["numbers"],
        table(text["numbers_header"], _numbers(both, text), "<>>>>>>>"),
        text["findings"],
        table(text["findings_header"], [_finding(f, text) for f in found], "<<<>>>><"),
        "\n".join(wrap(text["tolerance_note"].format(seeds=seeds) + text["theorem_note"], 100)),
    ]
    if said:
        parts += [text["claims"], _claims(both, said, text)]
    return "\n\n".join(parts)


def _numbers(both: Sequence[ScaleCurves], text: dict[str, Any]) -> list[list[str]]:
    rows = []
    for curves in both:
        g = {p: curves.last_gradients(p).mean(axis=0) for p in ("pre", "post")}
        square = curves.activations["pre"][:, :, 1].mean(axis=0)
        for i, L in enumerate(curves.depths):
            expected = ["", "", ""]
            if isinstance(setup := curves.setup, TheorySetup):
                s = mean_field(L, setup.n).s[L]
                pre, post = (last_gradient(setup.d, setup.n, setup.B, v) for v in (s, POST_SUM))
                expected = [f"{pre:.3f}", f"{post:.3f}", f"{s:.2f}"]
            measured = [f"{g['pre'][i]:.3f}", f"{g['post'][i]:.3f}", f"{square[L - 1]:.2f}"]
            pairs = [n for pair in zip(measured, expected, strict=True) for n in pair]
            rows.append([text["setup"][setup.name], str(L), *pairs])
    return rows


def _finding(f: Finding, text: dict[str, Any]) -> list[str]:
    percent = f.quantity in ("constancy", "size", "stream")
    form = "{:+z.1%}" if percent else "{:+z.3f}" if f.quantity == "slope" else "{:.3f}"
    measured = form.format(f.measured)
    if f.error is not None:
        measured += f" ± {f.error:.3f}"
    expected = "" if f.expected is None else "0" if percent else form.format(f.expected)
    theorem = {None: "", -0.5: "-1/2"}.get(f.theorem)
    if theorem is None:
        theorem = f"{f.theorem:g}" if f.quantity != "growth" else f"sqrt(L)={f.theorem:.1f}"
    rule, bound = f.tolerance
    sign = {"within": "±", "below": "<", "above": ">"}[rule]
    tolerance = f"{sign} {bound:.0%}" if percent else f"{sign} {bound:g}"
    return [
        text["setup"][f.setup],
        {"pre": "Pre-LN", "post": "Post-LN"}[f.placement],
        text["quantity"][f.quantity],
        measured,
        expected,
        theorem,
        tolerance,
        text["verdict"][f.verdict],
    ]


def _claims(both: Sequence[ScaleCurves], said: Sequence[Claim], text: dict[str, Any]) -> str:
    lines = []
    for claim in dict.fromkeys(c.claim for c in said):
        lines.append(f"- {text['claim'][claim]}")
        for curves in both:
            here = [c for c in said if c.claim == claim and c.setup == curves.setup.name]
            if not here:
                continue
            shown = text["shown"][claim].format(
                setup=text["setup"][curves.setup.name],
                depth=here[0].depth,
                first=curves.depths[0],
                last=curves.depths[-1],
                values=text["between"].join(f"{c.parameter} {c.measured:.2f}" for c in here),
            )
            verdicts = dict.fromkeys(text["reproduces"][c.verdict] for c in here)
            verdict = text["between"].join(verdicts)
            lines.append(f"    {shown}{text['colon']}{verdict}")
    return "\n".join(lines)
