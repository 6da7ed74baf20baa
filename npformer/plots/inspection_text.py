"""What the figures of ``npformer inspect`` say, by language."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, dict[str, Any]] = {
    "en": {
        "norms_title": "Inside the model: activations and gradients by layer",
        "layer": "layer, as in blocks.$l$",
        "before": "in",
        "after": "out",
        "value": "rms of the activation",
        "gradient": "mean $\\|\\partial\\,\\mathrm{loss}/\\partial x\\|_2$ of a token",
        "parameters": "$\\|\\partial\\,\\mathrm{loss}/\\partial\\theta\\|_2$ of its parameters",
        "panels": {
            "value": "activation",
            "gradient": "gradient by the activation",
            "parameters": "gradient by the parameters",
        },
        "between": ", ",
        "norms_caption": "From the input (left) to the output (right) of one pass: what does a "
        "layer make larger or smaller, and how much gradient reaches it? Left: root mean square "
        "of all numbers of an activation (thin: the largest of them). Middle: $L_2$ norm of the "
        "gradient of the mean loss by the activation of one token, mean over the tokens. Right: "
        "$L_2$ norm of the gradient by all parameters of the part together. {subject} Data: "
        "norms.csv.",
        "marks": " Marks at the edge: × at the top, not finite; ▽ at the bottom, zero.",
        "more": " Drawn are the first {shown} of {all} names; all of them are in norms.csv.",
        "nothing": "no number to draw:\nall are {what}",
        "zero": "zero",
        "bad": "not finite",
        "map_title": "Attention of {name}, head {head}",
        "query": "query: the token that reads",
        "key": "key: the token that is read",
        "weight": "weight",
        "map_caption": "A row shows where one token looks: its weights over the keys, which sum to "
        "1. Grey: hidden by the mask. Weights before dropout, softmax of $QK^T/\\sqrt{{d_h}}$, "
        "from the pass itself, first row of the batch. {subject} Data: {data}.",
        "grid_title": "Attention maps",
        "head": "head {head}",
        "grid_caption": "Each panel is one head of one layer: rows are queries, from top to "
        "bottom, columns are keys, from left to right. A line along the diagonal: the head reads "
        "the token itself or a neighbour; a column: all read the same token; an even colour: it "
        "averages. Grey where the mask hides. Weights before dropout; the scale of colours is that "
        "of the square root. {subject} Data: {data}.",
    },
    "zh": {
        "norms_title": "模型内部：各层的激活与梯度",
        "layer": "层（即 blocks.$l$）",
        "before": "入",
        "after": "出",
        "value": "激活的均方根（rms）",
        "gradient": "各 token 的 $\\|\\partial\\,\\mathrm{loss}/\\partial x\\|_2$ 均值",
        "parameters": "该部件参数的 $\\|\\partial\\,\\mathrm{loss}/\\partial\\theta\\|_2$",
        "panels": {"value": "激活", "gradient": "对激活的梯度", "parameters": "对参数的梯度"},
        "between": "、",
        "norms_caption": "一次前向与反向中，从输入（左）到输出（右）：每一层把尺度放大还是缩小，又"
        "有多少梯度传到这一层？左：激活全部元素的均方根（细线：其中绝对值最大者）。中：平均损失对单"
        "个 token 的激活的梯度的 $L_2$ 范数，对 token 取均值。右：平均损失对该部件全部参数的梯度的 "
        "$L_2$ 范数。{subject}数据：norms.csv。",
        "marks": "边缘的记号：上缘 × 表示非有限值，下缘 ▽ 表示零。",
        "more": "图中只画了 {all} 个名字中的前 {shown} 个，全部数值见 norms.csv。",
        "nothing": "没有可画的数：\n全部为{what}",
        "zero": "零",
        "bad": "非有限值",
        "map_title": "注意力权重：{name}，第 {head} 头",
        "query": "查询：正在读的 token",
        "key": "键：被读的 token",
        "weight": "权重",
        "map_caption": "一行表示一个 token 看向哪里：它对各个键的权重，每行之和为 1。灰色为掩码遮住"
        "的位置。权重取自这次前向本身（dropout 之前），即 $QK^T/\\sqrt{{d_h}}$ 的 softmax，批次的第"
        "一行。{subject}数据：{data}。",
        "grid_title": "注意力权重图",
        "head": "第 {head} 头",
        "grid_caption": "每个小图是一层的一个头：行为查询（自上而下），列为键（自左至右）。沿对角线"
        "的亮线：该头看自己或邻近的 token；一整列亮：所有 token 都看同一个 token；均匀的颜色：该头"
        "只做平均。灰色为掩码遮住的位置。权重取自 dropout 之前；颜色按平方根刻度。{subject}数据："
        "{data}。",
    },
}
