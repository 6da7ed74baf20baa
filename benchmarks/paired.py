"""Time two ways to do the same work in turns, in one process, and keep a table of the ratios.

A machine's clock drifts by tens of per cent within minutes, so times of different runs can't be
compared; the ratio of neighbours in time can. Each script of this folder prints what it measured
and, with ``--save``, appends a line to results.csv.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NoReturn

RESULTS = Path(__file__).with_name("results.csv")
REST = 0.1
# The unit of a fit: ours is the cost where the fit ends, theirs is what grows.
EXPONENT = "exponent"
HEADER = (
    "date", "benchmark", "peer", "ratio", "ratio_low", "ratio_high", "ours", "theirs", "unit",
    "pairs", "threads", "load", "versions", "command",
)  # fmt: skip


@dataclass(frozen=True)
class Ratio:
    """Ours over theirs, seconds unless ``unit`` says otherwise: below 1 is faster or less."""

    name: str
    peer: str
    ours: float
    theirs: float
    median: float
    low: float
    high: float
    pairs: int
    unit: str = "s"

    def __str__(self) -> str:
        if self.unit == EXPONENT:
            return f"{self.name:<44} grows with the exponent {self.median:.2f} of {self.peer}"
        factor, unit = (1e3, "ms") if self.unit == "s" else (1, self.unit)
        return (
            f"{self.name:<44} {factor * self.ours:9.1f} {unit}   "
            f"{self.peer} {factor * self.theirs:9.1f} {unit}   "
            f"ratio {self.median:.2f} ({self.low:.2f} to {self.high:.2f}, {self.pairs} pairs)"
        )


def paired(
    name: str, ours: Callable[[], object], peer: str, theirs: Callable[[], object], pairs: int = 9
) -> Ratio:
    """Run both in turns, after one run each to warm up; low and high are the quartiles.

    Before each run both have `REST` seconds of quiet: the idle threads of a BLAS library go on
    spinning for some 25 ms after their last product, and would take a core from whoever is next.
    """
    ours()
    theirs()
    a, b = [], []
    for _ in range(pairs):
        for run, times in ((ours, a), (theirs, b)):
            time.sleep(REST)
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    ratios = sorted(x / y for x, y in zip(a, b, strict=True))
    quarter = len(ratios) // 4
    return Ratio(
        name,
        peer,
        statistics.median(a),
        statistics.median(b),
        statistics.median(ratios),
        ratios[quarter],
        ratios[-1 - quarter],
        pairs,
    )


def versions() -> str:
    """Python, NumPy, and what else is loaded."""
    import numpy as np

    names = ["torch", "transformers", "safetensors", "autograd", "pydynet", "glassllm"]
    found = [f"python {platform.python_version()}", f"numpy {np.__version__}"]
    found += [f"{n} {metadata.version(n)}" for n in names if n in sys.modules]
    return ", ".join(found)


def report(results: list[Ratio], save: bool, command: str) -> None:
    """Print the ratios and, where asked for, append them to results.csv."""
    from npformer import parallel

    for r in results:
        print(r, flush=True)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(f"{parallel.threads()} threads, load {load:.1f}; {versions()}")
    if not save:
        return
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(HEADER)
        for r in results:
            writer.writerow(
                (
                    dt.date.today().isoformat(),
                    r.name,
                    r.peer,
                    *(f"{x:.3f}" for x in (r.median, r.low, r.high)),
                    f"{r.ours:.5f}",
                    f"{r.theirs:.5f}",
                    r.unit,
                    r.pairs,
                    parallel.threads(),
                    f"{load:.1f}",
                    versions(),
                    command,
                )
            )


def missing(error: ModuleNotFoundError) -> NoReturn:
    """Leave with one sentence, because a peer can't be imported."""
    print(f"{error.name} is not installed: pip install -e '.[parity]'", file=sys.stderr)
    raise SystemExit(2)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with what every script takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=_count, default=9, help="how often each side runs")
    parser.add_argument("--save", action="store_true", help="append to results.csv")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, but is {text!r}")
    return int(text)
