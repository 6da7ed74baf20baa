"""``npformer curves``: gradient and activation scales of Pre-LN and Post-LN by layer and depth."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..labels import LANGUAGES

if TYPE_CHECKING:
    from ..experiments.gradient_scale import ScaleCurves, Setup

_DESCRIPTION = """\
Measure, at initialisation, how gradients and activations of Pre-LN and Post-LN Transformers scale
with depth (chapter 2.5.3; Xiong et al., 2020, arXiv:2002.04745), in two set-ups: the stack that the
paper analyses, next to its mean-field theory, and a real decoder on real text. Prints what holds
and what does not reproduce; writes gradient_norms.csv, activation_norms.csv, run.json and figures
as SVG and PNG.
"""

_EXAMPLES = """\
examples:
  npformer curves --out curves
  npformer curves --out quick --quick
  npformer curves --out mine --text novel.txt --depths 6,8,10,12,14 --seeds 20
  npformer curves --out curves --lang zh
"""

_DEEPEST = 512


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    depths: tuple[int, ...]
    seeds: int
    theory_seeds: int
    """Of activations: E|x_l|^2 / d of one seed is off by 7 % at d = 256, and the worst layer
    counts."""
    transformer_seeds: int
    """Of activations."""
    theory: dict[str, Any]
    transformer: dict[str, Any]


def _shown(plan: Plan) -> str:
    return ",".join(map(str, plan.depths))


FULL = Plan((1, 2, 4, 8, 16, 32), 10, 60, 20, {"d": 256}, {"d": 128, "H": 4, "d_ff": 512, "B": 4})
QUICK = Plan((1, 2, 4, 8, 16, 32), 5, 40, 5, {"d": 128}, {"d": 64, "H": 4, "d_ff": 256, "B": 2})


def add(verbs: Any) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "curves",
        help="gradient and activation scales of Pre-LN and Post-LN by layer and depth",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    verb.add_argument("--out", metavar="DIR", required=True, help="where the files go")
    verb.add_argument("--quick", action="store_true", help="narrower models and fewer seeds")
    verb.add_argument(
        "--text",
        metavar="FILE",
        help="a UTF-8 text in any language (default: the documentation inside Python)",
    )
    verb.add_argument(
        "--depths",
        type=_depths,
        metavar="L,L,...",
        help=f"numbers of layers (default: {_shown(FULL)}; quick: {_shown(QUICK)})",
    )
    verb.add_argument(
        "--seeds",
        type=_seeds,
        metavar="N",
        help=f"seeds for the gradients (default: {FULL.seeds}; quick: {QUICK.seeds}); activations "
        f"take as many or more",
    )
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument(
        "--lang", choices=LANGUAGES, default="en", help="of tables and figures (default: en)"
    )
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, write the files, print the tables."""
    from ..data import CharacterVocabulary, load_text
    from ..experiments.findings import claims, findings
    from ..experiments.gradient_scale import TheorySetup, TransformerSetup
    from ..files import output_folder, write_json
    from .curves_table import report

    started = time.perf_counter()
    plan = QUICK if args.quick else FULL
    depths, seeds = args.depths or plan.depths, args.seeds or plan.seeds
    out = output_folder(args.out)  # it had better fail now than after the measurement
    text = load_text(args.text)
    vocabulary = CharacterVocabulary(text)
    if vocabulary.V < 2:
        raise ValueError(f"{args.text} repeats one character: there is nothing to predict in it")
    theory = TheorySetup(**plan.theory)
    decoder = TransformerSetup(vocabulary.encode(text), vocabulary.V, **plan.transformer)
    both = [
        _measure(theory, depths, seeds, max(seeds, plan.theory_seeds)),
        _measure(decoder, depths, seeds, max(seeds, plan.transformer_seeds)),
    ]
    found = [f for curves in both for f in findings(curves)]
    said = [c for curves in both for c in claims(curves)]
    files = [*_write_tables(out, both), *_write_figures(out, both, args.lang), out / "run.json"]
    record = {
        "config": {
            "quick": args.quick,
            "depths": list(depths),
            "text": _described(args.text, text, vocabulary.V),
        },
        "setups": {curves.setup.name: curves.setup.describe() for curves in both},
        "seeds": {
            curves.setup.name: {
                "gradients": list(range(len(curves.last_gradients("pre")))),
                "activations": list(range(len(curves.activations["pre"]))),
            }
            for curves in both
        },
        "versions": _versions(),
        "threads": _threads(),
        "findings": [f._asdict() for f in found],
        "claims": [c._asdict() for c in said],
        "files": [path.name for path in files],
        "seconds": round(time.perf_counter() - started, 2),
    }
    write_json(out / "run.json", record)
    if args.json:
        print(json.dumps(record, ensure_ascii=False, allow_nan=False))
    else:
        print(report(both, found, said, args.lang))
        print(f"\n{out}: {' '.join(path.name for path in files)}")
    return 0


