"""Learning rates as functions of the step, which counts from 1. No state: a schedule is a value.

Every schedule is exact at its end points, and a warm-up reaches its full rate at its last step, so
that the first step never has the learning rate 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """The learning rate at step t = 1, 2, ..."""

    def __call__(self, t: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """``lr`` at every step, after a linear warm-up if one is asked for."""

    lr: float
    warmup: int = 0

    def __post_init__(self) -> None:
        check_rates(self.lr)
        check_lengths(warmup=self.warmup)

    def __call__(self, t: int) -> float:
        return self.lr * warmup_factor(t, self.warmup)


@dataclass(frozen=True)
class InverseSquareRoot:
    r"""A linear warm-up, then the inverse square root.

    .. math::
        \mathrm{lr}(t) = \frac{t}{T_w}\,\mathrm{lr}_{\max} \quad (t \le T_w), \qquad
        \mathrm{lr}(t) = \sqrt{T_w / t}\;\mathrm{lr}_{\max} \quad (t > T_w)

    References
    ----------
    Xiong et al., 2020, arXiv:2002.04745, Eq. 1 for the warm-up.
    """

    lr: float
    warmup: int

    def __post_init__(self) -> None:
        check_rates(self.lr)
        check_lengths(warmup=self.warmup)

    def __call__(self, t: int) -> float:
        if t <= self.warmup:
            return self.lr * warmup_factor(t, self.warmup)
        return self.lr * math.sqrt(max(1, self.warmup) / check_step(t))


@dataclass(frozen=True)
class Noam:
    r"""The schedule of the original Transformer, which sets the size by the width of the model.

    .. math:: \mathrm{lr}(t) = c\, d^{-1/2} \min(t^{-1/2},\; t\, T_w^{-3/2})

    It is `InverseSquareRoot` with :math:`\mathrm{lr}_{\max} = c\,(d\,T_w)^{-1/2}`.

    References
    ----------
    Vaswani et al., 2017, arXiv:1706.03762, Eq. 3, with c = 1 and 4000 steps of warm-up.
    """

    d: int
    warmup: int = 4000
    factor: float = 1.0

    def __post_init__(self) -> None:
        check_rates(self.factor)
        if self.d < 1 or self.warmup < 1:
            raise ValueError(f"d and warmup must be 1 or more, but are {self.d} and {self.warmup}")

    def __call__(self, t: int) -> float:
        return self.factor * self.d**-0.5 * min(check_step(t) ** -0.5, t * self.warmup**-1.5)


@dataclass(frozen=True)
class Cosine:
    r"""A linear warm-up, then half a period of the cosine down to ``lr_min`` at step ``total``.

    .. math::
        \mathrm{lr}(t) = \mathrm{lr}_{\min} + \tfrac12 (\mathrm{lr}_{\max} - \mathrm{lr}_{\min})
        \left(1 + \cos \pi \frac{t - T_0}{T - T_0}\right), \qquad T_0 = \max(T_w, 1)

    References
    ----------
    Loshchilov & Hutter, 2017, arXiv:1608.03983, Eq. 5, without restarts.
    """

    lr: float
    total: int
    warmup: int = 0
    lr_min: float = 0.0

    def __post_init__(self) -> None:
        check_rates(self.lr, self.lr_min)
        check_lengths(total=self.total, warmup=self.warmup)

    def __call__(self, t: int) -> float:
        start = max(self.warmup, 1)
        if t <= start:
            return self.lr * warmup_factor(t, self.warmup)
        if t >= self.total:
            return self.lr_min
        cosine = math.cos(math.pi * (t - start) / (self.total - start))
        return self.lr_min + 0.5 * (self.lr - self.lr_min) * (1 + cosine)


@dataclass(frozen=True)
class WarmupStableDecay:
    r"""A linear warm-up, a plateau of at least one step, and ``decay`` steps to ``lr_min``.

    The decay is a straight line, or :math:`1 - \sqrt{x}` of the way x through it, which held up
    best in the comparison of Hägele et al.

    References
    ----------
    Hu et al., 2024, arXiv:2404.06395, section 4 (the schedule);
    Hägele et al., 2024, arXiv:2405.18392 (the shapes of the decay).
    """

    lr: float
    total: int
    warmup: int = 0
    decay: int = 0
    lr_min: float = 0.0
    shape: str = "linear"

    def __post_init__(self) -> None:
        check_rates(self.lr, self.lr_min)
        check_lengths(total=self.total, warmup=self.warmup, decay=self.decay)
        if self.shape not in ("linear", "sqrt"):
            raise ValueError(f'the decay\'s shape must be "linear" or "sqrt", not {self.shape!r}')

    def __call__(self, t: int) -> float:
        # The plateau's last step: there is one, so that the first step is never the last rate.
        last = max(self.total - self.decay, 1)
        if t <= last:
            return self.lr * warmup_factor(t, self.warmup)
        if t >= self.total:
            return self.lr_min
        x = (t - last) / (self.total - last)
        left = 1 - (x if self.shape == "linear" else math.sqrt(x))
        return self.lr_min + (self.lr - self.lr_min) * left


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "inverse-sqrt": InverseSquareRoot,
    "noam": Noam,
    "cosine": Cosine,
    "warmup-stable-decay": WarmupStableDecay,
}
"""The schedules by the names that options use."""


def check_step(t: int) -> int:
    """Return ``t`` if it is a step: they count from 1."""
    if t < 1:
        raise ValueError(f"steps count from 1, but the step is {t}")
    return t


def warmup_factor(t: int, warmup: int) -> float:
    """Return t / T_w up to the last step of the warm-up, then 1."""
    return min(1.0, check_step(t) / max(1, warmup))


def check_rates(lr: float, lr_min: float = 0.0) -> None:
    """Raise unless 0 <= lr_min <= lr, both finite."""
    if not (0 <= lr_min <= lr < math.inf):
        raise ValueError(
            f"learning rates must be finite with 0 <= lr_min <= lr, but lr = {lr}, "
            f"lr_min = {lr_min}"
        )


def check_lengths(total: int | None = None, **parts: int) -> None:
    """Raise unless the parts of a schedule are whole numbers that fit into its total."""
    for name, n in parts.items():
        if n < 0:
            raise ValueError(f"{name} must be 0 steps or more, but is {n}")
    if total is not None and not (total >= 1 and sum(parts.values()) <= total):
        needed = " + ".join(f"{name} {n}" for name, n in parts.items())
        raise ValueError(f"a schedule of {total} steps has no room for {needed}")
