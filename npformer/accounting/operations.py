"""Floating-point operations of a forward pass, a backward pass and a decoding step.

A multiply-add is two operations. Matrix products are counted and nothing else: softmax, norms,
activations, rotations, biases and sums are of lower order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..config import TransformerConfig
from ..experts import ExpertsConfig
from ..sizes import AnyConfig
from .units import positive

CONVENTIONS = ("dense", "causal", "half")


def attention_pairs(
    T: int, S: int, *, causal: bool = False, window: int | None = None, convention: str = "dense"
) -> float:
    r"""Count the query-key pairs of one head.

    ==========  =====================================================================
    convention  pairs
    ==========  =====================================================================
    "dense"     T S, whatever is hidden: what plain products of matrices compute
    "causal"    those that the causal rule and the window leave visible, exactly:
                :math:`T (S - T) + T (T + 1) / 2` without a window
    "half"      :math:`T (S - T) + T^2 / 2`: the triangle as half a square, as many
                papers and benchmarks do
    ==========  =====================================================================

    The last two differ from the first only for causal attention ("causal" for any window).
    """
    _check_convention(convention)
    if convention == "dense" or (not causal and (window is None or convention == "half")):
        return T * S
    if convention == "half":
        return T * S - min(T, S) ** 2 / 2
    w = S if window is None else window
    if causal:  # query i sees min(S - T + i + 1, w) keys, none where that is negative
        return _staircase(S, w) - _staircase(S - T, w)
    total = 0
    for place in range(S - T, S):
        total += max(0, min(S - 1, place + w - 1) - max(0, place - w + 1) + 1)
    return total


def _staircase(n: int, top: int) -> int:
    """Sum of min(k, top) over k = 1 ... n."""
    if n <= 0:
        return 0
    low = min(n, top)
    return low * (low + 1) // 2 + (n - low) * top


def _check_convention(convention: str) -> None:
    if convention not in CONVENTIONS:
        raise ValueError(
            f"convention must be one of {', '.join(CONVENTIONS)}, but is {convention!r}"
        )


def attention_flops(
    B: int,
    H: int,
    T: int,
    S: int,
    d_h: int,
    d_v: int | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    convention: str = "dense",
) -> int:
    r"""Operations of the scores :math:`Q K^T` and of the weighted values :math:`P V`.

    .. math:: 2\, B H\, (d_h + d_v) \times \text{pairs}

    with the pairs of `attention_pairs`. H counts the query heads: key-value heads that are shared
    save memory and projections, but not these products.

    Examples
    --------
    A step of decoding with 9 tokens in the cache:

    >>> attention_flops(B=1, H=1, T=1, S=10, d_h=8, causal=True)
    320
    """
    positive(B=B, H=H, T=T, S=S, d_h=d_h)
    d_v = d_h if d_v is None else d_v
    pairs = attention_pairs(T, S, causal=causal, window=window, convention=convention)
    return round(2 * pairs) * B * H * (d_h + d_v)


@dataclass(frozen=True)
class FlopsRow:
    """Operations of one part in all layers; the backward takes two products for each one."""

    part: str
    forward: int

    @property
    def backward(self) -> int:
        """Twice the forward: a product y = x W asks for dx = dy W^T and dW = x^T dy."""
        return 2 * self.forward


@dataclass(frozen=True)
class Flops:
    """The operations of one pass, row by row.

    Attributes
    ----------
    rows : tuple of FlopsRow
    convention : str
        See `attention_pairs`.
    recomputed : int
        What the backward passes of this package compute again, on top of ``backward``: the scores,
        since the weights are not kept, and with ``recompute`` the forward pass of every block; 0
        for experts, which have no layers here.
    decoding_step : int or None
        Forward operations of one token a row after T - 1 cached ones; None for an encoder.
    """

    rows: tuple[FlopsRow, ...]
    convention: str
    recomputed: int
    decoding_step: int | None

    @property
    def forward(self) -> int:
        """Sum of the forward pass."""
        return sum(r.forward for r in self.rows)

    @property
    def backward(self) -> int:
        """Sum of the backward pass."""
        return sum(r.backward for r in self.rows)

    @property
    def total(self) -> int:
        """Forward and backward: one step of training."""
        return self.forward + self.backward


def flops(
    cfg: AnyConfig,
    B: int,
    T: int,
    S: int | None = None,
    *,
    source: int | None = None,
    convention: str = "dense",
) -> Flops:
    r"""Count the operations of a pass over B rows of T tokens.

    A product of (n, k) and (k, m) matrices takes 2 n k m. For a decoder

    .. math::
        \text{projections} = 2 B T L \cdot 2 d (H + H_{kv}) d_h, \qquad
        \text{feed-forward} = 2 B T L \cdot (2 \text{ or } 3)\, d\, d_{ff}, \qquad
        \text{logits} = 2 B T d V,

    and the attention as in `attention_flops`. Without the attention this is twice the number of
    matrix parameters for each token, six times for forward and backward together.

    Parameters
    ----------
    cfg : TransformerConfig or ExpertsConfig
    B, T : int
        Rows, and new tokens in each.
    S : int, optional
        Keys that the last of them sees, the cached ones included; T unless given. With a cache,
        S > T, an encoder and its keys and values have been computed before.
    source : int, optional
        Tokens on the encoder's side of an encoder-decoder; T unless given.
    convention : {"dense", "causal", "half"}

    Returns
    -------
    Flops

    References
    ----------
    Kaplan et al., 2020, arXiv:2001.08361, section 2.1 (2 N forward and 6 N in all for a token);
    chapter 2.5.6; DeepSeek-AI, 2024, arXiv:2405.04434, section 2.1 (absorbed matrices).
    """
    S = T if S is None else S
    source = T if source is None else source
    positive(B=B, T=T, S=S, source=source)
    if S < T:
        raise ValueError(f"S counts the new tokens too: it must be T = {T} or more, but is {S}")
    _check_convention(convention)
    rows = _merged(_rows(cfg, B, T, S, source, convention))
    again = 0
    if isinstance(cfg, TransformerConfig):
        again = sum(r.forward for r in rows if r.part.endswith("scores"))
        if cfg.recompute:
            again += sum(r.forward for r in rows if r.part != "logits")
    step = None
    if cfg.kind != "encoder":
        step = sum(r.forward for r in _rows(cfg, B, 1, S, source, convention, cached=True))
    return Flops(tuple(rows), convention, again, step)


def _merged(rows: Iterator[FlopsRow]) -> list[FlopsRow]:
    """Add rows of the same part, in the order in which they come first."""
    sums: dict[str, int] = {}
    for r in rows:
        sums[r.part] = sums.get(r.part, 0) + r.forward
    return [FlopsRow(part, n) for part, n in sums.items()]


def _rows(
    cfg: AnyConfig, B: int, T: int, S: int, source: int, convention: str, cached: bool = False
) -> Iterator[FlopsRow]:
    cached = cached or S > T
    if isinstance(cfg, ExpertsConfig):
        yield from _experts(cfg, B, T, S, convention, absorbed=cached)
        return
    if cfg.kind == "encoder-decoder":
        if not cached:
            yield from _blocks(cfg.encoder_side(), B, source, source, convention, "encoder ", False)
        yield from _blocks(cfg, B, T, S, convention, "decoder ", True)
        yield from _cross(cfg, B, T, source, cached)
    else:
        yield from _blocks(cfg, B, T, S, convention, "", cfg.kind == "decoder")
    if cfg.kind != "encoder":
        yield FlopsRow("logits", 2 * B * T * cfg.d * cfg.V)


def _blocks(
    cfg: TransformerConfig, B: int, T: int, S: int, convention: str, side: str, causal: bool
) -> Iterator[FlopsRow]:
    a, token = cfg.attention(0), 2 * B * T
    yield FlopsRow(f"{side}query projection", cfg.L * token * cfg.d * a.H * a.width)
    kv = cfg.L * token * 2 * cfg.d * a.heads_kv * a.width
    yield FlopsRow(f"{side}key and value projections", kv)
    for layer in range(cfg.L):
        window = cfg.at("window", layer)
        pairs = attention_pairs(T, S, causal=causal, window=window, convention=convention)
        product = round(2 * pairs) * B * a.H * a.width
        yield FlopsRow(f"{side}scores", product)
        yield FlopsRow(f"{side}weighted values", product)
    yield FlopsRow(f"{side}output projection", cfg.L * token * a.H * a.width * cfg.d)
    widths = sum(cfg.at("d_ff", layer) for layer in range(cfg.L))
    yield FlopsRow(f"{side}feed-forward", token * (3 if cfg.gated else 2) * cfg.d * widths)


def _cross(cfg: TransformerConfig, B: int, T: int, source: int, cached: bool) -> Iterator[FlopsRow]:
    a = cfg.cross_attention()
    width, side = a.H * a.width, "cross-attention "
    yield FlopsRow(f"{side}query projection", cfg.L * 2 * B * T * cfg.d * width)
    if not cached:
        kv = cfg.L * 2 * B * source * 2 * cfg.d * a.heads_kv * a.width
        yield FlopsRow(f"{side}key and value projections", kv)
    product = cfg.L * 2 * B * T * source * width
    yield FlopsRow(f"{side}scores", product)
    yield FlopsRow(f"{side}weighted values", product)
    yield FlopsRow(f"{side}output projection", cfg.L * 2 * B * T * width * cfg.d)


def _experts(
    cfg: ExpertsConfig, B: int, T: int, S: int, convention: str, absorbed: bool
) -> Iterator[FlopsRow]:
    """Latent attention, and the experts that a token is sent to.

    With a cache the keys and values of earlier tokens are not expanded again: the matrix that
    makes keys of the latent vector is multiplied into the queries, the one that makes values into
    the output, so scores and values are taken of the kv_rank latent numbers.
    """
    d, H, L, token = cfg.d, cfg.H, cfg.L, 2 * B * T
    queries = d * cfg.q_rank + cfg.q_rank * H * cfg.d_query
    yield FlopsRow("query projection", L * token * queries)
    yield FlopsRow("key and value projections", L * token * d * cfg.cached)
    expand = cfg.kv_rank * H * (cfg.d_nope + cfg.d_v)  # for one token, in either order
    part = "absorbed matrices" if absorbed else "keys and values from the latent vector"
    yield FlopsRow(part, L * token * expand)
    pairs = attention_pairs(T, S, causal=True, convention=convention)
    d_k, d_v = (cfg.cached, cfg.kv_rank) if absorbed else (cfg.d_query, cfg.d_v)
    yield FlopsRow("scores", L * round(2 * pairs) * B * H * d_k)
    yield FlopsRow("weighted values", L * round(2 * pairs) * B * H * d_v)
    yield FlopsRow("output projection", L * token * H * cfg.d_v * d)
    dense, sparse = cfg.dense_layers, L - cfg.dense_layers
    yield FlopsRow("dense networks", dense * token * 3 * d * cfg.d_ff)
    chosen = cfg.top_k + cfg.shared_experts
    yield FlopsRow("experts", sparse * token * 3 * d * cfg.d_expert * chosen)
    yield FlopsRow("gates", sparse * token * d * cfg.experts)
    yield FlopsRow("logits", token * d * cfg.V)
