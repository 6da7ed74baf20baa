"""How can a softmax be right before its whole row is known? The blocked kernel, step by step.

`npformer.flash` in slow motion: one row of scores, cut into blocks, with everything that it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..labels import pad, width


class Step(NamedTuple):
    """What is known after one block."""

    keys: slice
    """The block's place in the row."""
    scores: Array
    """(s,), the block itself; -inf is a hidden key."""
    highest: float
    """Maximum of the block."""
    m: float
    """Maximum of all scores so far; -inf while everything was hidden."""
    alpha: float
    """e^(old m - new m), by which what was added up before is multiplied."""
    weights: Array
    """(s,), e^(scores - m), not divided by anything yet."""
    l: float
    """Sum of e^(score - m) over all scores so far."""
    O: Array | None
    """(d_v,), sum of e^(score - m) times value over all keys so far; None without values."""
    y: Array | None
    """(d_v,), O / l: what attention over the keys so far would give; 0 where all are hidden."""

    @property
    def lse(self) -> float:
        """``m + log l``, all that the backward needs; -inf while everything was hidden."""
        return self.m + float(np.log(self.l)) if self.l > 0 else -np.inf


def online_softmax_steps(
    scores: Sequence[float] | Array, block: int, values: Sequence[float] | Array | None = None
) -> list[Step]:
    r"""Walk through a row of scores block by block, as the blocked kernel does.

    .. math::
        m' = \max(m, \max_j s_j), \qquad \alpha = e^{m - m'}, \qquad
        \ell' = \alpha\, \ell + \textstyle\sum_j e^{s_j - m'}, \qquad
        O' = \alpha\, O + \textstyle\sum_j e^{s_j - m'} v_j

    Parameters
    ----------
    scores : (S,) numbers
        -inf is a key that the query does not see.
    block : int
        Scores a block; the last one may be shorter.
    values : (S,) or (S, d_v) numbers, optional

    Returns
    -------
    list of Step
        One a block. The last one has the ``lse`` and the ``y`` of the whole row.

    Raises
    ------
    ValueError
        if a score is NaN or +inf, or shapes do not fit.

    References
    ----------
    Milakov & Gimelshein, 2018, arXiv:1805.02867, Algorithm 3; Dao, 2023, arXiv:2307.08691,
    Algorithm 1, lines 8 to 13. Text B section 2.7.

    Examples
    --------
    >>> steps = online_softmax_steps([0.0, 1.0, 3.0], block=2)
    >>> [(step.m, round(step.alpha, 4), round(step.l, 4)) for step in steps]
    [(1.0, 0.0, 1.3679), (3.0, 0.1353, 1.1851)]
    """
    s, v = _checked(scores, block, values)
    steps: list[Step] = []
    m, l, O = -np.inf, 0.0, None if v is None else np.zeros(v.shape[1:])
    for start in range(0, len(s), block):
        keys = slice(start, min(start + block, len(s)))
        highest = float(s[keys].max())
        before, m = m, max(m, highest)
        shift = 0.0 if m == -np.inf else m  # -inf - (-inf) is not a number
        with np.errstate(over="ignore"):  # scores further apart than the type reaches: e^-inf = 0
            alpha = float(np.exp(before - shift))
            weights = np.exp(s[keys] - shift)
        l = alpha * l + float(weights.sum())
        y = None
        if v is not None and O is not None:
            O = alpha * O + weights @ v[keys]
            y = O / (l or 1.0)
        steps.append(Step(keys, s[keys], highest, m, alpha, weights, l, O, y))
    return steps


def _checked(
    scores: Sequence[float] | Array, block: int, values: Sequence[float] | Array | None
) -> tuple[Array, Array | None]:
    """Return scores (S,) and values (S, d_v) in float64."""
    s = np.asarray(scores, np.float64)
    if s.ndim != 1 or s.size == 0:
        raise ValueError(f"scores must be one row of numbers, but their shape is {s.shape}")
    if np.isnan(s).any() or np.isposinf(s).any():
        raise ValueError("scores must be numbers or -inf (a hidden key), but one is NaN or +inf")
    if block < 1:
        raise ValueError(f"block must be 1 or more, but is {block}")
    if values is None:
        return s, None
    v = np.asarray(values, np.float64)
    if v.ndim not in (1, 2) or len(v) != len(s):
        raise ValueError(
            f"values must be (S,) or (S, d_v) with S = {len(s)}, as many as scores, but their "
            f"shape is {v.shape}"
        )
    return s, v.reshape(len(v), -1)


WORDS = {
    "en": ("keys", "scores", "every key is hidden: the output is 0"),
    "zh": ("键", "分数", "所有键都被遮住：输出为 0"),
}


def format_steps(steps: Sequence[Step], lang: str = "en") -> str:
    """Return the steps as a text table, with the softmax that comes out below it.

    Examples
    --------
    >>> print(format_steps(online_softmax_steps([0.0, 1.0, 3.0], 2, [1.0, 2.0, 4.0])))
    keys  scores  m          alpha   e^(scores - m)  l      O      O / l
    0-1   0  1    -inf -> 1  0       0.3679  1       1.368  2.368  1.731
    2     3       1 -> 3     0.1353  1               1.185  4.32   3.646
    lse = m + log l = 3.17
    softmax = e^(scores - lse) = 0.04201  0.1142  0.8438
    """
    keys, scores, hidden = WORDS[lang]
    heads = [keys, scores, "m", "alpha", "e^(scores - m)", "l"]
    with_values = steps[0].O is not None
    if with_values:
        heads += ["O", "O / l"]
    rows, m = [], -np.inf
    for step in steps:
        cells = [
            "-".join(dict.fromkeys(str(key) for key in (step.keys.start, step.keys.stop - 1))),
            _numbers(step.scores),
            f"{_number(m)} -> {_number(step.m)}" if step.m > m else _number(step.m),
            _number(step.alpha),
            _numbers(step.weights),
            _number(step.l),
        ]
        if step.O is not None and step.y is not None:
            cells += [_numbers(step.O), _numbers(step.y)]
        rows.append(cells)
        m = step.m
    table = [heads, *rows]
    widths = [max(map(width, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(pad(c, w) for c, w in zip(row, widths, strict=True)) for row in table]
    whole = np.concatenate([step.scores for step in steps])
    last = steps[-1]
    if last.l == 0:
        lines.append(hidden)
    else:
        lines.append(f"lse = m + log l = {_number(last.lse)}")
        with np.errstate(over="ignore"):
            lines.append(f"softmax = e^(scores - lse) = {_numbers(np.exp(whole - last.lse))}")
    return "\n".join(line.rstrip() for line in lines)


def _number(x: float) -> str:
    return f"{x:.4g}"


def _numbers(a: Array) -> str:
    return "  ".join(_number(float(x)) for x in a)
