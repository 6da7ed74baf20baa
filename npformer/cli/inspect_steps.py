"""``npformer inspect --online-softmax``: the blocked softmax of one row, block by block."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..labels import wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..experiments.online_softmax import Step

N, BLOCK = 9, 3

TEXT = {
    "en": "One query's scores arrive in blocks of {block}. m is the largest score so far, l the "
    "sum of e^(score - m), O the sum of e^(score - m) times value. Where a block raises m, all "
    "that was added up before is multiplied by alpha = e^(old m - new m): then it is as if m had "
    "been known from the start. O / l is what attention over the keys so far would give.",
    "zh": "一个查询的分数按每块 {block} 个到来。m 是目前最大的分数，l 是目前 e^(分数 - m) 之和，"
    "O 是目前 e^(分数 - m) 乘以对应的值之和。某块使 m 变大时，先前累加的量都乘以 alpha = "
    "e^(旧 m - 新 m)，就好像一开始便知道 m。O / l 是只看目前这些键时的注意力输出。",
}


def add_options(verb: argparse.ArgumentParser) -> None:
    """Add the options of the step-through."""
    group = verb.add_argument_group(
        "online softmax", "The blocked attention kernel in slow motion, for one row of scores."
    )
    group.add_argument(
        "--online-softmax", action="store_true", help="show m, l and the rescaling by blocks"
    )
    group.add_argument(
        "--scores",
        type=numbers,
        metavar="X,X,...",
        help=f"the scores, -inf for a hidden key; write --scores=-1,... if the first is negative "
        f"(default: {N} random ones)",
    )
    group.add_argument("--values", type=numbers, metavar="X,X,...", help="one value for each score")
    group.add_argument(
        "--block", type=int, default=BLOCK, metavar="N", help=f"scores a block (default: {BLOCK})"
    )


def run_steps(args: argparse.Namespace) -> int:
    """Walk through the row and print it."""
    from ..experiments.online_softmax import format_steps, online_softmax_steps
    from ..files import write_json, write_text

    rng = np.random.default_rng(args.seed)
    scores, values = args.scores, args.values
    if scores is None:
        scores = (3 * rng.standard_normal(N)).round(1).tolist()
        values = values or rng.standard_normal(N).round(1).tolist()
    steps = online_softmax_steps(scores, args.block, values)
    words = wrap(TEXT[args.lang].format(block=args.block), 100)
    text = "\n".join([*words, "", format_steps(steps, args.lang)])
    record = as_record(scores, values, args.block, steps)
    if args.out is not None:
        write_text(Path(args.out) / "online_softmax.txt", text + "\n")
        write_json(Path(args.out) / "online_softmax.json", record)
    print(json.dumps(record, allow_nan=False) if args.json else text)
    return 0


def as_record(
    scores: Sequence[float], values: Sequence[float] | None, block: int, steps: Sequence[Step]
) -> dict[str, Any]:
    """Return the steps as JSON can hold them: null for -inf, which only hidden keys have."""
    last = steps[-1]
    softmax = np.exp(np.asarray(scores) - last.lse) if last.l > 0 else np.zeros(len(scores))
    return {
        "scores": [_finite(x) for x in scores],
        "values": values,
        "block": block,
        "steps": [
            {
                "keys": [step.keys.start, step.keys.stop],
                "scores": [_finite(x) for x in step.scores],
                "m": _finite(step.m),
                "alpha": step.alpha,
                "weights": step.weights.tolist(),
                "l": step.l,
                "O": None if step.O is None else step.O.tolist(),
                "y": None if step.y is None else step.y.tolist(),
                "lse": _finite(step.lse),
            }
            for step in steps
        ],
        "softmax": softmax.tolist(),
    }


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None


def numbers(given: str) -> list[float]:
    """Read numbers with commas between them."""
    try:
        return [float(part) for part in given.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be numbers with commas between them, like 1,-2.5,-inf, but is {given!r}"
        ) from None
