"""The model that ``npformer inspect`` looks into, and the text that it reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..arrays import Array
    from ..config import TransformerConfig
    from ..data import Vocabulary

SMALL: dict[str, Any] = {"d": 64, "L": 6, "H": 4}
"""A model made of options alone; the rest is as in `npformer.TransformerConfig`."""

LENGTH, BATCH = 64, 4
LEFT_OUT = ("name", "recompute", "dropout", "attention_dropout")
"""Fields that change nothing in a pass without dropout."""

_SIGNS = {"\n": "⏎", "\t": "⇥", " ": "␣", "\r": "⏎"}


MOST_TOKENS = 4096
"""A map of 4096 tokens takes 64 MB a head."""


class Subject(NamedTuple):
    model: Any
    vocabulary: Vocabulary
    ids: Array
    """(B, T)."""
    targets: Array | None
    """The ids wanted next; None where the last id of a prompt serves for it."""
    source: str
    """Where the text comes from."""


def subject(args: argparse.Namespace) -> Subject:
    """Return the model and the ids that the options ask for."""
    from ..config import TransformerConfig
    from ..data import DEFAULT_TEXT, load_text
    from .fields import given

    if args.text is not None and args.prompt is not None:
        raise ValueError("give --text or --prompt, not both")
    if args.model is not None and args.preset is not None:
        raise ValueError("give --model or --preset, not both")
    for name in ("batch", "length"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name} must be 1 or more, but is {getattr(args, name)}")
    if args.length is not None and args.length > MOST_TOKENS:
        raise ValueError(
            f"--length must be at most {MOST_TOKENS}, since a head's map has the square of it, but "
            f"is {args.length}"
        )
    if args.seed < 0:
        raise ValueError(f"--seed must be 0 or more, but is {args.seed}")
    if args.prompt == "":
        raise ValueError("the prompt is empty: there is nothing to read")
    text = load_text(args.text) if args.prompt is None else args.prompt
    changes = given(args, TransformerConfig)
    if args.model is not None:
        if changes:
            raise ValueError(f"a loaded model is as it is: leave out {', '.join(changes)}")
        model, vocabulary = loaded(args, text)
    else:
        vocabulary = chosen(args, text)
        length = args.length or (LENGTH if args.prompt is None else len(vocabulary.encode(text)))
        cfg = configuration(args.preset, changes, vocabulary.V, length)
        model = made(cfg, args.seed, args.dtype)
    whole = getattr(vocabulary, "encode_whole", None) if args.prompt is not None else None
    ids = encoded(whole or vocabulary.encode, text, model.cfg.V)
    source = "--prompt" if args.prompt is not None else args.text or DEFAULT_TEXT
    batch = passage(args, ids, model.cfg)
    return Subject(model, vocabulary, *batch, source)


def configuration(
    preset: str | None, changes: dict[str, Any], V: int, length: int
) -> TransformerConfig:
    """Return a configuration; what follows from other fields follows from the changed ones too."""
    from ..config import TransformerConfig
    from .model_argument import read_model

    if preset is None:
        return TransformerConfig(**({"V": V, "T_max": length, **SMALL} | changes))
    cfg = read_model(preset)
    if not isinstance(cfg, TransformerConfig):
        raise ValueError(f"{preset} has accounts only (npformer account) and no layers here")
    return replace(cfg, **(derived(cfg) | changes)) if changes else cfg


def derived(cfg: TransformerConfig) -> dict[str, None]:
    """Return the fields that are what they would be if they were left out, each as None."""
    from ..feedforward import parity_width

    usual = {
        "H_kv": cfg.H,
        "d_h": cfg.d // cfg.H,
        "d_ff": parity_width(cfg.d) if cfg.gated else 4 * cfg.d,
        "L_encoder": cfg.L,
    }
    return {name: None for name, value in usual.items() if getattr(cfg, name) == value}


def made(cfg: TransformerConfig, seed: int, dtype: str) -> Any:
    """Return a new model."""
    from ..models import DecoderLM, Encoder, EncoderDecoder

    kinds: dict[str, Any] = {
        "decoder": DecoderLM,
        "encoder": Encoder,
        "encoder-decoder": EncoderDecoder,
    }
    return kinds[cfg.kind](cfg, rng=seed, dtype=dtype)


def loaded(args: argparse.Namespace, text: str) -> tuple[Any, Vocabulary]:
    """Return the model in a folder or a .gguf file, and its vocabulary or what stands in for it."""
    from .model_folder import load_folder

    if Path(args.model).suffix == ".gguf":
        from ..weights import load_pretrained

        model, own = load_pretrained(args.model, dtype=args.dtype), None
    else:
        found = load_folder(args.model)
        model, own = found.model, found.vocabulary
    if str(model.dtype) != args.dtype:
        model = model.astype(args.dtype)
    if own is None or args.vocabulary is not None:
        own = chosen(args, text)
    return model, own


def chosen(args: argparse.Namespace, text: str) -> Vocabulary:
    """Return the vocabulary asked for; characters, and bytes for a model that has ids of its own.

    The bytes mean nothing to a trained model, but its norms can be looked at.
    """
    from ..vocabulary import named

    own = args.model is not None or args.preset is not None
    return named(args.vocabulary or ("bytes" if own else "characters"), text)


def encoded(encode: Callable[[str], Array], text: str, V: int) -> Array:
    """Return the ids of the text, or say that the model has not so many."""
    ids = encode(text)
    if len(ids) and ids.max() >= V:
        raise ValueError(
            f"the text has ids up to {ids.max()}, but the model only those below V = {V}; "
            "--vocabulary chooses others"
        )
    return ids


def passage(
    args: argparse.Namespace, ids: Array, cfg: TransformerConfig
) -> tuple[Array, Array | None]:
    """Return the batch: the whole prompt, or windows of the text with what comes next."""
    from ..data import windows

    most = cfg.T_max if cfg.positions == "learned" else len(ids)
    if args.prompt is not None:
        n = len(ids) if args.length is None else min(args.length, len(ids))
        if n < 1 or n > most:
            raise ValueError(
                f"the prompt has {n} tokens, but the model reads from 1 to {most} of them"
            )
        return ids[None, :n], None
    if len(ids) < 2:
        raise ValueError(f"the text has {len(ids)} tokens, but two are needed: one to predict")
    T = min(args.length or LENGTH, most, len(ids) - 1)
    return windows(ids, T, args.batch or BATCH, args.seed)


def labels(vocabulary: Vocabulary, ids: Array) -> list[str]:
    """Return how each token is written in a figure: blanks as signs, parts of characters as bytes.

    >>> from npformer.data import ByteVocabulary
    >>> labels(ByteVocabulary(), ByteVocabulary().encode("a b"))
    ['a', '␣', 'b']
    >>> labels(ByteVocabulary(), ByteVocabulary().encode("é"))
    ['⟨c3⟩', '⟨a9⟩']
    """
    shown = []
    for i in ids.tolist():
        text = vocabulary.decode([i])
        if "\ufffd" in text:
            text = f"⟨{i:02x}⟩" if vocabulary.V == 256 else f"⟨{i}⟩"
        text = "".join(_SIGNS.get(c, c) for c in text)
        shown.append(text or f"⟨{i}⟩")
    return shown
