"""``npformer account``: what it prints and writes, and one line for all that is wrong."""

from __future__ import annotations

import csv
import json
import logging
import re

import pytest
from many_configs import read_by

import npformer as nf
from npformer import accounting
from npformer.catalogue import ROWS
from npformer.cli import main
from npformer.cli.account_text import TEXT, word


def output(capsys, *argv: str) -> str:
    """Standard output of a command that succeeds and is silent on standard error."""
    assert main(["account", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def complaint(capsys, *argv: str) -> str:
    """The one line of a command that is refused."""
    assert main(["account", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


def test_the_ledger_of_a_model(capsys):
    out = output(capsys, "llama-2-7b", "--length", "8192")
    assert "6,738,415,616" in out
    assert re.search(r"feed-forward matrices .*135,266,304 +32 +4,328,521,728 +64\.24 %", out)
    assert re.search(r"cache, 1 x 8192 tokens +4 GiB = 4\.295 GB", out)
    assert re.search(r"cache, one token +512 KiB", out)
    assert re.search(r"total +100\.4 GiB = 107\.8 GB", out)
    assert re.search(r"one device +1 +100\.4 GiB = 107\.8 GB +no", out)
    assert "fits 80 GB" in out
    assert re.search(r"ZeRO stage 3 +8 +12\.55 GiB = 13\.48 GB +yes", out)
    assert re.search(r"scores q k\^T +B x H x T x T +1 x 32 x 8192 x 8192 +2,147,483,648\*", out)
    assert ROWS["llama-2-7b"].source in out


def test_the_chapters_shape_table_alone(capsys):
    out = output(capsys, "chapter-12-layer", "--batch", "8", "--length", "512", "--only", "shapes")
    assert "8 x 12 x 512 x 512   25,165,824*" in out
    assert "131,072,000" in out
    assert TEXT["en"]["training"] not in out


@pytest.mark.parametrize("name", nf.presets())
def test_every_model_has_a_report_in_both_languages(name, capsys):
    for lang in ("en", "zh"):
        out = output(capsys, name, "--lang", lang, "--convention", "causal")
        assert f"{ROWS[name].parameters:,}" in out
        assert all(TEXT[lang][section] in out for section in ("parameters", "shapes", "memory"))
        assert "None" not in out


def test_every_name_of_a_part_is_translated():
    names = set()
    everything = {"V": 3, "d": 4, "L": 1, "H": 2, "qk_norm": "head", "gated": True, "tied": False}
    everything |= {"token_types": 2, "embedding_norm": True, "pooler": True, "head_bias": True}
    others = [
        nf.TransformerConfig(
            **read_by(kind, everything), kind=kind, placement=place, recompute=again, dropout=0.1
        )
        for kind in ("decoder", "encoder", "encoder-decoder")
        for place in ("pre", "post", "sandwich", "output")
        for again in (False, True)
    ]
    for cfg in [*map(nf.preset, nf.presets()), *others]:
        names |= {r.part for r in accounting.parameters(cfg).rows}
        names |= {r.operation for r in accounting.shapes(cfg, 1, 2)}
        names |= {r.part for r in accounting.flops(cfg, 1, 2).rows}
        names |= {r.part for r in accounting.flops(cfg, 1, 1, 2).rows}
        names |= {n for n, _ in accounting.training_bytes(cfg).rows}
        if cfg.kind != "encoder":
            names |= {n for n, _ in accounting.kv_cache_bytes(cfg, 1, 2, "int8").rows}
        if isinstance(cfg, nf.TransformerConfig):
            kept = accounting.activation_bytes(cfg, 1, 2, dropout=True, loss=cfg.kind != "encoder")
            names |= {n for n, _ in kept.rows}
    plain = [n for n in names if not re.search(r"[\u4e00-\u9fff]", word(n, "zh"))]
    assert plain == []
    assert TEXT["en"].keys() == TEXT["zh"].keys()


def test_json_holds_the_numbers_of_the_library(capsys):
    argv = ("gpt2", "--batch", "3", "--length", "7", "--dtype", "float32", "--zero", "2")
    found = json.loads(output(capsys, *argv, "--data", "4", "--tensor", "2", "--json"))
    cfg = nf.preset("gpt2")
    assert found["parameters"]["total"] == 124_439_808
    assert found["parameters"]["groups"] == accounting.parameters(cfg).groups
    account = accounting.flops(cfg, 3, 7)
    assert found["operations"]["forward"] == account.forward
    assert found["operations"]["decoding_step"] == account.decoding_step
    assert found["kv_cache"]["bytes"] == accounting.kv_cache_bytes(cfg, 3, 7, "float32")
    assert found["weights"]["bytes"] == 4 * 124_439_808
    training = accounting.training_bytes(cfg, zero=2, data=4, tensor=2)
    assert found["training"]["bytes"] == training.total
    assert found["training"]["devices"] == 8
    kept = accounting.activation_bytes(cfg, 3, 7, "float32", loss=True)
    assert found["activations"]["bytes"] == sum(r["bytes"] for r in found["activations"]["rows"])
    assert found["activations"]["bytes"] == kept
    assert found["shapes"][0]["shape"] == [3, 7, 768]
    found = json.loads(output(capsys, "bert-base", "--json"))
    assert found["kv_cache"] is None
    assert found["kind"] == "encoder"
    found = json.loads(output(capsys, "deepseek-v3", "--json"))
    assert found["activations"] is None
    assert found["parameters"]["active"] == 37_552_297_472


def test_models_side_by_side(capsys):
    out = output(capsys, "--compare", "gpt2", "llama-2-7b", "deepseek-v3")
    lines = [re.split(r" {2,}", line.strip()) for line in out.splitlines()]
    rows = {line[0]: line[1:] for line in lines if len(line) == 4}
    assert rows["model"] == ["gpt2", "llama-2-7b", "deepseek-v3"]
    assert rows["parameters"] == ["124,439,808", "6,738,415,616", "671,026,419,200"]
    assert rows["used by one token"][2] == "37,552,297,472"
    assert rows["feed-forward"] == ["45.54 %", "64.24 %", "98.02 %"]
    assert rows["cache of a token"] == ["36 KiB", "512 KiB", "68.62 KiB"]
    assert "T = 1024 tokens" in out  # the longest text that all of them read
    found = json.loads(output(capsys, "--compare", "gpt2", "bert-base", "--json"))
    assert [m["model"] for m in found["models"]] == ["gpt2", "bert-base"]


def test_an_encoder_decoder_has_a_source(capsys):
    out = output(capsys, "transformer-base", "--length", "100", "--source-length", "50")
    assert "source of 50 tokens" in out
    assert re.search(r"encoder: scores q k\^T +B x H x S x S +1 x 8 x 50 x 50", out)
    assert re.search(r"cross-attention: scores q k\^T +B x H x T x S +1 x 8 x 100 x 50", out)
    assert re.search(r"cache of the source, 50 tokens +600 KiB", out)


def test_windows_as_rings_and_asked_splits(capsys):
    out = output(capsys, "mistral-7b", "--only", "memory")
    assert re.search(r"cache, windows as rings +512 MiB", out)
    out = output(
        capsys, "llama-2-7b", "--only", "training", "--zero", "1", "--data", "64", "--pipeline", "4"
    )
    assert re.search(r"ZeRO stage 1 +64 +26\.\d+ GiB", out)
    asked = accounting.training_bytes(nf.preset("llama-2-7b"), zero=1, data=64, pipeline=4)
    assert re.search(rf"as asked +256 +{asked.gib:.4g} GiB", out)
    assert "fits 24.5 GB" in output(capsys, "gpt2", "--device-gb", "24.5")


def test_the_list(capsys):
    out = output(capsys, "--list")
    assert all(re.search(rf"^{re.escape(name)} ", out, re.MULTILINE) for name in nf.presets())
    assert "671,026,419,200" in out


# -------------------------------------------------------------------------------- own models


def test_a_configuration_in_toml_or_json(capsys, tmp_path):
    toml = tmp_path / "mine.toml"
    toml.write_text('V = 13\nd = 12\nL = 2\nH = 3\nd_ff = [5, 7]\npositions = "rope"\n')
    found = json.loads(output(capsys, "--config", str(toml), "--length", "9", "--json"))
    cfg = nf.TransformerConfig(V=13, d=12, L=2, H=3, d_ff=(5, 7), positions="rope")
    assert found["parameters"]["total"] == accounting.parameters(cfg).total
    assert found["model"] == "mine"
    file = tmp_path / "other.json"
    file.write_text(json.dumps({"V": 13, "d": 12, "L": 2, "H": 3, "window": [4, None]}))
    out = output(capsys, str(file), "--only", "parameters")  # as MODEL, too
    assert "other (decoder)" in out
    out = output(capsys, "--compare", "gpt2", str(toml), str(file))
    assert "mine" in out
    assert "other" in out


def test_a_configuration_with_experts(capsys, tmp_path):
    from dataclasses import asdict

    values = asdict(nf.preset("deepseek-v2")) | {"name": "small", "experts": 16}
    file = tmp_path / "experts.json"
    file.write_text(json.dumps(values))
    found = json.loads(output(capsys, "--config", str(file), "--json"))
    cut = 144 * 59 * 3 * 5120 * 1536 + 144 * 59 * 5120
    assert found["parameters"]["total"] == ROWS["deepseek-v2"].parameters - cut
    assert found["model"] == "small"


def test_a_config_of_hugging_face(capsys, tmp_path):
    values = {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    file = tmp_path / "seven" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps(values))
    found = json.loads(output(capsys, "--config", str(file), "--json"))
    assert found["parameters"]["total"] == 6_738_415_616
    assert found["model"] == "seven"
    file.write_text(json.dumps(values | {"model_type": "mamba"}))
    assert "model_type 'mamba' is not supported" in complaint(capsys, "--config", str(file))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "a.json can't be read"),
        ("a.toml", "V = \n", "a.toml can't be read"),
        ("a.json", b"\xff\xfe", "a.json is not UTF-8 text"),
        ("a.json", "[1]", "must hold the fields of a TransformerConfig by name"),
        ("a.json", '{"V": 3, "heads": 2}', "has 'heads', which TransformerConfig does not know"),
        ("a.toml", "V = 3\nactivaton = 'relu'\n", "did you mean activation?"),
        ("a.json", '{"V": 3, "d": 4}', "a.json lacks L, H"),
        ("a.json", '{"V": 3, "d": 4, "L": 1, "H": 3}', "a.json: d = 4 is not divisible by H = 3"),
        ("a.json", '{"V": "x", "d": 4, "L": 1, "H": 2}', "V must be a whole number"),
        (
            "a.json",
            '{"V": 3, "d": 4, "L": 1, "H": 2, "pooler": true}',
            "a.json: pooler = True is for an encoder, but this is a decoder",
        ),
        (
            "a.toml",
            "V = 3\nd = 4\nL = 1\nH = 2\nL_encoder = 2\n",
            "a.toml: L_encoder = 2 is for an",
        ),
        ("a.json", '{"experts": 3}', "a.json lacks V, d"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(name, content, message, capsys, tmp_path):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    err = complaint(capsys, "--config", str(file))
    assert str(file) in err
    assert message in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["gpt-2"], "there is no preset 'gpt-2'; did you mean gpt2"),
        (["--compare", "gpt2", "gtp2"], "no preset 'gtp2'"),
        ([], "give one of MODEL, --config FILE and --compare"),
        (["gpt2", "--compare", "bert-base"], "give one of MODEL"),
        (["gpt2", "--config", "a.json"], "give one of MODEL"),
        (["--config", "no_such_file.json"], "no_such_file.json: No such file"),
        (["--config", "model.yaml"], "--config needs a .json or .toml file"),
        (["gpt2", "--batch", "0"], "--batch must be 1 or more, but is 0"),
        (["gpt2", "--length", "-3"], "--length must be 1 or more, but is -3"),
        (["gpt2", "--source-length", "0"], "--source-length must be 1 or more"),
        (
            ["gpt2", "--length", "1025"],
            "--length must be at most 1024, the learned positions of gpt2",
        ),
        (["gpt2", "--length", "2000", "--only", "parameters"], "but is 2000"),
        (["--compare", "llama-2-7b", "gpt2", "--length", "2000"], "learned positions of gpt2, but"),
        (
            ["gpt2", "--source-length", "5"],
            "--source-length needs an encoder-decoder, not gpt2 (decoder)",
        ),
        (["deepseek-v3", "--source-length", "5"], "not deepseek-v3 (decoder)"),
        (
            ["--compare", "gpt2", "bert-base", "--source-length", "5"],
            "not gpt2 (decoder), bert-base (encoder)",
        ),
        (["gpt2", "--length", "x"], "argument --length: invalid int value: 'x'"),
        (["gpt2", "--dtype", "float12"], "dtype must be one of float64"),
        (["gpt2", "--only", "nothing"], "--only must be one of parameters, shapes"),
        (["gpt2", "--zero", "4"], "zero must be 0, 1, 2 or 3"),
        (["gpt2", "--tensor", "5"], "H = 12 can't be shared by 5 devices"),
        (["gpt2", "--device-gb", "nan"], "--device-gb must be positive"),
        (["gpt2", "--lang", "fr"], "invalid choice: 'fr'"),
    ],
)
def test_bad_options_are_one_line(argv, message, capsys):
    assert message in complaint(capsys, *argv)


def test_lengths_that_there_are_places_for(capsys, tmp_path):
    """Up to the end of a learned table; without one, and for one model that reads, as given."""
    output(capsys, "gpt2", "--length", "1024", "--only", "operations")
    output(capsys, "llama-2-7b", "--length", "100000", "--only", "operations")
    sizes = {"V": 13, "d": 14, "L": 2, "H": 7, "T_max": 17, "kind": "encoder-decoder"}
    file = tmp_path / "two.json"
    file.write_text(json.dumps(sizes))
    options = ("--source-length", "17", "--length", "5")
    found = json.loads(output(capsys, str(file), *options, "--json"))
    assert found["setting"]["S"] == 17
    output(capsys, "--compare", "gpt2", str(file), *options)
    long = tmp_path / "long.json"  # gpt2 has 1024 positions, but it reads no source
    long.write_text(json.dumps(sizes | {"positions": "sinusoidal"}))
    output(capsys, "--compare", "gpt2", str(long), "--length", "5", "--source-length", "2000")
    words = "--source-length must be at most 17, the learned positions of two, but is 18"
    assert words in complaint(capsys, str(file), "--source-length", "18")
    assert words in complaint(capsys, "--compare", "gpt2", str(file), "--source-length", "18")


def test_a_file_in_the_way_is_one_line(capsys, tmp_path):
    file = tmp_path / "out"
    file.write_text("")
    assert str(file) in complaint(capsys, "gpt2", "--out", str(file))


def test_help_has_examples(capsys):
    out = output(capsys, "--help")
    assert "npformer account --compare" in out
    assert "my_model.toml:" in out


# ------------------------------------------------------------------------------------- files


def test_what_is_written(capsys, tmp_path):
    folder = tmp_path / "made" / "here"
    out = output(capsys, "gemma-2-2b", "--out", str(folder))
    names = ["account.json", "account.txt", "parameters.csv", "parameters.png", "parameters.svg"]
    assert sorted(p.name for p in folder.iterdir()) == names
    assert all(str(folder / name) in out for name in names)
    text = (folder / "account.txt").read_text()
    assert out.startswith(text)
    assert json.loads((folder / "account.json").read_text())["parameters"]["total"] == 2_614_341_888
    with (folder / "parameters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(r["count"]) for r in rows) == 2_614_341_888
    assert {r["model"] for r in rows} == {"gemma-2-2b"}
    assert (folder / "parameters.png").read_bytes().startswith(b"\x89PNG")
    printed = output(capsys, "gemma-2-2b", "--out", str(folder), "--json")
    assert json.loads(printed) == json.loads((folder / "account.json").read_text())


def test_the_figure_is_the_numbers():
    from npformer.plots.accounts import COLOURS, where_parameters_go

    names = ("gpt2", "deepseek-v3")
    accounts = {name: accounting.parameters(nf.preset(name)) for name in names}
    figure = where_parameters_go(accounts)
    (ax,) = figure.axes
    labels = [t.get_text() for t in ax.get_yticklabels()]
    assert labels == ["gpt2", "deepseek-v3", "deepseek-v3, used by one token"]
    bars = [b for b in ax.patches if b.get_height() > 0.7]
    assert len(bars) == 3 * len(COLOURS)
    for row in range(3):
        own = [b for b in bars if abs(b.get_y() + b.get_height() / 2 - row) < 1e-9]
        assert sum(b.get_width() for b in own) == pytest.approx(100)
        starts = [b.get_x() for b in own]
        assert starts == sorted(starts)
    first = [b.get_width() for b in bars[: len(COLOURS)]]
    account = accounts["gpt2"]
    assert first == pytest.approx([100 * n / account.total for n in account.groups.values()])
    active = bars[2 * len(COLOURS) + list(COLOURS).index("feed-forward")].get_width()
    rows = [r for r in accounts["deepseek-v3"].rows if r.group == "feed-forward"]
    expected = sum(r.active for r in rows) / accounts["deepseek-v3"].active
    assert active == pytest.approx(100 * expected)
    texts = [t.get_text() for t in ax.texts]
    assert {"124 M", "671 B", "37.6 B"} <= set(texts)
    one = where_parameters_go({"gpt2": accounts["gpt2"]})
    assert one.axes[0].get_yticklabels()[1].get_text() == "gpt2, one block"


def test_numbers_at_the_end_of_a_bar():
    from npformer.plots.accounts import _short

    numbers = (999, 1_234, 63_045_632, 124_439_808, 6_738_415_616, 671_026_419_200)
    english = [_short(n, "en") for n in numbers]
    assert english == ["999", "1.23 k", "63.0 M", "124 M", "6.74 B", "671 B"]
    chinese = [_short(n, "zh") for n in numbers]
    assert chinese == ["999", "1234", "6,305 万", "1.24 亿", "67.4 亿", "6,710 亿"]


def test_the_chinese_figure_lacks_no_glyph(capsys, tmp_path, caplog):
    from npformer.plots.style import chinese_font

    if chinese_font() is None:
        pytest.skip("no Chinese font is installed")
    with caplog.at_level(logging.WARNING):
        assert main(["account", "deepseek-v2", "--lang", "zh", "--out", str(tmp_path)]) == 0
    assert caplog.records == []
    assert "已写入" in capsys.readouterr().out
