"""The rules of the step (chapter 2.5.6): SGD with momentum, Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..arrays import Array
from ..module import Module
from .groups import Group
from .optimizer import Optimizer, check_fraction, check_rate
from .schedules import Schedule


class SGD(Optimizer):
    r"""Stochastic gradient descent with momentum.

    .. math:: u \leftarrow \mu u + g, \qquad \theta \leftarrow \theta - \mathrm{lr}\, u

    With ``nesterov`` the step is along :math:`g + \mu u`. Weight decay is part of the gradient,
    :math:`g + \lambda \theta`.

    References
    ----------
    Sutskever et al., 2013, "On the importance of initialization and momentum in deep learning",
    in the form that PyTorch uses.
    """

    slots = ("velocity",)

    def __init__(
        self,
        model: Module | Iterable[Group],
        lr: float | Schedule = 1e-2,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        check_fraction("momentum", momentum)
        self.momentum, self.nesterov = momentum, nesterov
        super().__init__(model, lr, weight_decay)

    def _factors(self, lr: float, weight_decay: float, t: int) -> tuple[float, float]:
        return lr, weight_decay

    def _update(self, p: Array, g: Array, state: list[Array], scratch: Array, f: Any) -> None:
        (u,), work, (lr, decay) = state, scratch[0], f
        if decay:
            np.multiply(p, decay, out=work)
            g = np.add(g, work, out=scratch[-1])
        u *= self.momentum
        u += g
        along = u
        if self.nesterov:
            along = np.multiply(u, self.momentum, out=work)
            along += g
        np.multiply(along, lr, out=work)
        p -= work


class Adam(Optimizer):
    r"""Adam: each number moves by its mean gradient over the root of its mean square.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1)\, g, \qquad
        v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2, \\
        \theta \leftarrow \theta - \mathrm{lr}\,
        \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Both means start at 0; dividing by :math:`1 - \beta^t` undoes that. Weight decay is part of the
    gradient, :math:`g + \lambda \theta`, and so it is divided by the root as well: `AdamW` is what
    one usually wants.

    References
    ----------
    Kingma & Ba, 2015, arXiv:1412.6980, algorithm 1.
    """

    slots = ("mean", "square")
    decoupled = False

    def __init__(
        self,
        model: Module | Iterable[Group],
        lr: float | Schedule = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        for beta in betas:
            check_fraction("each of betas", beta)
        check_rate("eps", eps)
        self.betas, self.eps = (float(betas[0]), float(betas[1])), float(eps)
        super().__init__(model, lr, weight_decay)

    def _factors(self, lr: float, weight_decay: float, t: int) -> tuple[float, float, float, float]:
        first, second = (1 - beta**t for beta in self.betas)
        return lr / first, 1 / math.sqrt(second), lr * weight_decay, weight_decay

    def _update(self, p: Array, g: Array, state: list[Array], scratch: Array, f: Any) -> None:
        (m, v), (work, other), (beta1, beta2) = state, scratch, self.betas
        lr, correction, lr_decay, decay = f
        if decay and self.decoupled:
            p *= 1 - lr_decay
        elif decay:
            np.multiply(p, decay, out=work)
            g = np.add(g, work, out=other)
        np.subtract(g, m, out=work)  # m + (1 - beta1) (g - m): one rounding fewer
        work *= 1 - beta1
        m += work
        np.multiply(g, g, out=work)
        work *= 1 - beta2
        v *= beta2
        v += work
        np.sqrt(v, out=work)
        work *= correction
        work += self.eps
        np.divide(m, work, out=work)
        work *= lr
        p -= work


class AdamW(Adam):
    r"""`Adam` with decoupled weight decay: :math:`\theta \leftarrow (1 - \mathrm{lr}\,\lambda)\,
    \theta` before the step, apart from the gradient and its root.

    References
    ----------
    Loshchilov & Hutter, 2019, arXiv:1711.05101, algorithm 2, with the learning rate as schedule
    multiplier.
    """

    decoupled = True

    def __init__(
        self,
        model: Module | Iterable[Group],
        lr: float | Schedule = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(model, lr, betas=betas, eps=eps, weight_decay=weight_decay)


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
"""The optimizers by the names that options use."""
