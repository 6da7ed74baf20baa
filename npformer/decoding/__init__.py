"""Writing text with a model: greedy, sampled or by beam search, with and without a cache."""

from .beam import beam_search
from .generation import generate
from .sampling import Sampling
from .writer import Writer

__all__ = ["Sampling", "Writer", "beam_search", "generate"]
