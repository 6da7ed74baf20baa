"""The accounts of one model as text and as JSON, and those of several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from .. import accounting
from ..accounting import Flops, Parameters, ShapeRow
from ..experts import ExpertsConfig
from ..labels import table
from ..sizes import AnyConfig
from .account_text import TEXT, word

SECTIONS = ("parameters", "shapes", "operations", "memory", "training", "activations")


@dataclass(frozen=True)
class Setting:
    """What the accounts are made for: sizes, format, convention, devices."""

    B: int
    T: int
    S: int
    dtype: str
    convention: str
    zero: int
    data: int
    tensor: int
    pipeline: int
    device_gb: float


def number(n: int | None) -> str:
    """Write a number with commas; nothing for None."""
    return "" if n is None else f"{n:,}"


def scaled(n: float) -> str:
    """Write a large number with a letter: 6.74 G, 13.5 T."""
    for power, letter in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if n >= 10**power:
            return f"{n / 10**power:.4g} {letter}"
    return f"{n:g}"


def size(n: int) -> str:
    """Write bytes in both units that people mix up: 100.4 GiB = 107.8 GB."""
    for power, binary, decimal in (
        (4, "TiB", "TB"),
        (3, "GiB", "GB"),
        (2, "MiB", "MB"),
        (1, "KiB", "kB"),
    ):
        if n >= 1024**power:
            return f"{n / 1024**power:.4g} {binary} = {n / 1000**power:.4g} {decimal}"
    return f"{n} B"


def percent(share: float) -> str:
    """Write a share in percent; nothing for none, and a small one as such."""
    return "" if not share else f"{100 * share:.2f} %" if share >= 5e-5 else "<0.01 %"


# -------------------------------------------------------------------------------------- text


def report(cfg: AnyConfig, setting: Setting, sections: tuple[str, ...], lang: str) -> str:
    """Return the chosen sections of one model's accounts."""
    makers: dict[str, Callable[[AnyConfig, Setting, str], str]] = {
        "parameters": _parameters,
        "shapes": _shapes,
        "operations": _operations,
        "memory": _memory,
        "training": _training,
        "activations": _activations,
    }
    return "\n\n".join(
        f"{TEXT[lang][name]}\n\n{makers[name](cfg, setting, lang)}" for name in sections
    )


def heading(cfg: AnyConfig, setting: Setting, lang: str) -> str:
    """Return the lines above the accounts: which model, from where, at which size."""
    from ..catalogue import ROWS

    t, lines = TEXT[lang], [f"{cfg.name} ({word(cfg.kind, lang)})"]
    if cfg.name in ROWS:
        row = ROWS[cfg.name]
        lines += [t["published"].format(published=row.published)]
        lines += [t["source"].format(source=row.source)]
    form = "setting_source" if cfg.kind == "encoder-decoder" else "setting"
    lines.append(t[form].format(B=setting.B, T=setting.T, S=setting.S, dtype=setting.dtype))
    return "\n".join(lines)


def _parameters(cfg: AnyConfig, _: Setting, lang: str) -> str:
    t, account = TEXT[lang], accounting.parameters(cfg)
    rows = [
        [
            word(r.part, lang),
            word(r.formula, lang),
            number(r.per_layer),
            str(r.layers or ""),
            number(r.count),
            percent(r.share),
        ]
        for r in account.rows
    ]
    if account.block is not None:
        rows.append([t["block"], "", number(account.block), "", "", ""])
    rows.append([t["non_embedding"], "", "", "", number(account.non_embedding), ""])
    if account.active < account.total:
        share = percent(account.active / account.total)
        rows.append([t["active"], "", "", "", number(account.active), share])
    rows.append([t["total"], "", "", "", number(account.total), ""])
    header = [t[k] for k in ("part", "formula_layer", "per_layer", "layers", "count", "share")]
    return table(header, rows, "<<>>>>")


def _shapes(cfg: AnyConfig, s: Setting, lang: str) -> str:
    t = TEXT[lang]
    rows = [
        [
            word(r.operation, lang),
            " x ".join(r.symbols),
            " x ".join(map(str, r.shape)),
            number(r.elements) + ("*" if r.quadratic else " "),
            number(r.weights) if r.weights else "",
            number(r.biases) if r.biases else "",
            r.layers,
        ]
        for r in accounting.shapes(cfg, s.B, s.T, source=s.S)
    ]
    header = [t["operation"], t["shape"], "", t["numbers"], t["weights"], t["biases"], t["layers"]]
    return table(header, rows, "<<<>>>>") + "\n" + t["quadratic"]


