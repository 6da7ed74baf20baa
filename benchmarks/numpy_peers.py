"""A training step against the NumPy implementations that can be installed from PyPI.

    pip install autograd glassllm pydynet
    python benchmarks/numpy_peers.py

Each peer does the work of the small size (B4 T128 d256 H8 L4 V1024), loss and gradients of every
parameter, in float32: autograd by the chapter's formulas with its own differentiation, PyDyNet by
the same formulas on its tensors, glassllm with its own model (RMSNorm, rotary grouped queries,
SwiGLU), which npformer matches.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from paired import Ratio, arguments, paired, report

import npformer as nf

B, T, d, H, L, V = 4, 128, 256, 8, 4, 1024
MASK = np.where(np.tril(np.ones((T, T), bool)), 0, -np.inf).astype(np.float32)


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Parameters of a Pre-LN decoder with GELU, LayerNorm and a tied head."""
    shapes: dict[str, tuple[int, ...]] = {"E": (V, d), "P": (T, d), "g": (d,), "b": (d,)}
    for i in range(L):
        shapes |= {f"{n}{i}": (d, d) for n in ("q", "k", "v", "o")}
        shapes |= {f"w1{i}": (d, 4 * d), f"b1{i}": (4 * d,), f"w2{i}": (4 * d, d), f"b2{i}": (d,)}
        shapes |= {f"{n}{i}": (d,) for n in ("g1", "s1", "g2", "s2", "bq", "bk", "bv", "bo")}
    return {n: (0.02 * rng.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}


def decoder(np_: Any, w: dict[str, Any], ids: Any, targets: Any, one_hot: Any = None) -> Any:
    """Mean loss, written with the functions that a module like NumPy gives."""
    root_d, root_h = float(np.sqrt(2 / np.pi)), float((d // H) ** -0.5)

    def norm(x: Any, g: Any, b: Any) -> Any:
        xc = x - np_.mean(x, axis=-1, keepdims=True)
        return xc / np_.sqrt(np_.mean(xc * xc, axis=-1, keepdims=True) + 1e-5) * g + b

    def heads(x: Any) -> Any:
        return np_.transpose(np_.reshape(x, (B, T, H, d // H)), (0, 2, 1, 3))

    x = (w["E"][ids] if one_hot is None else one_hot @ w["E"]) + w["P"]
    for i in range(L):
        h = norm(x, w[f"g1{i}"], w[f"s1{i}"])
        q, k, v = (heads(h @ w[f"{n}{i}"] + w[f"b{n}{i}"]) for n in ("q", "k", "v"))
        s = q @ np_.transpose(k, (0, 1, 3, 2)) * root_h + MASK
        e = np_.exp(s - np_.max(s, axis=-1, keepdims=True))
        y = np_.transpose(e / np_.sum(e, axis=-1, keepdims=True) @ v, (0, 2, 1, 3))
        x = x + np_.reshape(y, (B, T, d)) @ w[f"o{i}"] + w[f"bo{i}"]
        h = norm(x, w[f"g2{i}"], w[f"s2{i}"]) @ w[f"w1{i}"] + w[f"b1{i}"]
        h = 0.5 * h * (1 + np_.tanh(root_d * (h + 0.044715 * h * h * h)))
        x = x + h @ w[f"w2{i}"] + w[f"b2{i}"]
    z = np_.reshape(norm(x, w["g"], w["b"]) @ np_.transpose(w["E"], (1, 0)), (B * T, V))
    e = z - np_.max(z, axis=-1, keepdims=True)
    log_p = e - np_.log(np_.sum(np_.exp(e), axis=-1, keepdims=True))
    return -np_.mean(log_p[np.arange(B * T), targets.reshape(-1)])


def with_autograd(ids: np.ndarray, targets: np.ndarray) -> Callable[[], object]:
    import autograd.numpy as anp
    from autograd import value_and_grad

    w = weights(np.random.default_rng(0))
    step = value_and_grad(lambda w: decoder(anp, w, ids, targets))
    return lambda: step(w)


def with_pydynet(ids: np.ndarray, targets: np.ndarray) -> Callable[[], object]:
    import pydynet

    class Functions:
        def __getattr__(self, name: str) -> Any:
            return getattr(pydynet, name)

        @staticmethod
        def reshape(x: Any, shape: tuple[int, ...]) -> Any:
            return x.reshape(*shape)

        @staticmethod
        def transpose(x: Any, axes: tuple[int, ...]) -> Any:
            return x.transpose(*axes)

        @staticmethod
        def max(x: Any, axis: int, keepdims: bool) -> Any:
            with pydynet.no_grad():
                return pydynet.max(x, axis, keepdims)

    start = weights(np.random.default_rng(0))

    def step() -> None:
        w = {n: pydynet.Tensor(a, dtype=np.float32, requires_grad=True) for n, a in start.items()}
        decoder(Functions(), w, ids, targets).backward()

    return step


def with_glassllm(ids: np.ndarray, targets: np.ndarray) -> Callable[[], object]:
    from glassllm.config import Config
    from glassllm.model import GlassLM

    fields = Config.__dataclass_fields__
    sizes = {
        "vocab_size": V, "d_model": d, "n_layers": L, "n_heads": H, "n_kv_heads": H // 4,
        "max_len": T,
    }  # fmt: skip
    model = GlassLM(Config(**{k: v for k, v in sizes.items() if k in fields}))

    def step() -> None:
        for p in model.parameters():
            p.grad = None
        model.loss(ids, targets).backward()

    return step


def ours(ids: np.ndarray, targets: np.ndarray, **options: Any) -> Callable[[], object]:
    model = nf.DecoderLM(nf.TransformerConfig(V=V, d=d, L=L, H=H, T_max=T, **options), rng=0)

    def step() -> None:
        model.zero_grad()
        _, saved = model.loss(ids, targets)
        model.loss_backward(1.0, saved)

    return step


def main() -> None:
    args = arguments(__doc__).parse_args()
    ids, targets = np.random.default_rng(1).integers(0, V, (2, B, T))
    gpt = ours(ids, targets)
    llama = ours(
        ids, targets, norm="rmsnorm", activation="silu", gated=True, positions="rope",
        H_kv=H // 4, bias=False,
    )  # fmt: skip
    results: list[Ratio] = []
    for name, make, mine in (
        ("autograd", with_autograd, gpt),
        ("pydynet", with_pydynet, gpt),
        ("glassllm", with_glassllm, llama),
    ):
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed")
            continue
        label = f"step small B{B} T{T} d{d} H{H} L{L} V{V}"
        results.append(paired(label, mine, name, make(ids, targets), max(3, args.pairs // 3)))
    report(results, args.save, "benchmarks/numpy_peers.py")


if __name__ == "__main__":
    main()
