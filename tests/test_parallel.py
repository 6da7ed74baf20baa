"""The machinery can never change an answer: many blocks or one, any number of threads."""

import gc
import os
import signal
import subprocess
import sys
import threading
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


@pytest.mark.parametrize(
    "shapes", [((67, 5), (5, 131)), ((131, 67), (67, 3)), ((64, 200), (200, 64))]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
def test_matmul_is_a_product(small_blocks, some_threads, shapes, dtype):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(dtype) for s in shapes)
    y = matmul(a, b)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, a @ b, rtol=1e-4 if dtype == np.float32 else 1e-11, atol=1e-5)
    np.testing.assert_allclose(matmul(b.T, a.T), y.T, rtol=1e-4, atol=1e-5)


def test_sums_along_rows_do_not_conjugate():
    z = np.random.default_rng(0).standard_normal((2, 5, 7, 2)) @ [1, 1j]
    x, y = z
    np.testing.assert_allclose(rowsum(x), x.sum(-1, keepdims=True))
    np.testing.assert_allclose(rowmean(x), x.mean(-1, keepdims=True))
    np.testing.assert_allclose(rowdot(x, y), (x * y).sum(-1, keepdims=True))
    np.testing.assert_allclose(rowdot(x.real, y.real), (x.real * y.real).sum(-1, keepdims=True))
    np.testing.assert_allclose(colsum(x), x.sum(0))


def test_add_rows_adds_repeats_and_keeps_the_dtype():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 5, 200)
    for dtype in (np.float32, np.float64, np.complex128):
        rows = rng.standard_normal((200, 3)).astype(dtype)
        want = np.zeros((7, 3), dtype)
        np.add.at(want, ids, rows)
        got = add_rows(ids, rows, 7)
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
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


def test_user_threads_at_the_same_time(small_blocks):
    x = np.random.default_rng(0).standard_normal((8, 64, 8))
    want = [F.softmax(a)[0] for a in x]
    got = [None] * 8

    def work(i):
        for _ in range(20):
            got[i] = F.softmax(x[i])[0]

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_threads_everything_runs_inline(small_blocks, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    x = np.random.default_rng(0).standard_normal((64, 8))
    want = F.softmax(x)[0]
    before = team.threads()
    monkeypatch.setattr(team, "_team", None)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    try:
        team.set_threads(2)
        np.testing.assert_array_equal(F.softmax(x)[0], want)
        assert team.threads() == 1
    finally:
        monkeypatch.undo()
        team.set_threads(before)


CHILD = """
import os, numpy as np
from npformer import functional as F, parallel, team
parallel.BLOCK_BYTES = 256
team.set_threads(2)
x = np.random.default_rng(0).standard_normal((64, 8))
want = F.softmax(x)[0]
pid = os.fork()
if pid == 0:
    os._exit(0 if np.array_equal(F.softmax(x)[0], want) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_makes_a_team_of_its_own():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CHILD], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("value", ["0", "two", "-1", ""])
def test_a_wrong_number_of_threads_is_named(value):
    done = subprocess.run(
        [sys.executable, "-c", "import npformer"],
        env={**os.environ, "NPFORMER_THREADS": value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"but is {value!r}" in done.stderr


@pytest.mark.parametrize("n", [0, -1, 2.0, 1.5, "2", None, True])
def test_a_number_of_threads_that_is_none_is_refused(n):
    before = team.threads()
    with pytest.raises(ValueError, match=f"whole number from 1 on, but is {n!r}"):
        team.set_threads(n)
    assert team.threads() == before


class Library:
    """Stands for a BLAS library that had four threads; it may be interrupted."""

    def __init__(self, interrupted_at=None):
        self.n, self.calls, self.interrupted_at = 4, 0, interrupted_at

    def get_num_threads(self):
        return self.n

    def set_num_threads(self, n):
        self.calls += 1
        if self.calls == self.interrupted_at:
            raise KeyboardInterrupt
        self.n = n


@pytest.fixture
def blas(monkeypatch):
    def with_libraries(*libraries):
        blas = team._Blas()
        blas._libraries = list(libraries)
        monkeypatch.setattr(team, "_blas", blas)
        return blas

    return with_libraries


def test_blas_is_limited_inside_and_restored_after(blas):
    library, single = Library(), Library()
    single.n = 1
    blas(library, single)
    with team.single_blas():
        assert library.n == 1
        with team.single_blas():
            pass
        assert library.n == 1
        F.softmax(np.zeros((3, 5)))
        assert library.n == 1
    assert library.n == 4
    with pytest.raises(ZeroDivisionError):
        rowwise(lambda x: 1 / 0, np.zeros((3, 5)))
    assert library.n == 4
    assert single.calls == 0  # nothing to limit
    assert np.geterr()["invalid"] != "ignore"


def test_the_libraries_that_numpy_uses_are_found():
    with team.single_blas():
        assert {library.get_num_threads() for library in team._blas._libraries} == {1}


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_blas_has_its_threads_again_after_an_interrupt(blas, at):
    first, second = Library(at), Library(at)
    blas(first, second)
    for library in (first, second):
        library.interrupted_at = at if library is first else None
    seen = []
    for _ in range(3):
        try:
            with team.single_blas():
                seen.append((first.n, second.n))
        except KeyboardInterrupt:
            pass
    assert (first.n, second.n) == (4, 4)
    assert seen[-1] == (1, 1)
    assert np.geterr()["invalid"] != "ignore"


def test_the_last_thread_gives_blas_its_threads_back(blas):
    library = Library()
    blas(library)
    inside, leave = threading.Event(), threading.Event()

    def other():
        with team.single_blas():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with team.single_blas():
        pass
    assert library.n == 1
    leave.set()
    thread.join()
    assert library.n == 4


ANY_THREAD = """
import threading, numpy as np
from npformer import team

def numbers():
    return {library.get_num_threads() for library in team._blas._libraries}

def run(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def limited():
    with team.single_blas():
        assert numbers() == {1}, numbers()

limited()
before = numbers()
for _ in range(2):
    run(limited)  # a thread that is not the first to ask
    assert numbers() == before
    inside, leave = threading.Event(), threading.Event()

    def last():
        with team.single_blas():
            inside.set()
            leave.wait()

    with team.single_blas():
        thread = threading.Thread(target=last)
        thread.start()
        inside.wait()
    assert numbers() == {1}
    leave.set()
    thread.join()
    assert numbers() == before, (numbers(), before)
"""


def test_every_thread_can_limit_the_real_libraries_and_give_them_back():
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", ANY_THREAD], env=env, timeout=60, check=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_another_thread_works_is_not_stuck(blas):
    library = Library()
    limits = blas(library)
    with limits._lock:  # as if the other thread were in the middle of a line
        limits._asking = {-1}
        library.n, limits._before = 1, [(library, 4)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(20)
                F.softmax(np.zeros((3, 5)))
                os._exit(0 if library.n == 4 else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


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
                (lambda x: F.linear(1e-3 * x if x.dtype == np.float16 else x, W), None),
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
