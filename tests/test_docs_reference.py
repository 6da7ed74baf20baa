"""The reference names every public thing, and nothing that is not there."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import npformer as nf
from npformer import functional as F
from npformer.cli import VERBS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")


def listed() -> set[str]:
    """Full names in the page's autosummaries."""
    names, module = set(), ""
    for line in PAGE.splitlines():
        if match := re.match(r"\.\. currentmodule:: ([\w.]+)", line):
            module = match[1]
        elif match := re.fullmatch(r"   ([\w.]+)", line):
            names.add(f"{module}.{match[1]}")
    return names


def test_every_verb_is_listed():
    for verb in VERBS:
        assert f"| `{verb}` |" in PAGE


def found(name: str) -> object:
    """What a full name leads to."""
    parts = name.split(".")
    thing: object = import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        thing = getattr(thing, part, None) or import_module(".".join(parts[:i]))
    return thing


LISTED = sorted(listed())
OF_THE_PACKAGE = sorted(
    name for name in dir(nf)
    if not name.startswith("_") and not inspect.ismodule(getattr(nf, name))
)  # fmt: skip


@pytest.mark.parametrize("name", LISTED)
def test_what_is_listed_is_there_and_explained(name):
    thing = found(name)
    assert thing.__doc__
    assert callable(thing) or inspect.ismodule(thing)


def test_every_pair_is_listed():
    pairs = {f"npformer.functional.{name}" for name in F.__all__ if callable(getattr(F, name))}
    assert pairs - set(LISTED) == set()
    assert {n for n in LISTED if n.startswith("npformer.functional.")} == pairs


def test_every_public_name_is_listed():
    assert len(OF_THE_PACKAGE) > 30
    known = {id(found(name)) for name in LISTED}
    missing = [name for name in OF_THE_PACKAGE if id(getattr(nf, name)) not in known]
    assert missing == []


MODULES = ("optim", "accounting", "data", "vocabulary", "batches", "training", "plots")


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_a_public_module_is_listed(module):
    public = import_module(f"npformer.{module}")
    names = getattr(public, "__all__", None) or [
        n for n, v in vars(public).items()
        if not n.startswith("_") and getattr(v, "__module__", None) == public.__name__
        and callable(v)
    ]  # fmt: skip
    known = {id(found(name)) for name in LISTED}
    missing = [n for n in names if callable(getattr(public, n)) and
               id(getattr(public, n)) not in known]  # fmt: skip
    assert missing == []
