"""What ``npformer inspect`` prints, by language."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, dict[str, Any]] = {
    "en": {
        "model": "{kind}: {L} {layers}, d = {d}, H = {H}, {placement}, {norm}, {parameters:,} "
        "parameters",
        "kind": {
            "decoder": "decoder",
            "encoder": "encoder",
            "encoder-decoder": "encoder-decoder",
        },
        "placement": {"pre": "Pre-LN", "post": "Post-LN", "sandwich": "norms on both sides of "
                      "each sub-layer", "output": "norm on each sub-layer's output"},
        "mixed": "several placements",
        "text": "{source}: {B} x {T} tokens",
        "prompt": "the prompt",
        "loss": {
            "cross-entropy": "mean cross-entropy {loss} nats a token; ln V = {uniform:.4f}",
            "projection": "an encoder has no loss: gradients are those of a random projection of "
            "its output, mean over the tokens",
        },
        "header": ("name", "mean |x|", "max |x|", "rms", "max |x_i|", "|dL/dx|", "|dL/dW|"),
        "kinds": "kind",
        "kind_of": {"output": "result", "saved": "saved", "parameter": "parameter"},
        "definitions": "mean |x| and max |x|: mean and largest L2 norm of a row of the last axis "
        "(a token's vector; of a parameter the Frobenius norm). rms: root mean square of all "
        "numbers. max |x_i|: the largest of them.",
        "gradient_definitions": " |dL/dx|: L2 norm of the gradient of the mean loss by one row, "
        "mean over the rows (of a parameter the Frobenius norm). |dL/dW|: L2 norm of the gradient "
        "by all parameters of the part together.",
        "bad": "{name}: {bad} of {size} numbers are not finite",
        "bad_gradient": "{name}: {bad} of {size} numbers of the gradient are not finite",
        "more_bad": "... and {n} more",
        "maps": "Attention maps, first row of the batch",
        "maps_header": ("name", "head", "entropy", "distance", "itself", "first"),
        "maps_definitions": "entropy: of a query's weights in nats, mean over the queries (0 for "
        "one key, ln S = {log:.2f} for all {S} keys alike). distance: mean |i - j| over the "
        "weights. itself, first: mean weight on a query's own place, and on the first key.",
        "list_header": ("name", "kind", "shape"),
        "layers": ("layer", "layers"),
        "subject": "{kind} of {L} {layers}, $d = {d}$, {H} heads, {placement}; {B} x {T} tokens of "
        "{source}.",
        "Kind": {
            "decoder": "Decoder",
            "encoder": "Encoder",
            "encoder-decoder": "Encoder-decoder",
        },
    },
    "zh": {
        "model": "{kind}：{L} {layers}，d = {d}，H = {H}，{placement}，{norm}，共 {parameters:,} "
        "个参数",
        "kind": {"decoder": "解码器", "encoder": "编码器", "encoder-decoder": "编解码器"},
        "placement": {"pre": "Pre-LN", "post": "Post-LN", "sandwich": "子层前后都归一化",
                      "output": "对子层输出归一化"},
        "mixed": "各层布局不同",
        "text": "{source}：{B} 行，每行 {T} 个 token",
        "prompt": "命令行所给",
        "loss": {
            "cross-entropy": "平均交叉熵 {loss}（nat／token），ln V = {uniform:.4f}",
            "projection": "编码器没有自己的损失：梯度取自输出的随机投影（对 token 取均值）",
        },
        "header": ("名字", "|x| 均值", "|x| 最大", "rms", "|x_i| 最大", "|dL/dx|", "|dL/dW|"),
        "kinds": "种类",
        "kind_of": {"output": "输出", "saved": "保存值", "parameter": "参数"},
        "definitions": "|x| 均值与最大：最后一维上各行（即每个 token 的向量）的 L2 范数的均值与最大"
        "值；对参数为 Frobenius 范数。rms：全部元素的均方根。|x_i| 最大：绝对值最大的元素。",
        "gradient_definitions": "|dL/dx|：平均损失对一行的梯度的 L2 范数，对各行取均值（对参数为 "
        "Frobenius 范数）。|dL/dW|：对该部件全部参数的梯度的 L2 范数。",
        "bad": "{name}：{size} 个数中有 {bad} 个非有限值",
        "bad_gradient": "{name}：梯度的 {size} 个数中有 {bad} 个非有限值",
        "more_bad": "……另有 {n} 处",
        "maps": "注意力权重（批次的第一行）",
        "maps_header": ("名字", "头", "熵", "距离", "自身", "首位"),
        "maps_definitions": "熵：一个查询的权重的熵（nat），对查询取均值；只看一个键为 0，平均看全"
        "部 {S} 个键为 ln S = {log:.2f}。距离：|i - j| 按权重的均值。自身、首位：落在查询自身位置与"
        "第一个键上的平均权重。",
        "list_header": ("名字", "种类", "形状"),
        "layers": ("层", "层"),
        "subject": "{kind}：{L} {layers}，$d = {d}$，{H} 个头，{placement}；文本为 {source}，{B} "
        "行，每行 {T} 个 token。",
        "Kind": {"decoder": "解码器", "encoder": "编码器", "encoder-decoder": "编解码器"},
    },
}  # fmt: skip
