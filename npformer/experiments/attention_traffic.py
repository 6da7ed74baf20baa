r"""How many numbers does attention move between slow and fast memory? Count them block by block.

Slow memory is a GPU's HBM or a computer's DRAM, fast memory its SRAM or cache, with room for M
numbers. For one head of N tokens and width d, without dropout, Dao et al. (2022, arXiv:2205.14135,
theorems 2 and 5) prove :math:`\Theta(N d + N^2)` accesses of the standard schedule and
:math:`\Theta(N^2 d^2 / M)` of FlashAttention, for d <= M <= N d. Here nothing is taken from the
theorem: each schedule is gone through block by block, and what its lines load and store is added
up. Text B section 2.7 gives O(T^2 d / M), which near M = N d is less than reading Q once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..flash import met, slices
from ..masks import Sight

Access = tuple[int, int]
"""Numbers read from and written to slow memory by one line of a schedule."""


Walk = Callable[[Sight, int, int, int], Iterator[Access]]
"""A schedule: from N and the causal rule, d, and the rows and columns of a block."""


class Schedule(NamedTuple):
    source: str
    blocks: Callable[[int, int], tuple[int, int]]
    """Rows and columns of a block, from d and M."""
    forward: Walk
    backward: Walk


class Traffic(NamedTuple):
    schedule: str
    N: int
    d: int
    M: int
    block_q: int
    block_k: int
    reads: int
    writes: int

    @property
    def total(self) -> int:
        """``reads + writes``."""
        return self.reads + self.writes


# ------------------------------------------------------------------------------- the schedules


def _standard(sight: Sight, d: int, block_q: int, _: int) -> Iterator[Access]:
    """Three operations, one after the other, each over blocks of rows; nothing is skipped.

    K and V are counted once an operation, as in the theorem. How often a product really reads them
    depends on its tiles and can only add to this.
    """
    N, rows = sight.S, [_length(i) for i in slices(sight.T, block_q)]
    yield N * d, 0  # K
    for t in rows:
        yield t * d, t * N  # read Q_i, write S_i
    for t in rows:
        yield t * N, t * N  # read S_i, write P_i
    yield N * d, 0  # V
    for t in rows:
        yield t * N, t * d  # read P_i, write O_i


def _standard_backward(sight: Sight, d: int, block_q: int, _: int) -> Iterator[Access]:
    """Five operations; V, K, dV and dK are counted once an operation."""
    N, rows = sight.S, [_length(i) for i in slices(sight.T, block_q)]
    for t in rows:
        yield t * N + t * d, 0  # dV += P_i^T dO_i
    yield N * d, N * d  # write dV, read V
    for t in rows:
        yield t * d, t * N  # dP_i = dO_i V^T
    for t in rows:
        yield 2 * t * N, t * N  # dS_i from P_i and dP_i
    yield N * d, 0  # K
    for t in rows:
        yield t * N, t * d  # dQ_i = dS_i K
    for t in rows:
        yield t * N + t * d, 0  # dK += dS_i^T Q_i
    yield 0, N * d


def _keys_outside(sight: Sight, d: int, block_q: int, block_k: int) -> Iterator[Access]:
    """Blocks of keys outside: each O_i, l_i, m_i comes and goes once a block of keys."""
    rows = slices(sight.T, block_q)
    for outer in slices(sight.S, block_k):
        yield 2 * _length(outer) * d, 0  # K_j, V_j
        for i, _ in met(rows, [outer], sight):
            t = _length(i)
            yield 2 * t * d + 2 * t, t * d + 2 * t  # read Q_i, O_i, l_i, m_i; write the last three


def _queries_outside(sight: Sight, d: int, block_q: int, block_k: int) -> Iterator[Access]:
    """Blocks of queries outside: O_i stays in fast memory until it is complete."""
    columns = slices(sight.S, block_k)
    for outer in slices(sight.T, block_q):
        yield _length(outer) * d, 0  # Q_i
        for _, j in met([outer], columns, sight):
            yield 2 * _length(j) * d, 0  # K_j, V_j
        yield 0, _length(outer) * (d + 1)  # O_i, lse_i


def _blocked_backward(sight: Sight, d: int, block_q: int, block_k: int) -> Iterator[Access]:
    """Blocks of keys outside, in both papers; two numbers a query: l and m, or lse and D."""
    rows = slices(sight.T, block_q)
    for outer in slices(sight.S, block_k):
        yield 2 * _length(outer) * d, 0  # K_j, V_j
        for i, _ in met(rows, [outer], sight):
            t = _length(i)
            yield 4 * t * d + 2 * t, t * d  # read Q_i, O_i, dO_i, dQ_i and the two; write dQ_i
        yield 0, 2 * _length(outer) * d  # dK_j, dV_j


def _flash2_backward(sight: Sight, d: int, block_q: int, block_k: int) -> Iterator[Access]:
    yield 2 * sight.T * d, sight.T  # D = rowsum(dO * O)
    yield from _blocked_backward(sight, d, block_q, block_k)


def _length(block: slice) -> int:
    return int(block.stop - block.start)


def _flash1_blocks(d: int, M: int) -> tuple[int, int]:
    columns = math.ceil(M / (4 * d))
    return min(columns, d), columns


def _square_blocks(d: int, M: int) -> tuple[int, int]:
    return M // (4 * d), M // (4 * d)


def _square_blocks_and_scores(d: int, M: int) -> tuple[int, int]:
    side = max(1, math.isqrt(4 * d * d + M) - 2 * d)  # 4 B d + B^2 = M
    return side, side


SCHEDULES = {
    "standard": Schedule(
        "arXiv:2205.14135, Algorithms 0 and 3; blocks of rows",
        _square_blocks,
        _standard,
        _standard_backward,
    ),
    "flash-1": Schedule(
        "arXiv:2205.14135, Algorithms 1 and 4; ceil(M / 4d) keys, at most d queries",
        _flash1_blocks,
        _keys_outside,
        _blocked_backward,
    ),
    "flash-2": Schedule(
        "arXiv:2307.08691, Algorithms 1 and 2; square blocks: Q_i, K_j, V_j and O_i fill M",
        _square_blocks,
        _queries_outside,
        _flash2_backward,
    ),
    "flash-2, scores too": Schedule(
        "the same; square blocks: Q_i, K_j, V_j, O_i and the scores S_ij fill M",
        _square_blocks_and_scores,
        _queries_outside,
        _flash2_backward,
    ),
}
"""By name. The third leaves the scores out, as one may where they live in registers, and then its
side is M / 4d. With the scores the side grows only like sqrt(M) once M is far above 16 d^2, and
the traffic falls only like 1 / sqrt(M): that is why FlashAttention-1 takes at most d queries. The
backward has the same blocks, though it holds twice as many of them."""


# ----------------------------------------------------------------------------------- the counts


@lru_cache(maxsize=256)  # the fitted exponent asks for most of the table's counts again
def traffic(
    schedule: str, N: int, d: int, M: int, *, causal: bool = False, backward: bool = False
) -> Traffic:
    """Walk through one schedule and add up what it reads and writes.

    Parameters
    ----------
    schedule : str
        A name in `SCHEDULES`.
    N, d : int
        Tokens and width of the head.
    M : int
        Numbers that the fast memory holds, at least 4 d.
    causal : bool
        Skip the blocks that the causal rule hides; the standard schedule skips nothing.
    backward : bool
        Walk through the backward pass instead of the forward pass.

    Examples
    --------
    >>> traffic("flash-2", N=64, d=4, M=128).total  # 2 N d + N, and 2 N d for each of 8 blocks
    4672
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, but is {schedule!r}")
    if N < 1 or d < 1:
        raise ValueError(f"N and d must be 1 or more, but are {N} and {d}")
    if 4 * d > M:
        raise ValueError(
            f"the fast memory must hold a row each of Q, K, V and O, 4 d = {4 * d} numbers, but "
            f"M is {M}"
        )
    plan = SCHEDULES[schedule]
    block_q, block_k = (min(N, size) for size in plan.blocks(d, M))
    walk = plan.backward if backward else plan.forward
    reads = writes = 0
    for read, written in walk(Sight(N, N, causal), d, block_q, block_k):
        reads += read
        writes += written
    return Traffic(schedule, N, d, M, block_q, block_k, reads, writes)


