"""docs/names.md against real models: every name is there, with its shape, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer as nf
from npformer import tree
from npformer.watch import watched

PAGE = Path(__file__).parents[1] / "docs" / "names.md"
SECTIONS = {"output": "Results of modules", "saved": "What is saved", "parameter": "Parameters"}
SIZES = {"B": 2, "T": 5, "S": 5, "d": 20, "H": 6, "H_kv": 3, "d_h": 4, "d_ff": 17, "V": 29,
         "T_max": 31, "token_types": 7}  # fmt: skip
SOURCE = 11
"""Tokens of the encoder's text in an encoder-decoder."""

BASE = {k: v for k, v in SIZES.items() if k not in ("B", "T", "S", "token_types")} | {
    "L": 2, "dropout": 0.1
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "modern": dict(norm="rmsnorm", gated=True, activation="silu", positions="rope", tied=False,
                   qk_norm="head", head_bias=True, logit_softcap=3.0, placement="sandwich"),
    "projection": dict(qk_norm="projection", positions="rope"),
    "encoder": dict(kind="encoder", token_types=7, embedding_norm=True, pooler=True,
                    placement="post"),
    "encoder, RMSNorm": dict(kind="encoder", embedding_norm=True, norm="rmsnorm"),
    "both sides": dict(kind="encoder-decoder"),
    "both sides, normed queries": dict(kind="encoder-decoder", qk_norm="head"),
    "both sides, sandwich": dict(kind="encoder-decoder", placement="sandwich", norm="rmsnorm",
                                 tied=False),
    "both sides, sandwich, LayerNorm": dict(kind="encoder-decoder", placement="sandwich"),
}  # fmt: skip


def documented() -> dict[str, dict[str, list[str]]]:
    """Kind to name (N for the block) to the shapes that its row gives."""
    tables: dict[str, dict[str, list[str]]] = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        kind = next(k for k, title in SECTIONS.items() if part.startswith(title))
        tables[kind] = {}
        for line in part.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            spans = re.findall(r"`([\w.{},]+)`", cells[0]) if line.startswith("| `") else []
            names = [name for span in spans for name in expanded(span)]
            if names:
                assert len(cells) == 4, line
                assert cells[2], line
                shapes = re.findall(r"\(([^()]*)\)", f"{cells[1]} {cells[2]}")
                for name in names:
                    assert name not in tables[kind], f"{name} stands twice"
                    tables[kind][name] = [s for s in shapes if evaluated(s, {}) is not None]
    return tables


def expanded(span: str) -> list[str]:
    """``a.{b,c}`` is ``a.b`` and ``a.c``."""
    match = re.search(r"\{([\w.,]+)\}", span)
    if not match:
        return [span]
    before, after = span[: match.start()], span[match.end() :]
    return [name for word in match[1].split(",") for name in expanded(before + word + after)]


def evaluated(shape: str, sizes: dict[str, int]) -> tuple[int, ...] | None:
    """The numbers of a shape such as "B, T, H d_h", or None where it is no shape."""
    found = []
    for axis in shape.strip(",").split(", "):
        product = 1
        for factor in axis.split():
            name, _, divisor = factor.partition("/")
            if not name.isdecimal() and name not in SIZES:
                return None
            product *= int(name) if name.isdecimal() else (SIZES | sizes)[name]
            product //= int(divisor or 1)
        found.append(product)
    return tuple(found)


def run(changes: dict[str, Any]) -> Any:
    """Yield kind, name and shape of everything that a pass shows."""
    cfg = nf.TransformerConfig(**(BASE | changes))
    kinds: dict[str, Any] = {
        "decoder": nf.DecoderLM, "encoder": nf.Encoder, "encoder-decoder": nf.EncoderDecoder
    }  # fmt: skip
    model = kinds[cfg.kind](cfg, rng=0)
    rng = np.random.default_rng(0)
    B, T = SIZES["B"], SIZES["T"]
    ids = rng.integers(cfg.V, size=(B, T))
    outputs: set[tuple[str, tuple[int, ...]]] = set()
    twin = watched(model, lambda path, y, saved: outputs.add((tree.name_of(path), y.shape)))
    saveds = []
    for mask in (None, np.arange(T) > np.array([[0], [-1]])):
        if cfg.kind == "encoder":
            h, saved = twin.forward(ids, mask, rng=1)
            if cfg.pooler:
                saveds.append(twin.pool(h)[1])
        elif cfg.kind == "decoder":
            _, saved = twin.loss(ids, ids, mask=mask, rng=1)
        else:
            source = rng.integers(cfg.V, size=(B, SOURCE))
            real = None if mask is None else np.ones((B, SOURCE), bool)
            _, saved = twin.loss(source, ids, ids, source_mask=real, target_mask=mask, rng=1)
        saveds.append(saved)
    parameters = {tree.name_of(path): p.value.shape for path, p in model.named_parameters()}
    for name, shape in outputs:
        if name:
            yield "output", name, shape
    for name, shape in parameters.items():
        yield "parameter", name, shape
    for saved in saveds:
        for path, a in tree.leaves(saved):
            if tree.name_of(path) not in parameters and path not in ("tanh.derivative", "pooler.x"):
                yield "saved", tree.name_of(path), a.shape


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, list[str]]]:
    return documented()


@pytest.fixture(scope="module")
def seen() -> dict[str, list[tuple[str, str, tuple[int, ...]]]]:
    return {name: list(run(changes)) for name, changes in CONFIGS.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_name_of_a_model_stands_in_the_table_with_its_shape(name, seen, table):
    two_sided = name.startswith("both")
    for kind, full, shape in seen[name]:
        inner = full.removeprefix("encoder.")
        key = re.sub(r"\bblocks\.\d+", "blocks.N", inner)
        assert key in table[kind], f"{full} ({kind}) is not in {PAGE.name}"
        sizes = {}
        if two_sided and inner != full:
            sizes = {"T": SOURCE, "S": SOURCE}
        elif two_sided and (".cross" in full or full == "encoder"):
            sizes = {"S": SOURCE}
        given = [evaluated(s, sizes) for s in table[kind][key]]
        assert shape in given, f"{full} has the shape {shape}, but {PAGE.name} says {given}"


def test_every_name_of_the_table_is_in_some_model(seen, table):
    found = {(kind, re.sub(r"\bblocks\.\d+", "blocks.N", name.removeprefix("encoder.")))
             for rows in seen.values() for kind, name, _ in rows}  # fmt: skip
    for kind, rows in table.items():
        assert set(rows) == {name for k, name in found if k == kind}, kind


def test_braces_give_several_names():
    assert expanded("a.{b,c}.{d,e}_f") == ["a.b.d_f", "a.b.e_f", "a.c.d_f", "a.c.e_f"]


def test_shapes_are_told_from_other_words():
    assert evaluated("B, T, H d_h", {}) == (2, 5, 24)
    assert evaluated("T, d_h/2", {}) == (5, 2)
    assert evaluated("d,", {}) == (20,)
    assert evaluated("B, T, 1", {"T": 9}) == (2, 9, 1)
    assert evaluated("BERT", {}) is None
    assert evaluated("x W_1", {}) is None
