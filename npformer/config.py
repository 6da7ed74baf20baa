"""`TransformerConfig`: what a model is, in one frozen value that is checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

from .activation import ACTIVATIONS
from .attention_config import require_bool, require_number
from .block import PLACEMENTS
from .feedforward import parity_width
from .init import MATRICES
from .multihead import AttentionConfig
from .norm import NORMS

MOST_LAYERS = 100_000  # more is a slip or an attack: accounts and checks go layer by layer
POSITIONS = ("learned", "sinusoidal", "rope", "none")
LAYOUTS = ("interleaved", "half")
KINDS = ("decoder", "encoder", "encoder-decoder")
OF_THE_LOGITS: dict[str, Any] = {"head_bias": False, "logit_softcap": None}
"""Fields that an encoder has no use for, and how they say so."""


@dataclass(frozen=True)
class TransformerConfig:
    """The shape and the options of a model.

    Attributes
    ----------
    V : int
        Size of the vocabulary.
    d : int
        Width of the model.
    L : int
        Layers.
    H : int
        Query heads.
    H_kv : int, optional
        Key-value heads, as many as query heads unless given; 1 is multi-query attention.
    d_h : int, optional
        Width of a head, d / H unless given.
    d_ff : int, optional
        Width of the feed-forward network, 4 d unless given, or 8 d / 3 where gated.
    T_max : int
        The longest text; learned positions have so many rows.
    norm : {"layernorm", "rmsnorm"}
        Every norm of the model.
    placement : {"pre", "post", "sandwich", "output"}
        Where the norms stand: before each sub-layer, after its residual sum, on both sides of the
        sub-layer, or on its output.
    activation : {"gelu", "gelu_tanh", "relu", "silu", "sigmoid", "tanh"}
        Of the feed-forward network.
    gated : bool
        Three matrices instead of two: SwiGLU with "silu", GeGLU with "gelu".
    positions : {"learned", "sinusoidal", "rope", "none"}
        How the model knows the order of the tokens.
    sinusoidal_layout : {"interleaved", "half"}
        Sines and cosines in turn, or all sines first.
    bias : bool
        Whether the linear maps have one.
    qkv_bias : bool, optional
        Of the maps to queries, keys and values, where it differs from ``bias``.
    out_bias : bool, optional
        Of the map behind the attention, where it differs from ``bias``.
    ffn_bias : bool, optional
        Of the feed-forward network, where it differs from ``bias``.
    tied : bool
        The output matrix is the embedding table.
    eps : float
        What a norm adds to the variance or the mean square.
    rope_base : float
        Of rotary positions: pair i turns by base^(-2 i / n) a token.
    rope_scaling : dict, optional
        A rule that stretches rotary positions, in Hugging Face's spelling; see
        `npformer.functional.rope`.
    rope_layout : {"interleaved", "half"}
        Which features rotary positions pair: neighbours, or those half a head apart.
    rotary_dim : int, optional
        How many features of a head are rotated; all unless given.
    window : int, optional
        How many keys a query sees, its own included; all unless given.
    softcap : float, optional
        A smooth bound of the scores; none unless given.
    logit_softcap : float, optional
        A smooth bound of the logits; none unless given.
    scale : float, optional
        What the scores are multiplied by, 1 / sqrt(d_h) unless given.
    qk_norm : {None, "head", "projection"}
        A norm of queries and keys: of each head by itself, or of all heads together.
    norm_offset : float
        What is added to the gain of a norm: 1 for Gemma.
    embedding_scale : float
        What the token embedding is multiplied by; with sinusoidal positions sqrt(d), or they
        drown it.
    final_norm : bool, optional
        A norm after the last block: where the blocks leave the stream unnormed unless given.
    token_types : int
        Rows of a table of token types (BERT); 0 for none.
    embedding_norm : bool
        A norm after the embedding.
    pooler : bool
        BERT's summary of a text (encoders).
    head_bias : bool
        A bias of the logits.
    dropout : float
        Of the embedding and of each sub-layer's output.
    attention_dropout : float
        Of the attention weights.
    init : {"gpt2", "xavier", "xavier_uniform", "pytorch"}
        How the parameters start; see `npformer.init`.
    kernel : {"dense", "flash", "auto"}
        How attention is computed: head by head, in blocks, or in blocks where the text is long.
    recompute : bool
        Keep only each block's input and compute the rest again in the backward.
    L_encoder : int, optional
        Layers of the encoder of an encoder-decoder, L unless given; others refuse it.
    H_encoder : int, optional
        Heads of the encoder of an encoder-decoder, H unless given; they have the same width
        together. Others refuse it.
    d_ff_encoder : int, optional
        Feed-forward width of the encoder of an encoder-decoder; that of the decoder unless given.
    kind : {"decoder", "encoder", "encoder-decoder"}
        What is counted; `DecoderLM`, `Encoder` and `EncoderDecoder` set it in their ``cfg``.
    name : str, optional
        What messages call the model; equal configurations may differ in it.

    After construction ``H_kv``, ``d_h`` and ``d_ff`` hold the numbers in force.
    ``placement``, ``window`` and ``d_ff`` take one value or a tuple of L.
    """

    V: int
    d: int
    L: int
    H: int
    H_kv: int | None = None
    d_h: int | None = None
    d_ff: int | tuple[int, ...] | None = None
    T_max: int = 1024
    norm: str = "layernorm"
    placement: str | tuple[str, ...] = "pre"
    activation: str = "gelu_tanh"
    gated: bool = False
    positions: str = "learned"
    bias: bool = True
    tied: bool = True
    eps: float = 1e-5
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    ffn_bias: bool | None = None
    rope_base: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_layout: str = "interleaved"
    rotary_dim: int | None = None
    window: int | tuple[int | None, ...] | None = None
    softcap: float | None = None
    logit_softcap: float | None = None
    scale: float | None = None
    qk_norm: str | None = None
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    final_norm: bool | None = None
    token_types: int = 0
    embedding_norm: bool = False
    pooler: bool = False
    head_bias: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    init: str = "gpt2"
    kernel: str = "dense"
    recompute: bool = False
    L_encoder: int | None = None
    H_encoder: int | None = None
    d_ff_encoder: int | None = None
    sinusoidal_layout: str = "interleaved"
    kind: str = "decoder"
    name: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("V", "d", "L", "H", "T_max"):
            self._positive_int(name, getattr(self, name))
        if self.L > MOST_LAYERS:
            raise ValueError(f"L must be at most {MOST_LAYERS}, but is {self.L}")
        for name in ("placement", "window", "d_ff"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, value := tuple(value))
            if isinstance(value, tuple) and len(value) != self.L:
                raise ValueError(
                    f"{name} must be one value or one for each of the L = {self.L} layers, but it "
                    f"has {len(value)}"
                )
        self._check_kinds()
        self._one_of("norm", self.norm, NORMS)
        self._one_of("activation", self.activation, ACTIVATIONS)
        self._one_of("positions", self.positions, POSITIONS)
        self._one_of("sinusoidal_layout", self.sinusoidal_layout, LAYOUTS)
        self._one_of("init", self.init, MATRICES)
        self._one_of("kind", self.kind, KINDS)
        if self.norm_offset and self.norm != "rmsnorm":
            raise ValueError(f"norm_offset needs norm='rmsnorm', but the norm is {self.norm!r}")
        if self.positions == "sinusoidal" and self.d % 2:
            raise ValueError(f"sinusoidal positions need an even d, but d = {self.d}")
        if self.d_ff is None:
            object.__setattr__(self, "d_ff", parity_width(self.d) if self.gated else 4 * self.d)
        for name in ("L_encoder", "H_encoder", "d_ff_encoder"):
            if getattr(self, name) is not None:
                self._positive_int(name, getattr(self, name))
        fields = (self.placement, self.window, self.d_ff)
        for layer in range(self.L if any(isinstance(f, tuple) for f in fields) else 1):
            self._one_of("placement", self.at("placement", layer), PLACEMENTS)
            self._positive_int("d_ff", self.at("d_ff", layer))
            attention = self.attention(layer)
        object.__setattr__(self, "d_h", attention.d_h)
        object.__setattr__(self, "H_kv", attention.H_kv)
        if (self.H * attention.width) % (self.H_encoder or self.H):
            raise ValueError(
                f"H_encoder = {self.H_encoder} heads can't share the width H d_h = "
                f"{self.H * attention.width} equally"
            )

    def _check_kinds(self) -> None:
        """Each field holds the kind of value that it is about; a file may hold anything."""
        for name in ("bias", "gated", "tied", "embedding_norm", "pooler", "head_bias", "recompute"):
            require_bool(name, getattr(self, name))
        for name in ("qkv_bias", "out_bias", "ffn_bias", "final_norm"):
            if getattr(self, name) is not None:
                require_bool(name, getattr(self, name))
        types = self.token_types
        if isinstance(types, bool) or not isinstance(types, Integral) or types < 0:
            raise ValueError(f"token_types must be a whole number from 0 on, but is {types!r}")
        for name in ("embedding_scale", "norm_offset", "dropout", "attention_dropout"):
            require_number(name, getattr(self, name))
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], but is {getattr(self, name)}")
        if self.logit_softcap is not None:
            require_number("logit_softcap", self.logit_softcap)
            if self.logit_softcap <= 0:
                raise ValueError(f"logit_softcap must be positive, but is {self.logit_softcap}")

    @staticmethod
    def _positive_int(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a whole number from 1 on, but is {value!r}")

    @staticmethod
    def _one_of(name: str, value: Any, names: Any) -> None:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"{name} must be one of {', '.join(names)}, but is {value!r}")

    def check_all_is_read(self) -> None:
        """Raise ValueError where a field is set that models of this ``kind`` have no use for.

        It is no part of the construction, since a model sets its kind: `Encoder` may be given a
        configuration with a pooler that does not say what it is for.
        """
        wanted: dict[str, str] = {}
        if self.kind != "encoder-decoder":
            same = {"L_encoder": self.L, "H_encoder": self.H, "d_ff_encoder": self.d_ff}
            own = [name for name, n in same.items() if getattr(self, name) not in (None, n)]
            wanted = dict.fromkeys(own, "an encoder-decoder")
        if self.kind == "decoder" and self.pooler:
            wanted["pooler"] = "an encoder"
        if self.kind == "encoder":
            wanted |= {name: "a decoder" for name in OF_THE_LOGITS if getattr(self, name)}
        for name, kind in wanted.items():
            mine = f"{'a' if self.kind == 'decoder' else 'an'} {self.kind}"
            raise ValueError(f"{name} = {getattr(self, name)} is for {kind}, but this is {mine}")

    def at(self, name: str, layer: int) -> Any:
        """Return the value of a field in one layer."""
        value = getattr(self, name)
        return value[layer] if isinstance(value, tuple) else value

    def attention(self, layer: int, *, causal: bool = True) -> AttentionConfig:
        """Return what the self-attention of one layer is."""
        return AttentionConfig(
            d=self.d,
            H=self.H,
            H_kv=self.H_kv,
            d_h=self.d_h,
            causal=causal,
            window=self.at("window", layer),
            scale=self.scale,
            softcap=self.softcap,
            dropout=self.attention_dropout,
            bias=self.bias if self.qkv_bias is None else self.qkv_bias,
            out_bias=self.bias if self.out_bias is None else self.out_bias,
            rope=self.positions == "rope",
            rope_base=self.rope_base,
            rope_scaling=self.rope_scaling,
            rope_layout=self.rope_layout,
            rotary_dim=self.rotary_dim,
            qk_norm=self.qk_norm,
            eps=self.eps,
            norm_offset=self.norm_offset,
            kernel=self.kernel,
        )

    def cross_attention(self) -> AttentionConfig:
        """Return what cross-attention is: no order between the two texts, so no rotation."""
        return AttentionConfig(
            d=self.d,
            H=self.H,
            H_kv=self.H_kv,
            d_h=self.d_h,
            scale=self.scale,
            softcap=self.softcap,
            dropout=self.attention_dropout,
            bias=self.bias if self.qkv_bias is None else self.qkv_bias,
            out_bias=self.bias if self.out_bias is None else self.out_bias,
            qk_norm=self.qk_norm,
            eps=self.eps,
            norm_offset=self.norm_offset,
            kernel=self.kernel,
        )

    def encoder_side(self) -> TransformerConfig:
        """Return the encoder of an encoder-decoder.

        It has its own depth, heads and feed-forward width. Where its depth is another one, all its
        layers are as the first of the decoder.
        """
        changed: dict[str, Any] = {}
        if self.L_encoder not in (None, self.L):
            changed = {name: self.at(name, 0) for name in ("placement", "window", "d_ff")}
            changed["L"] = self.L_encoder
        H = self.H_encoder or self.H
        if self.H != H:
            changed |= {"H": H, "H_kv": H, "d_h": self.H * self.attention(0).width // H}
        if self.d_ff_encoder is not None:
            changed["d_ff"] = self.d_ff_encoder
        changed |= {name: none for name, none in OF_THE_LOGITS.items() if getattr(self, name)}
        return replace(self, **changed) if changed else self

    @property
    def needs_final_norm(self) -> bool:
        """Whether a norm follows the last block."""
        if self.final_norm is not None:
            return self.final_norm
        return self.at("placement", self.L - 1) != "post"
