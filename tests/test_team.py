"""The team of threads and the limit on BLAS, also after errors, interrupts and forks."""

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
from npformer.parallel import rowwise


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(parallel, "BLOCK_BYTES", 256)
    monkeypatch.setattr(parallel, "SMALL_PRODUCT", 1)


@pytest.fixture
def three_threads():
    before = team.threads()
    team.set_threads(3)
    yield
    team.set_threads(before)


def together(task):
    """Run ``task`` on three threads, each of which surely takes one."""
    meeting = threading.Barrier(3, timeout=20)

    def one(i):
        meeting.wait()
        return task(i)

    return team.run(one, 3)


def helpers():
    return [t for t in threading.enumerate() if t.name == "npformer"]


def test_every_thread_takes_part_and_results_keep_their_order(three_threads):
    threads = together(lambda i: (i, threading.get_ident()))
    assert [i for i, _ in threads] == [0, 1, 2]
    assert len({ident for _, ident in threads}) == 3
    assert team.run(lambda i: i * i, 50) == [i * i for i in range(50)]


def test_the_team_follows_the_number_of_threads(three_threads):
    together(lambda i: i)
    old = helpers()
    team.set_threads(2)
    team.run(lambda i: i, 4)
    for thread in set(old) - set(helpers()[-1:]):
        thread.join(20)
    assert len(helpers()) == 1
    team.set_threads(3)
    assert together(lambda i: i) == [0, 1, 2]


def test_every_thread_sees_the_callers_context(three_threads):
    with np.errstate(over="raise", divide="ignore"):
        assert all(e["over"] == "raise" for e in together(lambda i: np.geterr()))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_an_error_in_any_thread_reaches_the_caller(three_threads, error, where):
    main = threading.get_ident()

    def task(i):
        if i == where:
            raise error(i)
        return threading.get_ident() == main

    with pytest.raises(error):
        together(task)
    assert not team.inside()
    assert not team._team_busy.locked()
    assert together(lambda i: i) == [0, 1, 2]
    for thread in helpers()[:-2]:  # those of the team before
        thread.join(20)
    assert len(helpers()) == 2


def test_inside_is_true_in_every_task_and_nowhere_else(three_threads):
    assert together(lambda i: team.inside()) == [True] * 3
    assert not team.inside()
    own = together(lambda i: (team.run(lambda _: threading.get_ident(), 5), threading.get_ident()))
    assert all(nested == [ident] * 5 for nested, ident in own)
    assert not team.inside()


def test_the_team_lets_go_of_its_work(three_threads):
    x = np.zeros(5)
    alive = weakref.ref(x)
    team.run(lambda i, x=x: x.sum(), 5)
    del x
    assert alive() is None


def test_whoever_finds_the_team_at_work_does_without_it(three_threads):
    with team._team_busy:
        found = team.run(lambda i: threading.get_ident(), 5)
    assert found == [threading.get_ident()] * 5


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


def test_there_are_as_many_threads_as_processors_at_hand():
    env = {k: v for k, v in os.environ.items() if k != "NPFORMER_THREADS"}
    code = "from npformer.parallel import threads; print(threads())"
    out = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    affinity = getattr(os, "sched_getaffinity", None)
    assert int(out) == min(8, len(affinity(0)) if affinity else os.cpu_count())


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
    warned = np.geterr()
    with team.single_blas():
        assert np.geterr() == {**warned, "invalid": "ignore", "under": "ignore"}
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
    assert np.geterr() == warned


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
