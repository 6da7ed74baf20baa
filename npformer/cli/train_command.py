"""``npformer train``: train a model on a text, on lines or on pairs, and keep it."""

from __future__ import annotations

import argparse
import errno
import json
import signal
import sys
import tomllib
import warnings
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..labels import LANGUAGES
from .fields import add_fields, check_names, given
from .train_data import Corpus, DataConfig, absolute, load_corpus

if TYPE_CHECKING:
    from ..config import TransformerConfig
    from ..training import TrainingConfig, TrainingResult

_DESCRIPTION = """\
Train a Transformer: a language model on one long text (by default the documentation inside Python)
or on lines, or an encoder-decoder on pairs of texts. As it is, the command trains a character model
of less than half a million parameters for about a minute and a half on two cores.

The folder gets the state of the run (written at intervals, at the end, and on Ctrl-C and SIGTERM),
tables of losses, norms and learning rates, a figure, and the model in a folder of its own that
"npformer generate" reads, like the folder itself.
"""

_EXAMPLES = """\
examples:
  npformer train --out run
  npformer train --out run --resume
  npformer train --out novel --text novel.txt --d 128 --L 6 --steps 5000 --dropout 0.1
  npformer train --out dates --pairs dates.tsv --steps 3000
  npformer train --out run2 --config run.toml --lr 0.001

A file for --config holds the same options in three tables:
  [data]
  text = "novel.txt"
  [model]
  d = 128
  gated = true
  [training]
  steps = 5000
"""

MODEL: dict[str, Any] = {"d": 96, "L": 4, "H": 4, "positions": "rope", "init": "xavier"}
"""What the command changes in a model's defaults."""

TRAINING: dict[str, Any] = {
    "steps": 1200,
    "B": 16,
    "lr": 0.006,
    "warmup": 100,
    "evaluate_every": 500,
}
"""What it changes in those of the training; a short run warms up for a tenth of it, and
"noam" has a factor of its own instead of this lr."""

WINDOW = 64
"""Tokens of a window of a long text."""


@dataclass(frozen=True)
class Plan:
    """The options of a run, from the command line, a file, or the run that goes on."""

    data: DataConfig
    model: dict[str, Any]
    training: dict[str, Any]


