"""PyTorch's side of ``tests/twins.py``: the same functions, layers and models, by autograd.

Where PyTorch has a module of its own (MultiheadAttention, TransformerEncoderLayer,
TransformerDecoderLayer) it is used, so that the two sides share no reading of the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as TF
from torch import Tensor, nn
from torch.func import functional_call
from twins import ATTENTION, Arrays, differentiable

Tensors = dict[str, Tensor]
TORCH: dict[str, Callable[[Tensors], Tensor]] = {}


def result_and_gradients(
    name: str,
    arrays: Arrays,
    draw_dy: Callable[..., np.ndarray],
    dtype: torch.dtype = torch.float64,
) -> tuple[np.ndarray, np.ndarray, Arrays]:
    """Run one twin; return its result, the cotangent drawn for it, and the gradients."""
    tensors = {key: torch.tensor(np.asarray(a)) for key, a in arrays.items()}
    names = differentiable(arrays)
    for key in names:
        tensors[key] = tensors[key].to(dtype).requires_grad_()
    y = TORCH[name](tensors)
    dy = draw_dy(*y.shape)
    inputs = [tensors[key] for key in names]
    grads = torch.autograd.grad(y, inputs, torch.tensor(dy).to(y.dtype))
    return y.detach().numpy(), dy, {k: g.numpy() for k, g in zip(names, grads, strict=True)}


# ------------------------------------------------------------------------------ function pairs

TORCH["softmax"] = lambda a: a["x"].softmax(-1)
TORCH["softmax over axis 1"] = lambda a: a["x"].softmax(1)
TORCH["log_softmax"] = lambda a: a["x"].log_softmax(-1)
TORCH["log_softmax over axis 0"] = lambda a: a["x"].log_softmax(0)
TORCH["layernorm"] = lambda a: TF.layer_norm(a["x"], (5,), a["gamma"], a["beta"], 1e-3)
TORCH["rmsnorm"] = lambda a: TF.rms_norm(a["x"], (5,), a["gamma"], 1e-3)
TORCH["linear"] = lambda a: TF.linear(a["x"], a["W"].T, a["b"])
TORCH["linear without bias"] = lambda a: TF.linear(a["x"], a["W"].T)
TORCH["relu"] = lambda a: TF.relu(a["x"])
TORCH["gelu"] = lambda a: TF.gelu(a["x"])
TORCH["gelu tanh"] = lambda a: TF.gelu(a["x"], approximate="tanh")
TORCH["silu"] = lambda a: TF.silu(a["x"])
TORCH["sigmoid"] = lambda a: a["x"].sigmoid()
TORCH["tanh"] = lambda a: a["x"].tanh()
TORCH["gate"] = lambda a: a["a"] * a["u"]
TORCH["softcap"] = lambda a: 1.5 * torch.tanh(a["x"] / 1.5)
TORCH["unembedding"] = lambda a: TF.linear(a["x"], a["E"], a["b"])
TORCH["embedding"] = lambda a: TF.embedding(a["ids"], a["E"])


def cross_entropy(a: Tensors, reduction: str, smoothing: float) -> Tensor:
    return TF.cross_entropy(
        a["x"].movedim(-1, 1), a["targets"], reduction=reduction, label_smoothing=smoothing
    )


for how in ("mean", "sum", "none"):
    for eps in (0.0, 0.1):
        TORCH[f"cross_entropy {how} {eps}"] = lambda a, how=how, eps=eps: cross_entropy(a, how, eps)


def attention(a: Tensors, **options: Any) -> Tensor:
    """Scaled dot-product attention with every rule as one boolean mask."""
    q, k, v = a["q"], a["k"], a["v"]
    T, S = q.shape[2], k.shape[2]
    ahead = torch.arange(S) - (S - T) - torch.arange(T)[:, None]
    seen = torch.ones(T, S, dtype=torch.bool)
    if options.get("causal"):
        seen &= ahead <= 0
    if options.get("window"):
        seen &= ahead > -options["window"]
    if "mask" in a:
        seen = seen & a["mask"]
    seen = seen.expand(q.shape[0], q.shape[1], T, S)
    some = seen.any(-1, keepdim=True)
    if "softcap" in options:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        y = scores.masked_fill(~(seen | ~some), -math.inf).softmax(-1) @ v
    else:
        y = TF.scaled_dot_product_attention(
            q, k, v, seen | ~some, scale=options.get("scale"), enable_gqa=True
        )
    return torch.where(some, y, 0.0)  # a query that sees nothing gives 0 here


for key, (_, rules, _) in ATTENTION.items():
    TORCH[f"attention {key}"] = lambda a, rules=rules: attention(a, **rules)


def rope(x: Tensor, positions: Tensor, n: int, base: float, layout: str) -> Tensor:
    """Rotation as a product of complex numbers."""
    angles = positions.double()[..., None] * base ** (-torch.arange(0, n, 2).double() / n)
    if angles.ndim == 3:
        angles = angles[:, None]
    turn = torch.polar(torch.ones_like(angles), angles)
    turn = turn.to(torch.complex64 if x.dtype == torch.float32 else torch.complex128)
    pairs = x[..., :n].unflatten(-1, (-1, 2) if layout == "interleaved" else (2, -1))
    if layout == "half":
        pairs = pairs.mT
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    if layout == "half":
        turned = turned.mT
    return torch.cat([turned.flatten(-2), x[..., n:]], -1)


for kind in ("interleaved", "half"):
    TORCH[f"rope {kind}"] = lambda a, kind=kind: rope(a["x"], a["positions"], 6, 500.0, kind)


# ------------------------------------------------------------- layers that PyTorch has itself


def part(a: Tensors, prefix: str) -> Tensors:
    """The tensors below a name, without it."""
    return {key[len(prefix) :]: t for key, t in a.items() if key.startswith(prefix)}


def in_projection(a: Tensors) -> Tensors:
    """Our Wq, Wk, Wv, Wo under the names of nn.MultiheadAttention (stored (out, in))."""
    own = {
        "in_proj_bias": torch.cat([a["Wq.b"], a["Wk.b"], a["Wv.b"]]),
        "out_proj.weight": a["Wo.W"].T,
        "out_proj.bias": a["Wo.b"],
    }
    if a["Wq.W"].shape[0] == a["Wk.W"].shape[0]:
        joined = torch.cat([a["Wq.W"].T, a["Wk.W"].T, a["Wv.W"].T])
        return own | {"in_proj_weight": joined}
    names = {"q_proj_weight": "Wq.W", "k_proj_weight": "Wk.W", "v_proj_weight": "Wv.W"}
    return own | {theirs: a[ours].T for theirs, ours in names.items()}


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + key: t for key, t in tensors.items()}


def causal(T: int) -> Tensor:
    return torch.ones(T, T, dtype=torch.bool).triu(1)  # True = hidden, in these modules


def multihead(a: Tensors) -> Tensor:
    layer = nn.MultiheadAttention(6, 3, batch_first=True, dtype=torch.float64)
    x = a["x"]
    options = {"attn_mask": causal(x.shape[1]), "need_weights": False}
    return functional_call(layer, in_projection(a), (x, x, x), options)[0]


def multihead_across(a: Tensors) -> Tensor:
    layer = nn.MultiheadAttention(6, 3, kdim=4, vdim=4, batch_first=True, dtype=torch.float64)
    inputs = (a["x"], a["context"], a["context"])
    return functional_call(layer, in_projection(a), inputs, {"need_weights": False})[0]


TORCH["MultiHeadAttention"] = multihead
TORCH["MultiHeadAttention across"] = multihead_across


def feedforward_names(a: Tensors) -> Tensors:
    return {
        "linear1.weight": a["ffn.W1.W"].T,
        "linear1.bias": a["ffn.W1.b"],
        "linear2.weight": a["ffn.W2.W"].T,
        "linear2.bias": a["ffn.W2.b"],
    }


def norm_names(a: Tensors, names: dict[str, str]) -> Tensors:
    return {
        f"{theirs}.{w}": a[f"{ours}.{p}"]
        for theirs, ours in names.items()
        for w, p in (("weight", "gamma"), ("bias", "beta"))
    }


def encoder_layer(a: Tensors, x: Tensor, placement: str, activation: Any, eps: float, **how: Any):
    d, d_ff = a["ffn.W1.W"].shape
    layer = nn.TransformerEncoderLayer(
        d, 3, d_ff, 0.0, activation, eps, True, placement == "pre", dtype=torch.float64
    )
    own = prefixed("self_attn.", in_projection(part(a, "attn.")))
    own |= feedforward_names(a) | norm_names(a, {"norm1": "attn_norm", "norm2": "ffn_norm"})
    return functional_call(layer, own, (x,), how)


def decoder_layer(
    a: Tensors, x: Tensor, context: Tensor, placement: str, activation: Any, eps: float
) -> Tensor:
    d, d_ff = a["ffn.W1.W"].shape
    layer = nn.TransformerDecoderLayer(
        d, 3, d_ff, 0.0, activation, eps, True, placement == "pre", dtype=torch.float64
    )
    own = prefixed("self_attn.", in_projection(part(a, "attn.")))
    own |= prefixed("multihead_attn.", in_projection(part(a, "cross.")))
    names = {"norm1": "attn_norm", "norm2": "cross_norm", "norm3": "ffn_norm"}
    own |= feedforward_names(a) | norm_names(a, names)
    return functional_call(layer, own, (x, context), {"tgt_mask": causal(x.shape[1])})


for where in ("pre", "post"):
    TORCH[f"Block {where}"] = lambda a, w=where: encoder_layer(a, a["x"], w, TF.gelu, 1e-3)
    TORCH[f"Block {where} across"] = lambda a, w=where: decoder_layer(
        a, a["x"], a["context"], w, TF.gelu, 1e-3
    )


# ------------------------------------------------------ what PyTorch has only the pieces of


def feedforward(a: Tensors) -> Tensor:
    return TF.linear(TF.gelu(TF.linear(a["x"], a["W1.W"].T, a["W1.b"])), a["W2.W"].T, a["W2.b"])


def swiglu(a: Tensors, x: Tensor) -> Tensor:
    return (TF.silu(x @ a["W1.W"]) * (x @ a["W3.W"])) @ a["W2.W"]


TORCH["FeedForward"] = feedforward
TORCH["FeedForward gated"] = lambda a: swiglu(a, a["x"])


def rotary_attention(a: Tensors, x: Tensor, H: int, H_kv: int, layout: str) -> Tensor:
    positions = torch.arange(x.shape[1])
    q, k, v = (
        (x @ a[f"{name}.W"]).unflatten(-1, (heads, -1)).transpose(1, 2)
        for name, heads in (("Wq", H), ("Wk", H_kv), ("Wv", H_kv))
    )
    q, k = (rope(z, positions, z.shape[-1], 10000.0, layout) for z in (q, k))
    y = TF.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return y.transpose(1, 2).flatten(2) @ a["Wo.W"]


def llama_block(
    a: Tensors, x: Tensor, heads: tuple[int, int], layout: str, placement: str, eps: float
) -> Tensor:
    def rms(name: str, z: Tensor) -> Tensor:
        return TF.rms_norm(z, z.shape[-1:], a[f"{name}.gamma"], eps)

    subs = {
        "attn": lambda z: rotary_attention(part(a, "attn."), z, *heads, layout),
        "ffn": lambda z: swiglu(part(a, "ffn."), z),
    }
    for name, sub in subs.items():
        y = sub(x if placement == "output" else rms(f"{name}_norm", x))
        x = x + (y if placement == "pre" else rms(f"{name}_out_norm", y))
    return x


for where in ("pre", "sandwich", "output"):
    TORCH[f"Block {where} of the Llama kind"] = lambda a, w=where: llama_block(
        a, a["x"], (6, 2), "interleaved", w, 1e-3
    )


# ------------------------------------------------------------------------------- whole models


def encoder(a: Tensors) -> Tensor:
    x = TF.embedding(a["ids"], a["embedding.tokens.E"]) + a["embedding.learned.P"][:5]
    for layer in range(2):
        own = part(a, f"stack.blocks.{layer}.")
        x = encoder_layer(own, x, "post", TF.gelu, 1e-5, src_key_padding_mask=~a["real"])
    return x


def gpt(a: Tensors) -> Tensor:
    E = a["embedding.tokens.E"]
    x = TF.embedding(a["ids"], E) + a["embedding.learned.P"][:5]

    def gelu(z: Tensor) -> Tensor:
        return TF.gelu(z, approximate="tanh")

    for layer in range(2):
        own = part(a, f"stack.blocks.{layer}.")
        x = encoder_layer(own, x, "pre", gelu, 1e-5, src_mask=causal(5))
    x = TF.layer_norm(x, (6,), a["stack.final_norm.gamma"], a["stack.final_norm.beta"])
    return TF.cross_entropy((x @ E.T).flatten(0, 1), a["targets"].flatten())


def llama(a: Tensors) -> Tensor:
    x = TF.embedding(a["ids"], a["embedding.tokens.E"])
    for layer in range(2):
        own = part(a, f"stack.blocks.{layer}.")
        x = llama_block(own, x, (4, 2), "half", "pre", 1e-5)
    x = TF.rms_norm(x, (5,), a["stack.final_norm.gamma"], 1e-5)
    return TF.cross_entropy((x @ a["head.E"].T).flatten(0, 1), a["targets"].flatten())


def translator(a: Tensors) -> Tensor:
    E = a["encoder.embedding.tokens.E"]

    def embed(ids: Tensor) -> Tensor:
        m, i = torch.arange(ids.shape[1]).double()[:, None], torch.arange(0, 6, 2).double()
        angles = m * 10000 ** (-i / 6)
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)
        return TF.embedding(ids, E) * math.sqrt(6) + waves.to(E.dtype)

    context = encoder_layer(
        part(a, "encoder.stack.blocks.0."), embed(a["source"]), "post", TF.relu, 1e-5
    )
    x = embed(a["ids"])
    for layer in range(2):
        x = decoder_layer(part(a, f"stack.blocks.{layer}."), x, context, "post", TF.relu, 1e-5)
    return TF.cross_entropy((x @ E.T).flatten(0, 1), a["targets"].flatten())


TORCH["Encoder"] = encoder
TORCH["DecoderLM"] = gpt
TORCH["DecoderLM of the Llama kind"] = llama
TORCH["EncoderDecoder"] = translator
