"""The rules of sight by brute force, and the tables that blocks and threads share."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npformer import masks
from npformer.masks import Sight, hide


def seen(T, S, causal, window):
    """Which keys each query sees, one pair at a time."""
    table = np.zeros((T, S), bool)
    for i in range(T):
        own = i + S - T
        for j in range(S):
            near = window is None or (own - j < window and (causal or j - own < window))
            table[i, j] = near and (j <= own or not causal)
    return table


def hidden(T, S, causal, window, i, j):
    scores = np.arange(2.0 * (i.stop - i.start) * (j.stop - j.start))
    scores = scores.reshape(2, i.stop - i.start, -1).astype(np.float32)
    before = scores.copy()
    hide(scores, i, j, Sight(T, S, causal, window))
    want = np.where(seen(T, S, causal, window)[i, j], before, -np.inf)
    np.testing.assert_array_equal(scores, want)


@st.composite
def blocks(draw):
    T, S = draw(st.integers(1, 24)), draw(st.integers(1, 24))
    i, j = draw(st.integers(0, T - 1)), draw(st.integers(0, S - 1))
    return (
        T,
        S,
        draw(st.booleans()),
        draw(st.none() | st.integers(1, 30)),
        slice(i, draw(st.integers(i + 1, T))),
        slice(j, draw(st.integers(j + 1, S))),
    )


@settings(max_examples=400, deadline=None)
@given(blocks())
def test_a_block_hides_what_the_rules_hide(block):
    hidden(*block)
    T, S, causal, window, i, _ = block
    keys, table = Sight(T, S, causal, window).keys_of(i), seen(T, S, causal, window)[i]
    assert not table[:, : keys.start].any()
    assert not table[:, keys.stop :].any()
    if table.any():
        assert table[:, keys.start].any()
        assert table[:, keys.stop - 1].any()


def test_blocks_along_the_diagonal_share_a_table():
    masks._hidden.cache_clear()
    for start in range(0, 64, 8):
        hidden(64, 64, True, None, slice(start, start + 8), slice(start, start + 8))
    assert masks._hidden.cache_info().misses == 1
    assert masks._hidden.cache_info().hits == 7


def test_a_shared_table_can_not_be_written_to_and_a_large_one_is_not_kept():
    with pytest.raises(ValueError, match="read-only"):
        masks._hidden(0, 3, 3, True, None)[0, 0] = True
    masks._hidden.cache_clear()
    n = 520
    scores = np.zeros((n, n), np.float32)
    hide(scores, slice(0, n), slice(0, n), Sight(n, n, causal=True))
    np.testing.assert_array_equal(np.isneginf(scores), ~np.tri(n, dtype=bool))
    assert masks._hidden.cache_info().currsize == 0


def test_threads_that_share_the_tables_see_their_own_rules():
    faults = []

    def work(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(60):
                T, S = rng.integers(1, 20, 2)
                i, j = rng.integers(T), rng.integers(S)
                window = None if rng.random() < 0.4 else int(rng.integers(1, 25))
                causal = bool(rng.random() < 0.6)
                hidden(int(T), int(S), causal, window, slice(int(i), int(T)), slice(int(j), int(S)))
        except AssertionError as error:
            faults.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not faults
