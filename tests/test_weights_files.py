"""Safetensors files: read, written, and refused where anything about them is wrong."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npformer.weights.safetensors_file import (
    SafetensorsFile,
    convert,
    from_bfloat16,
    to_bfloat16,
    write_safetensors,
)


def raw(path, header, data=b"", length=None):
    """Write a file of this header, right or wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    n = len(text) if length is None else length
    path.write_bytes(n.to_bytes(8, "little") + text + data)
    return path


def entry(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


TWO = {"a": entry(0, 8, [2]), "b": entry(8, 32, [3, 2])}
NUMBERS = np.arange(8, dtype="<f4").tobytes()


# --------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_what_is_written_is_read_bit_for_bit(tmp_path, rng, dtype):
    arrays = {
        "row": rng.standard_normal(7),
        "matrix": rng.standard_normal((3, 5)),
        "transposed": rng.standard_normal((5, 3)).T,
        "strided": rng.standard_normal((6, 8))[::2, 1::3],
        "one": np.array(1.5),
        "none": np.zeros((0, 3)),
        "special": np.array([np.inf, -np.inf, np.nan, -0.0]),
    }
    arrays = {name: a.astype(dtype) for name, a in arrays.items()}
    write_safetensors(tmp_path / "x", arrays.items())
    file = SafetensorsFile(tmp_path / "x")
    assert list(file.entries) == list(arrays)
    for name, a in arrays.items():
        b = file[name]
        assert b.dtype == a.dtype
        assert b.shape == a.shape
        assert b.tobytes() == a.tobytes()  # both row by row


def test_a_large_transposed_table_is_written_in_pieces(tmp_path, rng):
    a = rng.integers(0, 100, (3, 1 << 21)).astype(np.float32).T
    write_safetensors(tmp_path / "x", [("a", a)])
    np.testing.assert_array_equal(SafetensorsFile(tmp_path / "x")["a"], a)


def test_numbers_are_read_only_and_not_in_memory(tmp_path):
    write_safetensors(tmp_path / "x", [("a", np.ones(5, np.float32))])
    a = SafetensorsFile(tmp_path / "x")["a"]
    assert isinstance(a.base, np.memmap)
    assert not a.flags.writeable


def test_the_layout_is_the_formats(tmp_path):
    """The bytes of a file, by hand: what any other reader expects."""
    write_safetensors(tmp_path / "x", [("w", np.array([[1, 2]], np.float32).T)])
    data = (tmp_path / "x").read_bytes()
    n = int.from_bytes(data[:8], "little")
    assert n % 8 == 0
    assert json.loads(data[8 : 8 + n]) == {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
    }
    assert data[8 + n :] == np.array([1, 2], "<f4").tobytes()


# ------------------------------------------------------------------------------------ bfloat16


def test_bfloat16_is_the_upper_half_of_float32(tmp_path):
    raw(tmp_path / "x", {"a": entry(0, 8, [4], "BF16")}, bytes.fromhex("803f 00c0 c842 807f"))
    a = SafetensorsFile(tmp_path / "x")["a"]
    assert a.dtype == np.float32
    np.testing.assert_array_equal(a, [1.0, -2.0, 100.0, np.inf])


def test_bfloat16_rounds_to_nearest_ties_to_even():
    bits = {
        0x3F808000: 0x3F80,  # a tie, down to even
        0x3F818000: 0x3F82,  # a tie, up to even
        0x3F808001: 0x3F81,
        0x3F807FFF: 0x3F80,
        0x7F7F7FFF: 0x7F7F,  # the last that is nearer to the largest than to what comes after it
        0xFF7F7FFF: 0xFF7F,
        0xFF800000: 0xFF80,  # infinite before
        0x00000001: 0x0000,
    }
    x = np.array(list(bits), np.uint32).view(np.float32)
    np.testing.assert_array_equal(to_bfloat16(x), list(bits.values()))
    for nan in (0x7F800001, 0xFFFFFFFF, 0x7FC00000):
        out = from_bfloat16(to_bfloat16(np.array([nan], np.uint32).view(np.float32)))
        assert np.isnan(out).all()


@given(hnp.arrays(np.float32, 9, elements=st.floats(-(2.0**99), 2.0**99, width=32)))
def test_bfloat16_is_within_half_a_step(x):
    y = from_bfloat16(to_bfloat16(x))
    assert np.all(np.abs(y - x) <= np.abs(x) * 2.0**-8 + 1e-40)
    np.testing.assert_array_equal(from_bfloat16(to_bfloat16(y)), y)


def test_numbers_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match="a weight has numbers that are too large for float16"):
        convert(np.array([1.0, 1e6]), np.float16, "a weight")
    with pytest.raises(ValueError, match="a has numbers that are too large for float32"):
        write_safetensors(tmp_path / "x", [("a", np.array([1e300]))], "bfloat16")
    for bits in (0x7F7F8000, 0x7F7FFFFF, 0xFF7F8000, 0xFF7FFFFF):  # finite, 3.396e38 and more
        a = np.array([0x3F800000, bits], np.uint32).view(np.float32)
        assert np.isfinite(a).all()
        for dtype in (np.float32, np.float64):
            with pytest.raises(ValueError, match="a has numbers that are too large for bfloat16"):
                write_safetensors(tmp_path / "x", [("a", a.astype(dtype))], "bfloat16")
    assert not list(tmp_path.iterdir())
    x = np.array([np.inf, np.nan, 1.0])
    np.testing.assert_array_equal(convert(x, np.float16), x)  # infinite before


