"""``npformer generate``: texts from runs, from folders with weights, from ids."""

from __future__ import annotations

import json

import numpy as np
import pytest

import npformer as nf
from npformer.cli import main
from npformer.cli.model_folder import ids_of
from npformer.data import ByteVocabulary, CharacterVocabulary
from npformer.training import train
from npformer.vocabulary import MarkedVocabulary

TEXT = "残差 stream\n"
VOCABULARY = CharacterVocabulary(TEXT)


def stirred(model):
    rng = np.random.default_rng(5)
    for p in model.parameters():
        p.value += (0.5 * rng.standard_normal(p.value.shape)).astype(np.float32)
    return model


def saved(folder, vocabulary, kind=nf.DecoderLM, **options):
    """A run of one step, and its model."""
    from npformer.batches import PairBatches

    cfg = nf.TransformerConfig(V=vocabulary.V, d=8, L=1, H=2, T_max=30, **options)
    model = stirred(kind(cfg, rng=0))
    data = np.arange(60) % vocabulary.V
    if kind is nf.EncoderDecoder:
        data = PairBatches([[1, 2], [3]], [[4], [5, 6]], vocabulary.start, vocabulary.end, 2)
    train(model, data, steps=1, B=2, lr=1e-4, folder=folder, vocabulary=vocabulary)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("run")
    saved(home, VOCABULARY)
    return home


@pytest.fixture
def run(capsys):
    def command(*argv):
        status = main(["generate", *(str(a) for a in argv)])
        out, err = capsys.readouterr()
        return status, out, err

    return command


def trained(folder):
    from npformer.training import load_trained

    return load_trained(folder)[0]


@pytest.mark.parametrize("extra", [[], ["--no-cache"]])
def test_one_text_appears_as_it_is_written(run, folder, extra):
    prompt = "残差 s"
    status, out, err = run(folder, "--prompt", prompt, "--max-new-tokens", 7, *extra)
    assert (status, err) == (0, "")
    ids = VOCABULARY.encode(prompt)
    want = nf.generate(trained(folder), ids[None], 7, rng=0)[0]
    assert out == VOCABULARY.decode(want) + "\n"


def test_options_are_those_of_generate(run, folder):
    ids = VOCABULARY.encode("str")[None]
    for argv, options in (
        (["--temperature", 0], {"temperature": 0}),
        (["--temperature", 2, "--top-k", 3, "--seed", 4], {"temperature": 2, "top_k": 3, "rng": 4}),
        (["--top-p", 0.5], {"top_p": 0.5}),
        (["--repetition-penalty", 3.0], {"repetition_penalty": 3.0}),
        (["--beams", 3, "--length-penalty", 0.5], {"beams": 3, "length_penalty": 0.5}),
    ):
        status, out, err = run(folder, "--prompt", "str", "--max-new-tokens", 9, *argv)
        assert (status, err) == (0, "")
        want = nf.generate(trained(folder), ids, 9, **options)[0]
        assert out == VOCABULARY.decode(want) + "\n", argv


def test_the_cache_can_be_left_out(run, folder, monkeypatch):
    asked = []
    plain = nf.decoding.writer.KVCache
    monkeypatch.setattr(
        nf.decoding.writer, "KVCache", lambda *a, **k: asked.append(1) or plain(*a, **k)
    )
    assert run(folder, "--max-new-tokens", 2, "--no-cache")[0] == 0
    assert asked == []
    assert run(folder, "--max-new-tokens", 2)[0] == 0
    assert asked == [1]


def test_a_prompt_that_fills_all_positions_is_refused_by_its_length(run, folder):
    status, _, err = run(folder, "--prompt", "s" * 31)  # T_max is 30
    assert status == 2
    assert "a prompt of 31 tokens and 1 new ones need 31 positions" in err
    status, out, _ = run(folder, "--prompt", "s" * 30)
    assert (status, len(out)) == (0, 32)  # one token, and the end of the line


