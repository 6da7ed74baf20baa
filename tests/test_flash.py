"""The blocked kernel: equal to the dense one for any blocks, in memory that grows with T."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import npformer as nf
from npformer import flash, parallel
from npformer import functional as F
from npformer.attention import Rules
from npformer.masks import Sight, visible

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal


def arrays(rng, B=2, H=6, H_kv=3, T=7, S=11, d_h=5, d_v=3, size=1.0, dtype=np.float64):
    """q, k, v and dy; ``size`` is that of the scores at their standard scale."""
    shapes = [(B, H, T, d_h), (B, H_kv, S, d_h), (B, H_kv, S, d_v), (B, H, T, d_v)]
    q, k, v, dy = (rng.standard_normal(s).astype(dtype) for s in shapes)
    return q * dtype(size), k, v, dy


def run(kernel, q, k, v, dy, **options):
    """y, lse and the three gradients of one kernel."""
    y, saved = getattr(F, kernel)(q, k, v, **options)
    return (y, saved.lse, *getattr(F, f"{kernel}_backward")(dy, saved))


def error(a, b):
    """Largest difference relative to the largest number, NaN where one is."""
    hidden = np.isposinf(b)  # the lse of a query that sees nothing
    exact(np.isposinf(a), hidden)
    a, b = np.where(hidden, 0, a), np.where(hidden, 0, b)
    return np.max(np.abs(a - b), initial=0) / max(1.0, np.max(np.abs(b), initial=0))


# -------------------------------------------------------------------------- equal to the dense one


@st.composite
def calls(draw):
    """Shapes, options and blocks of one call."""
    size = st.integers(1, 13)
    B, H_kv, G, T, S = draw(st.tuples(*[st.integers(1, 3)] * 3, size, size))
    shape = dict(B=B, H=H_kv * G, H_kv=H_kv, T=T, S=S, d_h=draw(size), d_v=draw(size))
    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 14)),
        "scale": draw(st.none() | st.floats(-2, 2)),
        "softcap": draw(st.none() | st.floats(0.5, 30)),
    }
    if draw(st.booleans()):
        options |= {"dropout": draw(st.floats(0, 1)), "rng": draw(st.integers(0, 9))}
    masks = [(T, S), (1, 1, 1, S), (1, 1, T, S), (B, 1, 1, S), (B, 1, T, S), (B, H_kv * G, T, S)]
    mask = draw(st.none() | st.tuples(st.sampled_from(masks), st.sampled_from([0, 0.2, 0.7, 1])))
    blocks = {"block_q": draw(st.integers(1, 16)), "block_k": draw(st.integers(1, 16))}
    return shape, options, mask, blocks, draw(st.integers(0, 99))


@given(calls())
def test_equal_to_dense(call):
    shape, options, mask, blocks, seed = call
    rng = np.random.default_rng(seed)
    q, k, v, dy = arrays(rng, **shape, size=2.0)
    if mask is not None:
        options["mask"] = rng.random(mask[0]) < mask[1]
    with np.errstate(invalid="raise", divide="raise", over="raise"):
        dense = run("attention", q, k, v, dy, **options)
        blocked = run("flash_attention", q, k, v, dy, **options, **blocks)
    for a, b in zip(blocked, dense, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert error(a, b) < 1e-13
    nothing = np.isposinf(dense[1])
    exact(blocked[0][nothing], 0)
    exact(blocked[2][nothing], 0)


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4, 1e8, 1e30])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 3.0}, {"window": 4}])
def test_scores_of_any_size(size, options, rng):
    """Within 1e-13 for scores up to 100, beyond that within the rounding of the scores."""
    q, k, v, dy = arrays(rng, T=29, S=31)
    q, k = (x / np.sqrt(np.sum(x * x, -1, keepdims=True)) for x in (q, k))
    call = (np.sqrt(size) * q, np.sqrt(size) * k, v, dy)
    with np.errstate(invalid="raise", divide="raise", over="raise"):
        dense = run("attention", *call, **options, scale=1.0)
        blocked = run("flash_attention", *call, **options, scale=1.0, block_q=8, block_k=5)
    tolerance = max(1e-13, 8 * np.finfo(np.float64).eps * size)
    for a, b in zip(blocked, dense, strict=True):
        assert np.isfinite(a).all()
        assert error(a, b) <= tolerance


def test_one_key_wins_where_scores_are_far_apart(rng):
    """The last block holds the maximum, then the first one does."""
    T, S = 5, 12
    k = np.zeros((1, 1, S, 1))
    v = rng.standard_normal((1, 1, S, 3))
    for winner in (0, 4, S - 1):
        k[..., 0], k[0, 0, winner, 0] = -1e4, 1e4
        y, saved = F.flash_attention(np.ones((1, 1, T, 1)), k, v, block_q=2, block_k=4)
        exact(y, np.broadcast_to(v[:, :, winner], y.shape))
        exact(saved.lse, 1e4)
        dq, dk, dv = F.flash_attention_backward(np.ones_like(y), saved)
        exact(dq, 0)
        exact(dk, 0)
        close(dv[0, 0, winner], T)
        exact(np.delete(dv, winner, axis=2), 0)


@pytest.mark.parametrize("winner", [0, 3, 5])
def test_scores_further_apart_than_the_type_reaches(winner):
    """-3e38 less 3e38 is -inf in float32: a weight of 0 and no warning."""
    k = np.full((1, 1, 6, 1), -3e38, np.float32)
    k[0, 0, winner] = 3e38
    v = np.arange(6, dtype=np.float32).reshape(1, 1, 6, 1)
    with np.errstate(all="raise"):
        y, saved = F.flash_attention(np.ones((1, 1, 2, 1), "f"), k, v, block_k=2)
        dq, dk, dv = F.flash_attention_backward(np.ones_like(y), saved)
    exact(y, winner)
    exact(dq, 0)
    exact(dk, 0)
    exact(dv[0, 0, :, 0], np.where(np.arange(6) == winner, 2, 0))


def test_the_correction_is_a_product_and_not_a_quotient():
    """Two blocks of one key each, the second score higher: by hand."""
    q, k = np.ones((1, 1, 1, 1)), np.log([[[[2.0], [6.0]]]])
    v = np.array([[[[4.0], [8.0]]]])
    y, saved = F.flash_attention(q, k, v, scale=1.0, block_k=1)
    close(y, (2 * 4 + 6 * 8) / 8, rtol=1e-15)
    close(saved.lse, np.log(8), rtol=1e-15)


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"causal": True, "window": 300}, {"softcap": 5.0}]
)
def test_float32_error_is_at_most_twice_that_of_dense(options, rng):
    wide = arrays(rng, B=1, H=2, H_kv=1, T=517, S=761, d_h=16, d_v=16, size=2.0)
    narrow = [a.astype(np.float32) for a in wide]
    right = run("attention", *(a.astype(np.float64) for a in narrow), **options)
    dense = run("attention", *narrow, **options)
    blocked = run("flash_attention", *narrow, **options, block_q=64, block_k=96)
    for a, b, r in zip(blocked, dense, right, strict=True):
        assert a.dtype == np.float32
        assert np.linalg.norm(a - r) <= 2 * np.linalg.norm(b - r)


def test_float16_computes_in_float32(rng):
    q, k, v, dy = arrays(rng, dtype=np.float16)
    out = run("flash_attention", q, k, v, dy, block_q=4, block_k=4)
    wide = run("flash_attention", *(a.astype(np.float32) for a in (q, k, v, dy)))
    assert [a.dtype for a in out] == [np.dtype(t) for t in "eFeee".replace("F", "f")]
    for a, b in zip(out, wide, strict=True):
        assert error(a.astype(np.float32), b) < 2e-3


# ------------------------------------------------------------------------------- gradients


OPTIONS = [
    {},
    {"causal": True},
    {"causal": True, "window": 3},
    {"window": 3, "scale": 0.7},
    {"softcap": 1.5, "causal": True},
    {"dropout": 0.4, "rng": 3, "window": 6},
]


@pytest.mark.parametrize(
    ("blocks", "method"), [((1, 1), "complex"), ((4, 2), "complex"), ((4, 2), "central")]
)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradient(blocks, options, method, rng):
    q, k, v, _ = arrays(rng, H=2, H_kv=1, T=3, S=5, d_h=3, d_v=2)
    mask = rng.random((2, 1, 3, 5)) < 0.8
    mask[1, 0, 2] = False
    report = nf.gradcheck(
        (F.flash_attention, F.flash_attention_backward),
        *(q, k, v),
        method=method,
        samples=16,
        mask=mask,
        block_q=blocks[0],
        block_k=blocks[1],
        **options,
    )
    assert report.passed, report


@pytest.mark.parametrize("shape", [{"B": 3, "T": 3, "S": 3, "H": 3}, {"H": 4, "T": 4, "S": 4}])
def test_gradient_where_sizes_agree(shape, rng):
    H = shape["H"]
    for H_kv in {1, H // 2, H} if H % 2 == 0 else {1, H}:
        q, k, v, _ = arrays(rng, **shape | {"H_kv": H_kv, "d_h": 2, "d_v": 2})
        pair = (F.flash_attention, F.flash_attention_backward)
        report = nf.gradcheck(pair, q, k, v, causal=True, block_q=2 * H // H_kv, block_k=3)
        assert report.passed, report


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_d_is_the_row_sum_that_it_replaces(options, rng):
    """rowsum(dY * Y) = rowsum(P * dP), with dropout too; without it P is what is seen."""
    q, k, v, dy = arrays(rng)
    y, saved = F.flash_attention(q, k, v, **options, block_q=4, block_k=3)
    P = F.attention_weights(saved)
    dP = dy @ np.repeat(v, 2, axis=1).swapaxes(-1, -2)
    if "dropout" in options:  # the factors, seen through unit vectors
        unit = np.broadcast_to(np.eye(11), (2, 3, 11, 11))
        dP *= F.flash_attention(q, k, unit, **options)[0] / np.where(P > 0, P, 1)
    close(np.sum(dy * y, -1), np.sum(P * dP, -1), rtol=0, atol=1e-13)


# ------------------------------------------------------------------------- which blocks are done


@given(
    st.integers(1, 30),
    st.integers(1, 30),
    st.booleans(),
    st.none() | st.integers(1, 20),
    st.integers(1, 9),
    st.integers(1, 9),
)
@example(8, 8, True, None, 4, 4)
def test_blocks_cover_what_is_visible_and_skip_what_is_not(T, S, causal, window, block_q, block_k):
    sight = Sight(T, S, causal, window)
    rows, columns = flash.slices(T, block_q), flash.slices(S, block_k)
    seen = visible(np.arange(T)[:, None], np.arange(S), sight)
    by_queries = list(flash.met(rows, columns, sight))
    by_keys = [pair for j in columns for pair in flash.met(rows, [j], sight)]
    assert sorted(by_queries, key=str) == sorted(by_keys, key=str)
    count = np.zeros((T, S), int)
    for i, j in by_queries:
        count[i, j] += 1
        assert j.start // block_k == (j.stop - 1) // block_k
        assert seen[i, j.start].any()
        assert seen[i, j.stop - 1].any()
    assert count.max(initial=0) <= 1
    exact(count[seen], 1)


def test_a_causal_call_computes_half_of_the_scores(monkeypatch, rng):
    """Blocks above the diagonal are skipped and only those on it are masked (section 3.1.1)."""
    computed, hidden = [], []
    scores = flash.scores

    def counted(scaled, k, rules):
        S = scores(scaled, k, rules)
        computed.append(S.size)
        return S

    def hide(S, i, j, sight):
        hidden.append(len(list(sight.edges(i, j))))

    monkeypatch.setattr(flash, "scores", counted)
    q, k, v, dy = arrays(rng, B=1, H=1, H_kv=1, T=64, S=64)
    _, saved = F.flash_attention(q, k, v, causal=True, block_q=8, block_k=8)
    assert len(computed) == 8 * 9 / 2
    assert sum(computed) == 64 * (8 * 9 / 2)
    F.flash_attention_backward(dy, saved)
    assert sum(computed) == 2 * 64 * (8 * 9 / 2)
    monkeypatch.setattr(flash, "hide", hide)
    F.flash_attention(q, k, v, causal=True, block_q=8, block_k=8)
    assert sum(hidden) == 8
    computed.clear()
    F.flash_attention(q, k, v, causal=True, window=16, block_q=8, block_k=8)
    assert sum(computed) <= 64 * 24


def test_blocks_that_are_given_are_used_by_the_backward(rng, monkeypatch):
    q, k, v, dy = arrays(rng)
    _, saved = F.flash_attention(q, k, v, block_q=4, block_k=3)
    assert saved.rules.blocks == (4, 3)
    asked = []
    met = flash.met

    def watched(rows, columns, sight):
        asked.append((len(rows), len(columns)))
        return met(rows, columns, sight)

    monkeypatch.setattr(flash, "met", watched)
    F.flash_attention_backward(dy, saved)
    assert {n for n, _ in asked} == {4}  # 7 queries, 4 rows for two heads
    assert len(asked) % 4 == 0  # 11 keys


@pytest.mark.parametrize(
    ("block_q", "block_k"), [(0, 4), (4, 0), (-1, 4), (4, -3), (4, 1.5), (2.0, 4), (True, 4)]
)
def test_blocks_have_rows_and_columns(block_q, block_k, rng):
    q, k, v, _ = arrays(rng)
    with pytest.raises(ValueError, match="block_q and block_k must be whole numbers from 1 on"):
        F.flash_attention(q, k, v, block_q=block_q, block_k=block_k)


def test_what_is_saved_serves_either_backward(rng):
    """Both kernels save the same kind, so each backward takes the other's."""
    q, k, v, dy = arrays(rng)
    _, dense = F.attention(q, k, v, causal=True)
    _, blocked = F.flash_attention(q, k, v, causal=True, block_q=4, block_k=4)
    assert type(dense) is type(blocked)
    right = F.attention_backward(dy, dense)
    for grads in (
        F.attention_backward(dy, blocked),
        F.flash_attention_backward(dy, dense),
        F.flash_attention_backward(dy, blocked),
    ):
        for a, b in zip(grads, right, strict=True):
            assert error(a, b) < 1e-13
    close(F.attention_weights(blocked), F.attention_weights(dense), rtol=1e-12, atol=1e-14)


