"""What all optimizers share: groups, state, the gradient's norm, and a step in pieces.

A step works in place on pieces that stay in the cache, several at a time; the pieces depend on the
shapes only, so the weights come out the same bit for bit for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .. import parallel
from ..arrays import Array
from ..module import Module, Parameter
from ..team import run, single_blas
from .groups import Group, parameter_groups
from .schedules import Schedule


class Optimizer:
    """What all optimizers share: groups, state, the norm of the gradient and the step's pieces.

    Parameters
    ----------
    model : Module, or iterable of Group
        A model is shared out by `parameter_groups`: matrices and embeddings decay.
    lr : float or Schedule
        A number, or a function of the step, which counts from 1.
    weight_decay : float
        Where a model is given; groups have their own.

    Attributes
    ----------
    groups : list of Group
    t : int
        Steps taken.
    state : dict of name to list of flat arrays
        Two moments or one velocity for every parameter, of its dtype.
    steps : dict of name to int
        Steps in which the parameter had a gradient; it is left alone in the others.
    """

    slots: tuple[str, ...] = ()
    scratch = 2

    def __init__(
        self,
        model: Module | Iterable[Group],
        lr: float | Schedule,
        weight_decay: float = 0.0,
    ) -> None:
        if isinstance(model, Module):
            model = parameter_groups(model, weight_decay)
        self.groups = list(model)
        self.lr = lr
        self.t = 0
        self._parameters: dict[str, tuple[Parameter, Group]] = {}
        seen: dict[int, str] = {}
        for group in self.groups:
            check_rate("weight_decay", group.weight_decay)
            check_rate("lr_scale", group.lr_scale)
            for name, p in group.parameters.items():
                if name in self._parameters or id(p) in seen:
                    other = seen.get(id(p), name)
                    raise ValueError(f"{name} is in two groups, also as {other}")
                if p.value.dtype not in (np.float32, np.float64):
                    raise TypeError(
                        f"only float32 and float64 parameters can be trained, but {name} is "
                        f"{p.value.dtype}: use model.astype(np.float32)"
                    )
                seen[id(p)] = name
                self._parameters[name] = p, group
        if not self._parameters:
            raise ValueError("there are no parameters to train")
        self.state = {
            name: [np.zeros(p.value.size, p.value.dtype) for _ in self.slots]
            for name, (p, _) in self._parameters.items()
        }
        self.steps = dict.fromkeys(self._parameters, 0)

    def step(self, lr: float | None = None, *, clip: float | None = None) -> float:
        """Change every parameter by its gradient, which stays as it is.

        Parameters
        ----------
        lr : float, optional
            For this step, instead of the optimizer's own.
        clip : float, optional
            The gradient counts as ``clip / norm`` of itself where its norm is larger.

        Returns
        -------
        float
            The norm of the whole gradient before clipping, a tied parameter counted once.

        Raises
        ------
        FloatingPointError
            if a gradient is NaN or infinite, naming it; nothing is changed then.
        """
        if clip is not None and not clip > 0:
            raise ValueError(f"clip must be positive, but is {clip}")
        present = {n: p for n, (p, _) in self._parameters.items() if p.has_grad}
        norm = global_norm(present)
        scale = float(clip) / norm if clip is not None and norm > clip else 1.0
        if lr is None:
            lr = self.lr(self.t + 1) if callable(self.lr) else self.lr
        check_rate("lr", lr := float(lr))
        self.t += 1
        flat, factors = [], []
        for name, p in present.items():
            self.steps[name] += 1
            if not (p.value.flags.c_contiguous and p.value.flags.writeable):
                p.value = np.array(p.value, order="C")
            group = self._parameters[name][1]
            flat.append([p.value.reshape(-1), p.grad.reshape(-1), *self.state[name]])
            rate, decay = lr * float(group.lr_scale), float(group.weight_decay)
            factors.append(self._factors(rate, decay, self.steps[name]))
        batches = shares([arrays[0] for arrays in flat])
        free: list[dict[str, Array]] = []  # scratch memory that no task uses at the moment

        def work(i: int) -> None:
            try:
                own = free.pop()
            except IndexError:  # asked first, another thread could take it in between
                own = {}
            for k, part in batches[i]:
                p, g, *state = (a[part] for a in flat[k])
                kind = p.dtype.char
                if kind not in own:
                    own[kind] = np.empty((self.scratch, parallel.BLOCK_BYTES // p.itemsize), kind)
                scratch = own[kind][:, : len(p)]
                if scale != 1.0:
                    g = np.multiply(g, scale, out=scratch[-1])
                self._update(p, g, state, scratch, factors[k])
            free.append(own)

        run(work, len(batches))
        return norm

    def _factors(self, lr: float, weight_decay: float, t: int) -> Any:
        """Return the step's scalars for one parameter, whose t-th step it is."""
        raise NotImplementedError

    def _update(self, p: Array, g: Array, state: list[Array], scratch: Array, f: Any) -> None:
        """Update one piece in place; the last row of ``scratch`` may hold ``g``."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Array]:
        """Return the state as named arrays: ``t``, ``steps/<name>`` and ``<slot>/<name>``."""
        found = {"t": np.array(self.t)}
        for name, arrays in self.state.items():
            found[f"steps/{name}"] = np.array(self.steps[name])
            for slot, a in zip(self.slots, arrays, strict=True):
                found[f"{slot}/{name}"] = a.reshape(self._parameters[name][0].value.shape)
        return found

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Copy a state back in.

        Raises
        ------
        ValueError
            unless it has exactly the names and shapes of this optimizer; nothing is changed then.
        """
        own = self.state_dict()
        faults = [f"{k} is missing" for k in own if k not in state]
        faults += [f"{k} is unexpected" for k in state if k not in own]
        faults += [
            f"{k} has shape {np.shape(state[k])} and not {a.shape}"
            for k, a in own.items()
            if k in state and np.shape(state[k]) != a.shape
        ]
        if faults:
            raise ValueError("the state does not fit this optimizer: " + "; ".join(faults))
        self.t = int(state["t"])
        for name, arrays in self.state.items():
            self.steps[name] = int(state[f"steps/{name}"])
            for slot, a in zip(self.slots, arrays, strict=True):
                a[...] = np.reshape(state[f"{slot}/{name}"], -1)


