"""Groups of parameters, by what they are: which of them decay, and how fast each learns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..linear import Embedding
from ..module import Module, Parameter
from ..norm import NORMS
from ..position import LearnedPositions

KINDS = ("matrix", "embedding", "norm", "bias")


@dataclass(frozen=True)
class Group:
    """Parameters that share their options.

    Attributes
    ----------
    parameters : dict of name to Parameter
    weight_decay : float
    lr_scale : float
        What the learning rate is multiplied by.
    """

    parameters: Mapping[str, Parameter]
    weight_decay: float = 0.0
    lr_scale: float = 1.0


def kinds(model: Module) -> dict[str, str]:
    """Return the kind of every parameter, each once: one of `KINDS`.

    ``norm`` is what a norm holds; ``embedding`` a table of rows (tokens, positions, token types,
    the output's own table); of the rest, ``bias`` has fewer than two axes and ``matrix`` more.
    """
    own = {name for name, _ in model.named_parameters()}
    found: dict[str, str] = {}
    for prefix, module in model.named_modules():
        for key, child in module.children():
            name = f"{prefix}.{key}" if prefix else key
            if not isinstance(child, Parameter) or name not in own:
                continue
            if isinstance(module, tuple(NORMS.values())):
                found[name] = "norm"
            elif child.value.ndim < 2:
                found[name] = "bias"
            elif isinstance(module, Embedding | LearnedPositions) or key == "E":
                found[name] = "embedding"
            else:
                found[name] = "matrix"
    return found


def parameter_groups(
    model: Module,
    weight_decay: float,
    *,
    decayed: Iterable[str] = ("matrix", "embedding"),
    lr_scale: Mapping[str, float] | None = None,
) -> list[Group]:
    """Share the parameters out to groups: what decays, and what doesn't.

    Decay pulls a map towards doing less. A gain pulled from 1 to 0 switches its features off
    instead, and a bias has no direction to shrink along, so neither decays unless asked to.

    Parameters
    ----------
    model : Module
    weight_decay : float
        Of the kinds in ``decayed``; the others have 0.
    decayed : names of `KINDS`
    lr_scale : dict of kind to float, optional
        What the learning rate of a kind is multiplied by.

    Returns
    -------
    list of Group
        Every parameter is in exactly one, a tied one under its first name.
    """
    decayed, scales = set(decayed), dict(lr_scale or {})
    for kind in (*decayed, *scales):
        if kind not in KINDS:
            raise ValueError(f"a kind of parameter is one of {', '.join(KINDS)}, not {kind!r}")
    kind_of = kinds(model)
    members: dict[tuple[float, float], dict[str, Parameter]] = {}
    for name, p in model.named_parameters():
        kind = kind_of[name]
        options = (weight_decay if kind in decayed else 0.0, scales.get(kind, 1.0))
        members.setdefault(options, {})[name] = p
    return [Group(parameters, *options) for options, parameters in members.items()]