# -------------------------------------------------------------------------------- hostile files

WRONG = {
    "empty": lambda p: p.write_bytes(b""),
    "seven bytes": lambda p: p.write_bytes(b"1234567"),
    "a header longer than the file": lambda p: raw(p, TWO, NUMBERS, length=1 << 20),
    "a header of 2^64 - 1 bytes": lambda p: raw(p, TWO, NUMBERS, length=2**64 - 1),
    "no JSON": lambda p: raw(p, b"{'a': 1}"),
    "half a header": lambda p: raw(p, json.dumps(TWO).encode()[:20]),
    "not UTF-8": lambda p: raw(p, b'{"\xff": 1}'),
    "a list": lambda p: raw(p, []),
    "deeply nested": lambda p: raw(p, b"[" * 100_000),
    "a number of 10,000 digits": lambda p: raw(p, b'{"a": ' + b"9" * 10_000 + b"}"),
    "a name twice": lambda p: raw(
        p, b'{"a":%s,"a":%s}' % ((json.dumps(TWO["a"]).encode(),) * 2), NUMBERS[:8]
    ),
    "an entry that is a number": lambda p: raw(p, {"a": 1}),
    "no shape": lambda p: raw(p, {"a": {"dtype": "F32", "data_offsets": [0, 8]}}, NUMBERS[:8]),
    "three offsets": lambda p: raw(
        p, {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}, NUMBERS[:8]
    ),
    "an unknown dtype": lambda p: raw(p, {"a": entry(0, 8, [2], "F33")}, NUMBERS[:8]),
    "a dtype that is a list": lambda p: raw(p, {"a": entry(0, 8, [2], [])}, NUMBERS[:8]),
    "a negative size": lambda p: raw(p, {"a": entry(0, 8, [-2])}, NUMBERS[:8]),
    "a size that is a float": lambda p: raw(p, {"a": entry(0, 8, [2.0])}, NUMBERS[:8]),
    "a size that is true": lambda p: raw(p, {"a": entry(0, 4, [True])}, NUMBERS[:4]),
    "a shape of 10,000 axes": lambda p: raw(p, {"a": entry(0, 4, [1] * 10_000)}, NUMBERS[:4]),
    "sizes that overflow": lambda p: raw(p, {"a": entry(0, 0, [1 << 32, 1 << 32])}),
    "a negative offset": lambda p: raw(p, {"a": entry(-8, 0, [2])}, NUMBERS[:8]),
    "an end before its begin": lambda p: raw(p, {"a": entry(8, 0, [2])}, NUMBERS[:8]),
    "an end beyond the file": lambda p: raw(p, {"a": entry(0, 8, [2])}, NUMBERS[:7]),
    "bytes that do not fit the shape": lambda p: raw(p, {"a": entry(0, 8, [3])}, NUMBERS[:8]),
    "overlapping tensors": lambda p: raw(
        p, {"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, NUMBERS[:12]
    ),
    "the same bytes twice": lambda p: raw(
        p, {"a": entry(0, 8, [2]), "b": entry(0, 8, [2])}, NUMBERS[:8]
    ),
    "a gap": lambda p: raw(p, {"a": entry(0, 8, [2]), "b": entry(12, 20, [2])}, NUMBERS[:20]),
    "bytes after the last tensor": lambda p: raw(p, {"a": entry(0, 8, [2])}, NUMBERS[:9]),
    "truncated": lambda p: raw(p, TWO, NUMBERS[:-1]),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, what):
    path = tmp_path / "bad.safetensors"
    WRONG[what](path)
    with pytest.raises(ValueError, match=r"bad\.safetensors") as error:
        SafetensorsFile(path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 10_000


def test_the_right_file_beside_them_is_read(tmp_path):
    """Else the refusals above would prove nothing."""
    file = SafetensorsFile(raw(tmp_path / "x", TWO, NUMBERS))
    np.testing.assert_array_equal(file["b"], np.arange(2, 8).reshape(3, 2))
    assert file["a"].shape == (2,)


@given(st.data())
def test_a_damaged_byte_never_gives_other_than_an_error_or_numbers(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged", numbered=True)
    path = raw(folder / "x", TWO, NUMBERS)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut] if data.draw(st.booleans()) else content)
    try:
        file = SafetensorsFile(path)
    except ValueError as error:
        sentence = str(error)
    else:
        sentence = ""
        for name, e in file.entries.items():
            if e.dtype in ("F64", "F32", "F16", "BF16"):
                assert file[name].shape == e.shape
    assert "\n" not in sentence


def test_a_dtype_that_no_weight_has(tmp_path):
    file = SafetensorsFile(raw(tmp_path / "x", {"a": entry(0, 8, [1], "I64")}, bytes(8)))
    with pytest.raises(ValueError, match="a has dtype I64, but weights must be one of F64, F32"):
        file["a"]


def test_arrays_that_can_not_be_written(tmp_path):
    with pytest.raises(ValueError, match="a has dtype int64, not one of float64"):
        write_safetensors(tmp_path / "x", [("a", np.arange(3))])
    with pytest.raises(ValueError, match="two tensors have the same name"):
        write_safetensors(tmp_path / "x", [("a", np.ones(3)), ("a", np.ones(3))])
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_safetensors(path, [("a", np.ones(3))])
    before = path.read_bytes()

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_safetensors(path, [("a", np.zeros(3))])
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x"]  # noqa: PTH208
