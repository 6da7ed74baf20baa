"""Sinusoidal, rotary and learned positions: formulas, both judges, layouts, and bad positions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npformer as nf
from npformer import functional as F
from npformer.position import require_positions

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal

LAYOUTS = ["interleaved", "half"]
SCALINGS = {
    "none": None,
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0, "original_max_position_embeddings": 3},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    "long": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.5, 2.0],
        "long_factor": [2.0, 3.0, 5.0],
        "original_max_position_embeddings": 4,
        "factor": 7.0,
    },
}


# ---------------------------------------------------------------------------------------- rotary


@pytest.mark.parametrize("method", ["complex", "central"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("rows", [False, True], ids=["(T,)", "(B, T)"])
def test_rope_gradient(rows, scaling, layout, method, rng):
    B, H, T, d_h = 2, 3, 5, 7
    x = rng.standard_normal((B, H, T, d_h))
    positions = rng.integers(0, 50, (B, T)) if rows else rng.integers(0, 50, T)
    options = {"scaling": scaling, "layout": layout, "rotary_dim": 6}
    pair = (F.rope, F.rope_backward)
    report = nf.gradcheck(pair, x, positions, method=method, **options)
    assert report.passed, report


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rope_in_other_shapes_is_the_same_rotation(layout, rng):
    """(B, T) positions where B = H = T, where a wrong broadcast would not be an error."""
    B = H = T = 3
    x = rng.standard_normal((B, H, T, 4))
    positions = np.array([[0, 1, 2], [5, 3, 4], [9, 0, 7]])
    y, _ = F.rope(x, positions, layout=layout)
    for b in range(B):
        for h in range(H):
            exact(F.rope(x[b, h], positions[b], layout=layout)[0], y[b, h])
            for t in range(T):
                one, _ = F.rope(x[b, h, t], positions[b, t], layout=layout)
                exact(one, y[b, h, t])
    shared, _ = F.rope(x, positions[1], layout=layout)
    exact(shared[1], y[1])
    exact(F.rope(x[None], positions[1], layout=layout)[0][0], shared)


@given(shift=st.integers(0, 10**6), layout=st.sampled_from(LAYOUTS), m=st.integers(0, 99))
def test_scores_depend_on_the_distance_alone(shift, layout, m):
    q, k = np.random.default_rng(m).standard_normal((2, 1, 10))
    scores = []
    for s in (0, shift):
        (rq, _), (rk, _) = (F.rope(x, [p + s], layout=layout) for x, p in ((q, m), (k, 7)))
        scores.append(np.sum(rq * rk))
    close(scores[1], scores[0], rtol=0, atol=1e-8)  # angles up to 1e6 have 1e-10 left


@pytest.mark.parametrize("rotary_dim", [None, 6, 2])
def test_the_permutation_between_the_layouts(rotary_dim, rng):
    x, dy = rng.standard_normal((2, 2, 3, 5, 8))
    order = F.rope_permutation(8, rotary_dim)
    exact(np.sort(order), np.arange(8))
    y, saved = F.rope(x, np.arange(5), rotary_dim=rotary_dim)
    half, saved_half = F.rope(x[..., order], np.arange(5), layout="half", rotary_dim=rotary_dim)
    exact(half, y[..., order])
    exact(half[..., np.argsort(order)], y)
    exact(F.rope_backward(dy[..., order], saved_half), F.rope_backward(dy, saved)[..., order])
    assert (order == np.arange(8)).all() == (rotary_dim == 2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex128])
def test_rope_keeps_the_dtype(dtype, rng):
    x = rng.standard_normal((2, 3, 5, 4)).astype(dtype)
    y, saved = F.rope(x, np.arange(5), scaling=SCALINGS["linear"])
    assert y.dtype == F.rope_backward(y, saved).dtype == dtype
    wide, _ = F.rope(x.astype(np.complex128).real, np.arange(5), scaling=SCALINGS["linear"])
    close(y.real, wide, rtol=0, atol=4 * np.finfo(dtype).eps)


def test_rope_of_no_token(rng):
    y, saved = F.rope(np.zeros((2, 3, 0, 4)), np.zeros(0, int), scaling=SCALINGS["dynamic"])
    assert y.shape == F.rope_backward(y, saved).shape == (2, 3, 0, 4)


# ------------------------------------------------------------------------ sinusoidal and learned


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sinusoidal_by_its_formula(layout):
    positions = np.array([[0, 1, 2049], [3, 70000, 5]])
    table = F.sinusoidal(positions, 10, np.float64, layout)
    assert table.shape == (2, 3, 10)
    for (row, column), m in np.ndenumerate(positions):
        for i in range(5):
            angle = m * 10000.0 ** (-2 * i / 10)
            sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, 5 + i)
            close(table[row, column, sine], np.sin(angle), rtol=0, atol=1e-11)
            close(table[row, column, cosine], np.cos(angle), rtol=0, atol=1e-11)
    for dtype in (np.float16, np.float32):
        narrow = F.sinusoidal(positions, 10, dtype, layout)
        assert narrow.dtype == dtype
        exact(narrow, table.astype(dtype))
    far = np.array([2**24, 2**24 + 1])  # one number in float32
    close(F.sinusoidal(far, 4, np.float64)[:, 0], np.sin(far), rtol=0, atol=1e-8)


def test_sinusoidal_bad_input():
    with pytest.raises(ValueError, match="need an even d, but it is 5"):
        F.sinusoidal([0, 1], 5)
    with pytest.raises(ValueError, match="layout must be"):
        F.sinusoidal([0, 1], 4, layout="neox")


@pytest.mark.parametrize("positions", [np.array([3, 0, 3, 6]), np.array([[0, 1], [1, 1]])])
def test_learned_positions_gradient(positions):
    layer = nf.LearnedPositions(7, 5, rng=0, dtype=np.float64)
    assert layer.P.value.std() < 0.04
    y, saved = layer.forward(positions)
    exact(y, layer.P.value[positions])
    dy = np.random.default_rng(1).standard_normal(y.shape)
    assert layer.backward(dy, saved) is None
    right = np.zeros((7, 5))
    np.add.at(right, positions, dy)
    close(layer.P.grad, right, rtol=1e-14)
    layer.backward(dy, saved)
    close(layer.P.grad, 2 * right, rtol=1e-14)


def test_a_table_that_is_too_short_is_an_error_and_not_a_short_slice():
    layer = nf.LearnedPositions(7, 5, rng=0)
    with pytest.raises(IndexError, match="position 7 lies beyond the table of T_max = 7"):
        layer(np.arange(8))
    assert layer(np.arange(7)).shape == (7, 5)


# ---------------------------------------------------------------------------------- bad positions

USERS = {
    "rope": lambda positions: F.rope(np.ones((2, 4)), positions),
    "sinusoidal": lambda positions: F.sinusoidal(positions, 4),
    "learned": nf.LearnedPositions(7, 4, rng=0),
}


@pytest.mark.parametrize("user", USERS.values(), ids=USERS)
@pytest.mark.parametrize(
    ("positions", "error", "words"),
    [
        ([0, -1], ValueError, "positions must be 0 or more, but one of them is -1"),
        ([0.0, 1.0], TypeError, "positions must be integers, but the dtype is float64"),
        (np.array([0, 1], np.float16), TypeError, "but the dtype is float16"),
        ([False, True], TypeError, "but the dtype is bool"),
        (["0", "1"], TypeError, "positions must be integers, but the dtype is <U1"),
    ],
)
def test_positions_that_are_none(user, positions, error, words):
    with pytest.raises(error, match=words):
        user(positions)


def test_good_positions():
    for good in (3, [0, 1], np.array([[2, 0]], np.uint8), [], range(4)):
        exact(require_positions(good), np.asarray(good))


def test_rope_bad_input():
    with pytest.raises(ValueError, match="but it is a single number"):
        F.rope(np.ones(()), 0)
    with pytest.raises(ValueError, match="rotary dimension must be even and at most d_h = 5"):
        F.rope_permutation(5)
