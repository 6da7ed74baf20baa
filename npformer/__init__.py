"""npformer: the Transformer in NumPy, every gradient derived by hand and proven.

>>> import numpy as np
>>> import npformer as nf
>>> from npformer import functional as F
>>> y, saved = F.softmax(np.array([0.0, 0.0]))
>>> y
array([0.5, 0.5])
>>> F.softmax_backward(np.array([1.0, 0.0]), saved)
array([ 0.25, -0.25])
"""

from importlib import import_module as _import_module
from typing import Any as _Any

from . import functional
from .activation import Activation
from .attention import AttentionSaved
from .block import Block, Recompute
from .cache import KVCache
from .config import TransformerConfig
from .dropout import Dropout
from .feedforward import FeedForward
from .linear import Embedding, Linear
from .loss import CrossEntropy
from .models import DecoderLM, Encoder, EncoderDecoder
from .module import Module, Parameter, gradients_apart
from .multihead import AttentionConfig, MultiHeadAttention
from .norm import LayerNorm, RMSNorm
from .position import LearnedPositions
from .softmax import LogSoftmax, Softmax

__version__ = "0.1.0"

_LATE = {
    "GradientReport": "checking",
    "gradcheck": "checking",
    "preset": "catalogue",
    "presets": "catalogue",
    "accounting": "accounting",
    "load_pretrained": "weights",
    "save_pretrained": "weights",
    "optim": "optim",
    "check_causal": "probes",
    "check_padding": "probes",
    "inspect": "experiments.inspection",
    "data": "data",
    "batches": "batches",
    "TrainingConfig": "training",
    "evaluate": "training",
    "train": "training",
    "generate": "decoding",
}
"""Names of the upper floors, imported at first use: reading a model needs none of them."""


def __getattr__(name: str) -> _Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _import_module(f".{_LATE[name]}", __name__)
    return module if name == _LATE[name] else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATE])
