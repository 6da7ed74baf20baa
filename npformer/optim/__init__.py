"""Optimizers, groups of parameters and schedules of the learning rate."""

from .groups import KINDS, Group, kinds, parameter_groups
from .optimizer import Optimizer, global_norm
from .rules import OPTIMIZERS, SGD, Adam, AdamW
from .schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    InverseSquareRoot,
    Noam,
    Schedule,
    WarmupStableDecay,
)

__all__ = [
    "KINDS",
    "OPTIMIZERS",
    "SCHEDULES",
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Group",
    "InverseSquareRoot",
    "Noam",
    "Optimizer",
    "Schedule",
    "WarmupStableDecay",
    "global_norm",
    "kinds",
    "parameter_groups",
]
