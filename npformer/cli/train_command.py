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
from .train_data import NO_FILES, Corpus, DataConfig, absolute, load_corpus
from .train_report import finished, report, write_record

if TYPE_CHECKING:
    from ..config import TransformerConfig
    from ..training import TrainingConfig

_DESCRIPTION = """\
Train a Transformer: a language model on one long text (by default the documentation inside Python)
or on lines, or an encoder-decoder on pairs of texts. As it is, the command trains a character model
of less than half a million parameters for about a minute and a half on two cores.

The folder gets the state of the run (written at intervals, at the end, and when it is stopped),
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
    shown = {
        **MODEL,
        "embedding_scale": "1, or sqrt(d) with sinusoidal positions",
        "T_max": f"{WINDOW}, --T or the longest line",
        "window": f"{WINDOW} or --T",
    }
    group = verb.add_argument_group("model")
    add_fields(group, TransformerConfig, without=_GIVEN_BY_DATA, defaults=shown)
    shown = {
        **TRAINING,
        "T": WINDOW,
        "lr": f"{TRAINING['lr']}, or the factor 1",
        "warmup": f"{TRAINING['warmup']}, or a tenth of a short run",
    }
    add_fields(verb.add_argument_group("training"), TrainingConfig, defaults=shown)
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
        with warnings.catch_warnings():
            # A run that diverges overflows first; the step that can't be taken then says so.
            warnings.simplefilter("ignore", RuntimeWarning)
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
    if source.vocabulary not in NO_FILES:
        paths["vocabulary"] = absolute(source.vocabulary)
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
    for name in ("text", "lines", "pairs", "start", "vocabulary"):
        if isinstance(data.get(name), str) and data[name] not in NO_FILES:
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
    source = recorded_data(read(home / "run.json"), home / "run.json")
    for name, value in {**given(args, DataConfig), **given(args, TransformerConfig)}.items():
        before = getattr(source, name, getattr(state.config, name, None))
        if before not in (value, absolute(value) if isinstance(value, str) else value):
            raise ValueError(f"the run in {home} has {name} {before}, not {value}")
    options = {**asdict(state.options), **given(args, TrainingConfig)}
    return Plan(source, {}, options)


def recorded_data(record: dict[str, Any], path: Path) -> DataConfig:
    """Return where the data are, as a ``run.json`` says."""
    try:
        return DataConfig(**record["data"])
    except (KeyError, TypeError):
        raise ValueError(f"{path} does not say where the data are, as a run writes it") from None


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
    if options.get("schedule") == "noam" and "lr" not in given:
        options["lr"] = None  # there it is a factor, whose 1 is right for any width
    steps = options["steps"]
    if "warmup" not in given and isinstance(steps, int):
        options["warmup"] = min(TRAINING["warmup"], steps // 10)
    return options


def model_config(plan: Plan, corpus: Corpus) -> TransformerConfig:
    """Return the configuration of a new model for these data."""
    from ..config import TransformerConfig

    window = plan.training.get("T") or WINDOW
    defaults = {**MODEL, "T_max": corpus.longest or window}
    if not corpus.longest:
        # What is trained on windows of T tokens looks back no further when it writes more.
        defaults["window"] = window
    if plan.model.get("positions") == "sinusoidal":
        # Their entries are of order 1, those of a new table of order 1 / sqrt(d).
        defaults["embedding_scale"] = float(plan.model.get("d", MODEL["d"])) ** 0.5
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
        raise ValueError(f"{plan.data.start} holds a model of the kind {found.model.cfg.kind}, but "
                         f"the data are for the kind {plan.data.kind}")  # fmt: skip
    return found.model, load_corpus(plan.data, found.vocabulary)
