"""Parameters by part, with shares (chapter example 2.5.1; text B section 7)."""

from __future__ import annotations

from dataclasses import dataclass

from ..sizes import AnyConfig, parts

GROUPS = ("embedding", "attention", "feed-forward", "norm", "head")


@dataclass(frozen=True)
class ParameterRow:
    """One kind of parameters.

    Attributes
    ----------
    group : str
        One of "embedding", "attention", "feed-forward", "norm", "head".
    part : str
    formula : str
        For one layer where ``layers`` is not 0.
    per_layer : int or None
        Numbers in one layer; None outside the blocks and where layers differ.
    layers : int
        How many layers have them, 0 for parts outside the blocks.
    count : int
        Numbers altogether; 0 for a table that is tied to one counted before.
    share : float
        Of all parameters.
    active : int
        Numbers that one token uses: fewer only where it is sent to some of many experts.
    """

    group: str
    part: str
    formula: str
    per_layer: int | None
    layers: int
    count: int
    share: float
    active: int


@dataclass(frozen=True)
class Parameters:
    """The parameters of a model, row by row."""

    rows: tuple[ParameterRow, ...]

    @property
    def total(self) -> int:
        """All of them, a tied table once."""
        return sum(r.count for r in self.rows)

    @property
    def active(self) -> int:
        """Those that one token uses, with the embedding table and the output matrix."""
        return sum(r.active for r in self.rows)

    @property
    def non_embedding(self) -> int:
        """Without tables of tokens, positions and types, and without the output matrix."""
        return self.total - sum(
            r.count for r in self.rows if r.group == "embedding" or r.part == "output matrix"
        )

    @property
    def block(self) -> int | None:
        """Those of one block; None where blocks differ, in an encoder-decoder for example."""
        inside = [r for r in self.rows if r.layers]
        if len({r.layers for r in inside}) != 1 or any(r.per_layer is None for r in inside):
            return None
        if any(r.part.startswith("encoder ") for r in inside):
            return None
        return sum(r.per_layer or 0 for r in inside)

    @property
    def groups(self) -> dict[str, int]:
        """Numbers of each group."""
        return {g: sum(r.count for r in self.rows if r.group == g) for g in GROUPS}


def parameters(cfg: AnyConfig) -> Parameters:
    r"""Count the parameters of a model by part.

    One block has :math:`4 d^2` numbers of attention (fewer with :math:`H_{kv} < H`:
    :math:`2 d (H + H_{kv}) d_h`), :math:`2 d\, d_{ff}` of the feed-forward network or
    :math:`3 d\, d_{ff}` where it is gated, and a few d of norms and biases. A table that is tied
    is counted once.

    Parameters
    ----------
    cfg : TransformerConfig or ExpertsConfig
        ``cfg.kind`` says which model of it is counted.

    Returns
    -------
    account : Parameters

    References
    ----------
    Chapter example 2.5.1 (87 of 110 million in 12 blocks). Text B section 7 counts Llama-2-7B with
    grouped queries and tied tables: it has neither, and the rows there add up to 5.80e9 and not to
    the 6.74e9 given, which is what this function finds.

    Examples
    --------
    >>> import npformer as nf
    >>> account = parameters(nf.preset("chapter-12-layer"))
    >>> account.block, account.total
    (7087872, 109632000)
    """
    found = parts(cfg)
    total = sum(p.count for p in found)
    return Parameters(
        tuple(
            ParameterRow(
                p.group,
                p.name,
                p.formula,
                p.per_layer,
                p.layers,
                p.count,
                p.count / total,
                p.active,
            )
            for p in found
        )
    )
