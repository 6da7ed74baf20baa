"""Large arrays from used memory: aligned, never shared by two living arrays, bounded."""

import gc
import pickle
import threading

import numpy as np
import pytest

from npformer import buffers, tree

BIG = (700, 600)


@pytest.fixture(autouse=True)
def clean():
    buffers.release()
    yield
    buffers.release()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128, np.int64])
def test_looks_like_an_array_of_its_own(dtype):
    a = buffers.empty(BIG, dtype)
    assert a.shape == BIG
    assert a.dtype == dtype
    assert a.flags.c_contiguous
    assert a.flags.writeable
    assert a.ctypes.data % buffers.ALIGNMENT == 0
    a[...] = 3
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(a)), a)
    assert tree.owner(a[3:]) is a
    assert tree.nbytes({"view": a[3:]}) == a.nbytes


def test_small_arrays_stay_with_numpy():
    assert buffers.empty((3, 5), np.float32).base is None
    assert buffers.empty((0, 5), np.float32).shape == (0, 5)


def test_memory_is_used_again_when_the_last_view_dies():
    a = buffers.empty(BIG, np.float32)
    place = a.ctypes.data
    view = a[5:, ::2]
    del a
    gc.collect()
    other = buffers.empty(BIG, np.float32)
    assert other.ctypes.data != place  # the view still lives
    del view
    gc.collect()
    assert buffers.empty(BIG, np.float32).ctypes.data == place
    assert buffers.empty((600, 700), np.float32).ctypes.data == place  # by size, not by shape


def test_living_arrays_never_share_memory():
    rng = np.random.default_rng(0)
    alive = []
    for i in range(200):
        a = buffers.empty(BIG, np.float32)
        a[...] = i
        alive.append((i, a))
        if rng.random() < 0.5:
            alive.pop(rng.integers(len(alive)))
        del a
    for i, a in alive:
        assert (a == i).all()


def test_what_dead_arrays_hold_is_bounded(monkeypatch):
    monkeypatch.setattr(buffers, "KEPT_BYTES", 5 << 20)
    for rows in range(200, 400):
        buffers.empty((rows, 1000), np.float32)
    held = sum(n * len(shelf) for n, shelf in buffers._free.items())
    assert held <= (5 << 20) + 400 * 1000 * 4


def test_threads_do_not_get_the_same_memory():
    faults = []

    def work(i):
        for _ in range(50):
            a = buffers.empty(BIG, np.float32)
            a[...] = i
            if not (a == i).all():
                faults.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not faults
