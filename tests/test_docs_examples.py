"""Exercises of the documentation: what is handed out fails, what is said to solve it passes."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer.cli import main

FOLDER = Path(__file__).parents[1] / "docs" / "examples"
SOLUTIONS = sorted(FOLDER.glob("*_solution.py"))
EXERCISES = [path.with_name(path.name.replace("_solution", "")) for path in SOLUTIONS]


def test_each_exercise_has_its_solution_and_a_page():
    assert len(SOLUTIONS) > 5
    assert sorted(FOLDER.glob("*.py")) == sorted([*SOLUTIONS, *EXERCISES])
    pages = " ".join(p.read_text(encoding="utf-8") for p in FOLDER.parent.glob("guide/*.md"))
    for path in [*SOLUTIONS, *EXERCISES]:
        assert f"<../examples/{path.name}>" in pages, path.name


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda p: p.stem)
def test_solutions_pass(path: Path, capsys: Any):
    for method in ("complex", "central"):
        assert main(["gradcheck", str(path), "--method", method]) == 0
    assert "passed" in capsys.readouterr().out


@pytest.mark.parametrize("path", EXERCISES, ids=lambda p: p.stem)
def test_exercises_fail_and_say_where(path: Path, capsys: Any):
    status = main(["gradcheck", str(path)])
    printed = capsys.readouterr()
    assert status == (2 if "NotImplementedError" in path.read_text(encoding="utf-8") else 1)
    assert "FAILED" in printed.out or "NotImplementedError: yours" in printed.err


@pytest.mark.parametrize(
    ("given", "solved"), [*zip(EXERCISES, SOLUTIONS, strict=True)], ids=lambda p: p.stem
)
def test_a_solution_leaves_the_forward_alone(given: Path, solved: Path):
    def result(path: Path) -> Any:
        _, inputs, *options = runpy.run_path(str(solved))["example"](np.random.default_rng(3))
        own = runpy.run_path(str(path))["example"](np.random.default_rng(3))[0]
        forward = own[0] if isinstance(own, tuple) else own.forward
        return forward(*inputs, **(options[0] if options else {}))[0]

    np.testing.assert_array_equal(result(given), result(solved))
