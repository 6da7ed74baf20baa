"""A small team of threads, and BLAS kept to one thread while it works. No mathematics here.

``NPFORMER_THREADS`` sets the number of threads; by default the processors at hand, 8 at most.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

import numpy as np

from .arrays import is_whole

P = ParamSpec("P")
R = TypeVar("R")


def _threads_at_start() -> int:
    given = os.environ.get("NPFORMER_THREADS")
    if given is None:
        affinity = getattr(os, "sched_getaffinity", None)
        return min(8, len(affinity(0)) if affinity else os.cpu_count() or 1)
    if not given.isdigit() or int(given) < 1:
        raise ValueError(f"NPFORMER_THREADS must be a whole number from 1 on, but is {given!r}")
    return int(given)


_threads = _threads_at_start()


def threads() -> int:
    """Return how many threads the pieces run on, the calling one included."""
    return _threads


def set_threads(n: int) -> None:
    """Run the pieces on ``n`` threads from now on."""
    global _threads
    if not (is_whole(n) and n >= 1):
        raise ValueError(f"the number of threads must be a whole number from 1 on, but is {n!r}")
    _threads = n


# ---------------------------------------------------------------------------------- the team


def _nothing() -> None:
    pass


class _Team:
    """Threads that sleep on a lock each; the caller works with them.

    A thread-pool executor costs 71 us a call here and locks cost 42, which a step of a small
    model notices. Each worker has two locks, which are always used in turn: ``wake`` is released
    by the caller and taken by the worker, ``done`` the other way round.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._work: Callable[[], None] = _nothing
        self._contexts: list[contextvars.Context] = []
        self._locks = [(threading.Lock(), threading.Lock()) for _ in range(workers)]
        self._closed = False
        for i, pair in enumerate(self._locks):
            for lock in pair:
                lock.acquire()
            threading.Thread(target=self._serve, args=(i,), daemon=True, name="npformer").start()

    def _serve(self, i: int) -> None:
        wake, done = self._locks[i]
        while True:
            wake.acquire()
            if self._closed:
                return
            self._contexts[i].run(self._work)
            done.release()

    def run(self, work: Callable[[], None]) -> None:
        """Run ``work`` on every thread; it must not raise."""
        # The workers see the caller's context, np.errstate among it.
        self._contexts = [contextvars.copy_context() for _ in range(self.workers)]
        self._work = work
        for wake, _ in self._locks:
            wake.release()
        work()
        for _, done in self._locks:
            done.acquire()
        self._work, self._contexts = _nothing, []  # or they would keep the arrays alive

    def close(self) -> None:
        self._closed = True
        for wake, _ in self._locks:
            if wake.locked():
                wake.release()


_team: _Team | None = None
_team_busy = threading.Lock()
_inside = threading.local()


def _after_fork() -> None:
    global _team, _team_busy
    _team, _team_busy = None, threading.Lock()  # the threads did not come along
    _inside.flag = False
    _blas.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def inside() -> bool:
    """Whether this thread is working on a task of `run`."""
    return getattr(_inside, "flag", False)


def run(task: Callable[[int], Any], count: int) -> list[Any]:
    """Return ``[task(0), ..., task(count - 1)]``, computed on the team.

    Runs inline where a second thread can't help: one task, one thread, inside a task, while
    another thread of the user's has the team, or where threads can't be started.
    """
    global _team
    helpers = min(_threads, count) - 1
    alone = helpers < 1 or inside()
    if alone or not _team_busy.acquire(blocking=False):
        return [task(i) for i in range(count)]
    try:
        if _team is None or _team.workers != _threads - 1:
            if _team is not None:
                _team.close()
            try:
                _team = _Team(_threads - 1)
            except RuntimeError:  # "can't start new thread": a browser's Python
                set_threads(1)
                return [task(i) for i in range(count)]
        return _run_on(_team, task, count)
    except BaseException:
        if _team is not None:
            _team.close()  # interrupted while it worked: its locks may be out of turn
        _team = None
        raise
    finally:
        _team_busy.release()


