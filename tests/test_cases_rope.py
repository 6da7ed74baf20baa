"""Faults of rotary positions that people met in public projects."""

from __future__ import annotations

import numpy as np
import pytest
from cases import case

from npformer import functional as F

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal

LAYOUTS = ["interleaved", "half"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_r01_pairs(layout):
    c = case("R01")
    x, right = c["input"]["x"][None], c["right"][layout]
    y, saved = F.rope(x, [c["input"]["position"]], base=c["input"]["base"], layout=layout)
    close(y[0], right, rtol=0, atol=1e-12)
    other = c["right"][LAYOUTS[1 - LAYOUTS.index(layout)]]
    assert np.abs(right - other).max() > 0.5
    close(F.rope_backward(y, saved), x, rtol=0, atol=1e-14)
    close(np.linalg.norm(y), np.linalg.norm(x), rtol=1e-14)


def test_r01_one_layout_is_the_other_permuted(rng):
    order = case("R01")["right"]["interleaved_to_half"]
    x = rng.standard_normal((2, 3, 5, 4))
    positions = np.array([0, 3, 1, 400, 7])
    interleaved, _ = F.rope(x, positions)
    half, _ = F.rope(x[..., order], positions, layout="half")
    close(half, interleaved[..., order], rtol=0, atol=1e-15)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_r01_only_the_difference_of_positions_counts(layout):
    c = case("R01")
    q, k, at = c["input"]["q"][None], c["input"]["k"][None], c["input"]["positions"]
    order = np.arange(8).reshape(2, 4).T.reshape(-1)  # the case was drawn for halves
    if layout == "interleaved":
        q, k = q[:, order], k[:, order]
    for shift, right in zip(c["input"]["shifts"], c["right"]["dot"], strict=True):
        rotated_q, _ = F.rope(q, [at[0] + shift], layout=layout)
        rotated_k, _ = F.rope(k, [at[1] + shift], layout=layout)
        close((rotated_q * rotated_k).sum(), right, rtol=0, atol=1e-11)
    # mixed layouts depend on where the pair stands
    assert np.ptp(c["wrong"]["mixed_layouts"]) > 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10000.0, 500000.0, 7.0])
def test_r01_every_pair_by_complex_numbers(layout, base, rng):
    B, H, T, d = 3, 3, 5, 10
    x, dy = rng.standard_normal((2, B, H, T, d))
    positions = rng.integers(0, 5000, (B, T))
    y, saved = F.rope(x, positions, base=base, layout=layout)
    first, second = (
        (slice(0, None, 2), slice(1, None, 2))
        if layout == "interleaved"
        else (slice(0, d // 2), slice(d // 2, None))
    )
    angles = positions[:, None, :, None] * base ** (-2 * np.arange(d // 2) / d)
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
    close(y[..., first], turned.real, rtol=0, atol=1e-12)
    close(y[..., second], turned.imag, rtol=0, atol=1e-12)
    dx = F.rope_backward(dy, saved)
    back = (dy[..., first] + 1j * dy[..., second]) * np.exp(-1j * angles)
    close(dx[..., first], back.real, rtol=0, atol=1e-12)
    close(dx[..., second], back.imag, rtol=0, atol=1e-12)
    for b in range(B):
        exact(F.rope(x[b], positions[b], base=base, layout=layout)[0], y[b])
    assert F.rope(x.astype(np.float32), positions)[0].dtype == np.float32


@pytest.mark.parametrize("layout", LAYOUTS)
def test_r01_partial_rotation_leaves_the_rest(layout, rng):
    x, dy = rng.standard_normal((2, 2, 3, 5, 9))
    positions = np.arange(2, 7)
    y, saved = F.rope(x, positions, layout=layout, rotary_dim=4)
    exact(y[..., 4:], x[..., 4:])
    exact(y[..., :4], F.rope(x[..., :4], positions, layout=layout)[0])
    dx = F.rope_backward(dy, saved)
    exact(dx[..., 4:], dy[..., 4:])
    close((dx * x).sum(), (dy * y).sum(), rtol=1e-12)


@pytest.mark.parametrize(("d", "rotary_dim"), [(5, None), (6, 3), (6, 8), (6, 0), (6, -2)])
def test_r01_dimensions_that_cannot_be_paired(d, rotary_dim):
    with pytest.raises(ValueError, match="rotary dimension must be even and at most"):
        F.rope(np.ones((1, 2, 3, d)), np.arange(3), rotary_dim=rotary_dim)


def test_r01_other_bad_input():
    x = np.ones((2, 3, 5, 4))
    with pytest.raises(ValueError, match="layout must be"):
        F.rope(x, np.arange(5), layout="neox")
    for positions in (np.arange(4), np.zeros((3, 5), int), np.zeros((2, 4), int), 3):
        with pytest.raises(ValueError, match="positions must have shape"):
            F.rope(x, positions)
    with pytest.raises(TypeError, match="floating-point"):
        F.rope(np.ones((1, 1, 3, 4), int), np.arange(3))


def test_r06_angles_are_computed_in_full_precision():
    c = case("R06")
    T, d = c["input"]["T"], c["input"]["d"]
    x = np.zeros((T, d), np.float32)
    x[:, 0] = 1
    exact_angles = np.arange(T)
    for dtype in (np.float16, np.float32):
        y, _ = F.rope(x.astype(dtype), exact_angles, base=c["input"]["base"])
        assert np.abs(y[:, 0] - np.cos(exact_angles)).max() < (
            1e-3 if dtype == np.float16 else 1e-6
        )
        close(y[2048, 0], c["right"]["cos_2048_pair0"], atol=5e-4)
        close(y[2049, 0], c["right"]["cos_2049_pair0"], atol=5e-4)
    table = F.sinusoidal(exact_angles, d, np.float16)
    assert (table[2048] != table[2049]).any()
    close(table[2049, 1], c["right"]["cos_2049_pair0"], atol=5e-4)
    assert c["wrong"]["max_abs_err_float16_table"] > 1
