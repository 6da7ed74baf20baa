"""``npformer inspect``: norms of activations and gradients by name, and attention maps."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..labels import LANGUAGES
from .fields import add_fields
from .inspect_input import BATCH, LEFT_OUT, LENGTH, SMALL, labels, subject
from .inspect_rotation import run_rotation
from .inspect_steps import add_options, run_steps

if TYPE_CHECKING:
    from ..experiments.attention_maps import Maps
    from ..experiments.inspection import Inspection
    from .inspect_input import Subject

_DESCRIPTION = f"""\
Run a model on a text and look inside: norms of the activations of every layer and of the gradients
that reach it, by name (blocks.3.attn), and attention maps. The model is one of options (by default
{SMALL["L"]} layers, d = {SMALL["d"]}, {SMALL["H"]} heads, with random weights), a named one, or one
that was trained or downloaded.

Names: blocks.3 is the result of the fourth block, blocks.3.attn that of its attention,
blocks.3.attn.attention.lse an array that the attention saved for its backward, blocks.3.attn.Wq.W a
parameter. In a pattern * stands for one part of a name and ** for any number of them.
"""

_EXAMPLES = """\
examples:
  npformer inspect
  npformer inspect --L 12 --placement post --init xavier --text novel.txt --out look
  npformer inspect --select 'blocks.*.attn' --json
  npformer inspect --model run --attention 3.1 --prompt "The with statement" --out look
  npformer inspect --preset gpt2 --no-gradients --select 'blocks.*'
  npformer inspect --list
  npformer inspect --rope --preset llama-3.1-405b --out look
  npformer inspect --online-softmax --scores 1,4,2,9,3,0 --block 2
"""


def add(verbs: Any) -> None:
    """Add the verb to the parser."""
    from ..config import TransformerConfig

    verb = verbs.add_parser(
        "inspect",
        help="norms of activations and gradients by layer, and attention maps",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    verb.add_argument(
        "--select",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only these names; may come several times",
    )
    verb.add_argument(
        "--no-gradients",
        action="store_true",
        help="the forward pass only, which keeps no more than one block",
    )
    verb.add_argument(
        "--attention",
        action="append",
        default=[],
        metavar="LAYER[.HEAD]",
        help="attention maps: 3 for all heads of blocks.3.attn, 3.1 for one, all, or a name such "
        "as encoder.blocks.0.attn; may come several times",
    )
    verb.add_argument("--list", action="store_true", help="print every name and shape, and stop")
    verb.add_argument(
        "--rope",
        action="store_true",
        help="show the rotary positions of a model instead: wavelengths, and scores by distance",
    )
    verb.add_argument("--text", metavar="FILE", help="a UTF-8 text in any language (default: the "
                      "documentation inside Python)")  # fmt: skip
    verb.add_argument("--prompt", metavar="TEXT", help="read this and nothing else")
    verb.add_argument(
        "--vocabulary",
        metavar="NAME",
        help="characters, bytes, or the name of a tokenizer.json (default: the model's own, or "
        "characters; bytes for --preset and for a model without any)",
    )
    verb.add_argument("--batch", type=int, metavar="B", help=f"windows (default: {BATCH})")
    verb.add_argument(
        "--length", type=int, metavar="T", help=f"tokens of a window (default: {LENGTH})"
    )
    verb.add_argument("--seed", type=int, default=0, help="of weights and windows (default: 0)")
    verb.add_argument(
        "--dtype", choices=("float32", "float64"), default="float32", help="(default: float32)"
    )
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument(
        "--out",
        metavar="DIR",
        help="also write inspect.json, CSV, figures (SVG, PNG) and a page of attention maps (HTML)",
    )
    verb.add_argument(
        "--lang", choices=LANGUAGES, default="en", help="of tables and figures (default: en)"
    )
    verb.add_argument("--model", metavar="FOLDER", help="a run of npformer train, a folder in "
                      "Hugging Face's format, or a .gguf file")  # fmt: skip
    verb.add_argument("--preset", metavar="NAME", help="a named model with random weights, such as "
                      "gpt2, or a .json or .toml file; options change it")  # fmt: skip
    group = verb.add_argument_group(
        "model",
        "The fields of npformer.TransformerConfig. The defaults are those of a model of options; "
        "with --preset they are the preset's.",
    )
    defaults = {**SMALL, "T_max": None}
    add_fields(group, TransformerConfig, without=LEFT_OUT, defaults=defaults)
    add_options(verb)
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look, print, write."""
    if args.online_softmax or args.scores is not None:
        return run_steps(args)
    if args.rope:
        return run_rotation(args)
    from ..experiments.attention_maps import attention_name, chosen_maps
    from ..experiments.inspection import inspect
    from ..files import output_folder
    from . import inspect_report as form

    if args.out is not None:
        output_folder(args.out)
    s = subject(args)
    if args.list:
        found = inspect(s.model, s.ids, s.targets, select=["**"], gradients=False)
        if args.json:
            print(json.dumps([{"name": r.name, "kind": r.kind, "shape": r.value.shape}
                              for r in found.rows]))  # fmt: skip
        else:
            print(form.names(found, args.lang))
        return 0
    found = inspect(
        s.model,
        s.ids,
        s.targets,
        select=args.select,
        attention=[attention_name(wanted)[0] for wanted in args.attention],
        gradients=not args.no_gradients,
        rng=args.seed,
    )
    maps = chosen_maps(found.maps, args.attention)
    tokens = labels(s.vocabulary, s.ids[0, : found.shape[1]]) if maps else []
    record = form.record(s, found, maps, tokens, tokens)
    files = []
    if args.out is not None:
        files = write(Path(args.out), s, found, maps, tokens, args.lang)
        from ..files import write_json

        record["files"] = [path.name for path in files]
        write_json(Path(args.out) / "inspect.json", record)
        files.append(Path(args.out) / "inspect.json")
    if args.json:
        print(json.dumps(record, ensure_ascii=False, allow_nan=False))
    else:
        print(form.report(s, found, maps, args.lang))
        if files:
            print(f"\n{args.out}: {' '.join(path.name for path in files)}")
    return 0


def write(
    out: Path, s: Subject, found: Inspection, maps: list[Maps], tokens: list[str], lang: str
) -> list[Path]:
    """Write the tables and draw the figures."""
    from ..files import write_csv, write_text
    from ..plots.attention_maps import attention_maps
    from ..plots.attention_page import MOST, attention_page, weights
    from ..plots.inspection import norms
    from ..plots.style import language, save_figure
    from . import inspect_report as form

    paths: list[Path] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        with language(lang) as shown:
            caption = form.subject_text(s, found, shown)
            if found.rows:
                write_csv(out / "norms.csv", form.COLUMNS, form.norm_rows(found))
                paths.append(out / "norms.csv")
                paths += save_figure(norms(found, caption, shown), out / "norms")
            if maps:
                table = out / "attention.csv"
                write_csv(table, form.MAP_COLUMNS, form.map_rows(maps, tokens, tokens))
                paths.append(table)
                figure = attention_maps(
                    maps, tokens, tokens, subject=caption, data=table.name, lang=shown
                )
                paths += save_figure(figure, out / "attention")
                if weights(maps) <= MOST:
                    page = attention_page(maps, tokens, tokens, subject=caption, lang=shown)
                    write_text(out / "attention.html", page)
                    paths.append(out / "attention.html")
    for message in dict.fromkeys(str(w.message) for w in caught):
        print(f"npformer: {message}", file=sys.stderr)
    return paths
