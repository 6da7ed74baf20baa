r"""Rotary frequencies, and the rules that stretch them over longer texts (text B section 3.2).

A pair of features turns by :math:`\theta_i` a position, so its wavelength is
:math:`\lambda_i = 2\pi / \theta_i`. A model trained on texts of L tokens has seen only part of a
turn of the slow pairs, and longer texts bring angles that it does not know. Each rule below maps
the frequencies, and some scale the attention scores too. The names and keys are Hugging Face's;
a rule's keyword arguments are its keys, those without a default it must have.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .arrays import Array, is_number, is_whole

BASE = 10000.0
"""The base of Su et al., in force unless another one is given."""


def plain(n: int, base: float) -> Array:
    r"""(n / 2,) frequencies :math:`\theta_i = \text{base}^{-2i/n}` (arXiv:2104.09864)."""
    return np.asarray(float(base) ** (-np.arange(0, n, 2) / n))


# -------------------------------------------- the rules: (n / 2,) frequencies, attention factor


def default(n: int, base: float, length: int | None) -> tuple[Array, float]:
    """The frequencies as they are."""
    return plain(n, base), 1.0


def linear(n: int, base: float, length: int | None, *, factor: float) -> tuple[Array, float]:
    r"""Position interpolation: :math:`\theta_i / s`, as if position m were m / s.

    Chen et al., 2023, arXiv:2306.15595.
    """
    return plain(n, base) / factor, 1.0


def ntk(n: int, base: float, length: int | None, *, factor: float) -> tuple[Array, float]:
    r"""NTK-aware interpolation: the base becomes :math:`b\, s^{n/(n-2)}`.

    The slowest pair is stretched by s exactly and the fastest not at all. Peng et al., 2023,
    arXiv:2309.00071, Eq. 16.
    """
    return plain(n, base * factor ** (n / (n - 2))), 1.0


def dynamic(
    n: int,
    base: float,
    length: int | None,
    *,
    factor: float,
    original_max_position_embeddings: int,
) -> tuple[Array, float]:
    r"""NTK-aware interpolation that follows the length T of the text.

    .. math:: b' = b\,\bigl(s\,T/L - (s - 1)\bigr)^{n/(n-2)}, \qquad T \ge L

    and the plain frequencies for texts up to L. transformers, ``modeling_rope_utils.py``; Peng et
    al., 2023, arXiv:2309.00071, section 3.3.
    """
    L = original_max_position_embeddings
    stretch = factor * max(length or 0, L) / L - (factor - 1)
    return plain(n, base * stretch ** (n / (n - 2))), 1.0


def yarn_paper(
    n: int,
    base: float,
    length: int | None,
    *,
    factor: float,
    original_max_position_embeddings: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
) -> tuple[Array, float]:
    r"""YaRN as its paper has it: interpolate the slow pairs, keep the fast ones.

    With :math:`r_i = L/\lambda_i` turns in the length L,

    .. math::
        \theta'_i = (1 - \gamma_i)\,\theta_i/s + \gamma_i\,\theta_i, \qquad
        \gamma_i = \operatorname{clip}\Bigl(\frac{r_i - \alpha}{\beta - \alpha}, 0, 1\Bigr),

    :math:`\alpha, \beta` = ``beta_slow``, ``beta_fast``; queries and keys are multiplied by
    :math:`\sqrt{1/t} = 0.1 \ln s + 1`, the scores by its square. Peng et al., 2023,
    arXiv:2309.00071, Eq. 17 to 22 (Eq. 17 prints b' where b is meant).
    """
    theta = plain(n, base)
    turns = original_max_position_embeddings * theta / (2 * math.pi)
    keep = np.clip((turns - beta_slow) / (beta_fast - beta_slow), 0, 1)
    temperature = _mscale(factor) if attention_factor is None else attention_factor
    return (1 - keep) * theta / factor + keep * theta, temperature


def yarn(
    n: int,
    base: float,
    length: int | None,
    *,
    factor: float,
    original_max_position_embeddings: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    truncate: bool = True,
) -> tuple[Array, float]:
    r"""YaRN as Hugging Face has it: the ramp is linear in the index i, not in the turns.

    .. math::
        \theta'_i = \rho_i\,\theta_i/s + (1 - \rho_i)\,\theta_i, \qquad
        \rho_i = \operatorname{clip}\Bigl(\frac{i - c(\beta)}{c(\alpha) - c(\beta)}, 0, 1\Bigr),
        \qquad c(x) = \frac{n \ln(L / 2\pi x)}{2 \ln b}

    where c(x) is the pair that makes x turns, rounded outwards where ``truncate``. One frequency
    may differ by a factor of 3 from `yarn_paper`. With g(m) = 0.1 m ln s + 1 the attention factor
    is g(1), or g(``mscale``) / g(``mscale_all_dim``) where both are given. transformers,
    ``modeling_rope_utils.py``.
    """
    theta = plain(n, base)
    low, high = (
        n
        * math.log(original_max_position_embeddings / (2 * math.pi * turns))
        / (2 * math.log(base))
        for turns in (beta_fast, beta_slow)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n - 1)
    if low == high:
        high += 0.001  # their guard against 0 / 0
    stretch = np.clip((np.arange(n // 2) - low) / (high - low), 0, 1)
    if attention_factor is None:
        attention_factor = _mscale(factor)
        if mscale and mscale_all_dim:
            attention_factor = _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
    return stretch * theta / factor + (1 - stretch) * theta, attention_factor


def llama3(
    n: int,
    base: float,
    length: int | None,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
) -> tuple[Array, float]:
    r"""Llama 3.1's three bands: short waves stay, long ones are divided, between them a blend.

    .. math::
        \theta'_i = (1 - u_i)\,\theta_i/s + u_i\,\theta_i, \qquad
        u_i = \operatorname{clip}\Bigl(\frac{L/\lambda_i - \text{low}}{\text{high} - \text{low}},
        0, 1\Bigr)

    transformers, ``modeling_rope_utils.py``.
    """
    theta = plain(n, base)
    turns = original_max_position_embeddings * theta / (2 * math.pi)
    keep = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return (1 - keep) * theta / factor + keep * theta, 1.0


def longrope(
    n: int,
    base: float,
    length: int | None,
    *,
    short_factor: Sequence[float],
    long_factor: Sequence[float],
    original_max_position_embeddings: int,
    factor: float | None = None,
    attention_factor: float | None = None,
    max_position_embeddings: int | None = None,
) -> tuple[Array, float]:
    r"""LongRoPE: each frequency divided by a number of its own, :math:`\theta_i / e_i`.

    There are two lists of n / 2 numbers, for texts up to L and for longer ones. The attention
    factor is :math:`\sqrt{1 + \ln s / \ln L}`, where s is ``factor`` or
    ``max_position_embeddings`` / L. Ding et al., 2024, arXiv:2402.13753; transformers,
    ``modeling_rope_utils.py``.
    """
    L = original_max_position_embeddings
    for name, numbers in (("short_factor", short_factor), ("long_factor", long_factor)):
        if len(numbers) != n // 2:
            raise ValueError(
                f'rope scaling "longrope" needs n / 2 = {n // 2} numbers in {name}, but there are '
                f"{len(numbers)}"
            )
    if attention_factor is None:
        if factor is None and max_position_embeddings is None:
            raise ValueError(
                'rope scaling "longrope" needs one of factor, attention_factor and '
                "max_position_embeddings, but has none"
            )
        s = (max_position_embeddings or 0) / L if factor is None else factor
        attention_factor = math.sqrt(1 + math.log(s) / math.log(L)) if s > 1 else 1.0
    divisors = long_factor if (length or 0) > L else short_factor
    return plain(n, base) / np.asarray(divisors, np.float64), attention_factor


def _mscale(factor: float, mscale: float = 1.0) -> float:
    return 0.1 * mscale * math.log(factor) + 1


RULES: dict[str, Callable[..., tuple[Array, float]]] = {
    "default": default,
    "linear": linear,
    "ntk": ntk,
    "dynamic": dynamic,
    "yarn": yarn,
    "yarn_paper": yarn_paper,
    "llama3": llama3,
    "longrope": longrope,
}
"""The rules by their ``rope_type``."""

KEYS: dict[str, dict[str, Any]] = {
    name: {
        key.name: key.default
        for key in inspect.signature(rule).parameters.values()
        if key.kind is key.KEYWORD_ONLY
    }
    for name, rule in RULES.items()
}
"""The keys of each rule with their defaults; `inspect.Parameter.empty` where it must be given."""

BY_LENGTH = ("dynamic", "longrope")
"""Rules whose frequencies change with the length of the text."""


# ------------------------------------------------------------------------ reading the dictionary


class Scaling(NamedTuple):
    """A checked scaling dictionary."""

    name: str
    base: float
    partial: float
    """Which part of d_h is rotated."""
    options: dict[str, Any]
    """The keyword arguments of the rule."""

    @property
    def by_length(self) -> bool:
        """Whether one text may be rotated by other frequencies when it grows."""
        return self.name in BY_LENGTH


def read_scaling(scaling: dict[str, Any] | None, base: float = BASE) -> Scaling:
    """Check a scaling dictionary in Hugging Face's spelling.

    The rule is called ``rope_type`` or ``type``. Every rule may have ``rope_theta``, which takes
    the place of ``base`` and must not contradict it, and ``partial_rotary_factor``. A key whose
    value is None counts as not given.

    Raises
    ------
    TypeError
        if it is not a dictionary.
    ValueError
        if the rule is not known, a key is missing, has no meaning or a value that makes no sense.
    """
    _check("base", base)
    if scaling is None:
        return Scaling("default", float(base), 1.0, {})
    if not isinstance(scaling, dict):
        raise TypeError(f"rope scaling must be a dictionary, but it is {scaling!r}")
    options = {key: value for key, value in scaling.items() if value is not None}
    names = [options.pop(key) for key in ("rope_type", "type") if key in options] or ["default"]
    name = names[0]
    if names[-1] != name:
        raise ValueError(f"rope scaling has a rope_type and a type that differ: {scaling!r}")
    if not isinstance(name, str) or name not in RULES:
        raise ValueError(f"rope scaling must be one of {', '.join(RULES)}, but is {name!r}")
    known = KEYS[name]
    given = set(options)
    must = {key for key, value in known.items() if value is inspect.Parameter.empty}
    missing = sorted(must - given)
    extra = sorted(given - set(known) - {"rope_theta", "partial_rotary_factor"})
    if missing or extra:
        faults = [f"needs {', '.join(missing)}"] * bool(missing)
        faults += [f"does not know {', '.join(extra)}"] * bool(extra)
        raise ValueError(f'rope scaling "{name}" {" and ".join(faults)}')
    for key, value in options.items():
        _check(key, value)
    for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        if low in known and not (a := options.get(low, 1.0)) < (b := options.get(high, 32.0)):
            raise ValueError(f'rope scaling "{name}" needs {low} below {high}, not {a} and {b}')
    theta = options.pop("rope_theta", base)
    if base not in (BASE, theta):
        raise ValueError(f"rope scaling has rope_theta = {theta}, but the base is given as {base}")
    if name == "yarn" and theta <= 1:
        raise ValueError(f'rope scaling "yarn" needs a base above 1, but it is {theta}')
    return Scaling(name, float(theta), options.pop("partial_rotary_factor", 1.0), options)


def _check(key: str, value: Any) -> None:
    """Raise ValueError unless ``value`` is what the key stands for."""
    number = is_number(value)
    if key in ("original_max_position_embeddings", "max_position_embeddings"):
        fits, wanted = is_whole(value) and value > 1, "a whole number above 1"
    elif key in ("short_factor", "long_factor"):
        fits = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
        fits = fits and all(is_number(v) and v > 0 for v in value)
        wanted = "a list of positive numbers"
    elif key == "truncate":
        fits, wanted = isinstance(value, bool), "true or false"
    elif key == "factor":
        fits, wanted = number and value >= 1, "a number from 1 on"
    elif key == "partial_rotary_factor":
        fits, wanted = number and 0 < value <= 1, "a number above 0 and up to 1"
    elif key in ("mscale", "mscale_all_dim"):
        fits, wanted = number and value >= 0, "a number from 0 on"
    else:
        fits, wanted = number and value > 0, "a positive number"
    if not fits:
        name = "the base" if key == "base" else f"{key} of a rope scaling"
        raise ValueError(f"{name} must be {wanted}, but is {value!r}")


def rotary_dimension(d_h: int, rotary_dim: int | None, scaling: Scaling) -> int:
    """Return how many of the d_h features are rotated.

    Raises
    ------
    ValueError
        if that is odd, none, more than d_h, or not what the scaling says.
    """
    n = d_h if rotary_dim is None else rotary_dim
    if scaling.partial != 1:
        n = int(d_h * scaling.partial)
        if rotary_dim not in (None, n):
            raise ValueError(
                f"partial_rotary_factor = {scaling.partial} rotates {n} of d_h = {d_h} features, "
                f"but rotary_dim is given as {rotary_dim}"
            )
    if n % 2 or not 0 < n <= d_h:
        raise ValueError(f"the rotary dimension must be even and at most d_h = {d_h}, but is {n}")
    if n == 2 and scaling.name in ("ntk", "dynamic"):
        raise ValueError(f'rope scaling "{scaling.name}" needs a rotary dimension of 4 or more')
    return n


def rope_frequencies(
    n: int,
    base: float = BASE,
    scaling: dict[str, Any] | Scaling | None = None,
    length: int | None = None,
) -> tuple[Array, float]:
    """Return the (n / 2,) float64 frequencies and the attention factor.

    Parameters
    ----------
    n : int
        Features that are rotated.
    base : float
    scaling : dict, optional
        See `read_scaling`; without it the factor is exactly 1.
    length : int, optional
        Of the text, for "dynamic" and "longrope"; a short text unless given.
    """
    rule = scaling if isinstance(scaling, Scaling) else read_scaling(scaling, base)
    rotary_dimension(n, n, rule._replace(partial=1.0))  # n is what is rotated already
    theta, factor = RULES[rule.name](n, rule.base, length, **rule.options)
    return theta, float(factor)
