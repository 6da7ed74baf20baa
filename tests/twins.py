"""What is compared with PyTorch: inputs, and our result and gradients, one entry a comparison.

PyTorch's side of each entry has the same name in ``tests/reference/torch_twins.py``. Sizes are
prime and unlike each other where the rules allow it, parameters are of order one, cotangents
random.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import npformer as nf
from npformer import functional as F

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Twin:
    """Inputs from a generator, and our side: arrays and a cotangent to a result and gradients."""

    inputs: Callable[[np.random.Generator], Arrays]
    forward: Callable[[Arrays], tuple[Any, Callable[[Any], Arrays]]]


def draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal numbers rounded to multiples of 1/64: exact in float32 too, and files stay small."""
    return np.round(64 * rng.standard_normal(shape)) / 64


def differentiable(arrays: Arrays) -> list[str]:
    """The names of the inputs that have a gradient."""
    return [name for name, a in arrays.items() if np.asarray(a).dtype.kind == "f"]


def pack(arrays: Arrays) -> np.ndarray:
    """Put arrays that `draw` made, ids and masks into one int16 vector."""
    parts = []
    for a in map(np.asarray, arrays.values()):
        part = (64 * a if a.dtype.kind == "f" else a).astype(np.int16)
        assert np.array_equal(part / 64 if a.dtype.kind == "f" else part, a)
        parts.append(part.ravel())
    return np.concatenate(parts)


def unpack(vector: np.ndarray, like: Arrays) -> Arrays:
    """Cut a vector into arrays of the shapes and kinds of ``like``, undoing `pack`."""
    ends = np.cumsum([np.size(a) for a in like.values()])
    if ends[-1] != vector.size:
        raise ValueError(f"the file holds {vector.size} numbers where {ends[-1]} are expected")
    arrays = {}
    for (key, a), part in zip(like.items(), np.split(vector, ends[:-1]), strict=True):
        a = np.asarray(a)
        scaled = part / 64 if a.dtype.kind == "f" and vector.dtype == np.int16 else part
        arrays[key] = scaled.reshape(a.shape).astype(a.dtype)
    return arrays


TWINS: dict[str, Twin] = {}


# ------------------------------------------------------------------------------ function pairs


def pair(name, f, f_backward, shapes, *, more=None, **options):
    """Register a pair whose inputs are drawn with ``shapes``; ``more`` draws ids and masks."""

    def inputs(rng):
        arrays = {key: draw(rng, *shape) for key, shape in shapes.items()}
        return arrays | (more(rng) if more else {})

    def forward(arrays):
        arrays = dict(arrays)
        extra = {"mask": arrays.pop("mask")} if "mask" in arrays else {}
        y, saved = f(*arrays.values(), **extra, **options)

        def backward(dy):
            grads = f_backward(dy, saved)
            grads = grads if isinstance(grads, tuple) else (grads,)
            return dict(zip(differentiable(arrays), grads, strict=True))

        return y, backward

    TWINS[name] = Twin(inputs, forward)


x235 = {"x": (2, 3, 5)}
norm = {"x": (2, 3, 5), "gamma": (5,)}
pair("softmax", F.softmax, F.softmax_backward, x235)
pair("softmax over axis 1", F.softmax, F.softmax_backward, x235, axis=1)
pair("log_softmax", F.log_softmax, F.log_softmax_backward, x235)
pair("log_softmax over axis 0", F.log_softmax, F.log_softmax_backward, x235, axis=0)
pair("layernorm", F.layernorm, F.layernorm_backward, norm | {"beta": (5,)}, eps=1e-3)
pair("rmsnorm", F.rmsnorm, F.rmsnorm_backward, norm, eps=1e-3)
pair(
    "linear",
    F.linear,
    F.linear_backward,
    {"x": (2, 3, 5), "W": (5, 7), "b": (7,)},
)
pair("linear without bias", F.linear, F.linear_backward, {"x": (2, 3, 5), "W": (5, 7)})
pair("relu", F.relu, F.relu_backward, x235)
pair("gelu", F.gelu, F.gelu_backward, x235)
pair("gelu tanh", F.gelu, F.gelu_backward, x235, approximate="tanh")
pair("silu", F.silu, F.silu_backward, x235)
pair("sigmoid", F.sigmoid, F.sigmoid_backward, x235)
pair("tanh", F.tanh, F.tanh_backward, x235)
pair("gate", F.gate, F.gate_backward, {"a": (2, 3, 5), "u": (2, 3, 5)})
pair("softcap", F.softcap, F.softcap_backward, x235, cap=1.5)
pair(
    "unembedding",
    F.unembedding,
    F.unembedding_backward,
    {"x": (2, 3, 5), "E": (7, 5), "b": (7,)},
)


