"""``npformer account``: what a model costs in numbers, shapes, operations and bytes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..sizes import AnyConfig
    from .account_report import Setting

_DESCRIPTION = """\
Count what a model costs: parameters by part, the shapes of a forward pass, operations, weights,
key-value cache, training memory on one device and on many, and activations. Nothing is allocated,
so a model of any size takes less than a second. GiB are 2^30 bytes, GB are 10^9.

MODEL is a name from --list, or a file that ends in .json or .toml: the fields of a
TransformerConfig, or the config.json of a model in Hugging Face's format.
"""

_EXAMPLES = """\
examples:
  npformer account llama-2-7b
  npformer account chapter-12-layer --batch 8 --length 512 --only shapes
  npformer account llama-2-7b --zero 3 --data 8 --only training
  npformer account --compare gpt2 llama-2-7b qwen3-8b --out account
  npformer account --config my_model.toml --json

my_model.toml:
  V = 32000
  d = 512
  L = 8
  H = 8
  positions = "rope"
"""

LONGEST = 8192


def add(verbs: Any) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "account",
        help="count parameters, shapes, operations and bytes of a model",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    verb.add_argument("model", nargs="?", metavar="MODEL", help="a name from --list, or a file")
    verb.add_argument("--config", metavar="FILE", help="your own model, from a .json or .toml file")
    verb.add_argument(
        "--compare", nargs="+", metavar="MODEL", help="several models side by side, names or files"
    )
    verb.add_argument("--list", action="store_true", help="print the names of all models and stop")
    verb.add_argument("--batch", type=int, default=1, metavar="B", help="rows (default: 1)")
    verb.add_argument(
        "--length",
        type=int,
        metavar="T",
        help=f"tokens of each row (default: the longest text of the model, at most {LONGEST})",
    )
    verb.add_argument(
        "--source-length",
        type=int,
        metavar="S",
        help="tokens on the encoder's side of an encoder-decoder (default: T)",
    )
    verb.add_argument(
        "--dtype",
        default="float16",
        help="format of weights, cache and activations: float64, float32, float16, bfloat16, "
        "float8 or int8 (default: float16)",
    )
    verb.add_argument(
        "--convention",
        default="dense",
        choices=("dense", "causal", "half"),
        help="how causal attention is counted: all T S pairs, the visible ones, or the triangle "
        "as half a square (default: dense)",
    )
    verb.add_argument("--zero", type=int, default=0, metavar="STAGE", help="ZeRO stage, 0 to 3")
    verb.add_argument("--data", type=int, default=1, metavar="N", help="devices that share by ZeRO")
    verb.add_argument(
        "--tensor", type=int, default=1, metavar="N", help="devices of a tensor split"
    )
    verb.add_argument("--pipeline", type=int, default=1, metavar="N", help="stages of a pipeline")
    verb.add_argument(
        "--device-gb", type=float, default=80, metavar="GB", help="memory of a device (default: 80)"
    )
    verb.add_argument(
        "--only",
        action="append",
        metavar="SECTION",
        help="only this section, can be given again: parameters, shapes, operations, memory, "
        "training or activations",
    )
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument(
        "--out", metavar="DIR", help="also write text, JSON, CSV and a figure of the parameters"
    )
    verb.add_argument("--lang", choices=("en", "zh"), default="en", help="language of the tables")
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Count and print."""
    import json

    from ..files import output_folder
    from . import account_report as form
    from .account_text import TEXT
    from .model_argument import read_model

    if args.list:
        print(_list())
        return 0
    sections = _sections(args.only)
    names = _names(args)
    if args.out is not None:
        output_folder(args.out)
    configs = [read_model(name) for name in names]
    longest = min(LONGEST, *(cfg.T_max for cfg in configs))  # the same text for all
    models = [(cfg, _setting(args, longest)) for cfg in configs]
    _check_lengths(args, configs)
    if args.compare:
        text = form.comparison(models, args.lang)
        found: Any = {"models": [form.as_json(cfg, s) for cfg, s in models]}
    else:
        ((cfg, s),) = models
        text = f"{form.heading(cfg, s, args.lang)}\n\n{form.report(cfg, s, sections, args.lang)}"
        found = form.as_json(cfg, s)
    if args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(text)
    if args.out is not None:
        for path in _write(Path(args.out), models, text, found, args.lang):
            if not args.json:
                print(TEXT[args.lang]["wrote"].format(path=path))
    return 0


