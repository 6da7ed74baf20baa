"""``npformer curves`` from its arguments to its files."""

from __future__ import annotations

import csv
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npformer.cli import curves_command, main
from npformer.cli.curves_command import FULL, QUICK

SMALLEST = ["--quick", "--depths", "2,1", "--seeds", "1"]
FIGURES = ["activation_by_layer", "curves", "gradient_by_layer_theory",
           "gradient_by_layer_transformer", "last_layer_gradient"]  # fmt: skip


@pytest.fixture
def few_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setattr(curves_command, "QUICK", replace(QUICK, theory_seeds=2))


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves_command, "_write_figures", lambda *_: [])


@pytest.mark.usefixtures("few_seeds")
def test_one_command_measures_writes_and_prints(tmp_path: Path, capsys: Any):
    out = tmp_path / "new" / "folder"
    assert main(["curves", "--out", str(out), "--json", *SMALLEST]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    record = json.loads(printed.out)
    assert record == json.loads((out / "run.json").read_text())
    files = sorted(path.name for path in out.iterdir())
    assert files == sorted(record["files"])
    pictures = {f"{name}.{kind}" for name, kind in product(FIGURES, ("svg", "png"))}
    assert pictures < set(files)
    assert len(files) == len(pictures) + 3

    assert record["setups"]["theory"] == {"d": 128, "n": 32, "B": 1, "V": 1000}
    assert record["setups"]["transformer"]["H"] == 4
    assert record["seeds"]["theory"] == {"gradients": [0], "activations": [0, 1]}
    assert record["config"]["text"]["source"] == "pydoc_data.topics"
    assert set(record["versions"]) >= {"npformer", "python", "numpy"}
    assert record["threads"]["npformer"] >= 1

    gradients, activations = (
        read(out / f"{name}_norms.csv") for name in ("gradient", "activation")
    )
    assert list(gradients[0]) == ["placement", "setup", "depth", "layer", "parameter", "seed",
                                  "grad_norm"]  # fmt: skip
    assert list(activations[0]) == ["placement", "setup", "depth", "layer", "seed", "mean_norm",
                                    "mean_square", "sum_square"]  # fmt: skip
    assert len(gradients) == 2 * 2 * (1 + 2) * 2
    for row in gradients:
        assert float(row["grad_norm"]) > 0
    slope = next(f for f in record["findings"] if f["quantity"] == "slope")
    last = [
        float(row["grad_norm"])
        for row in gradients
        if (row["setup"], row["placement"], row["parameter"]) == ("theory", "pre", "W2")
        and row["depth"] == row["layer"]
    ]
    assert slope["measured"] == pytest.approx(np.log2(last[1] / last[0]))


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("few_seeds", "no_figures")
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_tables_say_what_holds_and_what_does_not(tmp_path: Path, capsys: Any, lang: str):
    text = tmp_path / "text.txt"
    text.write_text("残差与层归一化：梯度范数随深度变化。" * 10, encoding="utf-8")
    out = tmp_path / "out"
    arguments = ["--text", str(text), "--lang", lang, *SMALLEST]
    assert main(["curves", "--out", str(out), *arguments]) == 0
    printed = capsys.readouterr().out
    wanted = {
        "en": ["recursion", "theorem", "-1/2", "too few seeds", "DOES NOT REPRODUCE", "appendix F"],
        "zh": ["递推", "定理", "-1/2", "种子太少", "不能复现", "附录 F", "深度"],
    }
    for word in wanted[lang]:
        assert word in printed
    record = json.loads((out / "run.json").read_text())
    assert record["config"]["text"]["source"] == str(text)
    assert record["setups"]["transformer"]["V"] == len(set("残差与层归一化：梯度范数随深度变化。"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--out"),
        (["--out", "x", "--depths", "2,a"], "whole numbers with commas"),
        (["--out", "x", "--depths", ""], "whole numbers with commas"),
        (["--out", "x", "--depths", "0,2"], "must lie in 1"),
        (["--out", "x", "--depths", "2,100000"], "must lie in 1"),
        (["--out", "x", "--seeds", "0"], "from 1 on"),
        (["--out", "x", "--seeds", "-3"], "from 1 on"),
        (["--out", "x", "--lang", "fr"], "invalid choice"),
        (["--out", "x", "--text", "missing.txt"], "missing.txt: No such file"),
        (["--out", "x", "--text", "empty.txt"], "empty.txt is empty"),
        (["--out", "x", "--text", "latin.txt"], "latin.txt is not UTF-8: byte 1 is 0xe9"),
        (["--out", "x", "--text", "short.txt"], "too short: 9 tokens, but a window of 64"),
        (["--out", "x", "--text", "one.txt"], "one.txt repeats one character"),
        (["--out", "short.txt"], "short.txt: File exists"),
        (["--out", "short.txt/x"], "Not a directory"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    arguments: list[str],
    message: str,
):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_bytes(b"")
    Path("latin.txt").write_bytes("néant".encode("latin-1"))
    Path("short.txt").write_text("one short")
    Path("one.txt").write_text("a" * 1000)
    assert main(["curves", *SMALLEST, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not list(Path().glob("x/*"))


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (ValueError("theory, pre-LN: the gradient is nan"), 2, "the gradient is nan"),
    ],
)
def test_a_run_that_breaks_off_leaves_no_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    error: BaseException,
    status: int,
    message: str,
):
    def broken(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("npformer.experiments.gradient_scale.gradient_scale", broken)
    assert main(["curves", "--out", str(tmp_path), *SMALLEST]) == status
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_font_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    from scales import theory_curves, transformer_curves

    from npformer.plots import style

    monkeypatch.setattr(style, "chinese_font", lambda: None)
    monkeypatch.setattr("npformer.plots.save_figure", lambda _, stem: [stem])
    both = [theory_curves((1, 2)), transformer_curves((1, 2))]
    paths = curves_command._write_figures(tmp_path, both, "zh")
    assert sorted(p.name for p in paths) == FIGURES
    printed = capsys.readouterr()
    assert printed.err.startswith("npformer: no Chinese font")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("plan", [FULL, QUICK])
def test_a_plan_measures_enough(plan: curves_command.Plan):
    assert len(plan.depths) >= 5
    assert max(plan.depths) >= 32
    assert plan.seeds >= 5
    assert plan.theory_seeds >= 20
