"""Training: the loop, its options, its state on disk and its log."""

from .evaluation import evaluate
from .loop import Interrupted, TrainingResult, train
from .options import TrainingConfig
from .state import TrainingState, load_state, load_trained, save_state

__all__ = [
    "Interrupted",
    "TrainingConfig",
    "TrainingResult",
    "TrainingState",
    "evaluate",
    "load_state",
    "load_trained",
    "save_state",
    "train",
]