def test_no_keys_or_no_queries(rng):
    q, k, v, _ = arrays(rng, S=3)
    y, saved = F.flash_attention(q, k[:, :, :0], v[:, :, :0])
    exact(y, 0)
    assert np.isposinf(saved.lse).all()
    exact(F.flash_attention_backward(y, saved)[0], 0)
    y, _ = F.flash_attention(q[:, :, :0], k, v)
    assert y.shape == (2, 6, 0, 3)


# ------------------------------------------------------------------------------------ machinery


def test_same_for_any_number_of_threads(rng):
    call = arrays(rng, B=2, H=6, H_kv=3, T=65, S=65, dtype=np.float32)
    before = parallel.threads()
    try:
        results = []
        for threads in (1, 2, 3):
            parallel.set_threads(threads)
            results.append(run("flash_attention", *call, causal=True, block_q=32, block_k=16))
    finally:
        parallel.set_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            exact(a, b)


def test_same_for_any_grouping_of_heads(rng, monkeypatch):
    call = arrays(rng, B=3, H=6, H_kv=3)
    right = run("flash_attention", *call, causal=True, block_q=4, block_k=4)
    for block_bytes in (1, 1 << 10, 1 << 30):
        monkeypatch.setattr(parallel, "BLOCK_BYTES", block_bytes)
        out = run("flash_attention", *call, causal=True, block_q=4, block_k=4)
        for a, b in zip(out, right, strict=True):
            assert error(a, b) < 1e-14


