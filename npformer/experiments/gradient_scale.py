"""Measure how gradients and activations of Pre-LN and Post-LN scale with depth, at the start.

Chapter 2.5.3; Xiong et al., 2020, arXiv:2002.04745. Two set-ups: the stack that the paper analyses
(`TheorySetup`) and a real decoder on real text (`TransformerSetup`). A seed draws one stack of the
greatest depth and one batch. Everything else shares them: the shallower depths are the first
layers of that stack, and Post-LN has the same weights as Pre-LN with the norms in another place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array
from ..config import TransformerConfig
from ..data import windows
from ..models import DecoderLM
from ..team import run, single_blas
from .theory_stack import TheoryModel

PLACEMENTS = ("pre", "post")
PARAMETERS = ("W1", "W2")
QUANTITIES = ("mean_norm", "mean_square", "sum_square")


class Sample(NamedTuple):
    model: Any
    """A Pre-LN model with ``stack``, ``loss`` and ``loss_backward``."""
    inputs: Array
    """What ``model.loss`` takes, and the targets."""
    targets: Array
    x: Array
    """(B, n, d), what the first block receives."""


@dataclass(frozen=True)
class TheorySetup:
    """Section 3.3 of the paper, see `theory_stack`: Gaussian inputs, random labels."""

    name: ClassVar[str] = "theory"
    d: int = 256
    n: int = 32
    B: int = 1
    V: int = 1000

    def sample(self, L: int, rng: np.random.Generator) -> Sample:
        model = TheoryModel(self.d, L, self.V, rng=rng)
        x = rng.standard_normal((self.B, self.n, self.d), np.float32)
        return Sample(model, x, rng.integers(self.V, size=(self.B, self.n)), x)

    def describe(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class TransformerSetup:
    """`npformer.DecoderLM` on windows of a text: several heads, biases, causal, Xavier's start.

    The input is scaled as in Vaswani et al. (2017), section 3.4: token vectors of length sqrt(d),
    and sinusoidal positions. The output matrix is its own: a tied one would let the stream, which
    still holds the token itself, answer with that token.
    """

    name: ClassVar[str] = "transformer"
    ids: Array = field(repr=False)
    V: int
    d: int = 128
    H: int = 4
    d_ff: int = 512
    n: int = 64
    B: int = 4
    positions: str = "sinusoidal"
    activation: str = "relu"

    def sample(self, L: int, rng: np.random.Generator) -> Sample:
        model = DecoderLM(self.config(L), rng=rng)
        inputs, targets = windows(self.ids, self.n, self.B, rng)
        x, _ = model.embedding.forward(inputs, np.arange(self.n))
        return Sample(model, inputs, targets, x)

    def config(self, L: int) -> TransformerConfig:
        return TransformerConfig(
            V=self.V,
            d=self.d,
            L=L,
            H=self.H,
            d_ff=self.d_ff,
            T_max=self.n,
            positions=self.positions,
            activation=self.activation,
            embedding_scale=self.d**0.5,
            tied=False,
            init="xavier",
        )

    def describe(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "ids"} | {
            "init": "xavier",
            "tied": False,
            "bias": True,
            "causal": True,
            "tokens": len(self.ids),
        }


Setup = TheorySetup | TransformerSetup


@dataclass(frozen=True)
class ScaleCurves:
    """What `gradient_scale` measured in one set-up.

    Attributes
    ----------
    setup : TheorySetup or TransformerSetup
    depths : tuple of int
        In rising order.
    gradients : dict
        (placement, depth) to a (seeds, depth, 2) array: the Frobenius norm of the gradient of the
        mean loss by W1 and W2 of every layer.
    activations : dict
        placement to a (seeds, deepest, 3) array: mean |x|, E|x|^2 / d of every block's output, and
        E|x + Sub(x)|^2 / d before the block's last norm (`QUANTITIES`). A shallower stack is the
        beginning of the deepest one, so these are its numbers too.
    """

    setup: Setup
    depths: tuple[int, ...]
    gradients: dict[tuple[str, int], Array]
    activations: dict[str, Array]

    def last_gradients(self, placement: str) -> Array:
        """(seeds, depths), norm of the gradient by W2 of the last layer."""
        columns = [self.gradients[placement, L][:, -1, 1] for L in self.depths]
        return np.stack(columns, axis=1)

    def gradient_rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield (placement, setup, depth, layer, parameter, seed, grad_norm)."""
        for (placement, L), values in self.gradients.items():
            for (seed, layer, p), value in np.ndenumerate(values):
                row = (placement, self.setup.name, L, layer + 1, PARAMETERS[p], seed)
                yield (*row, float(value))

    def activation_rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield (placement, setup, depth, layer, seed, mean_norm, mean_square, sum_square)."""
        for placement, values in self.activations.items():
            for L in self.depths:
                for seed, layer in np.ndindex(len(values), L):
                    row = (placement, self.setup.name, L, layer + 1, seed)
                    yield (*row, *map(float, values[seed, layer]))


GRADIENT_COLUMNS = ("placement", "setup", "depth", "layer", "parameter", "seed", "grad_norm")
ACTIVATION_COLUMNS = ("placement", "setup", "depth", "layer", "seed", *QUANTITIES)


def gradient_scale(
    setup: Setup,
    depths: Sequence[int],
    *,
    gradient_seeds: int,
    activation_seeds: int,
    progress: Callable[[], object] = lambda: None,
) -> ScaleCurves:
    """Measure both placements at every depth, one sample for each seed 0, 1, ...

    Parameters
    ----------
    setup : TheorySetup or TransformerSetup
    depths : sequence of int
    gradient_seeds, activation_seeds : int
        A forward pass is enough for activations, so they can afford more seeds.
    progress : callable
        Called after each seed, from any thread.

    Returns
    -------
    ScaleCurves

    Raises
    ------
    ValueError
        if a norm is zero or not finite; the message says which one. Such a number would leave a
        gap in a logarithmic figure that looks like nothing.
    """
    depths = tuple(sorted(set(depths)))
    deepest, d = depths[-1], setup.d

    def one_seed(seed: int) -> tuple[dict[str, Array], dict[tuple[str, int], Array]]:
        sample = setup.sample(deepest, np.random.default_rng(seed))
        activations: dict[str, Array] = {}
        gradients: dict[tuple[str, int], Array] = {}
        for placement in PLACEMENTS:
            where = f"{setup.name}, {placement}-LN, seed {seed}"
            model = with_placement(sample.model, placement)
            if seed < activation_seeds:
                a = activations[placement] = activation_norms(model.stack.blocks, sample.x, d)
                require_positive(a, QUANTITIES, where)
            for L in depths if seed < gradient_seeds else ():
                g = gradients[placement, L] = gradient_norms(prefix(model, L), sample)
                require_positive(g, [f"gradient of {p}" for p in PARAMETERS], f"{where}, depth {L}")
        progress()
        return activations, gradients

    # A whole seed a task: its products are too small to be worth sharing out. What overflows on
    # the way is reported by name at the end, and not by a warning as well.
    with single_blas(), np.errstate(all="ignore"):
        seeds = run(one_seed, max(gradient_seeds, activation_seeds))
    return ScaleCurves(
        setup,
        depths,
        {k: np.stack([g[k] for _, g in seeds[:gradient_seeds]]) for k in seeds[0][1]},
        {k: np.stack([a[k] for a, _ in seeds[:activation_seeds]]) for k in seeds[0][0]},
    )


def activation_norms(blocks: Sequence[Any], x: Array, d: int) -> Array:
    """Return (L, 3), the `QUANTITIES` of every block's output; nothing else is kept."""
    norms = np.empty((len(blocks), len(QUANTITIES)))
    for i, block in enumerate(blocks):
        x, saved = block.forward(x)
        square = np.vecdot(x, x).astype(float)
        norms[i] = np.sqrt(square).mean(), square.mean() / d, square.mean() / d
        if block.placement == "post":
            # The sum itself is not saved, but both of its terms are one step away.
            ffn = saved["ffn"]
            y = ffn["W1"].x + block.ffn.W2(ffn["W2"].x)
            norms[i, 2] = np.vecdot(y, y).astype(float).mean() / d
    return norms


