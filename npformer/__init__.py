"""The Transformer in NumPy, with hand-derived and proven backward passes."""

__version__ = "0.1.0"