def _measure(
    setup: Setup, depths: Sequence[int], gradient_seeds: int, activation_seeds: int
) -> ScaleCurves:
    from tqdm import tqdm

    from ..experiments.gradient_scale import gradient_scale

    seeds = max(gradient_seeds, activation_seeds)
    with tqdm(total=seeds, desc=setup.name, unit="seed", disable=None, leave=False) as bar:
        return gradient_scale(
            setup,
            depths,
            gradient_seeds=gradient_seeds,
            activation_seeds=activation_seeds,
            progress=bar.update,
        )


def _write_tables(out: Path, both: Sequence[ScaleCurves]) -> list[Path]:
    from ..experiments.gradient_scale import ACTIVATION_COLUMNS, GRADIENT_COLUMNS
    from ..files import write_csv

    gradients, activations = out / "gradient_norms.csv", out / "activation_norms.csv"
    write_csv(gradients, GRADIENT_COLUMNS, chain(*(c.gradient_rows() for c in both)))
    write_csv(activations, ACTIVATION_COLUMNS, chain(*(c.activation_rows() for c in both)))
    return [gradients, activations]


def _write_figures(out: Path, both: Sequence[ScaleCurves], lang: str) -> list[Path]:
    from .. import plots

    paths = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        with plots.language(lang) as shown:
            figures = {
                f"gradient_by_layer_{curves.setup.name}": plots.gradient_by_layer(curves, shown)
                for curves in both
            } | {
                "last_layer_gradient": plots.last_layer_gradient(both, shown),
                "activation_by_layer": plots.activation_by_layer(both, shown),
                "curves": plots.overview(both[-1], shown),
            }
            for name, figure in figures.items():
                paths += plots.save_figure(figure, out / name)
    for message in dict.fromkeys(str(w.message) for w in caught):
        print(f"npformer: {message}", file=sys.stderr)
    return paths


def _described(path: str | None, text: str, V: int) -> dict[str, Any]:
    from ..data import DEFAULT_TEXT

    return {
        "source": DEFAULT_TEXT if path is None else path,
        "characters": len(text),
        "different_characters": V,
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    from .. import __version__

    others = {name: version(name) for name in ("numpy", "scipy", "matplotlib", "threadpoolctl")}
    return {"npformer": __version__, "python": platform.python_version(), **others}


def _threads() -> dict[str, Any]:
    from threadpoolctl import threadpool_info

    from ..parallel import threads

    keys = ("internal_api", "version", "num_threads")
    blas = [{k: i[k] for k in keys} for i in threadpool_info() if i["user_api"] == "blas"]
    return {"npformer": threads(), "blas": blas}


def _depths(given: str) -> tuple[int, ...]:
    try:
        depths = tuple(sorted({int(part) for part in given.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers with commas between them, like 2,4,8, but is {given!r}"
        ) from None
    if depths[0] < 1 or depths[-1] > _DEEPEST:
        raise argparse.ArgumentTypeError(f"must lie in 1 ... {_DEEPEST}, but is {given}")
    return depths


def _seeds(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, but is {given!r}")
    return int(given)