def test_what_starts_and_ends_a_text_stands_in_the_folder(tmp_path):
    (tmp_path / "config.json").write_text('{"bos_token_id": 1, "eos_token_id": 2}')
    assert ids_of(tmp_path) == (1, [2])
    (tmp_path / "generation_config.json").write_text(
        '{"bos_token_id": null, "decoder_start_token_id": 5, "eos_token_id": [3, 4]}'
    )
    assert ids_of(tmp_path) == (5, [3, 4])


def test_several_prompts_at_once_as_json_and_to_a_file(run, folder, tmp_path):
    (tmp_path / "prompts").write_text("m\nam\n", encoding="utf-8")
    argv = ["--prompt", "str", "--prompts", tmp_path / "prompts", "--max-new-tokens", 4]
    status, out, err = run(folder, *argv, "--temperature", 0, "--json")
    assert (status, err) == (0, "")
    records = json.loads(out)
    for record, prompt in zip(records, ["str", "m", "am"], strict=True):
        ids = VOCABULARY.encode(prompt)
        want = nf.generate(trained(folder), ids[None], 4, temperature=0)[0]
        assert record["prompt_ids"] == ids.tolist()
        assert record["ids"] == want[len(ids) :].tolist()
        assert record["text"] == VOCABULARY.decode(want)
    status, out, err = run(folder, *argv, "--temperature", 0, "--out", tmp_path / "texts")
    assert (status, out, err) == (0, "", "")
    written = (tmp_path / "texts").read_text(encoding="utf-8")
    assert written == "".join(record["text"] + "\n" for record in records)


def test_a_text_ends_before_its_stop_token(run, folder):
    free = nf.generate(trained(folder), [VOCABULARY.encode("s")], 9, temperature=0)[0].tolist()
    stop = free[4]
    end = free.index(stop, 1)
    for extra in ([], ["--json"]):
        status, out, _ = run(
            folder, "--prompt", "s", "--max-new-tokens", 9, "--temperature", 0,
            "--eos", stop, *extra,
        )  # fmt: skip
        assert status == 0
        text = json.loads(out)[0]["text"] if extra else out[:-1]
        assert text == VOCABULARY.decode(free[:end])


def test_without_a_prompt_a_text_begins_with_a_new_line_or_its_mark(run, folder, tmp_path):
    status, out, _ = run(folder, "--max-new-tokens", 5)
    want = nf.generate(trained(folder), [VOCABULARY.encode("\n")], 5, rng=0)[0]
    assert (status, out) == (0, VOCABULARY.decode(want) + "\n")
    marked = MarkedVocabulary(CharacterVocabulary("abc"))
    model = saved(tmp_path, marked)
    for argv, prompt in (([], [3]), (["--prompt", "ab"], [3, 0, 1])):
        status, out, _ = run(tmp_path, "--max-new-tokens", 5, "--temperature", 0, *argv)
        ids = nf.generate(model, [prompt], 5, temperature=0, eos_id=4)[0]
        assert (status, out) == (0, marked.decode(ids) + "\n")
        status, out, _ = run(tmp_path, "--max-new-tokens", 5, "--json", *argv)
        assert json.loads(out)[0]["prompt_ids"] == prompt


def test_an_encoder_decoder_reads_the_prompt_and_answers(run, tmp_path):
    marked = MarkedVocabulary(CharacterVocabulary("abcdefg"))
    model = saved(tmp_path, marked, nf.EncoderDecoder)
    options = {"temperature": 0, "eos_id": marked.end, "source_ids": [[1, 2, 3]]}
    want = marked.decode(nf.generate(model, [[marked.start]], 6, **options)[0])
    status, out, err = run(tmp_path, "--prompt", "bcd", "--temperature", 0, "--max-new-tokens", 6)
    assert (status, out, err) == (0, want + "\n", "")
    status, out, err = run(tmp_path, "--max-new-tokens", 6)
    assert (status, err) == (2, "npformer: an encoder-decoder needs a --prompt to read\n")