def global_norm(parameters: Mapping[str, Parameter]) -> float:
    r"""Return :math:`\sqrt{\sum g^2}` over all gradients.

    Raises
    ------
    FloatingPointError
        naming the first gradient that is not finite.
    """
    names, grads = list(parameters), [p.grad.reshape(-1) for p in parameters.values()]
    batches = shares(grads)

    def work(i: int) -> float:
        return sum(float(grads[k][part] @ grads[k][part]) for k, part in batches[i])

    with single_blas(), np.errstate(over="ignore"):
        total = sum(run(work, len(batches)))
    if 1e-20 < total < math.inf:
        return math.sqrt(total)
    for name, g in zip(names, grads, strict=True):
        if bad := np.count_nonzero(~np.isfinite(g)):
            raise FloatingPointError(
                f"the gradient of {name} is not finite: {bad} of its {g.size} numbers are NaN or "
                f"infinite"
            )
    # The squares of numbers this large or small don't fit into float32.
    largest = max((float(np.abs(g).max(initial=0)) for g in grads), default=0.0)
    if largest == 0:
        return 0.0
    scaled = (np.divide(g, largest, dtype=np.float64) for g in grads)
    return largest * math.sqrt(sum(float(g @ g) for g in scaled))


def shares(arrays: Iterable[Array]) -> list[list[tuple[int, slice]]]:
    """Cut flat arrays into pieces ``(index, slice)`` that stay in the cache, small ones together.

    Which pieces there are, and in which order, depends on the sizes only.
    """
    batches: list[list[tuple[int, slice]]] = []
    room = 0
    for k, a in enumerate(arrays):
        step = max(1, parallel.BLOCK_BYTES // a.itemsize)
        for start in range(0, a.size, step):
            part = slice(start, min(start + step, a.size))
            needed = (part.stop - part.start) * a.itemsize
            if needed > room:
                batches.append([])
                room = parallel.BLOCK_BYTES
            batches[-1].append((k, part))
            room -= needed
    return batches


def check_rate(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is finite and not negative."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be 0 or more and finite, but is {value}")


def check_fraction(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` lies in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, but is {value}")
