"""A reader's own file: load it, check what its ``example(rng)`` returns, and say what is wrong."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..checking import GradientReport, NotAnalyticError, check


class ExampleError(ValueError):
    """Something is wrong in the reader's file; the message names the line."""


def check_file(
    path: str, *, method: str | None = None, samples: int | None = None, seed: int = 0
) -> GradientReport:
    """Check what ``example(rng)`` of the file returns.

    Without a method the complex step is taken, and central differences where the forward is not
    analytic.

    Raises
    ------
    OSError
        if there is no such file.
    ExampleError
        if the file or its layer raises, or ``example`` is missing or returns something else.
    """
    with Path(path).open("rb"):
        pass  # a missing file, a folder or a forbidden one is said by the system's own error
    with _beside(path), np.errstate(all="ignore"), _blaming(path):
        example = runpy.run_path(path, run_name="npformer_example").get("example")
        if not callable(example):
            raise ExampleError("the file must define a function example(rng)")
        thing, inputs, options = _checked(example(np.random.default_rng(seed)))
        try:
            report = check(
                thing, inputs, options, method=method or "complex", rng=seed, samples=samples
            )
            analytic = all(row.verdict != "not analytic" for row in report.rows)
        except NotAnalyticError:
            if method is not None:
                raise
            analytic = False
        if not analytic and method is None:
            report = check(thing, inputs, options, method="central", rng=seed, samples=samples)
    return replace(report, name=f"{Path(path).name}: {report.name}")


def _checked(returned: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    wanted = "example(rng) must return (thing, inputs) or (thing, inputs, options)"
    if not isinstance(returned, tuple) or len(returned) not in (2, 3):
        kind = f"{len(returned)} values" if isinstance(returned, tuple) else _kind(returned)
        raise ExampleError(f"{wanted}, but it returned {kind}")
    thing, inputs, options = returned if len(returned) == 3 else (*returned, {})
    if callable(thing) and callable(inputs):
        raise ExampleError(f"{wanted}; write the pair of functions as ((f, f_backward), inputs)")
    if not isinstance(inputs, tuple | list):
        raise ExampleError(f"{wanted}; inputs must be a tuple such as (x,), not {_kind(inputs)}")
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise ExampleError(f"{wanted}; options must be a dict of keywords, not {_kind(options)}")
    return thing, tuple(inputs), options


def _kind(x: Any) -> str:
    return f"an array {x.shape}" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"


@contextmanager
def _beside(path: str) -> Iterator[None]:
    """Let the file import its neighbours."""
    before = list(sys.path)
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        yield
    finally:
        sys.path[:] = before


@contextmanager
def _blaming(path: str) -> Iterator[None]:
    """Turn whatever is raised into one sentence that names the reader's line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ExampleError(f"{path}{_blame(path, error)}") from error


def _blame(path: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        line = f", line {error.lineno}" if error.lineno else ""
        return f"{line}: {type(error).__name__}: {error.msg}"
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    place = _place(path, error)
    if place:
        return f", {place}: {words}"
    if error.__cause__ is not None and (place := _place(path, error.__cause__)):
        return f", {place}: {error}"
    return f": {error}" if isinstance(error, ValueError) else f": {words}"


def _place(path: str, error: BaseException) -> str:
    """The innermost line of the reader's file that the error passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    if not frames:
        return ""
    name = "" if frames[-1].name.startswith("<") else f", in {frames[-1].name}"
    return f"line {frames[-1].lineno}{name}"
