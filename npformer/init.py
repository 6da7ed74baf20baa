"""How parameters start, each rule with its source."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .arrays import Array
from .linear import Embedding, Linear
from .module import Module
from .position import LearnedPositions


def xavier_uniform(rng: np.random.Generator, n: int, m: int) -> Array:
    """Uniform within sqrt(6 / (n + m)) (Glorot & Bengio, 2010, Eq. 16)."""
    bound = math.sqrt(6 / (n + m))
    return rng.uniform(-bound, bound, (n, m))


def xavier_normal(rng: np.random.Generator, n: int, m: int) -> Array:
    """N(0, 2 / (n + m)), the normal form, which Xiong et al., 2020, section 3.3 analyse."""
    return rng.standard_normal((n, m)) * math.sqrt(2 / (n + m))


def pytorch_default(rng: np.random.Generator, n: int, m: int) -> Array:
    """Uniform within 1 / sqrt(n), what `torch.nn.Linear` does: the variance is 1 / (3 n)."""
    return rng.uniform(-1, 1, (n, m)) * n**-0.5


def gpt2_normal(rng: np.random.Generator, n: int, m: int) -> Array:
    """N(0, 0.02^2) (openai/gpt-2, src/model.py)."""
    return 0.02 * rng.standard_normal((n, m))


MATRICES: dict[str, Callable[[np.random.Generator, int, int], Array]] = {
    "gpt2": gpt2_normal,
    "xavier": xavier_normal,
    "xavier_uniform": xavier_uniform,
    "pytorch": pytorch_default,
}
"""What ``TransformerConfig.init`` may ask for."""


def initialise(model: Module, scheme: str, L: int, rng: np.random.Generator) -> None:
    """Start every parameter of ``model`` by one rule, in the order of their names.

    ======================  ===================================  ==========================
    parameter               "gpt2"                               the others
    ======================  ===================================  ==========================
    matrices                N(0, 0.02^2)                         the rule of that name
    Wo and W2               divided by sqrt(2 L)                 the rule of that name
    biases                  0                                    0 ("pytorch": as its W)
    embedding tables        N(0, 0.02^2)                         N(0, 1 / d)
    learned positions       N(0, 0.01^2)                         N(0, 0.01^2)
    norms                   gain 1, shift 0                      gain 1, shift 0
    ======================  ===================================  ==========================

    Dividing the matrices that write to the residual stream by the root of their number keeps its
    scale at any depth (Radford et al., 2019, section 2.3; the released TensorFlow code leaves it
    out, Hugging Face's does it). A table of N(0, 1 / d) has rows of length 1, so that tied logits
    of a normed vector start with variance 1.
    """
    if not getattr(rng, "draws", True):  # `Unstarted`: the parameters come from a file
        return
    if scheme not in MATRICES:
        raise ValueError(f"init must be one of {', '.join(MATRICES)}, but is {scheme!r}")
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            n, m = module.W.value.shape
            W = MATRICES[scheme](rng, n, m)
            if scheme == "gpt2" and name.rpartition(".")[2] in ("Wo", "W2"):
                W *= (2 * L) ** -0.5
            module.W.value[...] = W
            if module.b is not None:
                module.b.value[...] = rng.uniform(-1, 1, m) * n**-0.5 if scheme == "pytorch" else 0
        elif isinstance(module, LearnedPositions):
            module.P.value[...] = 0.01 * rng.standard_normal(module.P.value.shape)
        elif isinstance(module, Embedding):
            V, d = module.E.value.shape
            std = 0.02 if scheme == "gpt2" else d**-0.5
            module.E.value[...] = std * rng.standard_normal((V, d), np.float32)