def gradient_norms(model: Any, sample: Sample) -> Array:
    """Return (L, 2), the Frobenius norms of the gradients of the mean loss by W1 and W2."""
    model.zero_grad()
    _, saved = model.loss(sample.inputs, sample.targets)
    model.loss_backward(1.0, saved)
    matrices = [(b.ffn.W1.W, b.ffn.W2.W) for b in model.stack.blocks]
    return np.array([[np.linalg.norm(p.grad) for p in pair] for pair in matrices], float)


def with_placement(model: Any, placement: str) -> Any:
    """Return the Pre-LN ``model`` in another placement, on the same parameters."""
    twin = copy.copy(model)
    twin.stack = copy.copy(model.stack)
    twin.stack.blocks = [copy.copy(b) for b in model.stack.blocks]
    for block in twin.stack.blocks:
        block.placement = placement
    if placement == "post":
        twin.stack.final_norm = None  # its last block ends with one
    return twin


def prefix(model: Any, L: int) -> Any:
    """Return the model with only the first ``L`` of its blocks, on the same parameters."""
    twin = copy.copy(model)
    twin.stack = copy.copy(model.stack)
    twin.stack.blocks = model.stack.blocks[:L]
    return twin


def require_positive(values: Array, names: Sequence[str], where: str) -> None:
    """Raise ValueError for the first of ``values`` (L, names) that is not finite and above 0."""
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        layer, i = np.argwhere(bad)[0]
        raise ValueError(
            f"{where}, layer {layer + 1}: the {names[i]} is {values[layer, i]}; there is no such "
            "curve to draw"
        )
