"""Everything that ``npformer gradcheck`` runs: one entry a pair, layer or model, with its options.

An entry is a name and a function ``example(rng)`` that returns ``(thing, inputs, options)``, the
same as a reader's own file. A new layer is covered by being entered here: the command checks its
gradients, and the contract test its manners.

Sizes are small and pairwise different, so that a mixed-up axis is an error and not a coincidence;
a few entries have B = T = H on purpose, where a wrong broadcast fits. Parameters are random and of
order one: with a gain of 1 a forgotten gain goes unseen.
"""

from . import attentions, formulas, layers, models
from .registry import CASES, Case, enter, randomised

__all__ = ["CASES", "Case", "attentions", "enter", "formulas", "layers", "models", "randomised"]