def add(verbs: Any) -> None:
    """Add the verb to the parser."""
    from ..config import TransformerConfig
    from ..training import TrainingConfig

    verb = verbs.add_parser(
        "train",
        help="train a model on your text, and keep it",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    verb.add_argument("--out", metavar="DIR", required=True, help="the folder of the run")
    verb.add_argument("--config", metavar="FILE.toml", help="options by name, in three tables")
    verb.add_argument("--resume", action="store_true", help="go on with the run in DIR")
    verb.add_argument(
        "--sample", type=int, default=300, metavar="N", help="tokens to write at the end (300)"
    )
    verb.add_argument("--json", action="store_true", help="print JSON instead of text")
    verb.add_argument("--lang", choices=LANGUAGES, default="en", help="of the figure (default: en)")
    add_fields(verb.add_argument_group("data"), DataConfig)
    shown = {**MODEL, "T_max": f"{WINDOW}, --T or the longest line", "window": f"{WINDOW} or --T"}
    model = verb.add_argument_group("model")
    add_fields(model, TransformerConfig, without=_GIVEN_BY_DATA, defaults=shown)
    add_fields(verb.add_argument_group("training"), TrainingConfig, defaults=TRAINING)
    verb.set_defaults(run=run)


_GIVEN_BY_DATA = ("V", "kind", "name")


def run(args: argparse.Namespace) -> int:
    """Train, write the files, print what came out."""
    from ..training import Interrupted, train

    home = Path(args.out)
    plan = resumed_plan(args, home) if args.resume else new_plan(args, home)
    model, corpus, config = prepared(plan, home, resume=args.resume)
    record = {
        "data": asdict(plan.data),
        "model": asdict(model.cfg),
        "training": asdict(config),
        "parameters": sum(p.value.size for p in model.parameters()),
    }
    T = config.T or min(model.cfg.T_max, WINDOW)
    config = replace(config, T=config.T if corpus.longest else T)
    data = [corpus.batches(part, config.B, T, config.seed) for part in (0, 1)]
    if not args.resume:
        write_record(home, record)
    try:
        assert data[0] is not None
        result = train(
            model,
            data[0],
            data[1],
            config,
            folder=home,
            resume=args.resume,
            vocabulary=corpus.vocabulary,
            progress=not args.json,
        )
    except Interrupted as stop:
        print(
            f"npformer: {signal.Signals(stop.signal).name} after step {stop.result.step}: the "
            f"state is in {home}; npformer train --out {home} --resume goes on",
            file=sys.stderr,
        )
        return 128 + stop.signal
    record |= finished(model, corpus, config, result, home, args)
    write_record(home, record)
    if args.json:
        print(json.dumps(record, ensure_ascii=False, allow_nan=False))
    else:
        print(report(record))
    return 0


# -------------------------------------------------------------------------- what is to be done


def new_plan(args: argparse.Namespace, home: Path) -> Plan:
    """Return the options of a new run: the command line, then the file, then the defaults."""
    from ..config import TransformerConfig
    from ..training import TrainingConfig

    if (home / "state.npz").exists():
        raise FileExistsError(
            errno.EEXIST, "there is a run already: --resume goes on with it", str(home)
        )
    kinds: dict[str, Any] = {
        "data": DataConfig, "model": TransformerConfig, "training": TrainingConfig
    }  # fmt: skip
    tables: dict[str, Any] = {name: {} for name in kinds} | read_config(args.config, kinds)
    for name, kind in kinds.items():
        tables[name] = {**tables[name], **given(args, kind)}
    source = DataConfig(**tables["data"])
    paths: Any = {n: absolute(getattr(source, n)) for n in ("text", "lines", "pairs", "start")}
    return Plan(replace(source, **paths), tables["model"], tables["training"])


def read_config(path: str | None, kinds: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file; file names in it count from its own folder."""
    if path is None:
        return {}
    try:
        with Path(path).open("rb") as file:
            tables = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} can't be read: {error}") from None
    check_names(tables, kinds, path)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ValueError(f"{path}: {name} must be a table, [{name}]")
        check_names(
            table, [f.name for f in fields(kinds[name]) if f.name not in _GIVEN_BY_DATA],
            f"{path}, [{name}],",
        )  # fmt: skip
    data = tables.get("data", {})
    for name in ("text", "lines", "pairs", "start"):
        if isinstance(data.get(name), str):
            data[name] = str(Path(path).resolve().parent / data[name])
    return tables


def resumed_plan(args: argparse.Namespace, home: Path) -> Plan:
    """Return the options of the run in the folder; others given now must not contradict them."""
    from ..config import TransformerConfig
    from ..training import TrainingConfig, load_state
    from .model_folder import read

    if args.config is not None:
        raise ValueError("--resume takes the options of the run: leave --config out")
    if not (home / "state.npz").exists():
        raise FileNotFoundError(errno.ENOENT, "there is no run to resume", str(home))
    state = load_state(home / "state.npz")
    source = DataConfig(**read(home / "run.json")["data"])
    for name, value in {**given(args, DataConfig), **given(args, TransformerConfig)}.items():
        before = getattr(source, name, getattr(state.config, name, None))
        if before not in (value, absolute(value) if isinstance(value, str) else value):
            raise ValueError(f"the run in {home} has {name} {before}, not {value}")
    options = {**asdict(state.options), **given(args, TrainingConfig)}
    return Plan(source, {}, options)


def prepared(plan: Plan, home: Path, *, resume: bool) -> tuple[Any, Corpus, TrainingConfig]:
    """Return model, data and options of the training."""
    from ..training import TrainingConfig, load_state
    from ..vocabulary import restored

    if resume:
        state = load_state(home / "state.npz")
        words = None if state.vocabulary is None else restored(state.vocabulary)
        return state.model(), load_corpus(plan.data, words), TrainingConfig(**plan.training)
    config = TrainingConfig(**training_options(plan.training))
    if plan.data.start is not None:
        return (*started(plan), config)
    corpus = load_corpus(plan.data)
    return made(model_config(plan, corpus), config.seed), corpus, config


def training_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the training with the command's own defaults."""
    options = {**TRAINING, **given}
    steps = options["steps"]
    if "warmup" not in given and isinstance(steps, int):
        options["warmup"] = min(TRAINING["warmup"], steps // 10)
    if options.get("schedule") == "noam" and "lr" not in given:
        del options["lr"]  # there it is a factor, whose 1 is right for any width
    return options


def model_config(plan: Plan, corpus: Corpus) -> TransformerConfig:
    """Return the configuration of a new model for these data."""
    from ..config import TransformerConfig

    window = plan.training.get("T") or WINDOW
    defaults = {**MODEL, "T_max": corpus.longest or window}
    if not corpus.longest:
        # What is trained on windows of T tokens looks back no further when it writes more.
        defaults["window"] = window
    cfg = TransformerConfig(
        V=corpus.vocabulary.V, kind=plan.data.kind, **{**defaults, **plan.model}
    )
    needed = corpus.longest or plan.training.get("T") or 0
    if cfg.positions == "learned" and cfg.T_max < needed:
        raise ValueError(f"rows of {needed} tokens don't fit into T_max = {cfg.T_max} positions")
    return cfg


def made(cfg: TransformerConfig, seed: int) -> Any:
    """Return a new model."""
    from ..models import DecoderLM, EncoderDecoder

    model = DecoderLM if cfg.kind == "decoder" else EncoderDecoder
    return model(cfg, rng=seed)


def started(plan: Plan) -> tuple[Any, Corpus]:
    """Return a model from a folder, and the data in its vocabulary."""
    from .model_folder import load_folder

    if plan.model:
        raise ValueError(f"start takes a model as it is: leave out {', '.join(plan.model)}")
    found = load_folder(str(plan.data.start))
    if found.vocabulary is None:
        raise ValueError(f"{plan.data.start} has no vocabulary, so no text can be read for it")
    if found.model.cfg.kind != plan.data.kind:
        raise ValueError(f"{plan.data.start} holds a {found.model.cfg.kind}, but the data are not "
                         f"for one")  # fmt: skip
    return found.model, load_corpus(plan.data, found.vocabulary)


# ------------------------------------------------------------------------------ what came out


def finished(
    model: Any,
    corpus: Corpus,
    config: TrainingConfig,
    result: TrainingResult,
    home: Path,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Write the model and the figure; return what is to be told."""
    files = [f"{name}.csv" for name, rows in result.rows.items() if rows]
    files += [path.name for path in draw(model, config, result, home, args.lang)]
    save_model(model, corpus, home / "model")
    tokens = sum(row[4] for row in result.rows["steps"])
    return {
        "step": result.step,
        "loss": float(result.losses[-50:].mean()),
        "held_out": result.held_out,
        "tokens": tokens,
        "seconds": round(result.seconds, 2),
        "sample": written(model, corpus, args.sample),
        "files": ["state.npz", *files, "run.json", "model/"],
        "folder": str(home),
    }


def draw(
    model: Any, config: TrainingConfig, result: TrainingResult, home: Path, lang: str
) -> list[Path]:
    """Write the figures."""
    from ..plots.style import language, save_figure
    from ..plots.training import norms_by_layer, training_curves

    rows = result.rows
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        with language(lang) as shown:
            figure = training_curves(
                rows["steps"], rows["held_out"], V=model.cfg.V, clip=config.clip, lang=shown
            )
            paths = save_figure(figure, home / "training")
            if rows["norms"]:
                paths += save_figure(norms_by_layer(rows["norms"], shown), home / "norms")
    for message in dict.fromkeys(str(w.message) for w in caught):
        print(f"npformer: {message}", file=sys.stderr)
    return paths


def save_model(model: Any, corpus: Corpus, folder: Path) -> None:
    """Write the model as a folder, in another project's form where one can express it."""
    from ..files import write_json, write_text
    from ..vocabulary import FileVocabulary, description
    from ..weights import save_pretrained

    words = corpus.vocabulary
    ids = {
        "bos_token_id": getattr(words, "start", None),
        "eos_token_id": getattr(words, "end", None),
    }
    try:
        save_pretrained(model, folder, settings=ids)
    except ValueError:
        save_pretrained(model, folder, architecture="npformer", settings=ids)
    write_json(folder / "vocabulary.json", description(words))
    if isinstance(words, FileVocabulary):
        write_text(folder / "tokenizer.json", words.text)


def written(model: Any, corpus: Corpus, n: int) -> str | None:
    """Return a text that the model writes, or None where it is not asked for."""
    import numpy as np

    from ..decoding import generate

    if n < 1 or corpus.source.pairs is not None:
        return None
    words: Any = corpus.vocabulary
    if corpus.source.lines is not None:
        prompt, stop = [words.start], words.end
    else:
        prompt, stop = corpus.parts[0][:1], None
    if model.cfg.positions == "learned":
        n = min(n, model.cfg.T_max)
    out = generate(model, np.array([prompt]), n, temperature=0.8, eos_id=stop, rng=0)[0]
    return str(words.decode(out))


def write_record(home: Path, record: dict[str, Any]) -> None:
    """Write ``run.json``."""
    from .. import __version__
    from ..files import write_json
    from ..parallel import threads

    write_json(home / "run.json", {"version": __version__, "threads": threads(), **record})


def report(record: dict[str, Any]) -> str:
    """Return what came out, for people."""
    speed = record["tokens"] / max(record["seconds"], 1e-9)
    lines = [
        f"{record['parameters']:,} parameters, {record['step']} steps",
        f"{record['tokens']:,} tokens in {record['seconds']:.1f} s, {speed:,.0f} a second",
        f"loss {record['loss']:.3f} nats a token at the end"
        + ("" if record["held_out"] is None else f", {record['held_out']:.3f} held out"),
    ]
    if record["sample"]:
        lines += ["", "the model writes:", "", record["sample"], ""]
    lines.append(f"{record['folder']}: {' '.join(record['files'])}")
    return "\n".join(lines)