def _run_on(team: _Team, task: Callable[[int], Any], count: int) -> list[Any]:
    results: list[Any] = [None] * count
    errors: list[BaseException | None] = [None] * count
    following = itertools.count().__next__

    def work() -> None:
        _inside.flag = True
        try:
            while (i := following()) < count:
                try:
                    results[i] = task(i)
                except BaseException as error:
                    errors[i] = error
                    return
        finally:
            _inside.flag = False

    team.run(work)
    first = next((error for error in errors if error is not None), None)
    if first is None:
        return results
    try:
        raise first
    finally:
        errors.clear()  # or they and this frame would keep each other, and the arrays, alive
        del first


# ------------------------------------------------------------------------------ BLAS threads


class _Blas:
    """NumPy's BLAS libraries, limited to one thread while any thread asks for it.

    Who asks is a set and not a count: where Ctrl-C comes between two lines here and a `leave` is
    lost, the same thread's next one makes it good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asking: set[int] = set()
        self._libraries: list[Any] | None = None
        self._before: list[tuple[Any, int]] = []  # what had more than one thread, and how many

    def enter(self) -> None:
        me = threading.get_ident()
        with self._lock:
            if self._libraries is None:
                self._libraries = self._find()
            if not self._asking:
                numbers = [library.get_num_threads() or 1 for library in self._libraries]
                self._before = [p for p in zip(self._libraries, numbers, strict=True) if p[1] > 1]
            self._asking.add(me)
            if len(self._asking) == 1:
                for library, _ in self._before:
                    _set_threads_of(library, 1)

    def leave(self) -> None:
        me = threading.get_ident()
        with self._lock:
            if self._asking == {me}:
                for library, number in self._before:
                    _set_threads_of(library, number)
            self._asking.discard(me)

    def after_fork(self) -> None:
        """Only this thread came along: its next `leave` undoes what the others have limited."""
        self._lock = threading.Lock()
        if self._asking:
            self._asking = {threading.get_ident()}

    @staticmethod
    def _find() -> list[Any]:
        from threadpoolctl import ThreadpoolController  # late: a tenth of `import npformer`

        found = ThreadpoolController().select(user_api="blas")
        return list(found.lib_controllers)


def _set_threads_of(library: Any, n: int) -> None:
    """Set it from whichever thread: threadpoolctl 3.8 lets only the first that asks, silently."""
    release = getattr(library, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)
    library.set_num_threads(n)
    if release is not None:
        release(force=True)


_blas = _Blas()


class _Here(threading.local):
    """How deep this thread is inside `single_blas`."""

    depth = 0
    errors: Any = None


_here = _Here()


class _SingleBlas:
    """The context of `single_blas`; it holds nothing, so one serves all and may be nested."""

    def __enter__(self) -> None:
        if _here.depth == 0:
            _blas.enter()
            _here.errors = np.errstate(invalid="ignore", under="ignore")
            _here.errors.__enter__()
        _here.depth += 1

    def __exit__(self, *error: object) -> None:
        _here.depth -= 1
        if _here.depth == 0:
            _here.errors.__exit__(*error)
            _blas.leave()


_single_blas = _SingleBlas()


def single_blas() -> AbstractContextManager[None]:
    """Limit BLAS to one thread inside; products are shared out by `matmul` instead.

    BLAS threads that take turns with Python threads spin while they wait, which made a training
    step up to twice as slow.

    Inside, NumPy does not warn of something invalid: BLAS kernels also compute in lanes that they
    don't use, and what lies there raises the flag now and then. Numbers that are not finite show in
    the result all the same. Nor of underflow, to which a softmax owes its zeros.
    """
    return _single_blas


def with_single_blas(f: Callable[P, R]) -> Callable[P, R]:
    """Run a whole function inside `single_blas`, so that its parts need not ask for it."""

    @functools.wraps(f)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _single_blas:
            return f(*args, **kwargs)

    return limited
