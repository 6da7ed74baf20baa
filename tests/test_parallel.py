"""The machinery can never change an answer: many blocks or one, any number of threads."""

import gc
import warnings
import weakref

import numpy as np
import pytest

from npformer import functional as F
from npformer import parallel, team
from npformer.parallel import add_rows, colsum, headwise, matmul, rowdot, rowmean, rowsum, rowwise


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(parallel, "BLOCK_BYTES", 256)
    monkeypatch.setattr(parallel, "SMALL_PRODUCT", 1)


@pytest.fixture(params=[1, 2, 3])
def some_threads(request):
    before = team.threads()
    team.set_threads(request.param)
    yield request.param
    team.set_threads(before)


def pairs(rng, dtype):
    """Each row-wise or head-wise pair once, forward and backward, as a flat list of arrays."""
    x = rng.standard_normal((5, 13, 7)).astype(dtype)
    dy = rng.standard_normal((5, 13, 7)).astype(dtype)
    gamma, beta = rng.standard_normal((2, 7)).astype(dtype)
    q, dq = rng.standard_normal((2, 3, 6, 13, 5)).astype(dtype)
    k, v = rng.standard_normal((2, 3, 2, 13, 5)).astype(dtype)
    targets = rng.integers(0, 7, (5, 13))
    results = []
    for f, b, args in (
        (F.softmax, F.softmax_backward, (x,)),
        (F.log_softmax, F.log_softmax_backward, (x,)),
        (F.layernorm, F.layernorm_backward, (x, gamma, beta)),
        (F.rmsnorm, F.rmsnorm_backward, (x, gamma)),
        (F.gelu, F.gelu_backward, (x,)),
        (F.silu, F.silu_backward, (x,)),
        (F.relu, F.relu_backward, (x,)),
    ):
        y, saved = f(*args)
        grads = b(dy, saved)
        results += [y, *(grads if isinstance(grads, tuple) else (grads,))]
    y, saved = F.attention(q, k, v, causal=True, window=7, dropout=0.3, rng=1)
    results += [y, *F.attention_backward(dq, saved), F.attention_weights(saved)]
    loss, saved = F.cross_entropy(x, targets, label_smoothing=0.1)
    results += [np.array(loss), F.cross_entropy_backward(1.0, saved)]
    return results


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bitwise_equal_for_any_number_of_threads(small_blocks, some_threads, dtype):
    many = pairs(np.random.default_rng(0), dtype)
    team.set_threads(1)
    for a, b in zip(many, pairs(np.random.default_rng(0), dtype), strict=True):
        np.testing.assert_array_equal(a, b)


def test_many_blocks_equal_one_block(monkeypatch, some_threads):
    monkeypatch.setattr(parallel, "BLOCK_BYTES", 1 << 30)
    whole = pairs(np.random.default_rng(0), np.float64)
    monkeypatch.setattr(parallel, "BLOCK_BYTES", 256)
    for a, b in zip(whole, pairs(np.random.default_rng(0), np.float64), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * max(1, np.abs(a).max()))


def test_rowwise_puts_rows_statistics_and_sums_where_they_belong(small_blocks, some_threads):
    x = np.random.default_rng(0).standard_normal((11, 3, 5))

    def block(x):
        return 2 * x, x[:, :1] + 1, x.sum(0), np.array(len(x))

    twice, first, total, n = rowwise(block, x, stats=1, sums=2)
    np.testing.assert_array_equal(twice, 2 * x)
    np.testing.assert_array_equal(first, x[..., :1] + 1)
    np.testing.assert_allclose(total, x.reshape(-1, 5).sum(0), rtol=1e-13)
    assert n == 33


def test_rowwise_keeps_half_precision_outside_and_float32_inside():
    seen = []

    def block(x):
        seen.append(x.dtype)
        return x, x[:, :1], x.sum(0)

    rows, stat, total = rowwise(block, np.ones((4, 3), np.float16), stats=1, sums=1)
    assert seen == [np.float32]
    assert [rows.dtype, stat.dtype, total.dtype] == [np.float16, np.float32, np.float16]


def test_half_precision_in_many_pieces(small_blocks, some_threads):
    x = np.random.default_rng(0).standard_normal((2, 6, 40, 8)).astype(np.float16)
    wide = x.astype(np.float32)

    def rows(x):
        assert x.dtype == np.float32
        return 2 * x, x[:, :1] / 3, x.sum(0)

    twice, third, total = rowwise(rows, x, stats=1, sums=1)
    assert [twice.dtype, third.dtype, total.dtype] == [np.float16, np.float32, np.float16]
    np.testing.assert_array_equal(twice, 2 * x)
    np.testing.assert_array_equal(third, wide[..., :1] / 3)
    np.testing.assert_allclose(total, wide.reshape(-1, 8).sum(0), rtol=1e-3)

    def head(x):
        assert x.dtype == np.float32
        return 2 * x, x[..., 0] / 3

    twice, third = headwise(head, x, stats=1)
    assert [twice.dtype, third.dtype] == [np.float16, np.float32]
    np.testing.assert_array_equal(twice, 2 * x)
    np.testing.assert_array_equal(third, wide[..., 0] / 3)
    y = matmul(x.reshape(-1, 8), x.reshape(-1, 8).T, x[0, 0, 0, :1].repeat(480))
    assert y.dtype == np.float16


