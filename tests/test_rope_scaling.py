"""Rules that stretch rotary frequencies: values of transformers, of the papers, and bad keys."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from cases import case

from npformer import functional as F
from npformer.rope_scaling import BY_LENGTH, RULES, read_scaling, rotary_dimension

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal

RECORDS = json.loads(
    (Path(__file__).parent / "data" / "rope_reference.json").read_text(encoding="utf-8")
)["records"]


def plain(n, base=10000.0):
    return base ** (-2 * np.arange(n // 2) / n)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r["scaling"]["rope_type"])
@pytest.mark.parametrize("spelling", ["rope_type", "type"])
def test_every_rule_has_the_numbers_of_transformers(record, spelling):
    scaling = dict(record["scaling"])
    scaling[spelling] = scaling.pop("rope_type")
    n = rotary_dimension(record["d_h"], None, read_scaling(scaling))
    theta, factor = F.rope_frequencies(n, scaling=scaling, length=record.get("length"))
    assert theta.dtype == np.float64
    close(theta, record["frequencies"], rtol=4e-7)
    close(factor, record["attention_factor"], rtol=1e-12)
    assert isinstance(factor, float)


def test_every_rule_is_in_the_reference():
    assert {r["scaling"]["rope_type"] for r in RECORDS} == set(RULES) - {"ntk", "yarn_paper"}
    assert {r["scaling"]["rope_type"] for r in RECORDS if "length" in r} == set(BY_LENGTH)


@pytest.mark.parametrize("scaling", [None, {}, {"rope_type": "default"}, {"type": "default"}])
def test_without_scaling_the_factor_is_exactly_one(scaling):
    for base in (10000.0, 5e5, 7.0):
        theta, factor = F.rope_frequencies(24, base, scaling)
        exact(theta, base ** (-np.arange(0, 24, 2) / 24))
        assert factor == 1.0


# --------------------------------------------------------------------- the numbers of the papers


def test_r02_interpolated_position_8_is_position_2(rng):
    c = case("R02")["input"]
    x = rng.standard_normal((3, 1, c["d"]))
    scaling = {"rope_type": "linear", "factor": c["factor"]}
    stretched, _ = F.rope(x, [8], base=c["base"], scaling=scaling)
    close(stretched, F.rope(x, [2], base=c["base"])[0], rtol=0, atol=1e-14)
    theta, factor = F.rope_frequencies(c["d"], c["base"], scaling)
    close(8 * theta[0], 2.0, rtol=1e-15)
    assert factor == 1.0


@pytest.mark.parametrize(
    ("s", "base"), [(2, 20221.3), (4, 40889.9), (8, 82684.6), (16, 167198.7), (32, 338096.9)]
)
def test_ntk_raises_the_base(s, base):
    theta, factor = F.rope_frequencies(128, scaling={"rope_type": "ntk", "factor": float(s)})
    close(theta[1] ** -64, base, atol=0.05)  # theta_1 = base^(-1/64)
    close(theta[0], 1.0, rtol=0)
    close(theta[-1], plain(128)[-1] / s, rtol=1e-14)
    assert factor == 1.0


def test_dynamic_follows_the_length_and_forgets_it():
    scaling = {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4096}
    long, _ = F.rope_frequencies(128, scaling=scaling, length=8192)
    close(long[1] ** -64, 30527.7, atol=0.05)
    for short in (1, 4096, None):
        exact(F.rope_frequencies(128, scaling=scaling, length=short)[0], plain(128))
    x = np.random.default_rng(0).standard_normal((2, 3, 2, 128))
    before, _ = F.rope(x, [5, 9], scaling=scaling)
    F.rope(x, [5, 9000], scaling=scaling)
    exact(F.rope(x, [5, 9], scaling=scaling)[0], before)
    exact(before, F.rope(x, [5, 9])[0])


def test_rules_by_length_use_one_length_a_call(rng):
    scaling = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 8}
    x = rng.standard_normal((2, 3, 5, 10))
    positions = np.array([[0, 1, 2, 3, 4], [11, 12, 13, 14, 15]])
    together, _ = F.rope(x, positions, scaling=scaling)
    exact(together[0], F.rope(x[0], positions[0], scaling=scaling, length=16)[0])
    exact(together[1], F.rope(x[1], positions[1], scaling=scaling)[0])
    assert np.abs(together[0] - F.rope(x[0], positions[0], scaling=scaling)[0]).max() > 1e-2


def test_yarn_of_the_paper():
    L, s, b, d = 4096, 16.0, 1e4, 128
    scaling = {"factor": s, "original_max_position_embeddings": L}
    theta, factor = F.rope_frequencies(d, b, scaling | {"rope_type": "yarn_paper"})
    turns = L * plain(d) / (2 * math.pi)
    for i, r in enumerate(turns):
        gamma = 0 if r < 1 else 1 if r > 32 else (r - 1) / 31
        close(theta[i], (1 - gamma) * plain(d)[i] / s + gamma * plain(d)[i], rtol=1e-14)
    assert (turns < 1).sum() == 18
    assert (turns > 32).sum() == 21
    close(factor, 0.1 * math.log(s) + 1, rtol=1e-15)

    other, same = F.rope_frequencies(d, b, scaling | {"rope_type": "yarn"})
    assert same == factor
    ratio = np.maximum(theta / other, other / theta)
    assert (ratio > 1.01).sum() == 25
    assert ratio.argmax() == 38
    close(ratio.max(), 3.04, atol=0.005)
    kept, divided = np.isclose(other, plain(d)), np.isclose(other, plain(d) / s)
    assert kept.sum() - 1 == 20  # the ramp starts at pair 20 ...
    assert np.flatnonzero(divided)[0] == 46  # ... and ends at pair 46


@pytest.mark.parametrize("rule", ["yarn", "yarn_paper"])
@pytest.mark.parametrize(("s", "right"), [(4, 1.1386), (8, 1.2079), (16, 1.2773), (32, 1.3466)])
def test_yarn_temperature(rule, s, right):
    scaling = {"rope_type": rule, "factor": s, "original_max_position_embeddings": 4096}
    close(F.rope_frequencies(64, scaling=scaling)[1], right, atol=5e-5)
    assert F.rope_frequencies(64, scaling=scaling | {"attention_factor": 1.5})[1] == 1.5
    assert F.rope_frequencies(64, scaling=scaling | {"factor": 1})[1] == 1.0


def test_r05_three_bands():
    c = case("R05")
    i = c["input"]
    d, base = i.pop("d"), i.pop("base")
    theta, factor = F.rope_frequencies(d, base, i | {"type": "llama3"})
    close(theta, c["right"]["inv_freq"], rtol=2e-6)
    ratio = plain(d, base) / theta
    close(ratio, c["right"]["ratio_plain_over_scaled"], rtol=2e-6)
    for bands, value in (("unchanged_pairs", 1), ("divided_pairs", 32)):
        exact(np.flatnonzero(np.isclose(ratio, value)), c["right"][bands])
    assert factor == 1.0
    wide = LLAMA3 | {"rope_theta": 5e5}
    ratio = plain(128, 5e5) / F.rope_frequencies(128, scaling=wide)[0]
    kept, divided = np.isclose(ratio, 1), np.isclose(ratio, 8)
    assert (kept.sum(), divided.sum(), (~kept & ~divided).sum()) == (29, 29, 6)
    assert (np.diff(ratio) > -1e-12).all()


# ---------------------------------------------------------------- attention factor, and gradients


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_the_attention_factor_scales_what_is_rotated_and_its_gradient(layout, rng):
    scaling = {
        "rope_type": "yarn_paper",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.75,
    }
    x, dy = rng.standard_normal((2, 2, 3, 5, 9))
    y, saved = F.rope(x, np.arange(5), scaling=scaling, layout=layout, rotary_dim=6)
    bare, _ = F.rope(
        x, np.arange(5), scaling=scaling | {"attention_factor": 1}, layout=layout, rotary_dim=6
    )
    close(y[..., :6], 1.75 * bare[..., :6], rtol=1e-14)
    exact(y[..., 6:], x[..., 6:])
    dx = F.rope_backward(dy, saved)
    exact(dx[..., 6:], dy[..., 6:])
    moved = x + 1e-30j * rng.standard_normal(x.shape)
    slope = np.sum(
        dy * F.rope(moved, np.arange(5), scaling=scaling, layout=layout, rotary_dim=6)[0]
    )
    close(np.sum(dx * moved.imag), slope.imag, rtol=1e-12)
    close(F.rope_backward(y, saved)[..., :6], 1.75**2 * x[..., :6], rtol=1e-12)


def test_partial_rotary_factor(rng):
    x = rng.standard_normal((2, 5, 24))
    scaling = {"rope_type": "linear", "factor": 2.5, "partial_rotary_factor": 0.5}
    right, _ = F.rope(x, np.arange(5), scaling={"type": "linear", "factor": 2.5}, rotary_dim=12)
    exact(F.rope(x, np.arange(5), scaling=scaling)[0], right)
    exact(F.rope(x, np.arange(5), scaling=scaling, rotary_dim=12)[0], right)
    with pytest.raises(ValueError, match=r"rotates 12 of d_h = 24 features, but .* is given as 8"):
        F.rope(x, np.arange(5), scaling=scaling, rotary_dim=8)
    with pytest.raises(ValueError, match="must be even and at most d_h = 24, but is 3"):
        F.rope(x, np.arange(5), scaling=scaling | {"partial_rotary_factor": 0.125})


# ------------------------------------------------------------------------------------- bad input

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 2.0, 3.0, 4.0],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 16,
    "factor": 4.0,
}


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        (
            {"rope_type": "ntk-by-parts"},
            "must be one of default, linear, .*, but is 'ntk-by-parts'",
        ),
        ({"type": ["linear"]}, "must be one of default.*but is"),
        ({"type": "mrope", "rope_type": "default"}, "a rope_type and a type that differ"),
        ({"rope_type": "linear"}, '"linear" needs factor$'),
        ({"rope_type": "linear", "factor": None}, '"linear" needs factor$'),
        ({"factor": 2.0}, '"default" does not know factor$'),
        ({"rope_type": "linear", "scale": 2.0}, '"linear" needs factor and does not know scale$'),
        ({"rope_type": "dynamic", "factor": 2.0}, "needs original_max_position_embeddings"),
        ({"rope_type": "linear", "factor": 0.25}, "factor of .* number from 1 on, but is 0.25"),
        ({"rope_type": "linear", "factor": "4"}, "number from 1 on, but is '4'"),
        ({"rope_type": "linear", "factor": True}, "number from 1 on, but is True"),
        ({"rope_type": "linear", "factor": math.nan}, "number from 1 on, but is nan"),
        (YARN | {"original_max_position_embeddings": 4096.5}, "must be a whole number above 1"),
        (YARN | {"original_max_position_embeddings": 0}, "must be a whole number above 1"),
        (YARN | {"beta_fast": 1}, "needs beta_slow below beta_fast, not 1.0 and 1"),
        (YARN | {"beta_slow": -1}, "beta_slow of .* must be a positive number, but is -1"),
        (YARN | {"truncate": 1}, "truncate of .* must be true or false"),
        (YARN | {"mscale": -1.0}, "mscale of .* must be a number from 0 on"),
        (YARN | {"attention_factor": 0}, "attention_factor of .* must be a positive number"),
        (YARN | {"rope_theta": 0}, "rope_theta of .* must be a positive number"),
        (YARN | {"rope_theta": 0.5}, '"yarn" needs a base above 1'),
        (YARN | {"partial_rotary_factor": 1.5}, "above 0 and up to 1, but is 1.5"),
        (YARN | {"short_factor": [1]}, '"yarn" does not know short_factor'),
        (
            LLAMA3 | {"low_freq_factor": 4.0},
            "needs low_freq_factor below high_freq_factor, not 4.0",
        ),
        (LONG | {"long_factor": [1.0, 2.0, 3.0]}, "4 numbers in long_factor, but there are 3"),
        (LONG | {"short_factor": "1234"}, "must be a list of positive numbers"),
        (LONG | {"short_factor": [1, 1, 1, 0]}, "must be a list of positive numbers"),
        (LONG | {"factor": None}, "needs one of factor, attention_factor and max_position"),
    ],
)
def test_dictionaries_that_make_no_sense(scaling, words):
    with pytest.raises(ValueError, match=words):
        F.rope(np.ones((1, 2, 8)), np.arange(2), scaling=scaling)


def test_other_bad_input():
    x = np.ones((1, 2, 8))
    with pytest.raises(TypeError, match="rope scaling must be a dictionary, but it is 'yarn'"):
        F.rope(x, np.arange(2), scaling="yarn")
    for base in (0, -1.0, math.inf, "big", True):
        with pytest.raises(ValueError, match="the base must be a positive number, but is"):
            F.rope(x, np.arange(2), base=base)
    for rule in ("ntk", "dynamic"):
        scaling = {"rope_type": rule, "factor": 2.0}
        if rule == "dynamic":
            scaling["original_max_position_embeddings"] = 16
        with pytest.raises(ValueError, match=f'"{rule}" needs a rotary dimension of 4 or more'):
            F.rope(x, np.arange(2), scaling=scaling, rotary_dim=2)


def test_rope_theta_takes_the_place_of_the_base():
    scaling = {"rope_type": "default", "rope_theta": 5e5}
    for base in (10000.0, 5e5):
        exact(F.rope_frequencies(8, base, scaling)[0], plain(8, 5e5))
    with pytest.raises(ValueError, match=r"rope_theta = 500000.0, but the base is given as 100.0"):
        F.rope_frequencies(8, 100.0, scaling)


def test_the_dictionary_is_not_changed():
    scaling = LONG | {"rope_theta": 5e5, "partial_rotary_factor": 0.5, "attention_factor": None}
    before = json.dumps(scaling)
    F.rope(np.ones((1, 2, 16)), np.arange(2), scaling=scaling)
    assert json.dumps(scaling) == before