def embedding_forward(arrays):
    y, saved = F.embedding(arrays["ids"], arrays["E"])
    return y, lambda dy: {"E": F.embedding_backward(dy, saved)}


TWINS["embedding"] = Twin(
    lambda rng: {"E": draw(rng, 7, 3), "ids": rng.integers(0, 7, (3, 11))}, embedding_forward
)


def some_targets(rng):
    targets = rng.integers(0, 5, (2, 3))
    targets[[0, 1], [2, 1]] = -100
    return {"targets": targets}


for reduction in ("mean", "sum", "none"):
    for smoothing in (0.0, 0.1):
        pair(
            f"cross_entropy {reduction} {smoothing}",
            F.cross_entropy,
            F.cross_entropy_backward,
            x235,
            more=some_targets,
            reduction=reduction,
            label_smoothing=smoothing,
        )


ATTENTION: dict[str, tuple[tuple[int, ...], dict[str, Any], tuple[int, ...] | None]] = {
    # (B, H, H_kv, T, S, d_h, d_v), options, shape of a random mask
    "plain": ((2, 3, 3, 2, 5, 3, 2), {}, None),
    "causal": ((2, 3, 1, 3, 5, 2, 3), {"causal": True}, None),
    "causal, T > S": ((2, 3, 1, 5, 3, 2, 3), {"causal": True}, None),
    "grouped": ((1, 6, 2, 3, 3, 2, 5), {"causal": True, "scale": 0.7}, None),
    "window": ((1, 2, 2, 7, 7, 2, 3), {"causal": True, "window": 3}, None),
    "capped": ((2, 2, 1, 3, 5, 3, 2), {"softcap": 1.5, "causal": True}, None),
    "mask for all": ((2, 3, 3, 2, 5, 3, 2), {}, (2, 5)),
    "mask by row": ((3, 3, 1, 2, 5, 3, 2), {}, (3, 1, 1, 5)),
    "mask by head": ((2, 4, 2, 3, 5, 3, 2), {"window": 4, "causal": True}, (2, 4, 3, 5)),
}

for key, (sizes, options, mask_shape) in ATTENTION.items():
    B, H, H_kv, T, S, d_h, d_v = sizes
    pair(
        f"attention {key}",
        F.attention,
        F.attention_backward,
        {"q": (B, H, T, d_h), "k": (B, H_kv, S, d_h), "v": (B, H_kv, S, d_v)},
        more=(lambda rng, shape=mask_shape: {"mask": rng.random(shape) < 0.6})
        if mask_shape
        else None,
        **options,
    )

for layout in ("interleaved", "half"):
    pair(
        f"rope {layout}",
        F.rope,
        F.rope_backward,
        {"x": (2, 3, 2, 10)},
        more=lambda rng: {"positions": rng.integers(0, 1000, (2, 2))},
        base=500.0,
        layout=layout,
        rotary_dim=6,
    )


# ---------------------------------------------------------------------------- layers and models


def module(name, make, inputs, run=None):
    """Register a module: its parameters are inputs too, under their own names."""

    def all_inputs(rng):
        parameters = make(np.float64).named_parameters()
        return inputs(rng) | {key: draw(rng, *p.value.shape) for key, p in parameters}

    def forward(arrays):
        layer = make(next(a.dtype for a in arrays.values() if a.dtype.kind == "f"))
        layer.load_state_dict({key: arrays[key] for key, _ in layer.named_parameters()})
        y, saved = run(layer, arrays) if run else layer.forward(arrays["x"])

        def backward(dy):
            back = layer.loss_backward if np.ndim(y) == 0 else layer.backward
            dx = back(dy, saved)
            grads = {key: p.grad for key, p in layer.named_parameters()}
            if isinstance(dx, tuple):
                return {"x": dx[0], "context": dx[1]} | grads
            return ({} if dx is None else {"x": dx}) | grads

        return y, backward

    TWINS[name] = Twin(all_inputs, forward)


