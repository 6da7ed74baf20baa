"""Positions (chapter 2.5.5; text B section 3): sinusoidal, rotary, learned."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import Array, require_floating, require_sizes, widen
from .linear import EmbeddingSaved, embedding, embedding_backward
from .module import Module, Parameter
from .parallel import BLOCK_BYTES, headwise
from .rope_scaling import BASE, read_scaling, rope_frequencies, rotary_dimension

LAYOUTS = ("interleaved", "half")


def require_positions(positions: Any) -> Array:
    """Return ``positions`` as an integer array, none of them negative.

    Raises
    ------
    TypeError
        if they are not integers: positions in a half type would repeat from 2048 on.
    ValueError
        if one of them is negative.
    """
    positions = np.asarray(positions)
    if positions.size and positions.dtype.kind not in "iu":
        raise TypeError(f"positions must be integers, but the dtype is {positions.dtype}")
    if positions.size and positions.min() < 0:
        raise ValueError(f"positions must be 0 or more, but one of them is {positions.min()}")
    return positions


def sinusoidal(
    positions: Any, d: int, dtype: npt.DTypeLike = np.float32, layout: str = "interleaved"
) -> Array:
    r"""Sines and cosines of the position at d / 2 wavelengths.

    .. math::
        p_{m, 2i} = \sin(m\, 10000^{-2i/d}), \qquad p_{m, 2i+1} = \cos(m\, 10000^{-2i/d})

    Parameters
    ----------
    positions : (...) array of integers
    d : int
        Even.
    dtype : dtype
        Angles are computed in float64 and the result cast: in float16 the positions 2048 and
        2049 would be the same number.
    layout : {"interleaved", "half"}
        Sines and cosines in turn, as in the formula, or all sines first, as in Marian: the same
        numbers in another order.

    Returns
    -------
    (..., d) array

    References
    ----------
    Vaswani et al., 2017, arXiv:1706.03762, section 3.5.
    """
    if d % 2:
        raise ValueError(f"sinusoidal positions need an even d, but it is {d}")
    if layout not in LAYOUTS:
        raise ValueError(f'layout must be "interleaved" or "half", but is {layout!r}')
    angles = angles_of(positions, 10000.0 ** (-np.arange(0, d, 2) / d))
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1 if layout == "interleaved" else -2)
    return table.reshape(*angles.shape[:-1], d).astype(dtype)


def angles_of(positions: Any, frequencies: Array) -> Array:
    """(..., n) float64 angles of (...) positions at n frequencies."""
    return require_positions(positions).astype(np.float64)[..., None] * frequencies


class RopeSaved(NamedTuple):
    cos: Array
    """(T, n) or (B, 1, T, n), n = rotary_dim / 2; scaled by the attention factor, like sin."""
    sin: Array
    layout: str


def rope(
    x: Array,
    positions: Any,
    base: float = BASE,
    scaling: dict[str, Any] | None = None,
    layout: str = "interleaved",
    rotary_dim: int | None = None,
    *,
    length: int | None = None,
) -> tuple[Array, RopeSaved]:
    r"""Rotate each pair of features by an angle proportional to the position.

    .. math::
        \begin{pmatrix} y_a \\ y_b \end{pmatrix} =
        \begin{pmatrix} \cos m\theta_i & -\sin m\theta_i \\ \sin m\theta_i & \cos m\theta_i
        \end{pmatrix}
        \begin{pmatrix} x_a \\ x_b \end{pmatrix}, \qquad \theta_i = \text{base}^{-2i/n}

    for i = 0 ... n/2 - 1, where n is ``rotary_dim``; features beyond n stay. The product of a query
    at m with a key at m' then depends on m' - m only.

    Parameters
    ----------
    x : (..., T, d_h) array, or (B, H, T, d_h) where positions are (B, T)
    positions : (T,) or (B, T) array of integers
        Not negative. Angles are computed in float64, and only their sines and cosines are cast.
    base : float
    scaling : dict, optional
        A rule that stretches the frequencies, in Hugging Face's spelling, such as
        ``{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}``; see
        `npformer.rope_scaling`. An attention factor scales what is rotated.
    layout : {"interleaved", "half"}
        Pair i is (2i, 2i + 1), as in the texts and the paper, or (i, i + n/2), as in Hugging Face;
        `rope_permutation` leads from one to the other.
    rotary_dim : int, optional
        Even; d_h, or the scaling's ``partial_rotary_factor`` of it, unless given.
    length : int, optional
        For rules that depend on the length of the text ("dynamic", "longrope"): one length for the
        whole call, the largest position + 1 unless given. Nothing is remembered, so a short text
        after a long one is rotated as if it came first.

    Returns
    -------
    y : array of the shape of ``x``
    saved : RopeSaved
        The table of cosines and sines.

    Raises
    ------
    TypeError
        if ``x`` is not floating or the positions are not integers.
    ValueError
        if the rotary dimension is odd or larger than d_h, a position is negative, the shapes do not
        fit, or the scaling makes no sense.

    References
    ----------
    Su et al., 2021, arXiv:2104.09864; text B section 3.2.
    """
    saved = rope_table(x, positions, base, scaling, layout, rotary_dim, length)
    return rotate(x, *saved), saved


def rope_backward(dy: Array, saved: RopeSaved) -> Array:
    r"""Gradient of `rope`: ``dx``, by rotating ``dy`` back.

    A rotation R is linear and :math:`dx = R^T dy`; its transpose is the rotation by the opposite
    angle, so the sine changes its sign. An attention factor multiplies both, so it stays.
    """
    return rotate(dy, saved.cos, -saved.sin, saved.layout)


def rope_table(
    x: Array,
    positions: Any,
    base: float,
    scaling: dict[str, Any] | None,
    layout: str,
    rotary_dim: int | None,
    length: int | None = None,
) -> RopeSaved:
    """Return the cosines and sines by which `rope` rotates ``x``, or say what is wrong."""
    require_floating(x, "x")
    if x.ndim == 0:
        raise ValueError("x must have shape (..., T, d_h), but it is a single number")
    rule = read_scaling(scaling, base)
    n = rotary_dimension(x.shape[-1], rotary_dim, rule)
    if layout not in LAYOUTS:
        raise ValueError(f'layout must be "interleaved" or "half", but is {layout!r}')
    positions = require_positions(positions)
    if positions.ndim == 2 and x.ndim == 4 and positions.shape == (len(x), x.shape[2]):
        positions = positions[:, None]  # (B, 1, T): the same for every head
    elif positions.shape != x.shape[-2:-1]:
        raise ValueError(
            f"positions must have shape (T,), or (B, T) for x (B, H, T, d_h), but they are "
            f"{positions.shape} for x {x.shape}"
        )
    if length is None and rule.by_length:
        length = text_length(positions)
    frequencies, factor = rope_frequencies(n, rule.base, rule, length)
    angles = angles_of(positions, frequencies)
    dtype = widen(x).real.dtype
    cos, sin = (factor * np.cos(angles)).astype(dtype), (factor * np.sin(angles)).astype(dtype)
    return RopeSaved(cos, sin, layout)


def rotate(x: Array, cos: Array, sin: Array, layout: str) -> Array:
    """Rotate the pairs of the first 2 n features of ``x`` (..., T, d_h) by (..., T, n) tables."""
    n = cos.shape[-1]
    first, second = (
        (slice(0, 2 * n, 2), slice(1, 2 * n, 2))
        if layout == "interleaved"
        else (slice(0, n), slice(n, 2 * n))
    )

    def head(x: Array, cos: Array, sin: Array) -> tuple[Array]:
        y = np.empty_like(x)
        a, b = x[..., first], x[..., second]
        y[..., first] = a * cos - b * sin
        y[..., second] = a * sin + b * cos
        y[..., 2 * n :] = x[..., 2 * n :]
        return (y,)

    if x.ndim != 4 or x.nbytes <= BLOCK_BYTES // 4:
        return head(widen(x), cos, sin)[0].astype(x.dtype, copy=False)
    tables = (np.broadcast_to(table, (*x.shape[:3], n)) for table in (cos, sin))
    return headwise(head, x, *tables)[0]


def text_length(positions: Any) -> int:
    """Return the largest position + 1, the one length of a call for rules that need a length."""
    return int(np.max(positions, initial=-1)) + 1


def rope_permutation(d_h: int, rotary_dim: int | None = None) -> Array:
    """Return the (d_h,) order that turns the interleaved layout into halves.

    Rotating the halves of ``x[..., order]`` gives ``y[..., order]``, where y is x rotated
    interleaved; ``np.argsort(order)`` leads back. Scores don't change where queries and keys are
    permuted alike, so weights made for one layout run in the other when the columns of Wq and Wk
    are permuted in every head (``W`` is (d, H d_h))::

        W.reshape(d, H, d_h)[:, :, order].reshape(d, H * d_h)

    and likewise their biases and the gains of a query-key norm. Wv and Wo stay.

    Examples
    --------
    >>> rope_permutation(8, 6)
    array([0, 2, 4, 1, 3, 5, 6, 7])
    """
    n = rotary_dimension(d_h, rotary_dim, read_scaling(None))
    return np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2), np.arange(n, d_h)])


class LearnedPositions(Module):
    """A learned row for each position, added to the embedding; starts as N(0, 0.02^2).

    A position beyond the table is an IndexError: a slice would silently be too short.
    """

    def __init__(
        self,
        T_max: int,
        d: int,
        *,
        rng: np.random.Generator | int | None = None,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        require_sizes(T_max=T_max, d=d)
        self.P = Parameter(
            (0.02 * np.random.default_rng(rng).standard_normal((T_max, d))).astype(dtype)
        )

    def forward(self, positions: Any) -> tuple[Array, EmbeddingSaved]:
        positions, T_max = require_positions(positions), len(self.P.value)
        if positions.size and positions.max() >= T_max:
            raise IndexError(
                f"position {positions.max()} lies beyond the table of T_max = {T_max} positions"
            )
        return embedding(positions, self.P.value)

    def backward(self, dy: Array, saved: EmbeddingSaved) -> None:
        self.P.accumulate(embedding_backward(dy, saved))
