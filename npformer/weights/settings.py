"""Read a ``config.json`` setting by setting, so that none is overlooked."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any

from ..arrays import is_number
from .safetensors_file import brief

HARMLESS = (
    # who wrote it, and how it is stored or run
    *("_name_or_path", "name_or_path", "architectures", "model_type", "transformers_version"),
    *("torch_dtype", "dtype", "tokenizer_class", "_attn_implementation*", "attn_implementation"),
    *("use_cache", "cache_implementation", "torchscript", "return_dict", "use_return_dict"),
    *("output_attentions", "output_hidden_states", "gradient_checkpointing", "use_bfloat16"),
    *("transformers.js_config", "unsloth_*", "pretraining_tp", "chunk_size_feed_forward"),
    *("is_llama_config", "tf_legacy_loss", "_num_labels", "_commit_hash"),
    # how training started, and dropout where a model here has no place for its own rate
    *("initializer_range", "init_std", "initializer_factor", "classifier_dropout"),
    *("classif_dropout", "activation_dropout", "*_layerdrop", "embd_pdrop", "summary_*"),
    # ids of tokens, and how text is generated
    *("*_token_id", "bad_words_ids", "prefix", "max_length", "min_length", "do_sample"),
    *("early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature"),
    *("top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
    *("*no_repeat_ngram_size", "num_return_sequences", "output_scores", "remove_invalid_values"),
    *("return_dict_in_generate", "force_bos_token_to_be_generated", "suppress_tokens"),
    *("begin_suppress_tokens", "exponential_decay_length_penalty", "generation_config"),
    # other tasks
    *("id2label", "label2id", "num_labels", "problem_type", "task_specific_params"),
    *("finetuning_task", "sep_token_id", "cross_attention_hidden_size"),
)
"""Settings that say nothing about the function from ids to logits, as shell patterns."""

_MISSING = object()


class Settings:
    """The settings of one ``config.json``.

    A family asks for each setting it knows; `finish` then refuses those that nobody asked for.

    Parameters
    ----------
    values : dict
    ignore : names
        Settings to leave out, as if they were not there: by the judgement of whoever loads.
    where : str
        What messages call the file.
    """

    def __init__(
        self, values: dict[str, Any], ignore: Collection[str] = (), where: str = "config.json"
    ) -> None:
        if not isinstance(values, dict):
            raise ValueError(f"{where} is no JSON object")
        self.values = {k: v for k, v in values.items() if k not in ignore}
        self.where = where
        self._asked: set[str] = set()

    def wrong(self, what: str) -> ValueError:
        """Return the error to raise."""
        return ValueError(f"{self.where}: {what}")

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting as it is; ``default`` where it is absent or null."""
        self._asked.add(name)
        value = self.values.get(name)
        return default if value is None else value

    # From here on null is an error, as it is in transformers, unless ``null`` says what it stands
    # for or absent is None.

    def whole(
        self, name: str, default: Any = _MISSING, *, null: Any = _MISSING, least: int = 1
    ) -> Any:
        """Return a whole number from ``least`` on, or the default."""
        given, value = self._value(name, default, null)
        if given and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise self.wrong(
                f"{name} must be a whole number from {least} on, but is {brief(value)}"
            )
        return value

    def number(
        self,
        name: str,
        default: Any = _MISSING,
        *,
        null: Any = _MISSING,
        positive: bool = False,
    ) -> Any:
        """Return a finite number from 0 on (above 0 where ``positive``) as a float, or default."""
        given, value = self._value(name, default, null)
        if not given:
            return value
        if not is_number(value) or value < 0 or (value == 0 and positive):
            kind = "above 0" if positive else "from 0 on"
            raise self.wrong(f"{name} must be a number {kind}, but is {brief(value)}")
        return float(value)

    def rate(self, name: str, default: float) -> float:
        """Return a rate of dropout. Null, which some files have, changes nothing but training."""
        found: float = self.number(name, default, null=default)
        return found

    def flag(self, name: str, default: bool, *, null: Any = _MISSING) -> bool:
        """Return true or false."""
        given, value = self._value(name, default, null)
        if given and not isinstance(value, bool):
            raise self.wrong(f"{name} must be true or false, but is {brief(value)}")
        return bool(value)

    def choice(self, name: str, table: dict[str, Any], default: str) -> Any:
        """Return what a table says about a setting."""
        _, value = self._value(name, default, _MISSING)
        if not isinstance(value, str) or value not in table:
            raise self.wrong(f"{name} {brief(value)} is not supported, only {', '.join(table)}")
        return table[value]

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse a setting whose other values are not supported; absent is the first.

        Null is, too, where the first means that something is turned off.
        """
        off = allowed[0] is False or allowed[0] is None
        _, value = self._value(name, allowed[0], allowed[0] if off else _MISSING)
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            raise self.wrong(f"{name} {brief(value)} is not supported, only {allowed[0]!r}")

    def finish(self) -> None:
        """Refuse settings that are neither known nor turned off."""
        unknown = [
            f"{brief(name)} = {brief(value)}"
            for name, value in self.values.items()
            if name not in self._asked
            and value not in (None, False, "", [], {})
            and not any(fnmatchcase(name, pattern) for pattern in HARMLESS)
        ]
        if unknown:
            raise self.wrong(
                f"it is not known what {'; '.join(unknown)} would change; name a setting in "
                "ignore= to load without it"
            )

    def _value(self, name: str, default: Any, null: Any) -> tuple[bool, Any]:
        """Whether the file gives a value, and it or what stands for it."""
        self._asked.add(name)
        value = self.values.get(name)
        if value is not None:
            return True, value
        if default is _MISSING:
            raise self.wrong(f"{name} is missing")
        if name in self.values and default is not None:
            if null is _MISSING:
                raise self.wrong(f"{name} is null: give it a value or leave it out")
            return False, null
        return False, default
