"""Notebooks: pairs of .ipynb and .py that say the same, without outputs; `.ci/run` runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def notebook(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def cells_of_the_script(name: str) -> list[tuple[str, str]]:
    """The cells of a .py file in jupytext's percent form."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    _, *parts = re.split(r"^# %%(.*)\n", source, flags=re.MULTILINE)
    cells = []
    for mark, body in zip(parts[::2], parts[1::2], strict=True):
        if "[markdown]" in mark:
            cells.append(("markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()))
        else:
            cells.append(("code", re.sub(r"^# (?=%)", "", body, flags=re.MULTILINE).strip()))
    return cells


def test_there_are_the_two():
    assert NAMES == ["pre-ln-against-post-ln", "start-here"]
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_both_files_say_the_same(name: str):
    cells = [(c["cell_type"], "".join(c["source"]).strip()) for c in notebook(name)["cells"]]
    assert cells == cells_of_the_script(name), f"jupytext --sync notebooks/{name}.ipynb"


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_not_kept(name: str):
    book = notebook(name)
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    assert book["metadata"]["jupytext"]["formats"] == "ipynb,py:percent"
