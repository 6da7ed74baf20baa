"""The tables, the JSON and the CSV of ``npformer inspect``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..experiments.attention_maps import Maps, summary
from ..experiments.inspection import Inspection, Row, Statistics
from ..labels import table, wrap
from .inspect_input import Subject
from .inspect_text import TEXT

COLUMNS = (
    "name", "kind", "shape", "mean", "max", "rms", "norm", "max_norm", "not_finite",
    "gradient_mean", "gradient_max", "gradient_rms", "gradient_norm", "gradient_max_norm",
    "gradient_not_finite", "parameter_gradient_norm",
)  # fmt: skip
MAP_COLUMNS = ("name", "head", "query", "key", "query_token", "key_token", "weight")

DEFINITIONS = {
    "mean": "mean of all numbers",
    "max": "largest absolute value",
    "rms": "root mean square of all numbers",
    "norm": "mean over the rows of the last axis (tokens) of their L2 norm; of a parameter the "
    "Frobenius norm",
    "max_norm": "largest L2 norm of a row; of a parameter the Frobenius norm",
    "not_finite": "how many numbers are NaN or infinite; what they make of the others is null",
    "gradient": "the same of the gradient of the loss by it",
    "parameter_gradient_norm": "L2 norm of the gradient by all parameters of the part",
}

MOST_BAD = 6


def facts(s: Subject, found: Inspection) -> dict[str, Any]:
    """Return what the sentences about the model and its text say."""
    cfg = s.model.cfg
    placements = cfg.placement if isinstance(cfg.placement, tuple) else (cfg.placement,)
    return {
        "kind": cfg.kind, "L": cfg.L, "d": cfg.d, "H": cfg.H,
        "norm": {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}.get(cfg.norm, cfg.norm),
        "placement": placements[0] if len(set(placements)) == 1 else None,
        "parameters": sum(p.value.size for p in s.model.parameters()),
        "source": s.source, "B": found.shape[0], "T": found.shape[1],
    }  # fmt: skip


def subject_text(s: Subject, found: Inspection, lang: str) -> str:
    """Return the sentence about the model for a caption."""
    text, said = TEXT[lang], facts(s, found)
    said["kind"] = text["Kind"][said["kind"]]
    said["source"] = text["prompt"] if s.source == "--prompt" else s.source
    said["placement"] = text["placement"].get(said["placement"], text["mixed"])
    said["layers"] = text["layers"][said["L"] != 1]
    return str(text["subject"].format(**said))


def report(s: Subject, found: Inspection, maps: Sequence[Maps], lang: str) -> str:
    """Return all that the command prints."""
    text, said = TEXT[lang], facts(s, found)
    said["kind"] = text["kind"][said["kind"]]
    said["source"] = text["prompt"] if s.source == "--prompt" else s.source
    said["placement"] = text["placement"].get(said["placement"], text["mixed"])
    said["layers"] = text["layers"][said["L"] != 1]
    head = [text["model"].format(**said), text["text"].format(**said)]
    if found.loss is not None:
        head.append(
            text["loss"][found.objective].format(
                loss=_number(found.loss), uniform=math.log(s.model.cfg.V)
            )
        )
    parts = ["\n".join(head)]
    if found.rows:
        parts += [_norms(found, text), *_bad(found.rows, text)]
        definitions = text["definitions"]
        if found.loss is not None:
            definitions += text["gradient_definitions"]
        parts.append("\n".join(wrap(definitions, 100)))
    if maps:
        parts += [text["maps"], _maps(maps, text)]
        S = maps[0].P.shape[-1]
        parts.append("\n".join(wrap(text["maps_definitions"].format(S=S, log=math.log(S)), 100)))
    return "\n\n".join(parts)


def names(found: Inspection, lang: str) -> str:
    """Return the names of a model with the shapes, for ``--list``."""
    text = TEXT[lang]
    rows = [(r.name, text["kind_of"][r.kind], _shape(r.value.shape)) for r in found.rows]
    return table(text["list_header"], rows, "<<<")


def _norms(found: Inspection, text: dict[str, Any]) -> str:
    kinds = {row.kind for row in found.rows}
    several, gradients = kinds != {"output"}, found.loss is not None
    header, align = list(text["header"]), "<" + ">" * 6
    if not gradients:
        header, align = header[:5], align[:5]
    if several:
        header, align = [header[0], text["kinds"], *header[1:]], "<" + align
    rows = []
    for row in found.rows:
        v = row.value
        cells = [_number(n) for n in (v.norm, v.max_norm, v.rms, v.max)]
        if gradients:
            cells.append("" if row.gradient is None else _number(row.gradient.norm))
            cells.append("" if row.parameters is None else _number(row.parameters))
        kind = [text["kind_of"][row.kind]] if several else []
        rows.append([row.name, *kind, *cells])
    return table(header, rows, align)


def _bad(rows: Sequence[Row], text: dict[str, Any]) -> list[str]:
    """Return the lines that name what is not finite, if anything is."""
    lines = []
    for key in ("bad", "bad_gradient"):
        for row in rows:
            found = row.value if key == "bad" else row.gradient
            if found is not None and found.bad:
                size = math.prod(found.shape)
                lines.append(text[key].format(name=row.name, bad=found.bad, size=size))
    if len(lines) > MOST_BAD:
        lines = [*lines[:MOST_BAD], text["more_bad"].format(n=len(lines) - MOST_BAD)]
    return ["\n".join(lines)] if lines else []


def _maps(maps: Sequence[Maps], text: dict[str, Any]) -> str:
    rows = []
    for m in maps:
        for h in m.heads:
            s = summary(m.name, h, m.P[h])
            numbers = (s.entropy, s.distance, s.itself, s.first)
            rows.append([m.name, str(h), *("" if math.isnan(n) else f"{n:.3f}" for n in numbers)])
    return table(text["maps_header"], rows, "<>>>>>")


def _number(x: float) -> str:
    return f"{x:.4g}"


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


# ------------------------------------------------------------------------------- for machines


def record(
    s: Subject, found: Inspection, maps: Sequence[Maps], queries: list[str], keys: list[str]
) -> dict[str, Any]:
    """Return all numbers as JSON can hold them: null for what is not finite."""
    said = facts(s, found)
    values: dict[str, Any] = {
        "model": {
            "name": s.model.cfg.name,
            "parameters": said["parameters"],
            "dtype": str(s.model.dtype),
            "config": asdict(s.model.cfg),
        },
        "text": {"source": s.source, "batch": said["B"], "length": said["T"]},
        "loss": _finite(found.loss),
        "objective": found.objective if found.loss is not None else None,
        "definitions": DEFINITIONS,
        "rows": [_row(row) for row in found.rows],
    }
    if maps:
        values["tokens"] = {"queries": queries, "keys": keys}
        values["attention"] = [
            {
                "name": m.name,
                "head": h,
                **{
                    k: _finite(v)
                    for k, v in summary(m.name, h, m.P[h])._asdict().items()
                    if isinstance(v, float)
                },
                "weights": [[_finite(float(p)) for p in row] for row in m.P[h]],
            }
            for m in maps
            for h in m.heads
        ]
    return values


def _row(row: Row) -> dict[str, Any]:
    gradient = None if row.gradient is None else _statistics(row.gradient)
    shape = list(row.value.shape)
    return {
        "name": row.name,
        "kind": row.kind,
        "shape": shape,
        **_statistics(row.value),
        "gradient": gradient,
        "parameter_gradient_norm": _finite(row.parameters),
    }


def _statistics(v: Statistics) -> dict[str, Any]:
    numbers = {k: _finite(n) for k, n in v._asdict().items() if isinstance(n, float)}
    return numbers | {"not_finite": v.bad}


def _finite(x: float | None) -> float | None:
    return x if x is not None and math.isfinite(x) else None


def norm_rows(found: Inspection) -> Iterator[list[Any]]:
    """Yield the lines of norms.csv."""
    for row in found.rows:
        gradient: list[Any] = [""] * 6
        if row.gradient is not None:
            gradient = list(row.gradient[1:])
        parameters = "" if row.parameters is None else row.parameters
        yield [row.name, row.kind, _shape(row.value.shape), *row.value[1:], *gradient, parameters]


def map_rows(
    maps: Sequence[Maps], queries: Sequence[str], keys: Sequence[str]
) -> Iterator[list[Any]]:
    """Yield the lines of a map's CSV: one for each query, key and head."""
    for m in maps:
        for h in m.heads:
            for (i, j), p in np.ndenumerate(m.P[h]):
                yield [m.name, h, i, j, queries[i], keys[j], float(p)]
