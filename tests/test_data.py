"""Text becomes ids and comes back; what is no text is refused in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npformer.data import ByteVocabulary, CharacterVocabulary, load_text, windows


def test_the_default_text_is_long_and_real():
    text = load_text()
    assert len(text) > 100_000
    assert "statement" in text
    assert 50 < CharacterVocabulary(text).V < 1000


def test_a_python_without_the_default_text_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match=r"without pydoc_data\.topics.*give a text file"):
        load_text()


def test_a_file_is_read_as_utf8(tmp_path: Path):
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbf" + "残差\r\n层归一化\r".encode())
    assert load_text(path) == "残差\n层归一化\n"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "white space"),
        (b"abc\xff", r"byte 3 is 0xff"),
        (b"\xef\xbb\xbfabc\xff", r"byte 6 is 0xff"),
        ("残差".encode("gbk"), r"byte 0 is 0xb2.*convert"),
        ("text".encode("utf-16"), r"byte 0 is 0xff.*looks like UTF-16"),
        ("残差".encode()[:-1], r"byte 3 is 0xe5, unexpected end"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, raw: bytes, message: str):
    path = tmp_path / "text"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        load_text(path)


def test_a_missing_file_and_a_folder_are_errors_of_the_system(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        load_text(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        load_text(tmp_path)


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_every_text_comes_back(text: str):
    for vocabulary in (CharacterVocabulary(text), ByteVocabulary()):
        ids = vocabulary.encode(text)
        assert ids.dtype == np.int64
        assert ids.max() < vocabulary.V
        assert vocabulary.decode(ids) == text


def test_ids_are_dense_and_in_order():
    vocabulary = CharacterVocabulary("b\u6b8b\U0001f600ab")
    assert vocabulary.encode("ab\u6b8b\U0001f600").tolist() == [0, 1, 2, 3]
    assert vocabulary.V == 4


@pytest.mark.parametrize("unknown", ["\x00", "c", "\U0010ffff"])
def test_an_unknown_character_is_named_with_its_place(unknown: str):
    with pytest.raises(ValueError, match="stands at position 2"):
        CharacterVocabulary("abd").encode("ab" + unknown)
    with pytest.raises(IndexError, match="token ids"):
        CharacterVocabulary("abd").decode([-1])


def test_a_cut_off_character_is_marked():
    assert ByteVocabulary().decode(ByteVocabulary().encode("残差")[:4]) == "残\ufffd"


def test_windows_are_cut_out_of_the_text_and_targets_follow():
    ids = np.arange(11)
    inputs, targets = windows(ids, 3, 200, rng=0)
    assert inputs.shape == targets.shape == (200, 3)
    np.testing.assert_array_equal(targets, inputs + 1)
    np.testing.assert_array_equal(inputs, inputs[:, :1] + np.arange(3))
    assert set(inputs[:, 0]) == set(range(8))  # the first and the last possible place too
    np.testing.assert_array_equal(windows(ids, 3, 5, rng=7)[0], windows(ids, 3, 5, rng=7)[0])


def test_a_short_text_is_refused_with_both_lengths():
    windows(np.arange(4), 3, 2, rng=0)
    with pytest.raises(ValueError, match="3 tokens, but a window of 3 and the token after it need"):
        windows(np.arange(3), 3, 2, rng=0)
