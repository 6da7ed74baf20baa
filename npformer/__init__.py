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