@pytest.mark.parametrize("shape", [(0, 7), (3, 0, 7), (7,), (1, 7)])
def test_rowwise_takes_no_rows_and_one_row(shape):
    (y,) = rowwise(lambda x: (x + 1,), np.zeros(shape))
    np.testing.assert_array_equal(y, np.ones(shape))


def test_headwise_result_merges_into_rows_without_a_copy(small_blocks):
    q = np.random.default_rng(0).standard_normal((3, 6, 5, 4))
    y, stat = headwise(lambda q: (3 * q, q[..., 0]), q, stats=1)
    np.testing.assert_array_equal(y, 3 * q)
    np.testing.assert_array_equal(stat, q[..., 0])
    assert np.shares_memory(y, y.swapaxes(1, 2).reshape(3, 5, 24))


SHAPES = [  # n, k, m: few rows, cut along the sum; rows; columns; edges that are no multiple of 16
    (1, 200, 300), (3, 333, 130), (15, 197, 70), (16, 333, 70), (2, 100, 300), (67, 5, 131),
    (131, 67, 3), (600, 67, 201), (64, 200, 200), (300, 30, 700), (700, 64, 64), (1, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex128])
def test_matmul_is_a_product(small_blocks, some_threads, shape, dtype):
    rng = np.random.default_rng(0)
    n, k, m = shape
    a, b, plus = (rng.standard_normal(s).astype(dtype) for s in ((n, k), (k, m), (m,)))
    if dtype == np.complex128:
        a, b, plus = a + 1j * a[::-1], b - 2j * b, plus * 1j
    wide = np.complex128 if dtype == np.complex128 else np.float64
    want = a.astype(wide) @ b.astype(wide)
    close = {np.float16: 2e-3, np.float32: 1e-5}.get(dtype, 1e-12) * np.abs(want).max()
    for x, W in ((a, b), (np.asfortranarray(a), np.asfortranarray(b)), (a, b[:, ::-1][:, ::-1])):
        y = matmul(x, W)
        assert (y.dtype, y.shape) == (dtype, (n, m))
        np.testing.assert_allclose(y, want, rtol=0, atol=close)
        np.testing.assert_allclose(matmul(x, W, plus), want + plus, rtol=0, atol=2 * close)
    np.testing.assert_allclose(matmul(b.T, a.T), want.T, rtol=0, atol=close)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_matmuls_are_products_each_with_its_own_row(small_blocks, some_threads, count):
    rng = np.random.default_rng(0)
    products, want = [], []
    for i in range(count):
        n, k, m = SHAPES[(3 * i + count) % len(SHAPES)]
        a, b, plus = (rng.standard_normal(s) for s in ((n, k), (k, m), (m,)))
        products.append((a, b, plus if i % 2 else None))
        want.append(a @ b + plus if i % 2 else a @ b)
    for y, w in zip(parallel.matmuls(*products), want, strict=True):
        np.testing.assert_allclose(y, w, rtol=0, atol=1e-12 * np.abs(w).max())


def test_matmul_of_a_half_and_a_single_is_single():
    x = np.linspace(-1, 1, 12).reshape(3, 4)
    assert matmul(x.astype(np.float16), x.T.astype(np.float32)).dtype == np.float32
    assert matmul(x.astype(np.float32), x.T.astype(np.float16)).dtype == np.float32


def test_inside_a_piece_products_are_not_cut_again(small_blocks, some_threads, monkeypatch):
    cut = []
    monkeypatch.setattr(parallel, "_shared", lambda *given: cut.append(given))
    x = np.random.default_rng(0).standard_normal((200, 200))
    for y in team.run(lambda i: matmul(x, x), 5) if some_threads > 1 else []:
        np.testing.assert_allclose(y, x @ x)
    assert not cut


def test_what_is_shared_by_all_calls_can_not_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        parallel._ones(7, np.dtype(np.float32))[0] = 2


def test_sums_along_rows_do_not_conjugate():
    z = np.random.default_rng(0).standard_normal((2, 5, 7, 2)) @ [1, 1j]
    x, y = z
    np.testing.assert_allclose(rowsum(x), x.sum(-1, keepdims=True))
    np.testing.assert_allclose(rowmean(x), x.mean(-1, keepdims=True))
    np.testing.assert_allclose(rowdot(x, y), (x * y).sum(-1, keepdims=True))
    np.testing.assert_allclose(rowdot(x.real, y), (x.real * y).sum(-1, keepdims=True))
    np.testing.assert_allclose(rowdot(x, y.real), (x * y.real).sum(-1, keepdims=True))
    np.testing.assert_allclose(rowdot(x.real, y.real), (x.real * y.real).sum(-1, keepdims=True))
    np.testing.assert_allclose(colsum(x), x.sum(0))