def _list() -> str:
    from ..catalogue import ROWS
    from ..labels import table

    rows = [[name, f"{row.parameters:,}", row.published] for name, row in ROWS.items()]
    return table(["model", "parameters", "published as"], rows, "<><")


def _sections(only: list[str] | None) -> tuple[str, ...]:
    from .account_report import SECTIONS

    for name in only or ():
        if name not in SECTIONS:
            raise ValueError(f"--only must be one of {', '.join(SECTIONS)}, but is {name!r}")
    return tuple(s for s in SECTIONS if not only or s in only)


def _names(args: argparse.Namespace) -> list[str]:
    given = [x for x in (args.model, args.config, args.compare) if x]
    if len(given) != 1:
        raise ValueError(
            "give one of MODEL, --config FILE and --compare MODEL MODEL ..., or --list"
        )
    if args.config is not None and not args.config.endswith((".json", ".toml")):
        raise ValueError(f"--config needs a .json or .toml file, but is {args.config}")
    return args.compare or [args.model or args.config]


def _check_lengths(args: argparse.Namespace, configs: list[AnyConfig]) -> None:
    """Refuse tokens that a model has no place for, or nothing that would read them."""
    for option, n in (("--length", args.length), ("--source-length", args.source_length)):
        for cfg in configs:
            learned = getattr(cfg, "positions", None) == "learned"
            reads = option == "--length" or cfg.kind == "encoder-decoder"
            if learned and reads and n is not None and n > cfg.T_max:
                raise ValueError(
                    f"{option} must be at most {cfg.T_max}, the learned positions of {cfg.name}, "
                    f"but is {n}"
                )
    if args.source_length is not None and all(cfg.kind != "encoder-decoder" for cfg in configs):
        names = ", ".join(f"{cfg.name} ({cfg.kind})" for cfg in configs)
        raise ValueError(f"--source-length needs an encoder-decoder, not {names}")


def _setting(args: argparse.Namespace, longest: int) -> Setting:
    from .. import accounting
    from .account_report import Setting

    T = longest if args.length is None else args.length
    for name, n in (
        ("--batch", args.batch),
        ("--length", T),
        ("--source-length", args.source_length),
    ):
        if n is not None and n < 1:
            raise ValueError(f"{name} must be 1 or more, but is {n}")
    accounting.itemsize(args.dtype)
    if not args.device_gb > 0:
        raise ValueError(f"--device-gb must be positive, but is {args.device_gb:g}")
    return Setting(
        B=args.batch,
        T=T,
        S=args.source_length or T,
        dtype=args.dtype,
        convention=args.convention,
        zero=args.zero,
        data=args.data,
        tensor=args.tensor,
        pipeline=args.pipeline,
        device_gb=args.device_gb,
    )


def _write(
    folder: Path, models: list[tuple[AnyConfig, Setting]], text: str, found: Any, lang: str
) -> list[Path]:
    """Write what was found, with the numbers of the figure beside it."""
    from .. import accounting
    from ..files import write_csv, write_json, write_text
    from ..plots.accounts import where_parameters_go
    from ..plots.style import language, save_figure

    accounts = {str(cfg.name): accounting.parameters(cfg) for cfg, _ in models}
    write_text(folder / "account.txt", text + "\n")
    write_json(folder / "account.json", found)
    write_csv(
        folder / "parameters.csv",
        ["model", "group", "part", "formula", "per_layer", "layers", "count", "active", "share"],
        [
            [name, r.group, r.part, r.formula, r.per_layer, r.layers, r.count, r.active, r.share]
            for name, account in accounts.items()
            for r in account.rows
        ],
    )
    with language(lang) as drawn:
        figures = save_figure(where_parameters_go(accounts, drawn), folder / "parameters")
    return [folder / name for name in ("account.txt", "account.json", "parameters.csv")] + figures
