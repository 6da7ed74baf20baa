"""Traffic between slow and fast memory: counts against closed forms and against the theorems."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npformer.experiments import attention_traffic as at
from npformer.experiments.attention_traffic import exponent, traffic
from npformer.masks import Sight


def test_standard_by_hand():
    N, d = 37, 5
    for M in (20, 60, 1000):
        t = traffic("standard", N, d, M)
        assert t.reads == 3 * N * d + 2 * N * N
        assert t.writes == 2 * N * N + N * d
        b = traffic("standard", N, d, M, backward=True)
        assert b.reads == 5 * N * N + 5 * N * d  # P, P, dP, dS, dS; dO, V, dO, K, Q
        assert b.writes == 2 * N * N + 3 * N * d


@pytest.mark.parametrize("N", [64, 61])
@pytest.mark.parametrize("M", [32, 96, 100, 256, 5000])
def test_blocked_by_hand(N, M):
    """Sums over the blocks in closed form, also where the last block is shorter."""
    d = 8
    t = traffic("flash-1", N, d, M)
    assert t.block_k == min(N, math.ceil(M / (4 * d)))
    assert t.block_q == min(N, d, math.ceil(M / (4 * d)))
    passes = math.ceil(N / t.block_k)
    assert t.reads == 2 * N * d + passes * (2 * N * d + 2 * N)
    assert t.writes == passes * (N * d + 2 * N)
    b = traffic("flash-1", N, d, M, backward=True)
    assert b.reads == 2 * N * d + passes * (4 * N * d + 2 * N)
    assert b.writes == 2 * N * d + passes * N * d

    t = traffic("flash-2", N, d, M)
    assert t.block_q == t.block_k == min(N, M // (4 * d))
    passes = math.ceil(N / t.block_q)
    assert t.reads == N * d + passes * 2 * N * d
    assert t.writes == N * d + N
    b = traffic("flash-2", N, d, M, backward=True)
    assert b.reads == 4 * N * d + passes * (4 * N * d + 2 * N)
    assert b.writes == 2 * N * d + N + passes * N * d


@pytest.mark.parametrize("M", [32, 100, 1000, 4000])
def test_blocks_fit_into_the_fast_memory(M):
    d, N = 8, 256
    t = traffic("flash-2", N, d, M)
    assert 4 * t.block_q * d <= M < 4 * (t.block_q + 1) * d
    t = traffic("flash-2, scores too", N, d, M)
    side = t.block_q
    assert 4 * side * d + side**2 <= M or side == 1
    assert 4 * (side + 1) * d + (side + 1) ** 2 > M
    t = traffic("flash-1", N, d, M)
    assert t.block_q * t.block_k <= M / 4 + d  # the scores too are Theta(M)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", ["flash-1", "flash-2"])
def test_traffic_falls_like_one_over_the_memory(name, backward):
    """Theorems 2 and 5 of FlashAttention, for M between 4 d and N d / 16."""
    assert at.memory_sizes(256, 8) == [32, 64, 128]
    assert exponent(name, 256, 8, backward=backward) == pytest.approx(-1, abs=0.1)


@pytest.mark.parametrize("name", ["flash-1", "flash-2"])
def test_constant_of_the_blocked_schedules(name):
    """Total / (N^2 d^2 / M) is 12 and 8, as long as one pass over the inputs does not count."""
    constant = {"flash-1": 12, "flash-2": 8}[name]
    for N, d, M in ((256, 8, 64), (256, 16, 256), (512, 16, 512)):
        ratio = traffic(name, N, d, M).total / (N * N * d * d / M)
        assert constant <= ratio < 1.25 * constant


def test_standard_follows_its_theorem():
    """4 (N d + N^2), whatever M is."""
    for N, d in ((32, 8), (64, 8), (256, 64), (16, 64)):
        for M in (4 * d, N * d):
            assert traffic("standard", N, d, M).total == 4 * (N * d + N * N)
    assert exponent("standard", 256, 8) == pytest.approx(0, abs=1e-12)


def test_square_blocks_that_hold_their_scores_do_worse_once_memory_is_plenty():
    N, d = 2048, 4
    sizes = [64 * d * d * 2**k for k in range(4)]
    for name, slope in (("flash-1", -1), ("flash-2", -1), ("flash-2, scores too", -0.5)):
        extra = [traffic(name, N, d, M).total - 2 * N * d for M in sizes]
        fitted = np.polyfit(np.log(sizes), np.log(extra), 1)[0]
        assert fitted == pytest.approx(slope, abs=0.12), name


def test_break_even_is_a_few_d_squared():
    N, d = 512, 16
    for name, multiple in (("flash-1", 3), ("flash-2", 2)):
        least = at.break_even(name, N, d)
        assert least == pytest.approx(multiple * d * d, rel=0.15)
        standard = traffic("standard", N, d, least).total
        assert traffic(name, N, d, least).total < standard
        assert traffic(name, N, d, least - 1).total >= standard
        back = at.break_even(name, N, d, backward=True)
        assert back == pytest.approx(3 * d * d, rel=0.15)
        standard = traffic("standard", N, d, back, backward=True).total
        assert standard == 7 * N * N + 8 * N * d
        assert traffic(name, N, d, back, backward=True).total < standard
        assert traffic(name, N, d, back - 1, backward=True).total >= standard
    assert at.break_even("standard", 16, 4) is None
    assert at.break_even("flash-2", 3, 16) is None


def test_the_bound_of_text_b_is_below_one_reading_of_q():
    """N^2 d / M, without the second d, is beaten by no schedule and is less than Q alone."""
    N, d = 256, 32
    M = N * d // 2
    claimed = N * N * d / M
    assert claimed < N * d
    for name in at.SCHEDULES:
        assert traffic(name, N, d, M).reads > 3 * N * d
        assert traffic(name, N, d, 16 * d).total > N * N * d / (16 * d)


def test_causal_skips_half():
    N, d, M = 128, 4, 64
    for name in ("flash-1", "flash-2"):
        whole, half = traffic(name, N, d, M), traffic(name, N, d, M, causal=True)
        assert 0.5 < half.total / whole.total < 0.6
    assert traffic("standard", N, d, M, causal=True) == traffic("standard", N, d, M)


def test_it_walks_the_blocks_of_the_kernel(monkeypatch):
    """What the model visits is what the kernel computes."""
    visited = []
    met = at.met

    def watched(rows, columns, sight):
        for pair in met(rows, columns, sight):
            visited.append(pair)
            yield pair

    monkeypatch.setattr(at, "met", watched)
    traffic("flash-2", 24, 2, 32, causal=True)
    rows = at.slices(24, 4)
    assert visited == [p for i in rows for p in met([i], rows, Sight(24, 24, True))]
    assert len(visited) == 6 * 7 / 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("flash-3", 8, 4, 64), "schedule must be one of standard, flash-1"),
        (("flash-1", 0, 4, 64), "N and d must be 1 or more"),
        (("flash-1", 8, 4, 15), "4 d = 16 numbers, but M is 15"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        traffic(*call)


def test_too_few_tokens_for_an_exponent():
    with pytest.raises(ValueError, match="N must be 128 or more"):
        exponent("flash-2", 64, 8)


def test_table():
    rows = at.attention_traffic(32, 4, [16, 64])
    assert len(rows) == 2 * len(at.SCHEDULES)
    assert {row.M for row in at.attention_traffic(32, 4)} == {16, 32, 64, 128}
    lines = at.format_traffic(rows).splitlines()
    assert len(lines) == 1 + len(rows)
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["schedule", "N", "d", "M", "block", "reads", "writes", "total"]
    for row, line in zip(rows, lines[1:], strict=True):
        assert line.startswith(row.schedule)
        assert line.endswith(f"{row.total:,}")
        assert row.total == row.reads + row.writes
