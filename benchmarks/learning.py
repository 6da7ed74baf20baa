"""What the scripts that train a model share: arguments, and a table of what came out."""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paired import versions

from npformer import parallel
from npformer.training import TrainingResult

RESULTS = Path(__file__).with_name("learning.csv")
HEADER = (
    "date", "benchmark", "parameters", "steps", "tokens", "seconds", "seconds_limit", "measure",
    "value", "target", "threads", "load_before", "load_after", "versions", "command",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What a trained model can do, and in how long it learnt it."""

    name: str
    model: Any
    result: TrainingResult
    measure: str
    value: float
    target: float
    seconds_limit: float


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with what every script takes; it notes how busy the machine is."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="append to learning.csv")
    parser.set_defaults(load=load())
    return parser


def load() -> float:
    """How many processes wanted to run during the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")


def report(outcome: Outcome, args: argparse.Namespace) -> None:
    """Print what came out and, where asked for, append it to learning.csv."""
    o, result = outcome, outcome.result
    parameters = sum(p.value.size for p in o.model.parameters())
    tokens = sum(row[4] for row in result.rows["steps"])
    print(
        f"{o.name}: {parameters:,} parameters, {result.step} steps, {tokens:,} tokens, "
        f"{result.seconds:.1f} s of {o.seconds_limit:.0f}\n"
        f"{o.measure}: {o.value:.4f} (target {o.target})\n"
        f"{parallel.threads()} threads, load {args.load:.1f} before and {load():.1f} after; "
        f"{versions()}"
    )
    if not args.save:
        return
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(HEADER)
        writer.writerow(
            (
                dt.date.today().isoformat(),
                o.name,
                parameters,
                result.step,
                tokens,
                f"{result.seconds:.1f}",
                f"{o.seconds_limit:.0f}",
                o.measure,
                f"{o.value:.4f}",
                o.target,
                parallel.threads(),
                f"{args.load:.1f}",
                f"{load():.1f}",
                versions(),
                " ".join(["python", *sys.argv]),
            )
        )