def test_inputs_are_not_touched(rng):
    call = arrays(rng)
    copies = [a.copy() for a in call]
    for a in call:
        a.flags.writeable = False
    first = run("flash_attention", *call, causal=True, block_q=4, block_k=4)
    for a, b in zip(call, copies, strict=True):
        exact(a, b)
    second = run("flash_attention", *call, causal=True, block_q=4, block_k=4)
    for a, b in zip(first, second, strict=True):
        exact(a, b)


def peak(T, **options):
    """Bytes that forward and backward need at once, and of the result and the gradients alone."""
    rng = np.random.default_rng(0)
    q, k, v, dy = arrays(rng, B=1, H=1, H_kv=1, T=T, S=T, d_h=4, d_v=4, dtype=np.float32)
    tracemalloc.start()
    try:
        y, saved = F.flash_attention(q, k, v, **options)
        grads = F.flash_attention_backward(dy, saved)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return most, sum(a.nbytes for a in (y, *grads))


def test_memory_grows_with_t_and_not_with_its_square():
    """A window keeps the work linear too, so that 16,384 tokens take a moment."""
    window = {"causal": True, "window": 64}
    peak(2048, **window)  # what is loaded at first use
    most = {}
    for T in (2048, 4096, 8192, 16384):
        most[T], outputs = peak(T, **window)
        assert most[T] - outputs < 4 * outputs + 6 * 256 * 512 * 4  # heads' copies; blocks
    for T in (2048, 4096, 8192):
        assert most[2 * T] <= 2 * most[T]