def test_characters_of_several_bytes_come_out_whole(tmp_path):
    import os
    import subprocess
    import sys

    model = saved(tmp_path, ByteVocabulary())
    process = subprocess.run(
        [sys.executable, "-m", "npformer", "generate", tmp_path, "--prompt", "残差",
         "--max-new-tokens", "20", "--temperature", "1.5"],
        capture_output=True, check=True, env={**os.environ, "PYTHONUTF8": "1"},
    )  # fmt: skip
    prompt = ByteVocabulary().encode("残差")
    want = nf.generate(model, prompt[None], 20, 1.5)[0]
    assert process.stdout.decode("utf-8") == ByteVocabulary().decode(want) + "\n"


def test_weights_in_the_form_of_another_project(run, tmp_path):
    cfg = nf.TransformerConfig(V=13, d=8, L=1, H=2, T_max=12)
    model = stirred(nf.DecoderLM(cfg, rng=0))
    nf.save_pretrained(model, tmp_path, settings={"eos_token_id": 7})
    status, out, err = run(tmp_path, "--ids", "3,1,4", "--temperature", 0)
    assert (status, err) == (0, "")
    want = nf.generate(model, [[3, 1, 4]], 10, temperature=0, eos_id=7)[0].tolist()
    want = want[: want.index(7, 3)] if 7 in want[3:] else want
    assert out == " ".join(map(str, want)) + " \n"
    status, out, _ = run(tmp_path, "--ids", "3,1,4", "--json", "--temperature", 0)
    assert json.loads(out)[0]["ids"] == want[3:]
    status, _, err = run(tmp_path, "--prompt", "text")
    assert (status, err) == (
        2,
        f"npformer: {tmp_path} has no vocabulary: give the prompt as --ids\n",
    )
    status, _, err = run(tmp_path)
    assert (status, err) == (
        2,
        f"npformer: {tmp_path} has no token to start with: give a --prompt\n",
    )


def test_a_tokenizer_beside_the_weights(run, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<s>": 0, "the": 1, "residual": 2, "stream": 3, "</s>": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="the"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    model = stirred(nf.DecoderLM(nf.TransformerConfig(V=5, d=8, L=1, H=2, T_max=12), rng=0))
    nf.save_pretrained(model, tmp_path, settings={"eos_token_id": [4]})
    status, out, err = run(
        tmp_path, "--prompt", "the residual", "--temperature", 0, "--max-new-tokens", 3, "--json"
    )
    assert (status, err) == (0, "")
    (record,) = json.loads(out)
    assert record["prompt_ids"] == [0, 1, 2]
    want = nf.generate(model, [[0, 1, 2]], 3, temperature=0, eos_id=4)[0, 3:].tolist()
    assert record["ids"] == (want[: want.index(4)] if 4 in want else want)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--prompt", "x"], "the vocabulary has no 'x'"),
        (["--prompt", ""], "a prompt must have at least one token"),
        (["--ids", "1,x"], "must be whole numbers with commas between them, but is '1,x'"),
        (["--ids", "99"], "ids must lie in [0, 10)"),
        (["--temperature", "-1"], "temperature must be 0 or more, but is -1.0"),
        (["--top-p", "0"], "top_p must lie in (0, 1], but is 0.0"),
        (["--max-new-tokens", "99"], "the model has T_max = 30"),
        (["--beams", "2", "--top-k", "2"], "beam search takes no top_k or top_p: it draws nothing"),
        (["--prompts", "missing"], "missing: No such file"),
    ],
)
def test_bad_input_is_one_line(run, folder, argv, message):
    status, out, err = run(folder, *argv)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err


def test_folders_without_a_model_are_named(run, tmp_path):
    status, _, err = run(tmp_path / "missing")
    assert (status, err) == (2, f"npformer: {tmp_path / 'missing'}: no such folder\n")
    status, _, err = run(tmp_path)
    assert status == 2
    assert "holds neither a run of npformer train nor a config.json" in err


def test_a_negative_seed_is_refused_by_its_name(run, folder):
    status, out, err = run(folder, "--prompt", "s", "--seed", "-1")
    assert (status, out) == (2, "")
    assert err == "npformer: --seed must be 0 or more, but is -1\n"
