"""``npformer gradcheck``: every gradient of the package, or those of a reader's own file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..checking import GradientReport
    from ..checking.suite import Case

_DESCRIPTION = """\
Compare hand-written backward passes with derivatives that need the forward alone.

Without FILE every pair, layer and whole model of the package is checked. With FILE.py your own is:
the file defines a function example(rng) that returns (thing, inputs) or (thing, inputs, options),
where thing is a layer (a npformer.Module) or a pair of functions (f, f_backward), inputs is a tuple
of what the forward takes, and options is a dict of its keywords. Where the forward is not analytic,
so that no complex step can be taken through it, central differences are used.

The exit status is 0 if all pass, 1 if a gradient is wrong, 2 if the check can't be made.
"""

_EXAMPLES = """\
examples:
  npformer gradcheck
  npformer gradcheck --only 'attention*' --method central
  npformer gradcheck --json > report.json
  npformer gradcheck my_layer.py
"""

_MODEL_SAMPLES = 10
"""Numbers of each of a model's tensors that are compared one by one where that is asked for."""


def add(verbs: Any) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "gradcheck",
        help="check the gradients of the package, or of your own layer",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    verb.add_argument("files", nargs="*", metavar="FILE.py", help="check what example(rng) returns")
    verb.add_argument(
        "--method",
        choices=("complex", "central", "direction"),
        help="complex step by each number, central differences by each number, or complex step "
        "along random directions (default: complex, and direction for whole models)",
    )
    verb.add_argument(
        "--only",
        metavar="PATTERN",
        help="only the cases of this name, or that match this shell pattern or contain this word",
    )
    verb.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    verb.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help=f"compare N random numbers of each tensor (default: all; {_MODEL_SAMPLES} of those of "
        f"whole models)",
    )
    verb.add_argument("--seed", type=int, default=0, help="of inputs and cotangents (default: 0)")
    form = verb.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of a table")
    form.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    verb.add_argument(
        "--out", metavar="DIR", help="also write gradcheck.txt, gradcheck.json and gradcheck.csv"
    )
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check, print, and return 1 if a gradient is wrong."""
    from pathlib import Path

    from ..checking import report as form
    from ..files import output_folder, write_text

    if args.seed < 0:
        raise ValueError(f"--seed must be 0 or more, but is {args.seed}")
    if args.files and (args.only or args.list):
        raise ValueError("--only and --list choose among the package's own cases, not in a FILE")
    if args.list:
        print("\n".join(case.name for case in _cases(args.only)))
        return 0
    if args.out is not None:
        output_folder(args.out)
    if args.files:
        from .example_file import check_file

        reports = [
            check_file(path, method=args.method, samples=args.samples, seed=args.seed)
            for path in args.files
        ]
    else:
        reports = list(_check_cases(args))
    texts = {
        "txt": form.text(reports) + "\n",
        "json": form.json_text(reports, seed=args.seed) + "\n",
        "csv": form.csv_text(reports),
    }
    print(texts["json" if args.json else "csv" if args.csv else "txt"], end="")
    if args.out is not None:
        for kind, text in texts.items():
            write_text(Path(args.out) / f"gradcheck.{kind}", text)
    return 0 if all(reports) else 1


def _check_cases(args: argparse.Namespace) -> Iterator[GradientReport]:
    from dataclasses import replace

    import numpy as np
    from tqdm import tqdm

    from ..checking import check

    bar = tqdm(_cases(args.only), disable=None, leave=False, unit="case")
    for case in bar:
        bar.set_description(case.name)
        thing, inputs, options = case.example(np.random.default_rng(args.seed))
        method = args.method or case.method
        samples = args.samples
        if samples is None and case.kind == "model" and method != "direction":
            samples = _MODEL_SAMPLES
        report = check(thing, inputs, options, method=method, rng=args.seed, samples=samples)
        yield replace(report, name=case.name)


def _cases(pattern: str | None) -> list[Case]:
    from fnmatch import fnmatch

    from ..checking.suite import CASES

    if pattern is None:
        return list(CASES.values())
    if pattern in CASES:
        return [CASES[pattern]]
    wild = any(c in pattern for c in "*?[")
    chosen = [
        case
        for name, case in CASES.items()
        if (fnmatch(name, pattern) if wild else pattern in name)
    ]
    if not chosen:
        raise ValueError(f"no case matches {pattern!r}: npformer gradcheck --list names them all")
    return chosen