def test_memory_without_a_window():
    peak(512)
    small, large = peak(1024)[0], peak(2048)[0]
    assert large <= 2 * small
    assert large < 2048 * 2048 * 4  # no (T, S) array, not even of float32


# --------------------------------------------------------------------------- layers and models


@pytest.mark.parametrize("kernel", ["flash", "auto"])
def test_layer_with_each_kernel(kernel, rng):
    c = nf.AttentionConfig(12, 6, 2, causal=True, window=4, dropout=0.2, rope=True)
    dense = nf.MultiHeadAttention(c, rng=0, dtype=np.float64)
    other = nf.MultiHeadAttention(c, kernel=kernel, rng=0, dtype=np.float64)
    x, dy = rng.standard_normal((2, 7, 12)), rng.standard_normal((2, 7, 12))
    (y, s), (z, r) = dense.forward(x, rng=1), other.forward(x, rng=1)
    close(z, y, rtol=0, atol=1e-13)
    close(other.backward(dy, r), dense.backward(dy, s), rtol=0, atol=1e-12)
    for p, o in zip(dense.parameters(), other.parameters(), strict=True):
        close(o.grad, p.grad, rtol=0, atol=1e-12)


def test_auto_takes_the_faster_kernel():
    layer = nf.MultiHeadAttention(nf.AttentionConfig(2, 1, kernel="auto"), rng=0)
    ran = {
        (T, S): layer.forward(np.zeros((1, T, 2), "f"), np.zeros((1, S, 2), "f"))[1]["attention"]
        for T, S in [(1, 1025), (127, 1025), (128, 1025), (128, 1024), (130, 1500)]
    }
    flash_ran = {shape for shape, saved in ran.items() if saved.rules.blocks is not None}
    assert flash_ran == {(128, 1025), (130, 1500)}
    assert isinstance(ran[1, 1025].rules, Rules)


def test_a_whole_model_trains_with_it(rng):
    ids = rng.integers(0, 13, (2, 6))
    grads = []
    for kernel in ("dense", "flash"):
        cfg = nf.TransformerConfig(V=13, d=12, L=2, H=6, H_kv=2, T_max=7, kernel=kernel)
        model = nf.DecoderLM(cfg, rng=0, dtype=np.float64)
        loss, saved = model.loss(ids[:, :-1], ids[:, 1:])
        model.loss_backward(1.0, saved)
        grads.append([np.asarray(loss), *(p.grad for p in model.parameters())])
    for a, b in zip(*grads, strict=True):
        close(a, b, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kernel", [F.attention, F.flash_attention])
def test_the_widest_input_decides_how_exact_the_result_is(kernel):
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 2, 5, 4))
    want = F.attention(q.astype(np.float32).astype(np.float64), k, v)[0]
    y, saved = kernel(q.astype(np.float32), k, v)
    assert (y.dtype, saved.lse.dtype) == (np.float64, np.float64)
    np.testing.assert_allclose(y, want, rtol=1e-6)
    half = kernel(*(x.astype(np.float16) for x in (q, k, v)))
    assert (half[0].dtype, half[1].lse.dtype) == (np.float16, np.float32)