def _operations(cfg: AnyConfig, s: Setting, lang: str) -> str:
    t, account = TEXT[lang], _flops(cfg, s)
    rows = [
        [
            word(r.part, lang),
            scaled(r.forward),
            scaled(r.backward),
            percent(r.forward / account.forward),
        ]
        for r in account.rows
    ]
    rows.append([t["total"], scaled(account.forward), scaled(account.backward), ""])
    if account.recomputed:
        rows.append([t["recomputed"], "", scaled(account.recomputed), ""])
    if account.decoding_step is not None:
        rows.append([t["step"].format(S=s.T), scaled(account.decoding_step), "", ""])
    header = [t["part"], t["forward"], t["backward"], t["share"]]
    note = t["conventions"].format(convention=t[s.convention])
    return table(header, rows, "<>>>") + "\n" + note


def _flops(cfg: AnyConfig, s: Setting) -> Flops:
    return accounting.flops(cfg, s.B, s.T, source=s.S, convention=s.convention)


def _memory(cfg: AnyConfig, s: Setting, lang: str) -> str:
    t = TEXT[lang]
    rows = [[t["weights"], size(accounting.weight_bytes(cfg, s.dtype))]]
    if cfg.kind != "encoder":
        cache = accounting.kv_cache_bytes(cfg, s.B, s.T, s.dtype)
        rows.append([t["cache"].format(B=s.B, T=s.T), size(cache)])
        rows.append([t["cache_layer"], size(cache.per_layer)])
        rows.append([t["cache_token"], size(cache.per_token)])
        rolling = accounting.kv_cache_bytes(cfg, s.B, s.T, s.dtype, rolling=True)
        if rolling < cache:
            rows.append([t["rolling"], size(rolling)])
        if cfg.kind == "encoder-decoder":
            both = accounting.kv_cache_bytes(cfg, s.B, s.T, s.dtype, source=s.S)
            rows.append([t["source_cache"].format(S=s.S), size(both - cache)])
    return table([t["item"], t["bytes"]], rows, "<>")


