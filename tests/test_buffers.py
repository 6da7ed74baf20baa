"""Large arrays from used memory: aligned, never shared by two living arrays, bounded."""

import copy
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
    assert tree.owner(a[3:]) is tree.owner(a)
    assert tree.nbytes({"view": a[3:], "whole": a}) == a.nbytes
    a.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        a[0, 0] = 1
    a.flags.writeable = True
    a[0, 0] = 1


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


VIEWS = {
    "rows": lambda a: a[3:],
    "ravel": np.ravel,
    "transposed": lambda a: a.T[::2],
    "reinterpreted": lambda a: a.view(np.int32),
    "subclass": lambda a: a.view(np.recarray),
    "masked": np.ma.masked_array,
    "memoryview": memoryview,
    "buffer": lambda a: np.frombuffer(a, np.float32),
    "dlpack": np.from_dlpack,
    "broadcast": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "windows": lambda a: np.lib.stride_tricks.sliding_window_view(a.reshape(-1), 5),
    "strided": lambda a: np.lib.stride_tricks.as_strided(a, (10, 10), (8, 4)),
    "real": lambda a: a.view(np.complex64).real,
    "iterator": iter,
    "ctypes": lambda a: a.ctypes,
}


@pytest.mark.parametrize("name", VIEWS)
def test_whatever_looks_at_the_memory_keeps_it(name):
    a = buffers.empty(BIG, np.float32)
    place, view = a.ctypes.data, VIEWS[name](a)
    del a
    gc.collect()
    other = [buffers.empty(BIG, np.float32) for _ in range(3)]
    assert place not in [b.ctypes.data for b in other]
    del view, other
    gc.collect()
    assert place in [b.ctypes.data for b in [buffers.empty(BIG, np.float32) for _ in range(4)]]


def test_what_an_error_holds_is_not_given_away():
    def fail(a):
        raise ValueError("with an array in its frame")

    a = buffers.empty(BIG, np.float32)
    place = a.ctypes.data
    with pytest.raises(ValueError, match="in its frame") as held:
        fail(a)
    del a
    assert buffers.empty(BIG, np.float32).ctypes.data != place
    assert held.tb.tb_next is not None


def test_a_loan_can_not_be_copied_and_so_come_back_twice():
    a = buffers.empty(BIG, np.float32)
    lease = a.base.base
    assert isinstance(lease, buffers._Lease)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="can't be copied"):
            duplicate(lease)
    assert copy.deepcopy(a).base is None


def test_without_memory_the_dead_arrays_go_first(monkeypatch):
    buffers.empty((400, 1000), np.float32)
    assert any(buffers._free.values())
    refused, real = [], np.empty

    def once(*args, **options):
        if not refused:
            refused.append(args)
            raise MemoryError
        assert not any(buffers._free.values())
        return real(*args, **options)

    monkeypatch.setattr(np, "empty", once)
    assert buffers.empty(BIG, np.float32).shape == BIG
    assert refused
    monkeypatch.undo()
    with pytest.raises(MemoryError):  # and nothing else is said
        buffers.empty((1 << 50,), np.float32)


def test_objects_and_records_are_left_to_numpy():
    assert buffers.empty(BIG, object)[0, 0] is None
    assert buffers.empty(BIG, [("a", "f4"), ("b", "i8")]).dtype.names == ("a", "b")


def test_memory_is_never_smaller_than_its_array():
    for n in (1 << 18, (1 << 18) + 1, (1 << 18) + 4, (1 << 18) + 4096, (1 << 19) - 1, 1 << 19):
        a = buffers.empty((n,), np.uint8)
        memory, start = a.base.base._memory
        first = memory.__array_interface__["data"][0]
        assert first <= start == a.ctypes.data
        assert start + a.nbytes <= first + memory.nbytes
        del a


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
        kept = []
        for n in range(100):
            a = buffers.empty(BIG, np.float32)
            a[...] = 100 * i + n
            kept = [*kept[-2:], (100 * i + n, a[5:])]
            del a
            faults.extend(m for m, view in kept if not (view == m).all())

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not faults
