"""What ``npformer train`` tells and leaves behind when a run is over."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..training import TrainingConfig, TrainingResult
    from .train_data import Corpus


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
        "loss": float(result.losses[-50:].mean()) if len(result.losses) else None,
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
    if not rows["steps"]:  # somebody took the table away
        return []
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
    ]
    losses = [
        f"{record[name]:.3f} {words}"
        for name, words in (("loss", "nats a token at the end"), ("held_out", "held out"))
        if record[name] is not None
    ]
    if losses:
        lines.append("loss " + ", ".join(losses))
    if record["sample"]:
        lines += ["", "the model writes:", "", record["sample"], ""]
    lines.append(f"{record['folder']}: {' '.join(record['files'])}")
    return "\n".join(lines)