def splits(cfg: AnyConfig, s: Setting) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield ways to share the training out: one device, ZeRO, tensor and pipeline splits."""
    yield "one", {}
    N = 8 if s.data == 1 else s.data
    for stage in (1, 2, 3):
        yield "zero", {"zero": stage, "data": N}
    for name, most in (("tensor", 8), ("pipeline", 8)):
        for n in (most, most // 2, most // 4):
            try:
                accounting.training_bytes(cfg, **{name: n})
            except ValueError:
                continue  # so many can't share these heads or layers
            yield name, {name: n}
            break
    asked = {"zero": s.zero, "data": s.data, "tensor": s.tensor, "pipeline": s.pipeline}
    if asked != {"zero": 0, "data": 1, "tensor": 1, "pipeline": 1}:
        yield "asked", asked


def _training(cfg: AnyConfig, s: Setting, lang: str) -> str:
    t = TEXT[lang]
    whole = accounting.training_bytes(cfg)
    rows = [[word(name, lang), size(n)] for name, n in whole.rows]
    items = table([t["item"], t["bytes"]], [*rows, [t["total"], size(whole)]], "<>")
    rows = []
    for name, options in splits(cfg, s):
        account = accounting.training_bytes(cfg, **options)
        label = t[name].format(stage=options.get("zero"))
        fits = t["yes"] if account.gb <= s.device_gb else t["no"]
        rows.append([label, str(account.devices), size(account), fits])
    header = [t["split"], t["devices"], t["fullest"], t["fits"].format(gb=s.device_gb)]
    return items + "\n\n" + table(header, rows, "<>><")


def _activations(cfg: AnyConfig, s: Setting, lang: str) -> str:
    t = TEXT[lang]
    if isinstance(cfg, ExpertsConfig):
        return t["no_layers"]
    account = _kept(cfg, s)
    rows = [[word(name, lang), size(n)] for name, n in account.rows]
    return table([t["part"], t["bytes"]], [*rows, [t["total"], size(account)]], "<>")


def _kept(cfg: AnyConfig, s: Setting) -> accounting.Bytes:
    loss = cfg.kind != "encoder"
    return accounting.activation_bytes(cfg, s.B, s.T, s.dtype, source=s.S, loss=loss)


def comparison(models: list[tuple[AnyConfig, Setting]], lang: str) -> str:
    """Return a table with a column for each model."""
    t, s = TEXT[lang], models[0][1]
    columns = [list(_column(cfg, s, lang)) for cfg, s in models]
    names = [name for name, _ in columns[0]]
    header = [t["model"], *(str(cfg.name) for cfg, _ in models)]
    rows = [[name, *(c[i][1] for c in columns)] for i, name in enumerate(names)]
    note = t["setting"].format(B=s.B, T=s.T, dtype=s.dtype)
    return table(header, rows, "<" + ">" * len(models)) + "\n" + note


def _column(cfg: AnyConfig, s: Setting, lang: str) -> Iterator[tuple[str, str]]:
    t, account = TEXT[lang], accounting.parameters(cfg)
    yield t["kind"], word(cfg.kind, lang)
    for name in ("L", "d", "H"):
        yield name, number(getattr(cfg, name))
    yield "H_kv", number(getattr(cfg, "H_kv", None)) or "-"
    yield "V", number(cfg.V)
    yield t["number"], number(account.total)
    yield t["active"], number(account.active)
    for name, n in account.groups.items():
        yield t[name], percent(n / account.total) or "-"
    cache = "-"
    if cfg.kind != "encoder":
        cache = _binary(accounting.kv_cache_bytes(cfg, 1, s.T, s.dtype).per_token)
    yield t["weights"], _binary(accounting.weight_bytes(cfg, s.dtype))
    yield t["cache_tokens"], cache
    yield t["forward_token"], f"{scaled(_flops(cfg, s).forward / (s.B * s.T))}FLOP"
    yield t["train_bytes"], _binary(accounting.training_bytes(cfg))


def _binary(n: int) -> str:
    return size(n).partition(" = ")[0]


# -------------------------------------------------------------------------------------- JSON


def as_json(cfg: AnyConfig, s: Setting) -> dict[str, Any]:
    """Return everything as numbers under names."""
    from ..catalogue import ROWS

    row = ROWS.get(cfg.name or "")
    training = accounting.training_bytes(
        cfg, zero=s.zero, data=s.data, tensor=s.tensor, pipeline=s.pipeline
    )
    cache = None
    if cfg.kind != "encoder":
        source = s.S if cfg.kind == "encoder-decoder" else 0
        found = accounting.kv_cache_bytes(cfg, s.B, s.T, s.dtype, source=source)
        cache = {
            **_bytes(found),
            "bytes_per_token": found.per_token,
            "bytes_per_layer": found.per_layer,
        }
    kept = None if isinstance(cfg, ExpertsConfig) else _bytes(_kept(cfg, s))
    return {
        "model": cfg.name,
        "kind": cfg.kind,
        "published": row.published if row else None,
        "source": row.source if row else None,
        "config": {k: v for k, v in asdict(cfg).items() if v is not None},
        "setting": asdict(s),
        "parameters": _parameters_json(accounting.parameters(cfg)),
        "shapes": [_shape_json(r) for r in accounting.shapes(cfg, s.B, s.T, source=s.S)],
        "operations": _flops_json(_flops(cfg, s)),
        "weights": _bytes(accounting.weight_bytes(cfg, s.dtype)),
        "kv_cache": cache,
        "training": {
            **_bytes(training),
            "devices": training.devices,
            "stage_bytes": list(training.stages),
            "stage_parameters": list(training.parameters),
        },
        "activations": kept,
    }


def _bytes(account: accounting.Bytes) -> dict[str, Any]:
    return {"bytes": account.total, "rows": [{"part": n, "bytes": b} for n, b in account.rows]}


def _parameters_json(account: Parameters) -> dict[str, Any]:
    return {
        "total": account.total,
        "active": account.active,
        "non_embedding": account.non_embedding,
        "block": account.block,
        "groups": account.groups,
        "rows": [asdict(r) for r in account.rows],
    }


def _shape_json(row: ShapeRow) -> dict[str, Any]:
    return {**asdict(row), "elements": row.elements}


def _flops_json(account: Flops) -> dict[str, Any]:
    return {
        "convention": account.convention,
        "forward": account.forward,
        "backward": account.backward,
        "recomputed": account.recomputed,
        "decoding_step": account.decoding_step,
        "rows": [
            {"part": r.part, "forward": r.forward, "backward": r.backward} for r in account.rows
        ],
    }
