"""transformers' side of `hugging_face`: its models, run in float64 from end to end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import transformers
from hugging_face import cotangent, texts, weights

CLASSES = {
    "gpt2": transformers.GPT2LMHeadModel,
    "llama": transformers.LlamaForCausalLM,
    "mistral": transformers.MistralForCausalLM,
    "qwen2": transformers.Qwen2ForCausalLM,
    "qwen3": transformers.Qwen3ForCausalLM,
    "gemma2": transformers.Gemma2ForCausalLM,
    "bert": transformers.BertModel,
    "bart": transformers.BartForConditionalGeneration,
    "marian": transformers.MarianMTModel,
}


@contextmanager
def true_float64() -> Iterator[None]:
    """Make transformers compute in float64 where it asks for float32.

    Norms, softmax and rotary tables cast to float32 even in a float64 model, which costs 1e-6 to
    1e-8. Here a cast by ``.float()`` or to ``torch.float32`` gives float64.
    """
    kept = torch.Tensor.float, torch.float32, torch.float, torch.get_default_dtype()
    torch.Tensor.float = torch.Tensor.double
    torch.float32 = torch.float = torch.float64
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.Tensor.float, torch.float32, torch.float, default = kept
        torch.set_default_dtype(default)


def sinusoids(T: int, d: int) -> np.ndarray:
    """Marian's positions: all sines, then all cosines (its own table is rounded to float32)."""
    angles = np.arange(T)[:, None] / 10000.0 ** (np.arange(0, d, 2) / d)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def make(settings: dict[str, Any], seed: int) -> Any:
    """A float64 model with random weights, norms, biases and buffers included."""
    kind = CLASSES[settings["model_type"]]
    with true_float64():
        config = kind.config_class(**settings)
        config._attn_implementation = "eager"
        model = kind(config).double().eval()
    state = {
        **dict(model.named_parameters()),
        **{name: b for name, b in model.named_buffers() if name == "final_logits_bias"},
    }
    numbers = weights({name: tuple(p.shape) for name, p in state.items()}, seed)
    with torch.no_grad():
        for name, p in state.items():
            if name.endswith("embed_positions.weight") and settings["model_type"] == "marian":
                p.copy_(torch.from_numpy(sinusoids(*p.shape)))
            else:
                p.copy_(torch.from_numpy(numbers[name]))
    return model


def logits(model: Any, text: dict[str, np.ndarray]) -> torch.Tensor:
    """Logits, or an encoder's hidden states."""
    inputs = {"input_ids": text["ids"], "attention_mask": text["mask"].astype(np.int64)}
    if "types" in text:
        inputs["token_type_ids"] = text["types"]
    if "target" in text:
        inputs["decoder_input_ids"] = text["target"]
    with true_float64():
        out = model(**{name: torch.from_numpy(a) for name, a in inputs.items()})
    y = out["last_hidden_state" if "types" in text else "logits"]
    assert y.dtype == torch.float64
    return y


def reference(settings: dict[str, Any], seed: int) -> tuple[Any, np.ndarray, dict[str, np.ndarray]]:
    """The model, its result and the gradient of every parameter."""
    model, text = make(settings, seed), texts(settings, seed)
    y = logits(model, text)
    dy = cotangent(y.detach().numpy(), text, seed)
    with true_float64():
        (y * torch.from_numpy(dy)).sum().backward()
    grads = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    return model, y.detach().numpy(), grads
