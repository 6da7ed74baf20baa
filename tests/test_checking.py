"""The judge is judged: right gradients pass, planted faults are found, named and explained."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from cases import case
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

import npformer as nf
from npformer import functional as F
from npformer.checking import METHODS, GradientReport, NotAnalyticError, gradcheck
from npformer.checking.slopes import (
    FINE_STEPS,
    STEP,
    central_slope,
    complex_slope,
    find_kink,
    plain_slope,
)

BOTH = pytest.mark.parametrize("method", ["complex", "central"])
ALL = pytest.mark.parametrize("method", list(METHODS))


def square(x):
    return x * x, x


def square_backward(dy, x):
    return 2 * dy * x


def test_names():
    assert nf.gradcheck is gradcheck
    assert nf.GradientReport is GradientReport


# ------------------------------------------------------------------------ what is right passes


@ALL
def test_right_gradients_pass(method, rng):
    report = gradcheck(
        (F.layernorm, F.layernorm_backward),
        rng.standard_normal((3, 5, 7)),
        rng.standard_normal(7),
        rng.standard_normal(7),
        method=method,
    )
    assert report.passed
    assert report
    assert report.max_rel_error < {"central": 1e-8}.get(method, 1e-13)
    names = ["x", "gamma", "beta"] + (["all together"] if method == "direction" else [])
    assert [row.tensor for row in report.rows] == names
    assert {row.verdict for row in report.rows} == {"pass"}


def test_a_function_alone_finds_its_backward(rng):
    x = rng.standard_normal((3, 5))
    assert gradcheck(F.softmax, x, axis=0)
    assert gradcheck(square, x)
    with pytest.raises(ValueError, match=r"no <lambda>_backward stands beside <lambda>"):
        gradcheck(lambda x: (x, x), x)
    with pytest.raises(ValueError, match="no perplexity_backward"):
        gradcheck(nf.loss.perplexity, x)


def test_bound_methods_bring_the_parameters_along(rng):
    cfg = nf.TransformerConfig(V=7, d=4, L=1, H=2, d_ff=5, T_max=5)
    model = nf.DecoderLM(cfg, rng=0)
    ids = rng.integers(0, 7, (2, 3))
    report = gradcheck((model.loss, model.loss_backward), ids, ids, method="direction")
    assert report.passed
    assert len(report.rows) == len(model.parameters()) + 1
    assert gradcheck(model.loss, ids, ids, method="direction").name == "DecoderLM.loss"


def test_every_parameter_of_a_layer_is_checked_in_float64(rng):
    layer = nf.Linear(5, 3, rng=0)
    assert layer.dtype == np.float32
    report = gradcheck(layer, rng.standard_normal((2, 5)))
    assert [row.tensor for row in report.rows] == ["x", "W", "b"]
    assert [row.shape for row in report.rows] == [(2, 5), (5, 3), (3,)]
    assert report.max_rel_error < 1e-14


def test_samples(rng):
    x = rng.standard_normal((13, 17))
    report = gradcheck(F.softmax, x, samples=20)
    assert report.rows[0].compared == 20
    assert report.passed
    assert gradcheck(F.softmax, x, samples=10**6).rows[0].compared == x.size

    def wrong(dy, s):
        return 1.01 * F.softmax_backward(dy, s)

    report = gradcheck((F.softmax, wrong), x, samples=20)
    assert report.rows[0].verdict == "fail"
    assert report.rows[0].bad_share == 1


@BOTH
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (2, 1, 3, 2)])
def test_shapes(method, shape, rng):
    x = np.array(rng.standard_normal(shape))
    report = gradcheck((square, square_backward), x, method=method)
    assert report.passed
    assert report.rows[0].shape == shape
    assert report.rows[0].compared == x.size
    assert len(report.rows[0].worst_index) == len(shape)


@BOTH
@pytest.mark.parametrize("kind", [float, np.float64, np.array])
def test_scalar_outputs(method, kind, rng):
    def f(x):
        total = np.sum(x * x)
        return (complex(total) if np.iscomplexobj(total) else kind(total)), x

    x = rng.standard_normal((2, 3))
    assert gradcheck((f, square_backward), x, method=method)

    def scaled(dy, x):
        return 2 * x  # right only for a cotangent of 1

    assert not gradcheck((f, scaled), x, method=method)


@pytest.mark.parametrize("method", ["complex", "central", "direction"])
def test_a_check_of_no_number_does_not_pass(method):
    """Any backward would: this one is wrong."""

    def f(x):
        return x * 2, x

    def backward(dy, saved):
        return dy * 3

    with pytest.raises(ValueError, match="every input is empty"):
        nf.gradcheck((f, backward), np.zeros((0, 3)), method=method)


@ALL
def test_empty_inputs(method):
    report = gradcheck(
        (F.linear, F.linear_backward), np.zeros((0, 3)), np.ones((3, 2)), np.ones(2), method=method
    )
    assert report.passed
    assert [row.verdict for row in report.rows[:3]] == ["empty", "zero", "zero"]


@BOTH
def test_inputs_that_are_not_contiguous(method, rng):
    x = rng.standard_normal((7, 10, 3)).transpose(2, 0, 1)[:, ::2, ::-2]
    assert not x.flags.c_contiguous
    W = np.asfortranarray(rng.standard_normal((5, 2)))
    assert gradcheck((F.linear, F.linear_backward), x, W, np.broadcast_to(0.5, (2,)), method=method)


def test_outputs_that_are_views_of_the_input(rng):
    def view(x):
        return x[:, ::-1], None

    def view_backward(dy, saved):
        return dy[:, ::-1]

    for method in METHODS:
        assert gradcheck((view, view_backward), rng.standard_normal((3, 5)), method=method)


def test_the_same_array_given_three_times(rng):
    x = rng.standard_normal((2, 2, 3, 4))
    assert gradcheck(F.attention, x, x, x, causal=True)
    assert x.flags.writeable


def test_a_layer_used_twice_within_another(rng):
    class Twice(nf.Module):
        def __init__(self):
            self.inner = nf.Linear(3, 3, rng=0)

        def forward(self, x):
            h, first = self.inner.forward(x)
            t, act = F.tanh(h)
            y, second = self.inner.forward(t)
            return y, (first, act, second)

        def backward(self, dy, saved):
            first, act, second = saved
            dy = F.tanh_backward(self.inner.backward(dy, second), act)
            return self.inner.backward(dy, first)

    report = gradcheck(Twice(), rng.standard_normal((2, 3)))
    assert report.passed
    assert [row.tensor for row in report.rows] == ["x", "inner.W", "inner.b"]


def test_masks_ids_and_numbers_are_no_tensors(rng):
    mask = rng.random((5, 7)) < 0.7
    q, k = rng.standard_normal((2, 2, 5, 3)), rng.standard_normal((2, 2, 7, 3))
    report = gradcheck(F.attention, q, k, k, mask=mask)
    assert [row.tensor for row in report.rows] == ["q", "k", "v"]
    ids = np.array([[0, 2, 2], [1, 2, 0]])
    assert [r.tensor for r in gradcheck(F.embedding, ids, rng.standard_normal((3, 2))).rows] == [
        "E"
    ]
    assert [r.tensor for r in gradcheck(nf.Embedding(3, 2, rng=0), ids).rows] == ["E"]


def test_seeds_repeat(rng):
    x = rng.standard_normal((2, 3))
    one, same, other = (gradcheck(square, x, rng=seed).rows[0].analytic for seed in (1, 1, 2))
    assert one == same != other
    assert gradcheck(square, x, rng=np.random.default_rng(1)).passed


# ------------------------------------------------------------- G01: types, and a planted per cent


@ALL
def test_g01_a_planted_per_cent_is_found(method):
    c = case("G01")
    x, W = c["input"]["x"], c["input"]["W"]

    def f(x, W):
        y = np.tanh(x @ W)
        return y, (x, W, y)

    def f_backward(dy, saved, fault=1.0):
        x, W, y = saved
        dz = dy * (1 - y * y)
        return W @ dz, fault * np.outer(x, dz)

    np.testing.assert_allclose(
        f_backward(np.ones(3), f(x, W)[1])[0], c["right"]["grad"], rtol=1e-12
    )
    report = gradcheck((f, f_backward), x, W, method=method)
    assert report.passed
    report = gradcheck((f, lambda dy, s: f_backward(dy, s, 1.01)), x, W, method=method)
    assert not report.passed
    assert [row.verdict for row in report.rows[:2]] == ["pass", "fail"]
    assert report.rows[1].max_rel == pytest.approx(0.01 / 1.01, rel=1e-5)
    assert report.max_rel_error == max(row.max_rel for row in report.rows)


@ALL
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.complex64, np.complex128])
def test_g01_inputs_that_are_not_float64_are_refused(method, dtype, rng):
    x = rng.standard_normal((2, 3)).astype(dtype)
    with pytest.raises(TypeError, match=rf"^x is {x.dtype}, but a gradient check needs float64"):
        gradcheck(F.softmax, x, method=method)
    assert x.flags.writeable


@ALL
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_])
def test_g01_integers_are_refused_where_a_gradient_is_due(method, dtype):
    x = case("G01")["input"]["integers"].astype(dtype)
    with pytest.raises(TypeError, match=rf"one is due for x \({x.dtype}\), which is no float64"):
        gradcheck(
            (lambda x, c: (x * c, (x, c)), lambda dy, s: (dy * s[1], dy * s[0])),
            x,
            np.array([0.5, 1.5, 2.5]),
            method=method,
        )
    with pytest.raises(TypeError, match=rf"^x is {x.dtype}, but a gradient check needs float64"):
        gradcheck(square, x, method=method)


def test_a_forward_in_less_than_double_precision_is_refused(rng):
    def f(x):
        return (x * np.float32(2)).astype(np.float32), None

    with pytest.raises(TypeError, match="turns float64 into float32"):
        gradcheck((f, lambda dy, s: 2 * dy), rng.standard_normal(3))


# --------------------------------------------------------------------------------- G02: kinks


def test_g02_slopes_at_a_kink():
    c = case("G02")
    for x, wrong in zip(c["input"]["x"], c["wrong"]["central_difference"], strict=True):

        def line(t, x=x):
            return np.maximum(np.array([x + t]), 0)

        assert plain_slope(line, np.ones(1), c["input"]["h"]) == pytest.approx(wrong, abs=1e-9)
        kink = find_kink(line, np.ones(1))
        assert (kink is None) == (x == 0.5)
        if kink is not None:
            assert kink.central == pytest.approx(wrong, abs=1e-9)
            assert kink.admits(0.0 if x <= 0 else 1.0, 0.0)
            assert not kink.admits(1.5, 1e-3)
            assert not kink.admits(-0.5, 1e-3)
    assert c["input"]["h"] == FINE_STEPS[0]


@BOTH
def test_g02_relu_is_reported_as_a_kink(method):
    c = case("G02")
    report = gradcheck(F.relu, c["input"]["x"], method=method)
    assert report.passed
    assert report.rows[0].verdict == "kink"
    assert report.max_rel_error < 1e-10
    assert "kink" in str(report)
    n = 3 if method == "central" else 1
    assert f"{n} of 4 numbers lie at a kink" in report.rows[0].notes[0]
    assert gradcheck(F.relu, c["input"]["x"][3:], method=method).rows[0].verdict == "pass"


@BOTH
def test_g02_a_wrong_gradient_at_a_kink_fails(method):
    def wrong(dy, s):
        return F.relu_backward(dy, s) - 0.25 * dy

    x = np.zeros(3)
    assert gradcheck((F.relu, wrong), x, method=method).rows[0].verdict == "fail"


@BOTH
@pytest.mark.parametrize(
    ("f", "slope", "x"),
    [
        (lambda x: np.maximum(x, 1.0), lambda x: (x > 1) * 1.0, [1.0, 2.0, 0.0]),
        (lambda x: np.minimum(x, 1.0), lambda x: (x < 1) * 1.0, [1.0, 2.0, 0.0]),
        (lambda x: np.where(x.real > 0, x, 0.1 * x), lambda x: np.where(x > 0, 1, 0.1), [0, 1, -1]),
        (lambda x: np.where(x.real > 1, 1, x), lambda x: (x < 1) * 1.0, [1 + 2e-6, 1.0, 1 - 4e-6]),
        (lambda x: x * (x.real >= np.sort(x.real)[-2]), None, [1.0, 1.0, 1.0, 0.0]),  # top-2, a tie
    ],
    ids=["max", "min", "leaky", "clip", "top-2"],
)
def test_g02_other_kinks(method, f, slope, x):
    x = np.array(x, float)
    slopes = slope(x) if slope else (x >= np.sort(x)[-2]) * 1.0
    report = gradcheck((lambda x: (f(x), None), lambda dy, s: dy * slopes), x, method=method)
    assert report.passed, report
    assert report.rows[0].verdict in ("kink", "pass")
    if method == "central":
        assert report.rows[0].verdict == "kink"


def test_sharp_bends_are_no_kinks(rng):
    """A norm of rows as short as its eps bends within the step, but is smooth."""
    x, gamma = 1e-3 * rng.standard_normal((3, 7)), rng.standard_normal(7)
    report = gradcheck(F.rmsnorm, x, gamma, method="central")
    assert report.passed
    assert "kink" not in {row.verdict for row in report.rows}

    def wrong(dy, s):
        dx, dgamma = F.rmsnorm_backward(dy, s)
        return 1.0001 * dx, dgamma

    assert gradcheck((F.rmsnorm, wrong), x, gamma, method="central").rows[0].verdict == "fail"


def test_g02_zero_against_zero():
    for method in METHODS:
        report = gradcheck(
            (lambda x: (0 * x, x), lambda dy, x: 0 * dy), np.ones((2, 3)), method=method
        )
        assert report.passed
        assert report.max_rel_error == 0
        assert {row.verdict for row in report.rows} == {"zero"}


@ALL
def test_a_key_bias_has_no_gradient(method, rng):
    layer = nf.MultiHeadAttention(nf.AttentionConfig(d=4, H=2), rng=0, dtype=np.float64)
    report = gradcheck(layer, rng.standard_normal((2, 3, 4)), method=method)
    verdicts = {row.tensor: row.verdict for row in report.rows}
    assert verdicts.pop("Wk.b") == "zero"
    assert set(verdicts.values()) == {"pass"}


def test_a_sum_that_is_always_one_has_no_gradient(rng):
    """Rounding is no gradient: everything here is zero but for the last digit."""

    def f(x):
        p, s = F.softmax(x)
        return p.sum(axis=-1), s

    def f_backward(dy, s):
        return F.softmax_backward(np.repeat(dy[:, None], 5, 1), s)

    for method in METHODS:
        report = gradcheck((f, f_backward), rng.standard_normal((3, 5)), method=method)
        assert {row.verdict for row in report.rows} == {"zero"}
        assert report.max_rel_error == 0


# ------------------------------------------------------------------------- not a number, infinity


@ALL
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_backward_that_is_not_finite_is_named(method, value, rng):
    def wrong(dy, x):
        dx = 2 * dy * x
        dx[1, 2] = value
        return dx

    report = gradcheck((square, wrong), rng.standard_normal((2, 3)), method=method)
    assert not report.passed
    assert not report.max_rel_error < 1e300
    assert report.rows[0].verdict == "not finite"
    if method != "direction":
        assert report.rows[0].worst_index == (1, 2)
        assert report.rows[0].bad_share == pytest.approx(1 / 6)
        assert f"the backward gives {value} at [1, 2]" in str(report)


@ALL
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_output_that_is_not_finite_is_named(method, value, rng):
    def f(x):
        y = x * x
        y[0, 1] += value
        return y, x

    report = gradcheck((f, square_backward), rng.standard_normal((2, 3)), method=method)
    assert not report.passed
    assert f"the output holds {value} at [0, 1]" in report.problems


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_inputs_and_parameters_that_are_not_finite_are_refused(value, rng):
    x = rng.standard_normal((2, 3))
    x[1, 0] = value
    with pytest.raises(ValueError, match=rf"^x holds {value} at \[1, 0\]"):
        gradcheck(square, x)
    layer = nf.LayerNorm(3)
    layer.gamma.value[2] = value
    with pytest.raises(ValueError, match=rf"^gamma holds {value} at \[2\]"):
        gradcheck(layer, np.ones((2, 3)))


# --------------------------------------------------------------------------- what is not analytic


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (np.abs, "turns complex numbers into real ones"),
        (lambda x: x.astype(float) * 1.0, "ComplexWarning"),
        (lambda x: np.arctan2(x, 1.0), "TypeError"),
        (lambda x: np.array([math.sin(v) for v in x]), "ComplexWarning|TypeError"),
        (lambda x: x.__imul__(2) if np.iscomplexobj(x) else 2 * x, "output array is read-only"),
    ],
)
def test_the_complex_step_says_where_it_can_not_go(f, words):
    x = np.array([0.5, 1.5, 2.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotAnalyticError, match=words) as caught:
            gradcheck((lambda x: (f(x), x), lambda dy, x: dy), x)
    assert 'use method="central"' in str(caught.value)
    assert x.flags.writeable


def variance_scaled(x):
    """Standard deviation by NumPy, which takes absolute values of complex numbers."""
    r = 1 / x.std(axis=-1, keepdims=True)
    return (x - x.mean(axis=-1, keepdims=True)) * r, (x, r)


def variance_scaled_backward(dy, saved):
    x, r = saved
    xhat = (x - x.mean(-1, keepdims=True)) * r
    return r * (dy - dy.mean(-1, keepdims=True) - xhat * np.mean(dy * xhat, -1, keepdims=True))


@pytest.mark.parametrize("method", ["complex", "direction"])
def test_silently_wrong_complex_steps_are_noticed(method, rng):
    x = rng.standard_normal((3, 5))
    assert gradcheck((variance_scaled, variance_scaled_backward), x, method="central")
    report = gradcheck((variance_scaled, variance_scaled_backward), x, method=method)
    assert report.rows[-1].verdict == "not analytic"
    assert not report.passed
    assert 'use method="central"' in str(report)

    def norm(x):
        r = 1 / np.linalg.norm(x, axis=-1, keepdims=True)
        return x * r, (x, r)

    # this backward forgets the same term that the complex step loses
    report = gradcheck((norm, lambda dy, s: dy * s[1]), x, method=method)
    assert report.max_rel_error < 1e-14
    assert not report.passed


# -------------------------------------------------------------------------------- the methods


def test_slopes_of_a_known_function():
    def line(t):
        return np.array([np.exp(0.5 + t), np.sin(2 * t)])

    dy = np.array([0.7, -1.3])
    right = 0.7 * math.exp(0.5) - 2.6
    assert complex_slope(line, dy) == pytest.approx(right, rel=1e-15)
    assert central_slope(line, dy, STEP) == pytest.approx(right, rel=1e-11)
    assert plain_slope(line, dy, FINE_STEPS[0]) == pytest.approx(right, rel=1e-9)
    # the order of the error: halving the step divides it by 4 and by 16
    for slope, order in ((plain_slope, 2), (central_slope, 4)):
        errors = [abs(slope(line, dy, h) - right) for h in (0.1, 0.05)]
        assert errors[0] / errors[1] == pytest.approx(2**order, rel=0.05)
    assert find_kink(line, dy) is None


def test_the_step_grows_with_the_number():
    report = gradcheck(square, np.array([1e8, -2e9, 3e7]), method="central")
    assert report.passed
    assert report.rows[0].compared == 3


@given(
    shape=array_shapes(max_dims=3, max_side=4),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
    size=st.sampled_from([1e-9, 1e-6, 1e-3, 1.0]),
    method=st.sampled_from(["complex", "central"]),
)
def test_one_wrong_number_is_found_and_placed(shape, seed, data, size, method):
    """Linear maps: the gradient is known, so is the error that a planted fault makes."""
    rng = np.random.default_rng(seed)
    x, c = rng.standard_normal((2, *shape))
    index = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    seen = []

    def backward(dy, saved):
        seen.append(dy)
        dx = c * dy
        dx[index] += size * np.max(np.abs(dx))
        return dx

    report = gradcheck((lambda x: (c * x, None), backward), x, method=method, rng=seed)
    (row,) = report.rows
    n = c * seen[0]
    a = backward(seen[0], None)
    error = np.max(np.abs(a - n)) / max(np.max(np.abs(a)), np.max(np.abs(n)))
    assert row.max_rel == pytest.approx(error, rel=1e-3, abs=1e-9 if method == "central" else 1e-15)
    wrong = error > 2 * METHODS[method].tolerance
    if abs(error / METHODS[method].tolerance - 1) > 0.5:
        assert report.passed == (not wrong)
    if wrong:
        assert row.worst_index == index
        assert row.analytic == pytest.approx(a[index], rel=1e-12)
        assert row.numeric == pytest.approx(n[index], rel=1e-6, abs=1e-9)
        assert row.bad_share == pytest.approx(1 / x.size)


def test_the_floor():
    """1e-9 of the largest gradient counts as zero for differences, not for the complex step."""

    def f(x, z):
        return x + 1e-9 * z, None

    def wrong(dy, s):
        return dy, 2e-9 * dy

    x, z = np.ones(3), np.ones(3)
    assert [r.verdict for r in gradcheck((f, wrong), x, z, method="central").rows] == [
        "pass",
        "zero",
    ]
    assert [r.verdict for r in gradcheck((f, wrong), x, z).rows] == ["pass", "fail"]


def test_a_random_direction_finds_a_single_wrong_number(rng):
    x = rng.standard_normal((5, 7))

    def wrong(dy, x):
        dx = 2 * dy * x
        dx[4, 6] *= 1.001
        return dx

    report = gradcheck((square, wrong), x, method="direction")
    assert [row.verdict for row in report.rows] == ["fail", "fail"]
    assert "along a random direction" in str(report)
