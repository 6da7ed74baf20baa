"""Vocabularies are written down and come back; text comes out in whole characters."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npformer.data import ByteVocabulary, CharacterVocabulary
from npformer.vocabulary import (
    FileVocabulary,
    MarkedVocabulary,
    TextStream,
    description,
    named,
    restored,
)

TEXT = "残差 — naïve 👩‍🔬 text\n"


@pytest.mark.parametrize(
    "vocabulary",
    [
        CharacterVocabulary(TEXT),
        ByteVocabulary(),
        MarkedVocabulary(CharacterVocabulary(TEXT)),
        MarkedVocabulary(ByteVocabulary()),
    ],
    ids=["characters", "bytes", "marked characters", "marked bytes"],
)
def test_a_vocabulary_comes_back_from_its_description(vocabulary):
    again = restored(json.loads(json.dumps(description(vocabulary))))
    assert type(again) is type(vocabulary)
    assert again.V == vocabulary.V
    ids = vocabulary.encode(TEXT)
    np.testing.assert_array_equal(again.encode(TEXT), ids)
    assert again.decode(ids) == TEXT


def test_marks_come_after_all_other_ids_and_have_no_text():
    marked = MarkedVocabulary(ByteVocabulary())
    assert (marked.start, marked.end, marked.V) == (256, 257, 258)
    ids = [256, *marked.encode(TEXT), 257]
    assert marked.decode(ids) == TEXT
    with pytest.raises(IndexError):
        marked.decode([258])


@given(st.text(st.characters(codec="utf-8"), max_size=12))
def test_a_stream_hands_out_whole_characters_and_all_of_the_text(text):
    stream, vocabulary = TextStream(ByteVocabulary()), ByteVocabulary()
    parts = [stream.feed(i) for i in vocabulary.encode(text)]
    # A real U+FFFD looks like an unfinished character and waits for the next one.
    if "\ufffd" not in text:
        assert all(part in ("", c) for part, c in zip(parts, byte_characters(text), strict=True))
    assert "".join(parts) + stream.flush() == text


def byte_characters(text):
    """The character that each byte of a text belongs to."""
    return [c for c in text for _ in c.encode()]


@given(st.binary(max_size=16))
def test_a_stream_of_any_bytes_is_the_text_of_all_of_them(raw):
    stream = TextStream(ByteVocabulary())
    parts = "".join(stream.feed(i) for i in raw) + stream.flush()
    assert parts == raw.decode("utf-8", errors="replace")
    assert stream.flush() == ""


@pytest.mark.parametrize("vocabulary", [ByteVocabulary(), MarkedVocabulary(ByteVocabulary())])
def test_half_characters_are_refused_by_name(vocabulary):
    with pytest.raises(ValueError, match=r"no Unicode: '\\udcff' at position 2 is half a char"):
        vocabulary.encode("ab\udcff")


def test_no_ids_are_no_text():
    for vocabulary in (ByteVocabulary(), CharacterVocabulary("ab"), CharacterVocabulary("")):
        assert vocabulary.decode([]) == ""
        assert vocabulary.encode("").tolist() == []


def test_ids_of_a_file_with_gaps_and_beyond_it():
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `tokenizers`")
    words = {"a": 0, "b": 5, "[UNK]": 9}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    vocabulary = FileVocabulary(tokenizer.to_str())
    assert vocabulary.V == 10
    ids = vocabulary.encode("b a zzz")
    assert ids.tolist() == [5, 0, 9]
    assert vocabulary.decode(ids) == "b a [UNK]"
    assert vocabulary.decode([0, 3, 12, 5]) == "a b"  # of a table with more rows than tokens
    stream = TextStream(vocabulary)
    assert "".join(stream.feed(i) for i in [0, 3, 12, 5]) + stream.flush() == "a b"
    with pytest.raises(IndexError):
        vocabulary.decode([-1])
    with pytest.raises(ValueError, match="half a character"):
        vocabulary.encode("\ud800")


def test_names_of_vocabularies(tmp_path):
    assert named("characters", "abca").V == 3
    assert named("bytes", "abc").V == 256
    with pytest.raises(FileNotFoundError):
        named(str(tmp_path / "missing.json"), "abc")
    with pytest.raises(ValueError, match="no vocabulary of kind 'words'"):
        restored({"kind": "words"})
    with pytest.raises(TypeError, match="a dict can't be written down"):
        description({})


def test_without_the_package_a_file_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pip install 'npformer\[tokenizers\]'"):
        FileVocabulary("{}")


def test_a_tokenizer_file(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.BPE(byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
        show_progress=False,
    )
    made.train_from_iterator([TEXT * 3, "the residual stream of the residual block"], trainer)
    path = tmp_path / "tokenizer.json"
    made.save(str(path))
    vocabulary = named(str(path), "")
    ids = vocabulary.encode(TEXT + "the residual")
    assert len(ids) < len((TEXT + "the residual").encode())
    assert vocabulary.decode(ids) == TEXT + "the residual"
    assert vocabulary.id_of("<end>") == 0
    assert vocabulary.decode([0, *vocabulary.encode("the")]) == "<end>the"
    marking = tokenizers.Tokenizer.from_str(made.to_str())
    marking.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", 0)]
    )
    both = FileVocabulary(marking.to_str())  # a part of a text has no marks, a whole one has
    np.testing.assert_array_equal(both.encode("the"), vocabulary.encode("the"))
    np.testing.assert_array_equal(both.encode_whole("the"), [*vocabulary.encode("the"), 0])
    assert vocabulary.id_of("<missing>") is None
    made.enable_truncation(3)  # what a file says of rows of one length is not for a whole text
    made.enable_padding(length=99)
    np.testing.assert_array_equal(
        FileVocabulary(made.to_str()).encode(TEXT), vocabulary.encode(TEXT)
    )
    again = restored(json.loads(json.dumps(description(vocabulary))))
    np.testing.assert_array_equal(again.encode(TEXT), vocabulary.encode(TEXT))
    stream = TextStream(vocabulary)
    assert "".join(stream.feed(i) for i in ids) + stream.flush() == TEXT + "the residual"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json: this is no tokenizer file"):
        FileVocabulary.from_file(path)
