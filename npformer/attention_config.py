"""`AttentionConfig`: what multi-head attention is, in one frozen value (chapter 2.5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .arrays import is_number, is_whole
from .dropout import check_probability
from .position import LAYOUTS
from .rope_scaling import BASE, read_scaling, rotary_dimension

KERNEL_NAMES = ("dense", "flash", "auto")


@dataclass(frozen=True)
class AttentionConfig:
    """What a `MultiHeadAttention` is, in one value.

    Attributes
    ----------
    d, H : int
        Width and query heads.
    H_kv : int, optional
        Key-value heads: H (multi-head), a divisor of it (grouped) or 1 (multi-query).
    d_h : int, optional
        Width of a head, d / H unless given; H d_h need not be d.
    d_context : int, optional
        Width of the context that cross-attention reads, d unless given.
    causal : bool
    window : int, optional
        Tokens that a query sees up to its own (causal), or on both sides. Padding between the
        tokens of a row does not count.
    scale : float, optional
        Of the scores, 1 / sqrt(d_h) unless given.
    softcap : float, optional
    dropout : float
        Of the weights.
    bias : bool or three of them
        Of Wq, Wk and Wv. (A bias of Wk without rotation adds the same to every score of a row, so
        it changes nothing: Whisper has none there.)
    out_bias : bool
        Of Wo.
    rope : bool
        Rotate queries and keys, with ``rope_base``, ``rope_scaling``, ``rope_layout`` and
        ``rotary_dim`` as in `npformer.functional.rope`.
    qk_norm : {None, "head", "projection"}
        RMSNorm of queries and keys before the rotation: each head by itself (Qwen3, Gemma-3), or
        the whole projection (OLMo-2).
    eps, norm_offset : float
        Of that norm.
    kernel : {"dense", "flash", "auto"}
        The same numbers in another order of the work; "auto" takes "flash" where it is faster,
        from 128 queries on that read more than 1024 keys.
    """

    d: int
    H: int
    H_kv: int | None = None
    d_h: int | None = None
    d_context: int | None = None
    causal: bool = False
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    dropout: float = 0.0
    bias: bool | tuple[bool, bool, bool] = True
    out_bias: bool = True
    rope: bool = False
    rope_base: float = BASE
    rope_scaling: dict[str, Any] | None = None
    rope_layout: str = "interleaved"
    rotary_dim: int | None = None
    qk_norm: str | None = None
    eps: float = 1e-6
    norm_offset: float = 0.0
    kernel: str = "dense"

    def __post_init__(self) -> None:
        for name in ("d", "H", "H_kv", "d_h", "d_context", "window", "rotary_dim"):
            value = getattr(self, name)
            if value is None and name not in ("d", "H"):
                continue
            if not is_whole(value):
                raise ValueError(f"{name} must be a whole number, but is {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be 1 or more, but is {value}")
        if self.d_h is None:
            if self.d % self.H:
                raise ValueError(
                    f"d = {self.d} is not divisible by H = {self.H}: choose another H or give d_h"
                )
            object.__setattr__(self, "d_h", self.d // self.H)
        if self.H_kv is None:
            object.__setattr__(self, "H_kv", self.H)
        if self.H % self.heads_kv:
            raise ValueError(
                f"H = {self.H} query heads can't share H_kv = {self.H_kv} heads equally"
            )
        for name in ("causal", "out_bias", "rope"):
            require_bool(name, getattr(self, name))
        if isinstance(self.bias, list):
            object.__setattr__(self, "bias", tuple(self.bias))
        if not isinstance(self.bias, bool) and (
            not isinstance(self.bias, tuple) or [type(b) for b in self.bias] != [bool] * 3
        ):
            raise ValueError(f"bias must be a bool or three, of q, k and v, not {self.bias!r}")
        if self.qk_norm not in (None, "head", "projection"):
            raise ValueError(f'qk_norm must be None, "head" or "projection", not {self.qk_norm!r}')
        if self.kernel not in KERNEL_NAMES:
            names = ", ".join(KERNEL_NAMES)
            raise ValueError(f"kernel must be one of {names}, but is {self.kernel!r}")
        self._check_numbers()
        self._check_rotation()

    def _check_numbers(self) -> None:
        for name in ("dropout", "norm_offset"):
            require_number(name, getattr(self, name))
        check_probability(self.dropout)
        if self.scale is not None and not is_number(self.scale):
            raise ValueError(f"scale must be a number, but is {self.scale!r}")
        for name in ("softcap", "eps"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise ValueError(f"{name} must be positive, but is {value!r}")

    def _check_rotation(self) -> None:
        if self.rope_layout not in LAYOUTS:
            raise ValueError(
                f'rope_layout must be "interleaved" or "half", but is {self.rope_layout!r}'
            )
        if self.rope:
            scaling = read_scaling(self.rope_scaling, self.rope_base)
            rotary_dimension(self.width, self.rotary_dim, scaling)
        elif self.rope_scaling is not None or self.rotary_dim is not None:
            name = "rotary_dim" if self.rope_scaling is None else "rope_scaling"
            raise ValueError(f"{name} is given, but there is no rotation: rope is False")

    @property
    def width(self) -> int:
        """``d_h`` as a number."""
        assert self.d_h is not None
        return self.d_h

    @property
    def heads_kv(self) -> int:
        """``H_kv`` as a number."""
        assert self.H_kv is not None
        return self.H_kv

    @property
    def biases(self) -> tuple[bool, bool, bool]:
        """Whether Wq, Wk and Wv have a bias."""
        return (self.bias,) * 3 if isinstance(self.bias, bool) else self.bias

    @property
    def by_length(self) -> bool:
        """Whether the rotation follows the length of the text ("dynamic", "longrope")."""
        return self.rope and read_scaling(self.rope_scaling, self.rope_base).by_length


def require_bool(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a bool; "no" in a file would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, but is {value!r}")


def require_number(name: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is a finite number."""
    if not is_number(value):
        raise ValueError(f"{name} must be a finite number, but is {value!r}")
