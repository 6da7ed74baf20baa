"""`ExpertsConfig`: a decoder with latent attention and experts (DeepSeek-V2 and V3), for accounts.

There are no layers for it here: what it costs can be counted without them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class ExpertsConfig:
    r"""The sizes of a decoder whose keys and values share a latent vector.

    Latent attention (MLA) projects a token to a vector of ``kv_rank`` numbers, which is all that
    the cache keeps of it beside ``d_rope`` rotated numbers that the heads share,

    .. math::
        c = \operatorname{norm}(x W_{DKV}), \qquad [k_h; v_h] = c\, W_{UKV,h}, \qquad
        k_h \leftarrow [k_h; \operatorname{rope}(x W_{KR})],

    and queries pass through a latent vector of ``q_rank`` numbers in the same way. From layer
    ``dense_layers`` on the feed-forward network is a mixture: ``shared_experts`` networks that
    every token passes and ``top_k`` of ``experts`` that a gate chooses for it.

    Attributes
    ----------
    V, d, L, H : int
        Vocabulary, width, layers, heads.
    q_rank, kv_rank : int
        Width of the latent vectors.
    d_nope, d_rope, d_v : int
        Width of a head's query and key without and with rotation, and of its value.
    d_ff, dense_layers : int
        The first layers have one gated network of this width.
    d_expert, experts, shared_experts, top_k : int
        The others have experts.
    gate_bias : bool
        One number for each expert that balances their load.
    T_max : int
        The longest text.
    name : str, optional
        What messages call it.

    References
    ----------
    DeepSeek-AI, 2024, arXiv:2405.04434 (V2), section 2.1; arXiv:2412.19437 (V3).
    """

    V: int
    d: int
    L: int
    H: int
    q_rank: int
    kv_rank: int
    d_nope: int
    d_rope: int
    d_v: int
    d_ff: int
    dense_layers: int
    d_expert: int
    experts: int
    shared_experts: int
    top_k: int
    gate_bias: bool = False
    T_max: int = 163840
    name: str | None = None

    def __post_init__(self) -> None:
        least = {"dense_layers": 0, "shared_experts": 0}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in ("gate_bias", "name"):
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                or value < least.get(f.name, 1)
            ):
                raise ValueError(
                    f"{f.name} must be a whole number from {least.get(f.name, 1)} on, "
                    f"but is {value!r}"
                )
        if self.dense_layers > self.L:
            raise ValueError(f"dense_layers = {self.dense_layers} is more than L = {self.L}")
        if self.top_k > self.experts:
            raise ValueError(f"top_k = {self.top_k} is more than there are experts, {self.experts}")

    @property
    def kind(self) -> str:
        """It is a decoder."""
        return "decoder"

    @property
    def d_query(self) -> int:
        """Width of a head's query and key, ``d_nope + d_rope``."""
        return self.d_nope + self.d_rope

    @property
    def cached(self) -> int:
        """Numbers that the cache keeps of a token in one layer, ``kv_rank + d_rope``."""
        return self.kv_rank + self.d_rope
