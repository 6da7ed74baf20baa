# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Pre-LN against Post-LN
#
# Chapter 2.5.3. The same parts in another order:
#
# $$\textbf{Post-LN:}\; Y = \operatorname{LN}(X + \operatorname{Sub}(X)) \qquad
#   \textbf{Pre-LN:}\; Y = X + \operatorname{Sub}(\operatorname{LN}(X))$$
#
# What does it do to the activations, to the gradients, and to training? We measure, first at the
# start and then over a few steps, and hold what is said about it against the numbers.

# %%
# %matplotlib inline
import numpy as np
from IPython.display import display

import npformer as nf
from npformer import plots
from npformer.data import CharacterVocabulary, load_text, windows
from npformer.labels import table
from npformer.plots.inspection import norms

text = load_text()
words = CharacterVocabulary(text)
ids = words.encode(text)


def model(placement, L, seed=0):
    """Xavier's start, token vectors of length sqrt(d), an output matrix of its own."""
    cfg = nf.TransformerConfig(
        V=words.V, d=48, L=L, H=4, T_max=32, placement=placement, init="xavier", tied=False,
        positions="sinusoidal", embedding_scale=48**0.5,
    )  # fmt: skip
    return nf.DecoderLM(cfg, rng=seed)


inputs, targets = windows(ids, T=32, B=8, rng=0)

# %% [markdown]
# ## Activations
#
# In Post-LN every block ends with a norm, so the rows leave it with root mean square 1. In Pre-LN
# nothing ever norms the stream: it grows with every block, about like $\sqrt{l}$.

# %%
found = {p: nf.inspect(model(p, 12), inputs, targets) for p in ("pre", "post")}
rows = [
    [str(layer), *(f"{found[p].row(f'blocks.{layer}').value.rms:.2f}" for p in ("pre", "post"))]
    for layer in range(12)
]
print(table(("block", "Pre-LN rms", "Post-LN rms"), rows, ">>>"))

# %% [markdown]
# The chapter says $\lVert\operatorname{Sub}(\operatorname{LN}(X))\rVert = O(1)$. It is $O(\sqrt
# d)$: one number of a sub-layer's result is of order 1, and there are d of them. The growth as
# $\sqrt l$ follows all the same.
#
# ## Gradients by layer
#
# The whole picture: activations, gradients by them, and gradients by the parameters.

# %%
for placement in ("pre", "post"):
    with plots.language("en"):
        display(norms(found[placement], f"{placement.title()}-LN, 12 layers, $d = 48$."))

# %% [markdown]
# ## The last layer's gradient against depth
#
# Xiong et al. (2020) compare $\lVert \partial\,\text{loss}/\partial W_2 \rVert_F$ of the last
# layer at several depths. In the stack of their theory Post-LN's does not depend on the depth and
# Pre-LN's falls as $1/\sqrt L$. (The chapter's theorem 2.5.2 has Pre-LN's independent of depth.)
# The reason is one division: the final norm of Pre-LN divides the whole gradient by the scale of
# what it norms, $\sqrt{s_L}$ with $s_L = E\lVert x_L\rVert^2/d$. Times $\sqrt{s_L}$ it should
# therefore change little. This small decoder is not that stack, but the directions are the same:

# %%
depths = (1, 2, 4, 8, 16, 32)
rows = []
for L in depths:
    cells = [str(L)]
    for placement in ("pre", "post"):
        wanted = [f"blocks.{L - 1}", f"blocks.{L - 1}.ffn.W2.W"]
        last = [
            nf.inspect(model(placement, L, s), inputs, targets, select=wanted) for s in range(4)
        ]
        g = np.mean([r.row(wanted[1]).gradient.norm for r in last])
        s = np.mean([r.row(wanted[0]).value.rms ** 2 for r in last])
        cells += [f"{g:.3f}", f"{g * s**0.5:.3f}"] if placement == "pre" else [f"{g:.3f}"]
    rows.append(cells)
print(table(("L", "Pre-LN", "Pre-LN x sqrt(s_L)", "Post-LN"), rows, ">>>>"))

# %% [markdown]
# `npformer curves --out curves` measures this with more seeds, next to the theory, and says what
# holds.
#
# ## Training without a warm-up
#
# The chapter reports: Post-LN needs a warm-up of the learning rate, Pre-LN does not. Eight
# layers, Adam, a learning rate of 0.003 from the first step on:


# %%
def train(placement, warmup, steps=70):
    net = model(placement, 8)
    optimizer = nf.optim.Adam(net, lr=nf.optim.Constant(3e-3, warmup))
    draw = np.random.default_rng(0)
    losses = []
    for _ in range(steps):
        x, y = windows(ids, T=32, B=8, rng=draw)
        net.zero_grad()
        loss, saved = net.loss(x, y)
        net.loss_backward(1.0, saved)
        optimizer.step()
        losses.append(loss)
    return losses


share = np.bincount(ids) / len(ids)
alone = -np.sum(share[share > 0] * np.log(share[share > 0]))
runs = {
    "Pre-LN": train("pre", 0),
    "Post-LN": train("post", 0),
    "Post-LN, 40 steps of warm-up": train("post", 40),
}
rows = [
    [name, *(f"{np.mean(losses[i : i + 10]):.2f}" for i in (0, 20, 40, 60))]
    for name, losses in runs.items()
]
print(table(("", "steps 0-9", "20-29", "40-49", "60-69"), rows, "<>>>>"))
print(f"knowing how often each character comes, and nothing else: {alone:.2f}")

# %% [markdown]
# Pre-LN learns from the first step on. Post-LN learns how often each character comes, and stays
# there; at this learning rate a short warm-up does not help it out either, a smaller rate does
# (question 3). The size of the gradient alone does not explain it: at the start it is of order 1
# in both. Why Post-LN breaks is argued about: Liu et al. (2020, arXiv:2004.08249) find the cause
# in how strongly its output answers to a small change of its weights.
#
# ## Questions
#
# 1. Give the Pre-LN model `final_norm=False`. What happens to the first loss, and how does it
#    depend on L?
# 2. What is the activation's growth with `placement="sandwich"`? Derive it, then measure it.
# 3. Which learning rate can Post-LN stand without a warm-up? Does it depend on the depth?
