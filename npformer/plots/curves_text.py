"""What the figures of `npformer.plots.curves` say, by language."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, dict[str, Any]] = {
    "en": {
        "between": " ",
        "two_seeds": "{} (gradients), {} (activations)",
        "depth": "depth",
        "layer": "layer $l$, from the input to the output",
        "depth_axis": "depth $L$ (layers of the stack)",
        "grad_norm": "gradient norm $\\|\\partial\\,\\mathrm{{loss}}/\\partial W_{parameter}\\|_F$",
        "last_grad_norm": "last layer's $\\|\\partial\\,\\mathrm{loss}/\\partial W_2\\|_F$",
        "activation_norm": "activation norm, mean $\\|x_l\\|_2$ of a token",
        "with_slope": "{label}, slope {slope}",
        "recursion": "mean-field recursion",
        "inverse_root": "$\\propto 1/\\sqrt{L}$, for comparison",
        "root": "$\\propto\\sqrt{l}$, for comparison",
        "sum": "Post-LN, before the norm",
        "setup": {
            "theory": "set-up of the theory",
            "transformer": "Transformer decoder on real text",
        },
        "setup_caption": {
            "theory": "Set-up of the theory (Xiong et al., 2020, section 3.3): $d = {d}$, $B = "
            "{B}$, $n = {n}$ tokens, {V} classes, random labels; seeds: {seeds}.",
            "transformer": "Decoder: $d = {d}$, {H} heads, $d_{{ff}} = {d_ff}$, Xavier's start, "
            "{B} windows of {n} characters; seeds: {seeds}.",
        },
        "gradient_title": {
            "theory": "Gradient norm by layer, in the set-up of the theory",
            "transformer": "Gradient norm by layer, Transformer decoder on real text",
        },
        "gradient_see": {
            "theory": "Pre-LN: all depths lie on one falling curve. A layer's gradient depends on "
            "its place $l$ and not on the depth, so the deeper the stack, the smaller that of its "
            "last layer. Post-LN: neither the place nor the depth matters much.",
            "transformer": "Pre-LN: all depths lie close to one falling curve. A layer's gradient "
            "depends on its place $l$ more than on the depth, so the deeper the stack, the smaller "
            "that of its last layer. Post-LN: gradients rise a little towards the output, and the "
            "last layer's does not fall with depth.",
        },
        "gradient_caption": "{see} A point is the Frobenius norm of the gradient of the mean loss "
        "by {parameter} of one layer, at initialisation, mean over the seeds; a line is one depth "
        "$L$. {setup} Data: gradient_norms.csv.",
        "last_title": "The last layer's gradient against depth",
        "last_caption": "Pre-LN falls with depth and Post-LN does not, by which Xiong et al. (2020"
        ") explain why Post-LN needs a warm-up. A straight line is a power law, its slope the "
        "exponent. Frobenius norm of the gradient of the mean loss by $W_2$ of layer $L$, at "
        "initialisation, mean over the seeds with its standard error. The recursion, "
        "$\\sqrt{{d/(2nBs_L)}}$, has no free parameter; for Post-LN $s = 1.5$. {setups} Data: "
        "gradient_norms.csv.",
        "activation_title": "Activation norm by layer",
        "activation_caption": "Pre-LN adds to the stream and never norms it, so it grows: about "
        "like $\\sqrt{{l}}$, slower at first and faster while the tokens align. Post-LN norms it "
        "after every sum, so it stays at $\\sqrt{{d}}$. Output of every block of a stack of "
        "{depth} (shallower ones are its beginning): $L_2$ norm of a token, mean over tokens and "
        "seeds, at initialisation. {setups} Data: activation_norms.csv.",
        "overview_title": {
            "theory": "Pre-LN and Post-LN at initialisation, in the set-up of the theory",
            "transformer": "Pre-LN and Post-LN at initialisation, Transformer decoder on real text",
        },
        "overview_panels": (
            "gradient by layer, $L = {depth}$",
            "last layer's gradient by depth",
            "activation by layer, $L = {depth}$",
        ),
        "overview_caption": "Pre-LN (circles): gradients fall towards the output, and the last "
        "layer's falls with depth, while activations grow. Post-LN (squares): the last layer's "
        "gradient does not fall, and activations stay at $\\sqrt{{d}}$. Gradients: Frobenius norm "
        "of the gradient of the mean loss by $W_2$; activations: $L_2$ norm of a token; means over "
        "tokens and seeds. {setup} Data: gradient_norms.csv, activation_norms.csv.",
    },
    "zh": {
        "between": "",
        "two_seeds": "{}（梯度）、{}（激活）",
        "depth": "深度",
        "layer": "层 $l$（从输入到输出）",
        "depth_axis": "深度 $L$（层数）",
        "grad_norm": "梯度范数 $\\|\\partial\\,\\mathrm{{loss}}/\\partial W_{parameter}\\|_F$",
        "last_grad_norm": "最后一层的 $\\|\\partial\\,\\mathrm{loss}/\\partial W_2\\|_F$",
        "activation_norm": "激活范数：各 token 的 $\\|x_l\\|_2$ 均值",
        "with_slope": "{label}，斜率 {slope}",
        "recursion": "平均场递推",
        "inverse_root": "$\\propto 1/\\sqrt{L}$，供对照",
        "root": "$\\propto\\sqrt{l}$，供对照",
        "sum": "Post-LN，归一化之前",
        "setup": {
            "theory": "理论设定",
            "transformer": "真实文本上的 Transformer 解码器",
        },
        "setup_caption": {
            "theory": "理论设定（Xiong 等，2020，3.3 节）：$d = {d}$，$B = {B}$，$n = {n}$ 个 "
            "token，{V} 类，标签随机；随机种子数：{seeds}。",
            "transformer": "解码器：$d = {d}$，{H} 个头，$d_{{ff}} = {d_ff}$，Xavier 初始化，"
            "各 {n} 个字符的 {B} 段；随机种子数：{seeds}。",
        },
        "gradient_title": {
            "theory": "各层梯度范数：理论设定",
            "transformer": "各层梯度范数：真实文本上的 Transformer 解码器",
        },
        "gradient_see": {
            "theory": "Pre-LN：各深度的曲线重合成一条下降的曲线。一层的梯度取决于它的位置 $l$，而"
            "不取决于总深度，所以网络越深，最后一层的梯度越小。Post-LN：梯度与位置、深度都没有多大"
            "关系。",
            "transformer": "Pre-LN：各深度的曲线几乎重合成一条下降的曲线。一层的梯度主要取决于它的"
            "位置 $l$，所以网络越深，最后一层的梯度越小。Post-LN：梯度向输出方向略有上升，最后一层"
            "的梯度不随深度下降。",
        },
        "gradient_caption": "{see}每个点是初始化时平均损失对一层的 {parameter} 的梯度的 Frobenius "
        "范数，对随机种子取均值；每条线是一个深度 $L$。{setup}数据：gradient_norms.csv。",
        "last_title": "最后一层的梯度范数与深度",
        "last_caption": "Pre-LN 随深度下降，Post-LN 不下降；Xiong 等（2020）以此解释 Post-LN 为什"
        "么需要学习率预热。双对数坐标下的直线是幂律，斜率即指数。纵轴为初始化时平均损失对第 $L$ 层"
        " $W_2$ 的梯度的 Frobenius 范数，对随机种子取均值，误差线为标准误。递推值 "
        "$\\sqrt{{d/(2nBs_L)}}$ 没有自由参数；Post-LN 取 $s = 1.5$。{setups}"
        "数据：gradient_norms.csv。",
        "activation_title": "各层激活范数",
        "activation_caption": "Pre-LN 的残差主干只相加、不归一化，所以范数增长：大致按 $"
        "\\sqrt{{l}}$，起初较慢，各 token 逐渐对齐后较快。Post-LN 每次相加后都归一化，范数停在 $"
        "\\sqrt{{d}}$。图为 {depth} 层网络各块的输出（较浅的网络就是它的前几层）：初始化时每个 "
        "token 的 $L_2$ 范数，对 token 与随机种子取均值。{setups}数据：activation_norms.csv。",
        "overview_title": {
            "theory": "初始化时的 Pre-LN 与 Post-LN：理论设定",
            "transformer": "初始化时的 Pre-LN 与 Post-LN：真实文本上的 Transformer 解码器",
        },
        "overview_panels": (
            "各层梯度范数，$L = {depth}$",
            "最后一层的梯度范数与深度",
            "各层激活范数，$L = {depth}$",
        ),
        "overview_caption": "Pre-LN（圆点）：梯度向输出方向下降，最后一层的梯度随深度下降，激活范"
        "数则不断增长。Post-LN（方块）：最后一层的梯度不下降，激活范数停在 $\\sqrt{{d}}$。梯度：平"
        "均损失对 $W_2$ 的梯度的 Frobenius 范数；激活：每个 token 的 $L_2$ 范数；均对 token 与随机"
        "种子取均值。{setup}数据：gradient_norms.csv、activation_norms.csv。",
    },
}
