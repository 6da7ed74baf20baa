"""The blocked softmax step by step: right after every block, at the end the kernel's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npformer import functional as F
from npformer.experiments.online_softmax import format_steps, online_softmax_steps

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal
score = st.floats(-30, 30) | st.just(-np.inf) | st.sampled_from([-1e4, 1e4])


@given(st.lists(score, min_size=1, max_size=12), st.integers(1, 13), st.integers(0, 99))
def test_each_step_is_the_softmax_of_what_came_so_far(scores, block, seed):
    scores = np.array(scores)
    values = np.random.default_rng(seed).standard_normal((len(scores), 3))
    with np.errstate(invalid="raise", divide="raise", over="raise"):
        steps = online_softmax_steps(scores, block, values)
    exact(np.concatenate([step.scores for step in steps]), scores)
    assert len(steps) == -(-len(scores) // block)
    for step in steps:
        known = scores[: step.keys.stop]
        P = F.softmax(known)[0]
        assert step.m == known.max()
        assert step.highest == scores[step.keys].max()
        close(step.y, P @ values[: step.keys.stop], rtol=0, atol=1e-12)
        if np.isinf(step.m):
            assert step.l == 0
            assert step.lse == -np.inf
            exact(step.O, 0)
        else:
            close(step.l, np.sum(np.exp(known - step.m)), rtol=1e-13)
            close(step.lse, np.logaddexp.reduce(known), rtol=1e-13, atol=1e-13)  # may be near 0
            close(step.weights, np.exp(scores[step.keys] - step.m), rtol=1e-13)
            assert step.alpha <= 1


@pytest.mark.parametrize("block", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("hidden", [[], [0, 1, 2], [3, 4], [7], range(8)])
def test_the_kernel_ends_where_the_steps_do(block, hidden, rng):
    q, k, v = rng.standard_normal(4), 3 * rng.standard_normal((8, 4)), rng.standard_normal((8, 2))
    mask = ~np.isin(np.arange(8), list(hidden))
    y, saved = F.flash_attention(
        *(q[None, None, None], k[None, None], v[None, None]),
        mask=mask[None],
        scale=1.0,
        block_k=block,
    )
    last = online_softmax_steps(np.where(mask, k @ q, -np.inf), block, v)[-1]
    close(y[0, 0, 0], last.y, rtol=1e-13, atol=1e-15)
    close(saved.lse[0, 0, 0], last.lse if mask.any() else np.inf, rtol=1e-14)


def test_by_hand():
    """Scores log 2, log 6 in blocks of one: the sum 1 becomes 2/6, then 2/6 + 1."""
    first, second = online_softmax_steps(np.log([2.0, 6.0]), 1, [4.0, 8.0])
    assert (first.alpha, first.l, first.weights, first.O) == (0, 1, 1, 4)
    close([second.alpha, second.l, second.weights[0]], [1 / 3, 4 / 3, 1], rtol=1e-15)
    close(second.O, 4 / 3 + 8, rtol=1e-15)
    close(second.y, 7, rtol=1e-15)
    close(second.lse, np.log(8), rtol=1e-15)


def test_without_values():
    steps = online_softmax_steps([1, 2, 3], 2)
    assert all(step.O is None and step.y is None for step in steps)
    assert "O / l" not in format_steps(steps)


@pytest.mark.parametrize(
    ("scores", "block", "values", "words"),
    [
        ([], 2, None, "one row of numbers"),
        ([[1.0, 2.0]], 2, None, "one row of numbers"),
        ([1.0, np.nan], 2, None, "NaN or"),
        ([1.0, np.inf], 2, None, "NaN or"),
        ([1.0, 2.0], 0, None, "block must be 1 or more"),
        ([1.0, 2.0], 1, [1.0], "as many as scores"),
        ([1.0, 2.0], 1, 3.0, "as many as scores"),
    ],
)
def test_bad_input(scores, block, values, words):
    with pytest.raises(ValueError, match=words):
        online_softmax_steps(scores, block, values)


def test_table():
    steps = online_softmax_steps([-np.inf, -np.inf, 0.0, 1.0, 3.0], 2, np.eye(5)[:, :2])
    text = format_steps(steps)
    lines = text.splitlines()
    assert lines[0].split()[:2] == ["keys", "scores"]
    assert [line.split()[0] for line in lines[1:4]] == ["0-1", "2-3", "4"]
    assert "-inf -> 1" in lines[2]
    assert "1 -> 3" in lines[3]
    assert lines[5].endswith("0  0  0.04201  0.1142  0.8438")
    assert all(line == line.rstrip() for line in lines)
    hidden = format_steps(online_softmax_steps([-np.inf] * 3, 2))
    assert hidden.splitlines()[-1] == "every key is hidden: the output is 0"
