"""What a model costs, by formulas alone: numbers, shapes, operations and bytes.

>>> import npformer as nf
>>> nf.accounting.parameters(nf.preset("llama-2-7b")).total
6738415616
>>> nf.accounting.kv_cache_bytes(nf.preset("llama-2-7b"), B=1, T=8192, dtype="float16")
4294967296

Nothing is allocated, so it works for any size; the tests compare each formula with what a model
that fits really allocates or computes, to the byte and to the operation.
"""

from .activations import activation_bytes
from .counts import ParameterRow, Parameters, parameters
from .memory import CacheBytes, TrainingBytes, kv_cache_bytes, training_bytes, weight_bytes
from .operations import Flops, FlopsRow, attention_flops, attention_pairs, flops
from .tables import ShapeRow, shapes
from .units import DTYPE_BYTES, Bytes, itemsize

__all__ = [
    "DTYPE_BYTES",
    "Bytes",
    "CacheBytes",
    "Flops",
    "FlopsRow",
    "ParameterRow",
    "Parameters",
    "ShapeRow",
    "TrainingBytes",
    "activation_bytes",
    "attention_flops",
    "attention_pairs",
    "flops",
    "itemsize",
    "kv_cache_bytes",
    "parameters",
    "shapes",
    "training_bytes",
    "weight_bytes",
]