def memory_sizes(N: int, d: int) -> list[int]:
    """Return doublings of M from 4 d up to N d / 16, the range of `exponent`."""
    sizes = [4 * d]
    while 2 * sizes[-1] <= N * d // 16:
        sizes.append(2 * sizes[-1])
    if len(sizes) < 2:
        raise ValueError(f"N must be 128 or more, so that M can grow, but is {N}")
    return sizes


def exponent(schedule: str, N: int, d: int, *, backward: bool = False) -> float:
    """Fit a in total ~ M^a for M between 4 d and N d / 16; the theorem says 0 or -1."""
    sizes = memory_sizes(N, d)
    totals = [traffic(schedule, N, d, M, backward=backward).total for M in sizes]
    return float(np.polyfit(np.log(sizes), np.log(totals), 1)[0])


def break_even(schedule: str, N: int, d: int, *, backward: bool = False) -> int | None:
    """Return the smallest M with which a schedule moves less than the standard one.

    It is near 3 d^2 for FlashAttention-1 and 2 d^2 for FlashAttention-2, and near 3 d^2 for the
    backward of both: a blocked schedule with less fast memory than that only saves room. None where
    even M = N d is not enough.
    """

    def moves_less(M: int) -> bool:
        mine, standard = (
            traffic(name, N, d, M, backward=backward).total for name in (schedule, "standard")
        )
        return mine < standard

    low, high = 4 * d - 1, N * d
    if low >= high or not moves_less(high):
        return None
    while high - low > 1:  # more memory never moves more
        middle = max(low + 1, math.isqrt(low * high))
        low, high = (low, middle) if moves_less(middle) else (middle, high)
    return high


def attention_traffic(
    N: int = 1024, d: int = 32, sizes: Sequence[int] | None = None, *, backward: bool = False
) -> list[Traffic]:
    """Count all schedules at several sizes M of the fast memory, by default 4 d ... N d."""
    if sizes is None:
        sizes = [4 * d * 2**k for k in range(max(1, (N // 4).bit_length()))]
    return [traffic(name, N, d, M, backward=backward) for name in SCHEDULES for M in sizes]


def format_traffic(rows: Sequence[Traffic]) -> str:
    """Return the counts as a text table."""
    heads = ("schedule", "N", "d", "M", "block", "reads", "writes", "total")
    cells = [
        (
            row.schedule,
            *(f"{x:,}" for x in (row.N, row.d, row.M)),
            f"{row.block_q} x {row.block_k}",
            *(f"{x:,}" for x in (row.reads, row.writes, row.total)),
        )
        for row in rows
    ]
    table = [heads, *cells]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join(
        f"{line[0]:<{widths[0]}}"
        + "".join(f"  {c:>{w}}" for c, w in zip(line[1:], widths[1:], strict=True))
        for line in table
    )
