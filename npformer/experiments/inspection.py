"""What is inside a model: norms of activations and gradients by name, and attention maps.

The names are those of ``docs/names.md``: ``blocks.3.attn`` is the result of a module,
``blocks.3.attn.attention.lse`` an array that it saved, ``blocks.3.attn.Wq.W`` a parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..attention import AttentionSaved, attention_weights
from ..block import Block
from ..models import Encoder, EncoderDecoder
from ..module import Module
from ..multihead import MultiHeadAttention
from ..stack import Stack
from ..tree import leaves, matches, name_of
from ..watch import watched

DEFAULT = ("embedding", "blocks.*", "blocks.*.attn", "blocks.*.cross", "blocks.*.ffn",
           "final_norm", "head")  # fmt: skip
"""What is looked at unless something else is asked for; of an encoder-decoder both sides."""


class Statistics(NamedTuple):
    """Some numbers that say how large an array is. NaN stays NaN in all of them but `bad`."""

    shape: tuple[int, ...]
    mean: float
    max: float
    """The largest absolute value."""
    rms: float
    """The root of the mean of all squares."""
    norm: float
    """Mean over the rows (tokens) of the L2 norm of a row; of a parameter the Frobenius norm."""
    max_norm: float
    """The largest L2 norm of a row; of a parameter the Frobenius norm."""
    bad: int
    """How many numbers are NaN or infinite."""


def statistics(a: Array, *, whole: bool = False) -> Statistics:
    """Measure an array, in float64; ``whole`` takes all of it for one row."""
    rows = a.reshape(1, -1) if whole or a.ndim == 0 else a.reshape(-1, a.shape[-1])
    squares = np.einsum("nd,nd->n", rows, rows, dtype=np.float64)
    norms = np.sqrt(squares)
    return Statistics(
        a.shape,
        float(rows.mean(dtype=np.float64)),
        float(max(rows.max(), -rows.min())),
        float(np.sqrt(squares.sum() / a.size)),
        float(norms.mean()),
        float(norms.max()),
        a.size - int(np.count_nonzero(np.isfinite(a))),
    )


@dataclass(frozen=True)
class Row:
    """What is known under one name.

    Attributes
    ----------
    name : str
    kind : {"output", "saved", "parameter"}
        The result of a module, an array that it saved for its backward, or a parameter.
    value : Statistics
    gradient : Statistics, optional
        Of the loss by it; none for what is only saved.
    parameters : float, optional
        L2 norm of the gradient by all parameters of a module together. A tied table counts in both
        places where it is read, with its whole gradient.
    """

    name: str
    kind: str
    value: Statistics
    gradient: Statistics | None = None
    parameters: float | None = None


@dataclass(frozen=True)
class Inspection:
    """What `inspect` found.

    Attributes
    ----------
    rows : list of Row
        From the input to the output.
    loss : float, optional
        The mean cross-entropy, or of an encoder the projection; None without gradients.
    objective : {"cross-entropy", "projection"}
    maps : dict
        Name of an attention to its weights (H, T, S) in the first row of the batch.
    shape : tuple of int
        Of the ids that were read, (B, T).
    """

    rows: list[Row]
    loss: float | None
    objective: str
    maps: dict[str, Array]
    shape: tuple[int, ...]

    def row(self, name: str) -> Row:
        """Return the row of a name."""
        return next(r for r in self.rows if r.name == name)


def inspect(
    model: Any,
    ids: Any,
    targets: Any = None,
    *,
    select: Sequence[str] = (),
    attention: Sequence[str] = (),
    gradients: bool = True,
    rng: np.random.Generator | int | None = 0,
) -> Inspection:
    r"""Run a model on ids and measure what is asked for by name.

    Every number comes from the pass itself: from the results of the modules, from what they saved
    for their backward, and from the gradients that arrived. Each array is measured when it is
    there and dropped. Of the forward pass no more is kept than what one block saved and, with
    gradients, the inputs of the blocks, which are computed again on the way back.

    An encoder has no loss of its own. Its gradients are those of a random projection of its
    output, :math:`\frac{1}{N} \sum_t \langle u_t, h_t \rangle` over N tokens with
    :math:`u_t \sim N(0, I/d)`, of the size that a cross-entropy would send back.

    Parameters
    ----------
    model : DecoderLM, Encoder or EncoderDecoder
        Neither it nor its gradients are changed.
    ids : (B, T) array of integers
        An encoder-decoder reads them on both sides.
    targets : (B, T) array of integers, optional
        The ids wanted next. Unless given, the last id of every row is only wanted and not read;
        an encoder has no targets.
    select : sequence of str
        Names or patterns, see `npformer.tree.matches`; `DEFAULT` unless something is asked for.
    attention : sequence of str
        Names or patterns of the attentions whose maps are wanted.
    gradients : bool
    rng : Generator or int, optional
        For the projection.

    Returns
    -------
    Inspection

    Raises
    ------
    ValueError
        if nothing has one of the names, or there is no token left to predict.
    """
    ids, asked = np.asarray(ids), [*select, *attention]
    if not asked:
        sides = ("encoder.", "") if isinstance(model, EncoderDecoder) else ("",)
        select = [side + pattern for side in sides for pattern in DEFAULT]
    gradients = gradients and bool(select)
    if gradients and targets is None and not isinstance(model, Encoder):
        if ids.ndim != 2 or ids.shape[1] < 2:
            raise ValueError(
                "gradients need two tokens or more, to read and to predict, but ids (B, T) have "
                f"the shape {ids.shape}"
            )
        ids, targets = ids[:, :-1], ids[:, 1:]
    watch = _Watch(model, select, attention, gradients)
    with np.errstate(all="ignore"):  # what is not finite is counted, by name
        loss = _run(watch, ids, targets, gradients, np.random.default_rng(rng))
        rows = watch.rows()
    for pattern in asked:
        watch.require(pattern)
    objective = "projection" if isinstance(model, Encoder) else "cross-entropy"
    return Inspection(rows, loss, objective, watch.maps, ids.shape)


def _run(
    watch: _Watch, ids: Array, targets: Any, gradients: bool, rng: np.random.Generator
) -> float | None:
    model = watch.twin
    for module in watch.modules.values():
        if isinstance(module, Stack):
            module.recompute = True
    inputs = (ids, ids) if isinstance(model, EncoderDecoder) else (ids,)
    if not gradients:
        model(*inputs)
        return None
    if isinstance(model, Encoder):
        h, saved = model.forward(ids)
        share = 1.0 / ids.size
        u = (rng.standard_normal(h.shape) * h.shape[-1] ** -0.5 * share).astype(h.dtype)
        model.backward(u, saved)
        return float(np.einsum("btd,btd->", u, h, dtype=np.float64))
    loss, saved = model.loss(*inputs, targets)
    watch.keep("cross_entropy", saved["cross_entropy"])
    model.loss_backward(1.0, saved)
    return float(loss)


class _Watch:
    """Measures what is asked for, when it passes."""

    def __init__(
        self, model: Any, select: Sequence[str], attention: Sequence[str], gradients: bool
    ) -> None:
        self.select, self.attention = select, attention
        self.measured: dict[str, tuple[str, Statistics]] = {}
        self.gradients: dict[str, Statistics] | None = {} if gradients else None
        self.squares: dict[int, float] = {}
        self.maps: dict[str, Array] = {}
        self.known: dict[str, None] = {}
        self.twin = watched(model, self.forward, self.backward if gradients else None)
        self.modules: dict[str, Any] = dict(self.twin.named_modules())
        self.parameters = {name_of(path): p for path, p in self.twin.named_parameters()}

    def wanted(self, name: str) -> bool:
        return any(matches(name, pattern) for pattern in self.select)

    def forward(self, path: str, y: Any, saved: Any) -> None:
        module, name = self.modules[path], name_of(path)
        if not name or name in self.known:
            return  # the model itself; a block that is computed again
        self.known[name] = None
        self.measure(name, "output", y)
        if not hasattr(module, "stack"):  # what the parts of an encoder saved is known already
            self.keep(name, saved)
        if isinstance(module, MultiHeadAttention) and any(matches(name, p) for p in self.attention):
            self.maps[name] = first_map(saved["attention"])

    def keep(self, name: str, saved: Any) -> None:
        for path, a in leaves(saved):
            full = name_of(f"{name}.{path}")
            if full not in self.known and full not in self.parameters:
                self.known[full] = None
                self.measure(full, "saved", a)

    def measure(self, name: str, kind: str, a: Any) -> None:
        if isinstance(a, np.ndarray) and a.dtype.kind == "f" and self.wanted(name):
            self.measured[name] = kind, statistics(a, whole=kind == "parameter")

    def backward(self, path: str, module: Module, dy: Any) -> None:
        assert self.gradients is not None
        if name_of(path) in self.measured:
            self.gradients[name_of(path)] = statistics(dy)
        if isinstance(module, Block):
            self.take(path, module)

    def take(self, path: str, module: Module) -> None:
        """Measure the gradients by a module's parameters and drop them."""
        assert self.gradients is not None
        for key, p in module.named_parameters():
            if id(p) in self.squares:
                continue
            g = p.grad if p.has_grad else np.zeros(1, p.value.dtype)
            found = statistics(g, whole=True)._replace(shape=p.value.shape)
            self.squares[id(p)] = found.norm**2
            name = name_of(f"{path}.{key}" if path else key)
            if self.wanted(name):
                self.gradients[name] = found
            p.grad = None

    def rows(self) -> list[Row]:
        """Return the rows in the order of the model, parents before their parts."""
        for name, p in self.parameters.items():
            self.measure(name, "parameter", p.value)
        if self.gradients is not None:
            self.take("", self.twin)
        modules = {name_of(path): module for path, module in self.modules.items()}
        order = {name: i for i, name in enumerate([*modules, "cross_entropy"])}

        def place(name: str) -> tuple[int, int]:
            parts = name.split(".")
            owners = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
            return next(order[o] for o in owners if o in order), name not in order

        rows = []
        for name in sorted(self.measured, key=place):
            kind, value = self.measured[name]
            gradient = parameters = None
            if self.gradients is not None:
                gradient = self.gradients.get(name)
                if kind == "output":
                    parts = modules[name].parameters()
                    parameters = sum(self.squares[id(p)] for p in parts) ** 0.5 if parts else None
            rows.append(Row(name, kind, value, gradient, parameters))
        return rows

    def require(self, pattern: str) -> None:
        """Raise ValueError unless something was measured under a name or pattern."""
        if any(matches(name, pattern) for name in (*self.measured, *self.maps)):
            return
        names = [*self.known, *self.parameters]
        below = [name for name in names if matches(name, f"{pattern}.**")]
        alike = below[1:4] if below[:1] == [pattern] else below[:3]
        alike = alike or get_close_matches(name_of(pattern), names, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(alike)}?" if alike else f"known are {', '.join(names[:9])}"
        raise ValueError(f"there are no numbers under the name {pattern!r}; {hint}")


def first_map(saved: AttentionSaved) -> Array:
    """Return the weights (H, T, S) of the first row of a batch."""
    arrays = {name: getattr(saved, name)[:1] for name in ("q", "k", "v", "y", "lse")}
    mask = None if saved.mask is None else saved.mask[:1]
    weights: Array = attention_weights(saved._replace(**arrays, mask=mask))[0]
    return weights