def test_add_rows_adds_repeats_and_keeps_the_dtype():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 5, 200)
    for dtype in (np.float16, np.float32, np.float64, np.complex128):
        rows = rng.standard_normal((200, 3)).astype(dtype)
        want = np.zeros((7, 3), dtype if dtype != np.float16 else np.float32)
        assert parallel.sum_by_id(ids, rows)[1].dtype == dtype
        np.add.at(want, ids, rows)
        got = add_rows(ids, rows, 7)
        assert got.dtype == dtype
        close = 0.02 if dtype == np.float16 else 1e-5
        np.testing.assert_allclose(got, want, rtol=close, atol=close)
    assert not add_rows(np.array([], int), np.zeros((0, 3)), 7).any()


def test_sum_by_id_and_added(small_blocks, some_threads):
    rng = np.random.default_rng(0)
    ids, rows = rng.integers(0, 5, 20) * 3, rng.standard_normal((20, 4))
    distinct, sums = parallel.sum_by_id(ids, rows)
    np.testing.assert_array_equal(distinct, np.unique(ids))
    for i, s in zip(distinct, sums, strict=True):
        np.testing.assert_allclose(s, rows[ids == i].sum(0), rtol=1e-12)
    np.testing.assert_array_equal(parallel.added(rows, 2 * rows), rows + 2 * rows)


def test_an_error_in_a_piece_reaches_the_caller_and_the_team_goes_on(small_blocks, some_threads):
    def block(x):
        if (x == 33).any():
            raise ValueError("row 33")
        return (x,)

    x = np.arange(64.0).repeat(8).reshape(64, 8)
    for _ in range(3):
        with pytest.raises(ValueError, match="row 33"):
            rowwise(block, x)
        np.testing.assert_array_equal(rowwise(lambda x: (x,), x)[0], x)


def test_pieces_see_the_callers_error_state(small_blocks, some_threads):
    x = np.zeros((64, 8))
    x[50] = 1e308
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        rowwise(lambda x: (x * 10,), x)
    with np.errstate(over="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(rowwise(lambda x: (x * 10,), x)[0]).any()


def test_pieces_may_use_the_machinery_themselves(small_blocks, some_threads):
    x = np.random.default_rng(0).standard_normal((64, 8))
    (y,) = rowwise(lambda x: (F.softmax(x)[0],), x)
    np.testing.assert_allclose(y, F.softmax(x)[0], rtol=1e-14)  # in pieces of another size


def test_underflow_and_what_is_invalid_do_not_raise(small_blocks, some_threads):
    rng = np.random.default_rng(0)
    for dtype in (np.float16, np.float32, np.float64):
        x = (40 * rng.standard_normal((64, 8))).astype(dtype)
        x[0, 1:] = -x[0, 0]
        W = (1e-4 * x[:8]).astype(dtype)
        q = (40 * rng.standard_normal((2, 4, 40, 8))).astype(dtype)
        with np.errstate(all="raise"):
            for f, f_backward in (
                (F.softmax, F.softmax_backward),
                (F.gelu, F.gelu_backward),
                (F.silu, F.silu_backward),
                (F.sigmoid, F.sigmoid_backward),
                (lambda x, W=W: F.linear(1e-3 * x if x.dtype == np.float16 else x, W), None),
            ):
                y, saved = f(x)
                if f_backward is not None:
                    f_backward(y, saved)
            for f, f_backward in (
                (F.attention, F.attention_backward),
                (F.flash_attention, F.flash_attention_backward),
            ):
                y, saved = f(q, q, q, causal=True)
                f_backward(y, saved)


def test_nan_shows_whatever_is_ignored(small_blocks, some_threads):
    x = np.ones((64, 8), np.float32)
    x[33, 5] = np.nan
    with np.errstate(all="raise"):
        for f in (F.softmax, F.gelu, F.silu, F.relu, lambda x: F.layernorm(x, x[0], x[0])):
            assert np.isnan(f(x)[0][33, 5])
        assert np.isnan(matmul(x, x.T)[33]).all()
        q = x.reshape(1, 4, 16, 8)
        assert np.isnan(F.attention(q, q, q)[0][0, 2]).all()


def test_an_error_lets_go_of_the_arrays(small_blocks, some_threads):
    alive = []

    def block(x):
        held = x + 1
        alive.append(weakref.ref(held))
        raise ValueError("too late")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="too late") as caught:
            rowwise(block, np.zeros((64, 8)))
        assert alive[0]() is not None
        del caught
        assert not any(held() is not None for held in alive)
    finally:
        gc.enable()
