"""``npformer inspect`` from its arguments to its tables, files and complaints."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npformer as nf
from npformer.cli import main
from npformer.cli.inspect_input import configuration, labels
from npformer.cli.inspect_report import COLUMNS, MAP_COLUMNS
from npformer.data import ByteVocabulary, CharacterVocabulary

SMALL = ["--d", "8", "--L", "2", "--H", "2", "--length", "5", "--batch", "2"]
NAMES = ["embedding", "blocks.0", "blocks.0.attn", "blocks.0.ffn", "blocks.1", "blocks.1.attn",
         "blocks.1.ffn", "final_norm", "head"]  # fmt: skip


def inspected(capsys: Any, *args: str) -> Any:
    assert main(["inspect", *SMALL, *args, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out, parse_constant=pytest.fail)


def test_a_table_with_what_was_asked_for(capsys):
    assert main(["inspect", *SMALL]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("decoder: 2 layers, d = 8, H = 2, Pre-LN, LayerNorm, ")
    assert lines[1] == "pydoc_data.topics: 2 x 5 tokens"
    assert main(["inspect", *SMALL, "--L", "1"]) == 0
    assert capsys.readouterr().out.startswith("decoder: 1 layer, d = 8")
    assert [line.split()[0] for line in lines[6:15]] == NAMES
    assert "L2 norm" in out
    record = inspected(capsys)
    first = lines[6].split()
    row = record["rows"][0]
    assert first[1:5] == [f"{row[k]:.4g}" for k in ("norm", "max_norm", "rms", "max")]
    assert first[5:] == [
        f"{row['gradient']['norm']:.4g}", f"{row['parameter_gradient_norm']:.4g}"
    ]  # fmt: skip


def test_one_number(capsys):
    record = inspected(capsys, "--select", "blocks.1.attn", "--no-gradients")
    (row,) = record["rows"]
    assert row["name"] == "blocks.1.attn"
    assert row["shape"] == [2, 5, 8]
    assert row["gradient"] is None
    assert record["loss"] is None
    assert record["definitions"]["rms"] == "root mean square of all numbers"
    both = inspected(capsys, "--select", "blocks.*.attn", "--select", "head")["rows"]
    assert [r["name"] for r in both] == ["blocks.0.attn", "blocks.1.attn", "head"]
    assert both[1]["rms"] == row["rms"]


def test_the_numbers_are_those_of_the_library(capsys, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("层归一化让每个位置的激活尺度回到可控范围。", encoding="utf-8")
    record = inspected(capsys, "--text", str(text), "--seed", "3", "--dtype", "float64")
    words = CharacterVocabulary(text.read_text(encoding="utf-8"))
    ids, targets = nf_windows(words.encode(text.read_text(encoding="utf-8")), 3)
    cfg = nf.TransformerConfig(V=words.V, d=8, L=2, H=2, T_max=5)
    model = nf.DecoderLM(cfg, rng=3, dtype=np.float64)
    loss, saved = model.loss(ids, targets)
    model.loss_backward(1.0, saved)
    assert record["loss"] == pytest.approx(loss, rel=1e-12)
    row = next(r for r in record["rows"] if r["name"] == "blocks.0.attn")
    norm = np.sqrt(sum(np.sum(p.grad**2) for p in model.stack.blocks[0].attn.parameters()))
    assert row["parameter_gradient_norm"] == pytest.approx(norm, rel=1e-10)
    assert record["model"]["config"]["d"] == 8
    assert record["model"]["dtype"] == "float64"


def nf_windows(ids: Any, seed: int) -> Any:
    from npformer.data import windows

    return windows(ids, 5, 2, seed)


def test_files_hold_the_same_numbers(capsys, tmp_path):
    out = tmp_path / "new" / "folder"
    record = inspected(capsys, "--out", str(out), "--attention", "1", "--select", "**")
    assert record == json.loads((out / "inspect.json").read_text())
    files = {path.name for path in out.iterdir()}
    assert files == {*record["files"], "inspect.json"}
    assert files == {f"{n}.{k}" for n in ("norms", "attention") for k in ("csv", "svg", "png")} | {
        "inspect.json",
        "attention.html",
    }
    with (out / "norms.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == COLUMNS
    assert len(table) == len(record["rows"]) > 40
    for line, row in zip(table, record["rows"], strict=True):
        assert line["name"] == row["name"]
        assert float(line["rms"]) == row["rms"]
        if row["gradient"] is None:
            assert line["gradient_norm"] == ""
        else:
            assert float(line["gradient_norm"]) == row["gradient"]["norm"]
    with (out / "attention.csv").open(encoding="utf-8", newline="") as file:
        maps = list(csv.DictReader(file))
    assert tuple(maps[0]) == MAP_COLUMNS
    assert len(maps) == 2 * 5 * 5
    assert [m["head"] for m in record["attention"]] == [0, 1]
    weights = np.array([m["weights"] for m in record["attention"]])
    assert [float(m["weight"]) for m in maps] == weights.ravel().tolist()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    assert record["tokens"]["keys"] == [m["key_token"] for m in maps[:5]]


def test_attention_of_a_prompt(capsys):
    record = inspected(capsys, "--prompt", "猫追狗", "--attention", "1.0")
    assert record["rows"] == []
    assert record["text"] == {"source": "--prompt", "batch": 1, "length": 3}
    assert record["tokens"]["queries"] == ["猫", "追", "狗"]
    (m,) = record["attention"]
    assert (m["name"], m["head"]) == ("blocks.1.attn", 0)
    assert m["weights"][0] == [1, 0, 0]
    assert main(["inspect", *SMALL, "--prompt", "猫追狗", "--attention", "all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("blocks")] == [
        [f"blocks.{i}.attn", str(h)] for i in (0, 1) for h in (0, 1)
    ]


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
def test_other_kinds(kind, capsys):
    record = inspected(capsys, "--kind", kind, "--placement", "post", "--norm", "rmsnorm")
    names = [row["name"] for row in record["rows"]]
    assert record["objective"] == ("projection" if kind == "encoder" else "cross-entropy")
    assert ("encoder.blocks.1.attn" in names) == (kind == "encoder-decoder")
    assert "final_norm" not in names


def test_list_names_everything(capsys):
    assert main(["inspect", *SMALL, "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(None, 2) for line in lines[2:]]
    assert ["blocks.1.attn.attention.lse", "saved", "2 x 2 x 5"] in rows
    assert ["blocks.0.ffn.W1.W", "parameter", "8 x 32"] in rows
    record = inspected(capsys, "--select", "**", "--no-gradients")
    assert [row[0] for row in rows] == [row["name"] for row in record["rows"]]


@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_a_broken_model_is_marked_and_named(value, capsys, tmp_path):
    model = nf.DecoderLM(nf.TransformerConfig(V=256, d=8, L=1, H=2, T_max=5), rng=0)
    for p in model.parameters():
        p.value[...] = value
    nf.save_pretrained(model, tmp_path / "model")
    out = tmp_path / "out"
    args = ["inspect", "--model", str(tmp_path / "model"), "--length", "4", "--out", str(out)]
    assert main(args) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert ("are not finite" in printed.out) == np.isnan(value)
    record = json.loads((out / "inspect.json").read_text())
    assert all(row["rms"] == (None if np.isnan(value) else 0) for row in record["rows"])
    assert (out / "norms.png").stat().st_size > 10_000


def test_a_preset_with_changes(capsys):
    args = ["--preset", "gpt2", "--L", "1", "--d", "24", "--H", "3", "--V", "300", "--T-max", "9"]
    assert main(["inspect", *args, "--length", "4", "--json"]) == 0
    cfg = json.loads(capsys.readouterr().out)["model"]["config"]
    assert (cfg["d_ff"], cfg["d_h"], cfg["H_kv"]) == (96, 8, 3)  # they follow from d and H
    assert cfg["name"] == "gpt2"
    own = configuration("llama-3-8b", {"L": 2}, V=3, length=4)
    assert (own.d_ff, own.H_kv) == (14336, 8)  # these do not


def test_a_run_of_training_is_inspected_in_its_own_vocabulary(capsys, tmp_path):
    words = CharacterVocabulary("ab c\n")
    model = nf.DecoderLM(nf.TransformerConfig(V=words.V, d=8, L=1, H=2, T_max=9), rng=0)
    nf.save_pretrained(model, tmp_path)
    (tmp_path / "vocabulary.json").write_text('{"kind": "characters", "characters": "\\n abc"}')
    assert main(["inspect", "--model", str(tmp_path), "--prompt", "abba", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"]["length"] == 3
    assert main(["inspect", "--model", str(tmp_path), "--prompt", "abd"]) == 2
    assert "has no 'd'" in capsys.readouterr().err


COMPLAINTS = {
    "--select blocks.7": "did you mean blocks.1",
    "--attention 7": "did you mean blocks.1.attn",
    "--attention 1.2": "has 2 heads, numbered from 0, so there is no head 2",
    "--preset deepseek-v3": "accounts only",
    "--preset gpt3": "did you mean",
    "--model nowhere": "nowhere",
    "--text nowhere.txt": "nowhere.txt",
    "--d 7": "d = 7 is not divisible by H = 2",
    "--V 5": "only those below V = 5",
    "--batch 0": "--batch must be 1 or more, but is 0",
    "--length 1000000": "--length must be at most 4096, since a head's map has the square of it",
    "--prompt a --text b": "not both",
    "--preset gpt2 --model x": "not both",
    "--prompt a": "two tokens or more",
    "--placement middle": "placement must be one of",
    "--vocabulary nowhere.json": "nowhere.json",
    "--scores 1,x": "must be numbers with commas",
    "--online-softmax --block 0": "block must be 1 or more",
    "--lang fr": "invalid choice",
    "--rope --positions learned": "positions must be 'rope'",
    "--rope --model x": "not --model",
    "--L two": "must be N and not 'two'",
}


@pytest.mark.parametrize("args", COMPLAINTS)
def test_bad_input_is_one_line(args, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = [] if "--model" in args else SMALL
    assert main(["inspect", *small, *args.split()]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert COMPLAINTS[args] in printed.err


def test_an_empty_prompt(capsys):
    assert main(["inspect", "--prompt", ""]) == 2
    assert "the prompt is empty" in capsys.readouterr().err


def test_a_model_from_a_folder_is_as_it_is(capsys, tmp_path):
    assert main(["inspect", "--model", str(tmp_path), "--L", "3", "--gated"]) == 2
    assert "leave out L, gated" in capsys.readouterr().err


def test_chinese_tables(capsys):
    assert main(["inspect", *SMALL, "--lang", "zh", "--attention", "0", "--select", "head"]) == 0
    out = capsys.readouterr().out
    assert "解码器：2 层" in out
    assert "均值" in out
    assert "注意力权重" in out


def test_labels_can_be_read():
    words = CharacterVocabulary("a \n\t层")
    assert labels(words, words.encode("a 层\n\t")) == ["a", "␣", "层", "⏎", "⇥"]
    assert labels(ByteVocabulary(), ByteVocabulary().encode("层")) == ["⟨e5⟩", "⟨b1⟩", "⟨82⟩"]


def test_the_online_softmax_step_by_step(capsys, tmp_path):
    args = ["inspect", "--scores", "1,4,2,9,-inf", "--values", "1,2,3,4,5", "--block", "2"]
    assert main([*args, "--json", "--out", str(tmp_path)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [step["m"] for step in record["steps"]] == [4, 9, 9]
    assert [step["keys"] for step in record["steps"]] == [[0, 2], [2, 4], [4, 5]]
    scores = np.array([1, 4, 2, 9, -np.inf])
    P = np.exp(scores - 9) / np.exp(scores - 9).sum()
    np.testing.assert_allclose(record["softmax"], P, rtol=1e-13)
    np.testing.assert_allclose(record["steps"][-1]["y"], P @ [1, 2, 3, 4, 5], rtol=1e-13)
    assert record["steps"][2]["scores"] == [None]
    assert json.loads((tmp_path / "online_softmax.json").read_text()) == record
    assert main([*args, "--lang", "zh"]) == 0
    out = capsys.readouterr().out
    assert "4 -> 9" in out
    assert "分数" in out
    assert main(["inspect", "--online-softmax"]) == 0
    assert "0-2" in capsys.readouterr().out


def test_figures_are_left_out_where_nothing_is_drawn(capsys, tmp_path):
    inspected(capsys, "--attention", "0.0", "--out", str(tmp_path))
    assert not list(Path(tmp_path).glob("norms*"))


def test_rotary_positions(capsys, tmp_path):
    args = ["inspect", "--rope", "--preset", "llama-3.2-1b"]
    assert main([*args, "--json", "--out", str(tmp_path)]) == 0
    record = json.loads(capsys.readouterr().out)
    theta, _ = nf.functional.rope_frequencies(64, 5e5, nf.preset("llama-3.2-1b").rope_scaling)
    np.testing.assert_allclose(record["wavelengths"], 2 * np.pi / theta, rtol=1e-13)
    plain = 2 * np.pi * 5e5 ** (np.arange(32) / 32)
    np.testing.assert_allclose(record["wavelengths_without_scaling"], plain, rtol=1e-13)
    assert record["spread"] < 1e-10
    expected = np.cos(np.outer(record["distances"], theta)).mean(axis=1)
    np.testing.assert_allclose(record["scores"][0], expected, rtol=0, atol=1e-9)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rotation.csv", "rotation.png", "rotation.svg", "rotation_scores.csv"
    ]  # fmt: skip
    assert main(["inspect", "--rope", "--lang", "zh", "--T-max", "50"]) == 0
    out = capsys.readouterr().out
    assert "128 维" in out
    assert "最长文本 50" in out


def test_the_list_of_names_as_json(capsys):
    assert main(["inspect", *SMALL, "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["inspect", *SMALL, "--list"]) == 0
    assert [r["name"] for r in found] == [
        line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]
    ]
    assert {"name": "blocks.1", "kind": "output", "shape": [2, 5, 8]} in found


def test_a_negative_seed_is_refused_by_its_name(capsys):
    assert main(["inspect", *SMALL, "--seed", "-1"]) == 2
    assert capsys.readouterr().err == "npformer: --seed must be 0 or more, but is -1\n"


def test_the_help_tells_each_default(capsys):
    assert main(["inspect", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "--L N Layers. (default: 6)" in words
    assert (
        "--norm NAME one of layernorm, rmsnorm: Every norm of the model. (default: layernorm)"
        in words
    )
    assert "learned positions have so many rows. --norm" in words  # no default: it follows --length
    assert " : " not in words