def config(**options):
    return nf.AttentionConfig(**dict(d=6, H=3) | options)


def with_context(rng):
    return {"x": draw(rng, 2, 5, 6), "context": draw(rng, 2, 7, 4)}


module(
    "MultiHeadAttention",
    lambda dtype: nf.MultiHeadAttention(config(causal=True), dtype=dtype),
    lambda rng: {"x": draw(rng, 2, 5, 6)},
)
module(
    "MultiHeadAttention across",
    lambda dtype: nf.MultiHeadAttention(config(d_context=4), dtype=dtype),
    with_context,
    lambda layer, a: layer.forward(a["x"], a["context"]),
)
module(
    "FeedForward",
    lambda dtype: nf.FeedForward(5, 7, activation="gelu", dtype=dtype),
    lambda rng: {"x": draw(rng, 2, 3, 5)},
)
module(
    "FeedForward gated",
    lambda dtype: nf.FeedForward(5, 7, activation="silu", gated=True, bias=False, dtype=dtype),
    lambda rng: {"x": draw(rng, 2, 3, 5)},
)
for placement in ("pre", "post"):
    options = dict(placement=placement, activation="gelu", eps=1e-3)
    module(
        f"Block {placement}",
        lambda dtype, o=options: nf.Block(config(), 5, dtype=dtype, **o),
        lambda rng: {"x": draw(rng, 2, 5, 6)},
    )
    module(
        f"Block {placement} across",
        lambda dtype, o=options: nf.Block(config(causal=True), 5, cross=config(), dtype=dtype, **o),
        lambda rng: {"x": draw(rng, 2, 5, 6), "context": draw(rng, 2, 7, 6)},
        lambda layer, a: layer.forward(a["x"], a["context"]),
    )
for placement in ("pre", "sandwich", "output"):
    module(
        f"Block {placement} of the Llama kind",
        lambda dtype, p=placement: nf.Block(
            config(d=5, H=6, H_kv=2, d_h=4, causal=True, rope=True, bias=False, out_bias=False),
            7,
            norm="rmsnorm",
            placement=p,
            activation="silu",
            gated=True,
            bias=False,
            eps=1e-3,
            dtype=dtype,
        ),
        lambda rng: {"x": draw(rng, 2, 3, 5)},
    )


def text(rng, V=7, T=5):
    return {"ids": rng.integers(0, V, (3, T)), "targets": rng.integers(0, V, (3, T))}


def padded(rng):
    real = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], bool)
    return {"ids": rng.integers(0, 7, (3, 5)), "real": real}


module(
    "Encoder",
    lambda dtype: nf.Encoder(
        nf.TransformerConfig(
            V=7, d=6, L=2, H=3, d_ff=5, T_max=5, placement="post", activation="gelu"
        ),
        dtype=dtype,
    ),
    padded,
    lambda model, a: model.forward(a["ids"], a["real"], positions=np.arange(5)),
)
module(
    "DecoderLM",
    lambda dtype: nf.DecoderLM(
        nf.TransformerConfig(V=7, d=6, L=2, H=3, d_ff=5, T_max=5, activation="gelu_tanh"),
        dtype=dtype,
    ),
    text,
    lambda model, a: model.loss(a["ids"], a["targets"]),
)
module(
    "DecoderLM of the Llama kind",
    lambda dtype: nf.DecoderLM(
        nf.TransformerConfig(
            V=7,
            d=5,
            L=2,
            H=4,
            H_kv=2,
            d_h=2,
            d_ff=7,
            norm="rmsnorm",
            activation="silu",
            gated=True,
            positions="rope",
            rope_layout="half",
            bias=False,
            tied=False,
        ),
        dtype=dtype,
    ),
    text,
    lambda model, a: model.loss(a["ids"], a["targets"]),
)
module(
    "EncoderDecoder",
    lambda dtype: nf.EncoderDecoder(
        nf.TransformerConfig(
            V=7,
            d=6,
            L=2,
            L_encoder=1,
            H=3,
            d_ff=5,
            placement="post",
            activation="relu",
            positions="sinusoidal",
            embedding_scale=6**0.5,
        ),
        dtype=dtype,
    ),
    lambda rng: text(rng) | {"source": rng.integers(0, 7, (3, 7))},
    lambda model, a: model.loss(a["source"], a["ids"], a["targets"]),
)
