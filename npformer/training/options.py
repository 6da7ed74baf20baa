"""`TrainingConfig`: how a model is trained, in one frozen value that is checked when it is made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..module import Module
from ..optim import (
    KINDS,
    OPTIMIZERS,
    SCHEDULES,
    Constant,
    Cosine,
    InverseSquareRoot,
    Noam,
    Optimizer,
    Schedule,
    WarmupStableDecay,
    parameter_groups,
)
from ..optim.optimizer import check_fraction, check_rate


@dataclass(frozen=True)
class TrainingConfig:
    """The options of a run.

    Attributes
    ----------
    steps : int
        Steps of the optimizer, from the first one on.
    B : int
        Rows of a batch.
    T : int, optional
        Tokens of a window of a text; None for the model's ``T_max``.
    accumulate : int
        Batches whose gradients make up one step; the loss is the mean over all their tokens.
    optimizer : {"adamw", "adam", "sgd"}
        What turns gradients into steps.
    schedule : {"cosine", "constant", "inverse-sqrt", "noam", "warmup-stable-decay"}
        How the learning rate goes on after the warm-up.
    lr : float, optional
        The highest learning rate; for "noam" its factor. None for 0.001, or for the factor 1.
    lr_min : float
        The last learning rate, of "cosine" and "warmup-stable-decay".
    warmup : int
        Steps of the linear warm-up.
    decay : int
        Steps of the decay of "warmup-stable-decay".
    beta1 : float
        Of the mean gradient, in Adam and AdamW.
    beta2 : float
        Of the mean square, in Adam and AdamW.
    adam_eps : float
        What is added to the root of the mean square, in Adam and AdamW.
    momentum : float
        Of SGD.
    weight_decay : float
        Of the kinds in ``decayed``.
    decayed : tuple of {"matrix", "embedding", "norm", "bias"}
        Kinds of parameters that decay.
    clip : float
        The largest norm of the gradient; 0 for any.
    label_smoothing : float
        The share of the target that all of the vocabulary gets alike, in training only.
    seed : int
        Of the order of the data, of dropout and, on the command line, of the first weights.
    evaluate_every : int
        Steps from one evaluation on the held-out part to the next; 0 for one at the end.
    evaluate_batches : int
        How many batches of it; 0 for all.
    save_every : int
        Steps from one state on disk to the next; 0 for none but by the clock.
    save_minutes : float
        Minutes from one state on disk to the next; 0 for none but by steps. It is what a crash may
        cost.
    norms_every : int
        Steps from one record of all parameters' and gradients' norms to the next; 0 for none.

    Without ``lr`` the highest learning rate is 0.001.
    """

    steps: int = 1000
    B: int = 32
    T: int | None = None
    accumulate: int = 1
    optimizer: str = "adamw"
    schedule: str = "cosine"
    lr: float | None = None
    lr_min: float = 0.0
    warmup: int = 0
    decay: int = 0
    beta1: float = 0.9
    beta2: float = 0.99
    adam_eps: float = 1e-8
    momentum: float = 0.9
    weight_decay: float = 0.1
    decayed: tuple[str, ...] = ("matrix", "embedding")
    clip: float = 1.0
    label_smoothing: float = 0.0
    seed: int = 0
    evaluate_every: int = 0
    evaluate_batches: int = 0
    save_every: int = 0
    save_minutes: float = 1.0
    norms_every: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.decayed, str) or not isinstance(self.decayed, list | tuple):
            raise TypeError(f"decayed must be a list of names, but is {self.decayed!r}")
        object.__setattr__(self, "decayed", tuple(self.decayed))
        for name, least in (
            ("steps", 1),
            ("B", 1),
            ("T", 1),
            ("accumulate", 1),
            *((name, 0) for name in ("warmup", "decay", "seed", "evaluate_every")),
            *((name, 0) for name in ("evaluate_batches", "save_every", "norms_every")),
        ):
            value = getattr(self, name)
            if name == "T" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number from {least} on, but is {value!r}")
        for name in ("lr", "lr_min", "weight_decay", "clip", "save_minutes", "label_smoothing"):
            value = getattr(self, name)
            if name == "lr" and value is None:
                continue
            check_number(name, value)
            if not value >= 0:
                raise ValueError(f"{name} must be 0 or more, but is {value}")
        for name in ("beta1", "beta2", "momentum"):
            check_number(name, getattr(self, name))
            check_fraction(name, getattr(self, name))
        check_number("adam_eps", self.adam_eps)
        check_rate("adam_eps", self.adam_eps)
        for name, names in (
            ("optimizer", OPTIMIZERS),
            ("schedule", SCHEDULES),
        ):
            if getattr(self, name) not in list(names):
                raise ValueError(
                    f"{name} must be one of {', '.join(names)}, but is {getattr(self, name)!r}"
                )
        for kind in self.decayed:
            if kind not in KINDS:
                raise ValueError(f"what decays is named {', '.join(KINDS)}, not {kind!r}")
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"label_smoothing must lie in [0, 1], but is {self.label_smoothing}")
        self.make_schedule(1)  # contradictions of its lengths and rates show here

    @property
    def highest_lr(self) -> float:
        """``lr`` as a number."""
        if self.lr is not None:
            return self.lr
        return 1.0 if self.schedule == "noam" else 1e-3

    def make_schedule(self, d: int) -> Schedule:
        """Return the schedule for a model of width d."""
        lr, steps, warmup = self.highest_lr, self.steps, self.warmup
        match self.schedule:
            case "constant":
                return Constant(lr, warmup)
            case "inverse-sqrt":
                return InverseSquareRoot(lr, warmup)
            case "noam":
                return Noam(d, max(1, warmup), lr)
            case "cosine":
                return Cosine(lr, steps, warmup, self.lr_min)
            case _:
                return WarmupStableDecay(lr, steps, warmup, self.decay, self.lr_min)

    def make_optimizer(self, model: Module, d: int) -> Optimizer:
        """Return the optimizer of a model of width d, with its groups and its schedule."""
        groups = parameter_groups(model, self.weight_decay, decayed=self.decayed)
        options: dict[str, Any] = (
            {"momentum": self.momentum}
            if self.optimizer == "sgd"
            else {"betas": (self.beta1, self.beta2), "eps": self.adam_eps}
        )
        return OPTIMIZERS[self.optimizer](groups, self.make_schedule(d), **options)

    def contradictions(self, other: TrainingConfig) -> list[str]:
        """Return the names of options that change the weights, where the two differ."""
        free = {"evaluate_every", "evaluate_batches", "save_every", "save_minutes", "norms_every"}
        if self.schedule in ("constant", "inverse-sqrt", "noam"):
            free.add("steps")  # the only ones that don't look ahead to the end
        mine, theirs = asdict(self), asdict(other)
        return [name for name in mine if name not in free and mine[name] != theirs[name]]


def check_number(name: str, value: object) -> None:
    """Raise TypeError unless ``value`` is a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, but is {value!r}")
