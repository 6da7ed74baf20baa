"""Schedules are exact at their ends, continuous, and never start at 0."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from npformer.optim import (
    SCHEDULES,
    Constant,
    Cosine,
    InverseSquareRoot,
    Noam,
    WarmupStableDecay,
)

close = np.testing.assert_allclose


def test_warm_up_then_inverse_square_root_is_equation_1_of_xiong():
    lr = InverseSquareRoot(0.3, warmup=40)
    assert lr(1) == 0.3 / 40
    assert lr(10) == 0.3 * 10 / 40
    assert lr(40) == 0.3
    close(lr(160), 0.15, rtol=1e-15)
    close(lr(41), 0.3 * math.sqrt(40 / 41), rtol=1e-15)


def test_noam_is_equation_3_of_the_original_paper():
    lr = Noam(512)
    for t in (1, 77, 3999, 4000, 4001, 100_000):
        close(lr(t), 512**-0.5 * min(t**-0.5, t * 4000**-1.5), rtol=1e-15)
    close(lr(4000), 6.987712429686843e-4, rtol=1e-14)  # 1 / sqrt(512 * 4000)
    same = InverseSquareRoot((512 * 4000) ** -0.5, 4000)
    close([lr(t) for t in range(1, 9000, 97)], [same(t) for t in range(1, 9000, 97)], rtol=1e-13)
    assert Noam(512, factor=2.0)(5) == 2 * lr(5)


def test_cosine_is_exact_at_its_ends_and_in_the_middle():
    lr = Cosine(0.5, total=110, warmup=10, lr_min=0.1)
    assert lr(1) == 0.05
    assert lr(10) == 0.5
    close(lr(60), 0.3, rtol=1e-15)
    close(lr(35), 0.3 + 0.2 * math.cos(math.pi / 4), rtol=1e-15)
    assert lr(110) == lr(111) == lr(10**9) == 0.1
    plain = Cosine(0.5, total=3)
    assert [plain(1), plain(3)] == [0.5, 0.0]
    close(plain(2), 0.25, rtol=1e-15)
    assert Cosine(0.5, total=4, warmup=4)(4) == 0.5
    assert Cosine(0.5, total=1)(1) == 0.5


@pytest.mark.parametrize("shape", ["linear", "sqrt"])
def test_warm_up_stable_decay_has_three_parts(shape):
    lr = WarmupStableDecay(0.8, total=100, warmup=8, decay=16, lr_min=0.2, shape=shape)
    assert lr(1) == 0.1
    assert {lr(t) for t in range(8, 85)} == {0.8}
    at_a_quarter = 0.2 + 0.6 * (0.75 if shape == "linear" else 0.5)
    close(lr(88), at_a_quarter, rtol=1e-15)
    assert lr(100) == lr(101) == 0.2
    assert WarmupStableDecay(0.8, total=5, decay=5)(5) == 0
    # The plateau keeps one step, so that the first step is never the last rate.
    rates = [WarmupStableDecay(0.8, total=5, decay=5)(t) for t in range(1, 6)]
    close(rates, [0.8, 0.6, 0.4, 0.2, 0.0], rtol=1e-14)
    assert WarmupStableDecay(0.8, total=1, decay=1)(1) == 0.8
    assert WarmupStableDecay(0.8, total=5)(5) == 0.8


def test_constant_may_warm_up():
    assert {Constant(0.7)(t) for t in (1, 5, 10**6)} == {0.7}
    assert [Constant(1.0, warmup=4)(t) for t in (1, 2, 3, 4, 5)] == [0.25, 0.5, 0.75, 1, 1]


ALL = {
    "constant": Constant(0.3, warmup=7),
    "inverse-sqrt": InverseSquareRoot(0.3, 7),
    "noam": Noam(13, 7),
    "cosine": Cosine(0.3, 50, 7),
    "warmup-stable-decay": WarmupStableDecay(0.3, 50, 7, 11),
}


def test_every_schedule_is_here():
    assert ALL.keys() == SCHEDULES.keys()
    assert {type(s) for s in ALL.values()} == set(SCHEDULES.values())


@pytest.mark.parametrize("name", ALL)
def test_no_schedule_starts_at_zero_or_jumps(name):
    lr = ALL[name]
    rates = [lr(t) for t in range(1, 60)]
    assert rates[0] > 0
    assert rates[6] == max(rates)
    close(rates[:7], np.arange(1, 8) / 7 * rates[6], rtol=1e-14)
    assert np.abs(np.diff(rates)).max() <= max(rates) / 7 + 1e-12
    assert all(type(r) is float for r in rates)
    for t in (0, -1):
        with pytest.raises(ValueError, match=f"steps count from 1, but the step is {t}"):
            lr(t)
    if "warmup" in {f.name for f in dataclasses.fields(lr)} and name != "noam":
        assert dataclasses.replace(lr, warmup=0)(1) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(-1.0), "0 <= lr_min <= lr, but lr = -1.0"),
        (lambda: Constant(math.nan), "0 <= lr_min <= lr"),
        (lambda: Cosine(0.1, 10, lr_min=0.2), "lr = 0.1, lr_min = 0.2"),
        (lambda: Cosine(0.1, 10, warmup=11), "a schedule of 10 steps has no room for warmup 11"),
        (lambda: Cosine(0.1, 0), "a schedule of 0 steps"),
        (lambda: WarmupStableDecay(0.1, 10, 5, 6), "no room for warmup 5 \\+ decay 6"),
        (lambda: WarmupStableDecay(0.1, 10, shape="cubic"), "not 'cubic'"),
        (lambda: InverseSquareRoot(0.1, -3), "warmup must be 0 steps or more, but is -3"),
        (lambda: Noam(0), "d and warmup must be 1 or more"),
    ],
)
def test_contradictions_are_one_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()
