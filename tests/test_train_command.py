"""``npformer train``: from a text, lines or pairs to a folder, and on from there."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import npformer as nf
from npformer.cli import main, train_command, train_report
from npformer.cli.fields import documented
from npformer.config import TransformerConfig
from npformer.training import TrainingConfig, load_state, load_trained

TEXT = "残差连接，层归一化。the residual stream\n" * 8
SMALL = ["--d", "8", "--L", "1", "--H", "2", "--steps", "4", "--B", "3", "--warmup", "1"]


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command in this process; return status, stdout and stderr."""
    monkeypatch.setattr(train_report, "draw", lambda *_: [])

    def command(*argv):
        status = main([str(a) for a in argv])
        out, err = capsys.readouterr()
        return status, out, err

    return command


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def one_line(err):
    assert err.count("\n") == 1, err
    assert err.startswith("npformer")
    return err


def weights(folder):
    return load_state(folder / "state.npz").weights


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


# ------------------------------------------------------------------------------- a whole run


def test_a_text_in_any_language_to_a_model_and_a_figure(text, tmp_path, capsys):
    out = tmp_path / "run"
    argv = ["train", "--out", out, "--text", text, *SMALL, "--T", 5, "--json", "--sample", 9]
    assert main([str(a) for a in argv]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    record = json.loads(printed.out)
    told = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert record.items() <= told.items()
    assert record["step"] == 4
    assert record["tokens"] == 4 * 3 * 5
    assert record["data"]["text"] == str(text)
    assert record["model"]["d"] == 8
    assert record["training"]["lr"] == train_command.TRAINING["lr"]
    assert len(record["sample"]) == 10  # the first character, and nine more
    for name in record["files"]:
        assert (out / name).exists()
    assert {"training.svg", "training.png", "steps.csv", "model/"} < set(record["files"])
    with (out / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert abs(float(rows[0]["loss"]) - np.log(record["model"]["V"])) < 0.5
    model, vocabulary = load_trained(out)
    assert sum(p.value.size for p in model.parameters()) == record["parameters"]
    again = nf.load_pretrained(out / "model")
    ids = vocabulary.encode("残差 the")[None]
    np.testing.assert_allclose(again(ids), model(ids), rtol=1e-6)


def test_what_is_printed_for_people(run, text, tmp_path):
    status, out, err = run("train", "--out", tmp_path / "run", "--text", text, *SMALL)
    assert (status, err) == (0, "")
    assert re.search(r"[\d,]+ parameters, 4 steps\n", out)
    assert re.search(r"nats a token at the end, \d\.\d+ held out", out)
    assert "the model writes:" in out
    assert f"{tmp_path / 'run'}: state.npz" in out


def test_pairs_train_an_encoder_decoder(run, tmp_path):
    path, out = tmp_path / "pairs.tsv", tmp_path / "run"
    lines = [f"{n}月\t{n:02d}" for n in range(1, 31)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    status, _, err = run(
        "train", "--out", out, "--pairs", path, *SMALL, "--L-encoder", 2, "--vocabulary", "bytes"
    )
    assert (status, err) == (0, "")
    model, vocabulary = load_trained(out)
    assert isinstance(model, nf.EncoderDecoder)
    assert len(model.encoder.stack.blocks) == 2
    assert vocabulary.V == model.cfg.V == 258
    assert model.cfg.T_max == 5  # two digits and three bytes
    record = json.loads((out / "run.json").read_text())
    assert record["held_out"] > 0
    status, _, err = run("train", "--out", out, "--resume", "--steps", 4)
    assert (status, err) == (0, "")


def test_lines_are_texts_of_their_own(run, tmp_path):
    path, out = tmp_path / "lines.txt", tmp_path / "run"
    path.write_text("ab\nabc\n\nabcd\nabcde\nb\n" * 3, encoding="utf-8")
    status, _, err = run("train", "--out", out, "--lines", path, *SMALL)
    assert (status, err) == (0, "")
    model, vocabulary = load_trained(out)
    assert vocabulary.V == 5 + 2
    assert model.cfg.T_max == 6


def test_a_tokenizer_file_is_a_vocabulary(run, text, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=262, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    made.save(str(tmp_path / "tokenizer.json"))
    out = tmp_path / "run"
    options = ["--text", text, "--vocabulary", tmp_path / "tokenizer.json", *SMALL, "--T", 5]
    status, _, err = run("train", "--out", out, *options, "--sample", 20)
    assert (status, err) == (0, "")
    model, vocabulary = load_trained(out)
    assert model.cfg.V == 262
    assert vocabulary.decode(vocabulary.encode(TEXT)) == TEXT
    (tmp_path / "tokenizer.json").unlink()  # the run has it all
    assert main(["generate", str(out / "model"), "--prompt", "残差", "--json"]) == 0
    status, _, err = run("train", "--out", out, "--resume")
    assert (status, err) == (0, "")


# ------------------------------------------------------------------------- options and files


def test_options_come_from_the_line_then_the_file_then_the_defaults(run, text, tmp_path):
    config, out = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(
        '[data]\ntext = "text.txt"\nheld_out = 0.2\n'
        "[model]\nd = 12\nL = 2\nH = 2\nd_ff = [16, 24]\ndropout = 0.1\n"
        '[training]\nsteps = 3\nB = 2\nwarmup = 0\ndecayed = ["matrix"]\n'
    )
    status, _, err = run("train", "--out", out, "--config", config, "--d", 8, "--steps", 2)
    assert (status, err) == (0, "")
    state = load_state(out / "state.npz")
    assert (state.config.d, state.config.L, state.config.d_ff) == (8, 2, (16, 24))
    assert (state.options.steps, state.options.B, state.options.decayed) == (2, 2, ("matrix",))
    assert state.options.lr == train_command.TRAINING["lr"]
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert record["data"]["text"] == str(text)  # beside the file that names it
    assert record["data"]["held_out"] == 0.2


def test_a_files_own_folder_is_where_its_vocabulary_lies(run, text, tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `tokenizers`")
    folder = tmp_path / "folder"
    folder.mkdir()
    words = {c: i for i, c in enumerate(sorted(set(TEXT.split())))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "words.json"))
    (folder / "run.toml").write_text('[data]\nvocabulary = "words.json"\n')
    monkeypatch.chdir(tmp_path)
    options = ["--text", text, *SMALL, "--T", 4]
    status, _, err = run("train", "--out", "a", "--config", "folder/run.toml", *options)
    assert (status, err) == (0, "")
    assert len(words) == load_trained("a")[1].V
    assert run("train", "--out", "a", "--resume", "--vocabulary", "folder/words.json")[0] == 0
    status, _, err = run("train", "--out", "b", *options, "--vocabulary", "folder/words.json")
    assert (status, err) == (0, "")
    recorded = json.loads(Path("b/run.json").read_text())["data"]["vocabulary"]
    assert recorded == str(folder / "words.json")


def test_defaults_that_depend_on_other_options(run, text, tmp_path):
    def made(name, *argv):
        assert run("train", "--out", tmp_path / name, "--text", text, *SMALL, *argv)[0] == 0
        return load_state(tmp_path / name / "state.npz")

    first = made("a", "--T", 5)
    assert (first.options.lr, first.config.window, first.config.T_max) == (0.006, 5, 5)
    assert made("g", "--T", 5, "--window", "none").config.window is None
    config = train_command.training_options({"steps": 20})
    assert (config["warmup"], config["steps"]) == (2, 20)
    assert train_command.training_options({"steps": 5000})["warmup"] == 100
    assert train_command.training_options({"steps": 20, "warmup": 9})["warmup"] == 9
    noam = made("b", "--T", 5, "--schedule", "noam")
    assert (noam.options.lr, noam.options.highest_lr) == (None, 1.0)
    assert made("c", "--T", 5, "--schedule", "noam", "--lr", 2).options.lr == 2
    assert made("d", "--T", 5).config.embedding_scale == 1
    assert made("e", "--T", 5, "--positions", "sinusoidal").config.embedding_scale == 8**0.5
    own = made("f", "--T", 5, "--positions", "sinusoidal", "--embedding-scale", 1.5)
    assert own.config.embedding_scale == 1.5


def test_a_run_that_diverges_says_so_in_one_line(run, text, tmp_path):
    out = tmp_path / "run"
    options = ["--T", 5, "--lr", 1e30, "--warmup", 0]
    status, said, err = run("train", "--out", out, "--text", text, *SMALL, *options)
    assert (status, said) == (2, "")
    assert "can't be taken: the gradient of" in one_line(err)


def test_every_field_is_an_option_with_help(capsys):
    assert main(["train", "--help"]) == 0
    words = capsys.readouterr().out
    for kind in (TransformerConfig, TrainingConfig, train_command.DataConfig):
        texts = documented(kind)
        for name in kind.__dataclass_fields__:
            if name not in train_command._GIVEN_BY_DATA:
                assert f"--{name.replace('_', '-')} " in words, name
            assert texts[name], name


def test_the_help_tells_the_defaults_of_the_command(capsys):
    """They are not those of the classes whose fields the options are."""
    assert main(["train", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for name, value in {**train_command.MODEL, **train_command.TRAINING}.items():
        text = words.partition(f" --{name.replace('_', '-')} ")[2].partition(")")[0]
        assert f"(default: {value}" in text, name


def test_noam_has_a_factor_of_its_own():
    """0.006, the highest rate of the other schedules, would be a factor that stops the training."""
    assert train_command.training_options({})["lr"] == train_command.TRAINING["lr"]
    assert train_command.training_options({"schedule": "noam"})["lr"] is None
    assert train_command.training_options({"schedule": "noam", "lr": 0.5})["lr"] == 0.5


def test_values_of_every_type(run, text, tmp_path):
    out = tmp_path / "run"
    status, _, err = run(
        "train", "--out", out, "--text", text, *SMALL, "--L", 2, "--placement", "pre,post",
        "--window", "none,3", "--no-bias", "--qkv-bias", "yes", "--gated", "--decayed",
        "matrix,norm", "--rope-scaling", '{"rope_type": "linear", "factor": 2.0}', "--clip", 0.5,
        "--schedule", "warmup-stable-decay", "--decay", 2,
    )  # fmt: skip
    assert (status, err) == (0, "")
    state = load_state(out / "state.npz")
    assert state.config.placement == ("pre", "post")
    assert state.config.window == (None, 3)
    assert (state.config.bias, state.config.qkv_bias, state.config.gated) == (False, True, True)
    assert state.config.rope_scaling == {"rope_type": "linear", "factor": 2.0}
    assert state.options.decayed == ("matrix", "norm")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--d", "x"], "argument --d: must be N and not 'x'"),
        (["--d", "7"], "not divisible by H = 2"),
        (["--steps", "0"], "steps must be a whole number from 1 on, but is 0"),
        (["--optimizer", "lion"], "optimizer must be one of"),
        (["--T", "0"], "T must be a whole number from 1 on, but is 0"),
        (["--qkv-bias", "maybe"], "must be yes|no and not 'maybe'"),
        (["--rope-scaling", "{"], "must be JSON"),
        (["--text", "missing.txt"], "missing.txt: No such file"),
        (["--vocabulary", "missing.json"], "missing.json: No such file"),
        (["--held-out", "1"], "held_out must be at least 0 and below 1, but is 1.0"),
        (["--lines", "a", "--pairs", "b"], "only one of text, lines and pairs"),
        (["--T", "9999"], "the text is too short"),
        (["--positions", "learned", "--T", "6", "--T-max", "5"], "rows of 6 tokens don't fit"),
        (["--resume"], "there is no run to resume"),
        (["--start", "missing"], "missing: no such folder"),
        (["--config", "missing.toml"], "missing.toml: No such file"),
    ],
)
def test_bad_options_are_one_line(run, text, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    source = [] if {"--text", "--lines"} & set(argv) else ["--text", text]
    small = [] if "--start" in argv else SMALL
    status, out, err = run("train", "--out", tmp_path / "run", *source, *small, *argv)
    assert (status, out) == (2, "")
    assert message in one_line(err)
    assert not (tmp_path / "run" / "state.npz").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[model]\nwidth = 3\n", "[model], has 'width', which is no option"),
        ("[model]\nd_model = 3\n", "did you mean"),
        ("[modle]\nd = 3\n", "has 'modle', which is no option, did you mean model?"),
        ("model = 3\n", "model must be a table, [model]"),
        ("[model\n", "can't be read"),
        ("[model]\nV = 3\n", "has 'V', which is no option"),
        ('[training]\nsteps = "many"\n', "steps must be a whole number"),
        ('[training]\nlr = "fast"\n', "lr must be a number, but is 'fast'"),
        ("[training]\nlr = true\n", "lr must be a number, but is True"),
        ('[training]\ndecayed = "norm"\n', "decayed must be a list of names, but is 'norm'"),
        ("[training]\nadam_eps = nan\n", "adam_eps must be 0 or more and finite, but is nan"),
        ('[training]\noptimizer = ["sgd"]\n', "optimizer must be one of sgd, adam, adamw, but"),
        ('[data]\nvocabulary = "my.json"\n', "/my.json: No such file"),
    ],
)
def test_bad_files_of_options_are_one_line(run, text, tmp_path, content, message):
    config = tmp_path / "bad.toml"
    config.write_text(content)
    status, _, err = run("train", "--out", tmp_path / "run", "--text", text, "--config", config)
    assert status == 2
    assert message in one_line(err)


@pytest.mark.parametrize("pair", ["a\tbbbbbbb", "aaaaaaaa\tb"])
def test_the_longest_row_fits_into_learned_positions(run, tmp_path, pair):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"{pair}\n" * 4, encoding="utf-8")
    options = ["--pairs", path, *SMALL, "--positions", "learned"]
    status, _, err = run("train", "--out", tmp_path / "run", *options)
    assert (status, err) == (0, "")
    assert load_state(tmp_path / "run" / "state.npz").config.T_max == 8  # the end mark counts


@pytest.mark.parametrize("line", ["no tab", "a\tb\tc", "\tb"])
def test_lines_that_are_no_pairs_are_named(run, tmp_path, line):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"a\tb\n{line}\na\tb\n", encoding="utf-8")
    status, _, err = run("train", "--out", tmp_path / "run", "--pairs", path, *SMALL)
    assert status == 2
    assert "line 2 must be a source, one tab and a target" in one_line(err)


# --------------------------------------------------------------------------------- going on


def test_a_run_that_was_stopped_goes_on_as_if_it_never_was(run, text, tmp_path, monkeypatch):
    options = ["--text", text, *SMALL, "--T", 5, "--dropout", 0.1, "--evaluate-every", 2]
    assert run("train", "--out", tmp_path / "through", *options)[0] == 0
    from npformer.batches import TextBatches

    plain = TextBatches.at

    def interrupting(self, n):
        if n == 1:
            signal.raise_signal(signal.SIGTERM)
        return plain(self, n)

    monkeypatch.setattr(TextBatches, "at", interrupting)
    out = tmp_path / "stopped"
    status, said, err = run("train", "--out", out, *options)
    assert (status, said) == (128 + signal.SIGTERM, "")
    assert f"SIGTERM after step 2: the state is in {out}; npformer train" in one_line(err)
    monkeypatch.setattr(TextBatches, "at", plain)
    assert run("train", "--out", out, *options)[0] == 2  # a run is not overwritten
    monkeypatch.chdir(tmp_path / "through")  # file names were kept in full
    assert run("train", "--out", out, "--resume")[0] == 0
    same(weights(out), weights(tmp_path / "through"))
    records = [
        json.loads((tmp_path / name / "run.json").read_text()) for name in ("stopped", "through")
    ]
    assert records[0]["sample"] == records[1]["sample"]


def test_a_run_goes_on_with_its_own_options_only(run, text, tmp_path):
    out = tmp_path / "run"
    assert run("train", "--out", out, "--text", text, *SMALL)[0] == 0
    for argv, message in (
        (["--d", 16], "has d 8, not 16"),
        (["--lr", 0.5], "other options: lr 0.006 and not 0.5"),
        (["--text", tmp_path / "other.txt"], "not"),
        (["--config", "x.toml"], "leave --config out"),
    ):
        status, _, err = run("train", "--out", out, "--resume", *argv)
        assert status == 2
        assert message in one_line(err)
    assert run("train", "--out", out, "--resume", "--d", 8, "--text", text)[0] == 0
    text.write_text(TEXT.replace("层", "残"), encoding="utf-8")
    status, _, err = run("train", "--out", out, "--resume")
    assert "other training data" in one_line(err)
    raw = (out / "state.npz").read_bytes()
    (out / "state.npz").write_bytes(raw[:-50])
    status, _, err = run("train", "--out", out, "--resume")
    assert status == 2
    assert "no training state, or it is damaged" in one_line(err)


def test_a_text_of_one_letter_has_nothing_to_learn(tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_text("a" * 40)
    argv = ["train", "--out", str(tmp_path / "run"), "--text", str(path), *SMALL, "--T", "3"]
    assert main([*argv, "--sample", "3"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "loss 0.000 nats" in printed.out
    assert "aaaa" in printed.out


@pytest.mark.parametrize("record", ["{}", '{"data": {"txt": 1}}', '{"data": 3}'])
def test_a_record_that_says_nothing_is_named(run, text, tmp_path, record):
    out = tmp_path / "run"
    assert run("train", "--out", out, "--text", text, *SMALL, "--T", 5)[0] == 0
    (out / "run.json").write_text(record)
    status, _, err = run("train", "--out", out, "--resume")
    assert status == 2
    assert "run.json does not say where the data are" in one_line(err)


@pytest.mark.parametrize("table", [None, "", "step;loss\n1;2\n", "step,loss\nx,1,1,1,1,1,1\n"])
def test_a_run_goes_on_without_its_tables(text, tmp_path, capsys, table):
    out = tmp_path / "run"
    argv = ["train", "--out", str(out), "--text", str(text), *SMALL, "--T", "5", "--held-out", "0"]
    assert main(argv) == 0
    before = weights(out)
    if table is None:
        (out / "steps.csv").unlink()
    else:
        (out / "steps.csv").write_text(table)
    capsys.readouterr()
    assert main(["train", "--out", str(out), "--resume", "--sample", "3"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "nats a token" not in printed.out
    same(before, weights(out))
    assert json.loads((out / "run.json").read_text())["loss"] is None


def test_a_model_from_a_folder_goes_on_with_its_vocabulary(run, text, tmp_path):
    first, second, third = (tmp_path / name for name in "abc")
    assert run("train", "--out", first, "--text", text, *SMALL)[0] == 0
    options = ["--text", text, "--steps", 2, "--warmup", 0, "--B", 2]
    assert run("train", "--out", second, "--start", first / "model", *options)[0] == 0
    assert load_trained(second)[0].cfg == load_trained(first)[0].cfg
    status, _, err = run("train", "--out", third, "--start", first, *SMALL)
    assert status == 2
    assert "start takes a model as it is: leave out d, L, H" in one_line(err)
    (tmp_path / "new.txt").write_text("other letters: xyz" * 9, encoding="utf-8")
    status, _, err = run("train", "--out", third, "--start", first, "--text", tmp_path / "new.txt")
    assert status == 2
    assert "the vocabulary has no" in one_line(err)


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_ctrl_c_from_outside(text, tmp_path):
    out = tmp_path / "run"
    argv = ["train", "--out", str(out), "--text", str(text), *SMALL, "--steps", "1000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "npformer", *argv, "--save-every", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    for _ in range(1200):
        if (out / "state.npz").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, err = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, "")
    assert "SIGINT after step" in one_line(err)
    assert load_state(out / "state.npz").step >= 1


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(run, text, tmp_path):
    tmp_path.chmod(0o500)
    try:
        status, _, err = run("train", "--out", tmp_path / "run", "--text", text, *SMALL)
    finally:
        tmp_path.chmod(0o700)
    assert status == 2
    assert "Permission denied" in one_line(err)


def test_a_folder_that_is_a_file(run, text, tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", Path("/dev/null/run")):
        status, _, err = run("train", "--out", out, "--text", text, *SMALL)
        assert status == 2
        one_line(err)
