"""Load and save weights in Hugging Face's format: ``config.json`` beside ``*.safetensors``."""

from .load import load_pretrained
from .save import save_pretrained

__all__ = ["load_pretrained", "save_pretrained"]
