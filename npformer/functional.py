"""Every function pair under one name: ``from npformer import functional as F``."""

from .activation import (
    gelu,
    gelu_backward,
    relu,
    relu_backward,
    sigmoid,
    sigmoid_backward,
    silu,
    silu_backward,
    tanh,
    tanh_backward,
)
from .attention import attention, attention_backward, attention_weights
from .dropout import dropout, dropout_backward
from .feedforward import gate, gate_backward
from .flash import flash_attention, flash_attention_backward
from .linear import embedding, embedding_backward, linear, linear_backward
from .loss import cross_entropy, cross_entropy_backward
from .masks import causal_mask, combine_masks, padding_mask, window_mask
from .norm import layernorm, layernorm_backward, rmsnorm, rmsnorm_backward
from .position import rope, rope_backward, rope_permutation, sinusoidal
from .rope_scaling import rope_frequencies
from .softmax import log_softmax, log_softmax_backward, softmax, softmax_backward
from .stack import softcap, softcap_backward, unembedding, unembedding_backward

__all__ = [name for name in dir() if not name.startswith("_")]
