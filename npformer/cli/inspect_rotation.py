"""``npformer inspect --rope``: rotary frequencies, and what a score knows of positions."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..labels import table, wrap
from .inspect_input import configuration

if TYPE_CHECKING:
    from ..experiments.rotation import Rotation

USUAL = {"d": 512, "H": 4, "L": 1, "positions": "rope", "T_max": 4096}
"""A model made of options alone: heads of 128."""

TEXT: dict[str, dict[str, Any]] = {
    "en": {
        "head": "{name}: {n} rotated features of a head, base {base:g}, scaling {rule}, longest "
        "text {T:,}",
        "header": ("pair", "turn without scaling", "turn in force", "turns in the longest text"),
        "turn": "A turn is 2 pi / theta tokens. {slow} of {n} pairs do not turn once in the "
        "longest text. Queries and keys are multiplied by {factor:.4g}.",
        "score": "A score depends on the distance alone: queries at {places} give the same within "
        "{spread:.0e}.",
        "none": "none",
    },
    "zh": {
        "head": "{name}：每个头旋转 {n} 维，base {base:g}，缩放规则 {rule}，最长文本 {T:,}",
        "header": ("维度对", "未缩放的一圈", "实际的一圈", "最长文本里的圈数"),
        "turn": "一圈为 2 pi / theta 个 token。{n} 对中有 {slow} 对在最长的文本里转不满一圈。查询与"
        "键都乘以 {factor:.4g}。",
        "score": "分数只取决于距离：位置在 {places} 的查询给出的分数相差不超过 {spread:.0e}。",
        "none": "无",
    },
}


def run_rotation(args: argparse.Namespace) -> int:
    """Measure and print."""
    from ..config import TransformerConfig
    from ..experiments.rotation import STARTS, rotation
    from .fields import given

    if args.model is not None:
        raise ValueError("--rope takes --preset or options, not --model")
    changes = given(args, TransformerConfig)
    if args.preset is None:
        changes = USUAL | changes
    cfg = configuration(args.preset, {"V": 1, "L": 1} | changes, V=1, length=1)
    found = rotation(cfg.attention(0), cfg.T_max)
    name = cfg.name or f"d_h = {cfg.d_h}"
    text = TEXT[args.lang]
    rule = (cfg.rope_scaling or {}).get("rope_type", text["none"])
    n = 2 * len(found.plain)
    pairs = np.unique(np.linspace(0, n // 2 - 1, min(9, n // 2)).round().astype(int))
    columns = found.plain, found.wavelengths, found.T / found.wavelengths
    rows = [[str(i), *(f"{column[i]:,.4g}" for column in columns)] for i in pairs]
    slow = int(np.sum(found.wavelengths > found.T))
    places = ", ".join(f"{start + found.distances[-1]:,}" for start in STARTS)
    said = {"name": name, "n": n, "base": cfg.rope_base, "rule": rule, "T": found.T}
    parts = [
        text["head"].format(**said),
        table(text["header"], rows, ">>>>"),
        "\n".join(wrap(text["turn"].format(slow=slow, n=n // 2, factor=found.factor), 100)),
        text["score"].format(places=places, spread=spread(found)),
    ]
    record = {
        **said,
        "scaling": cfg.rope_scaling,
        "factor": found.factor,
        "wavelengths_without_scaling": found.plain.tolist(),
        "wavelengths": found.wavelengths.tolist(),
        "distances": found.distances.tolist(),
        "scores": found.scores.tolist(),
        "spread": spread(found),
    }
    if args.out is not None:
        files = write(Path(args.out), found, name, args.lang)
        parts.append(f"{args.out}: {' '.join(path.name for path in files)}")
    print(json.dumps(record, ensure_ascii=False) if args.json else "\n\n".join(parts))
    return 0


def spread(found: Rotation) -> float:
    """Return how far the scores of different queries at one distance lie apart, at most."""
    return float(np.ptp(found.scores, axis=0).max())


def write(out: Path, found: Rotation, name: str, lang: str) -> list[Path]:
    """Write the figure and its data."""
    from ..experiments.rotation import STARTS
    from ..files import write_csv
    from ..plots.rotation import rotation_figure
    from ..plots.style import language, save_figure

    write_csv(
        out / "rotation.csv",
        ("pair", "wavelength_without_scaling", "wavelength"),
        zip(range(len(found.plain)), found.plain.tolist(), found.wavelengths.tolist(), strict=True),
    )
    write_csv(
        out / "rotation_scores.csv",
        ("distance", *(f"query_at_{start + found.distances[-1]}" for start in STARTS)),
        zip(found.distances.tolist(), *found.scores.tolist(), strict=True),
    )
    with language(lang) as shown:
        paths = save_figure(rotation_figure(found, name, shown), out / "rotation")
    return [out / "rotation.csv", out / "rotation_scores.csv", *paths]
