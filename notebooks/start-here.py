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
# # Start here
#
# A walk through npformer in ten minutes: a formula and its backward, the proof that the backward
# is right, a layer, a model, a look inside it, a few steps of training, and some text that it
# writes. Everything is NumPy. The whole notebook runs in half a minute.

# %%
# %matplotlib inline
import numpy as np

import npformer as nf
from npformer import functional as F

rng = np.random.default_rng(0)

# %% [markdown]
# ## A formula and its backward
#
# Everything is made of *pairs*. `y, saved = f(x)` computes the formula, and `dx = f_backward(dy,
# saved)` its gradient: given $dy = \partial\,\text{loss}/\partial y$ it returns $dx =
# \partial\,\text{loss}/\partial x$. `saved` is what the backward needs, by name.

# %%
x = rng.standard_normal((2, 3))
p, saved = F.softmax(x)
print(p.round(3), " rows sum to", p.sum(axis=-1))
print("saved:", saved._fields)

# %% [markdown]
# The Jacobian of a softmax is $\partial p_i/\partial x_j = p_i(\delta_{ij} - p_j)$, so $dx = p
# \odot (dp - \sum_j p_j\,dp_j)$. Try it against a finite difference by hand:

# %%
dp = rng.standard_normal((2, 3))
dx = F.softmax_backward(dp, saved)
h = 1e-6
moved = x.copy()
moved[1, 2] += h
numeric = np.sum(dp * (F.softmax(moved)[0] - p)) / h
print(f"backward {dx[1, 2]:.8f}   difference {numeric:.8f}")

# %% [markdown]
# ## The proof
#
# `nf.gradcheck` does that for every number of every input and parameter, with a method that has
# no cancellation (the complex step), and says what is wrong if something is.

# %%
print(nf.gradcheck((F.softmax, F.softmax_backward), x))


# %%
def forgetful(dp, saved):
    return saved.p * dp  # the sum is missing


print(nf.gradcheck((F.softmax, forgetful), x))

# %% [markdown]
# On the command line the same judge checks your own file: `npformer gradcheck FILE.py`.
#
# ## A layer and a model
#
# A layer owns parameters, calls pairs, and adds gradients up. A model is layers of layers.

# %%
layer = nf.LayerNorm(5, dtype=np.float64)
y, saved = layer.forward(rng.standard_normal((2, 4, 5)))
dx = layer.backward(rng.standard_normal(y.shape), saved)
print({name: p.grad.round(2) for name, p in layer.named_parameters()})

# %%
from npformer.data import CharacterVocabulary, load_text, windows

text = load_text()  # the documentation inside Python; load_text("novel.txt") for one of yours
words = CharacterVocabulary(text)
ids = words.encode(text)
print(f"{len(ids):,} characters, {words.V} different ones: {text[2000:2060]!r}")

cfg = nf.TransformerConfig(
    V=words.V,
    d=64,
    L=4,
    H=4,
    T_max=64,
    positions="rope",
    norm="rmsnorm",
    gated=True,
    activation="silu",
)
model = nf.DecoderLM(cfg, rng=0)
print(f"{sum(p.value.size for p in model.parameters()):,} parameters")

# %% [markdown]
# `model.loss` runs it forward, `model.loss_backward` back. Before training the model guesses, so
# the loss is close to $\ln V$.

# %%
inputs, targets = windows(ids, T=64, B=8, rng=0)
loss, saved = model.loss(inputs, targets)
model.loss_backward(1.0, saved)
print(f"loss {loss:.3f}, ln V {np.log(words.V):.3f}")
for name, p in list(model.named_parameters())[:4]:
    print(f"{name:28} {p.value.shape!s:12} |gradient| {np.linalg.norm(p.grad):.4f}")

# %% [markdown]
# ## A look inside
#
# Everything that passes through the model has a name: `blocks.2.attn` is the result of the third
# block's attention. `nf.inspect` measures by name. (`npformer inspect` does it on the command
# line, with figures.)

# %%
found = nf.inspect(model, inputs, targets, select=["blocks.*", "blocks.*.attn", "blocks.*.ffn"])
print(f"{'name':16}{'rms':>8}{'|dL/dx|':>10}{'|dL/dW|':>10}")
for row in found.rows:
    print(f"{row.name:16}{row.value.rms:8.4f}{row.gradient.norm:10.5f}{row.parameters:10.4f}")

# %% [markdown]
# ## A few steps of training

# %%
optimizer = nf.optim.AdamW(model, lr=3e-3)
draw = np.random.default_rng(1)
losses = []
for _ in range(120):
    inputs, targets = windows(ids, T=64, B=8, rng=draw)
    model.zero_grad()
    loss, saved = model.loss(inputs, targets)
    model.loss_backward(1.0, saved)
    optimizer.step()
    losses.append(loss)
print(" -> ".join(f"{np.mean(losses[i : i + 10]):.2f}" for i in (0, 30, 60, 110)))

# %% [markdown]
# In so few steps it has learnt which characters are frequent, and a little of which follow which.
# `npformer train --out run` goes on for a minute and a half, and then it writes words.

# %%
prompt = words.encode("The with statement")
out = nf.generate(model, prompt[None], max_new_tokens=80, temperature=0.7, rng=0)
print(words.decode(out[0]))

# %% [markdown]
# ## Where to go on
#
# - The guide's pages follow the chapter: residuals and normalisation, attention. Each derives a
#   backward, and ends with exercises that `npformer gradcheck FILE.py` judges.
# - The notebook *Pre-LN against Post-LN* asks why the place of the norm matters so much.
# - `npformer --help` lists the commands.
