"""Columns in a terminal, where a Chinese character is two wide; and where lines may break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npformer.labels import pad, table, width, wrap


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("abc", 3), ("残差", 4), ("e\u0301", 1), ("（L）", 5), ("±−", 2), ("Ａ", 2)],
)
def test_width(text: str, columns: int):
    assert width(text) == columns


@given(st.lists(st.lists(st.text("ab残层。", max_size=6), min_size=3, max_size=3), max_size=5))
def test_the_columns_of_a_table_are_aligned(rows: list[list[str]]):
    lines = table(["a", "层", "b"], rows, "<><").split("\n")
    rule = lines[1]
    edge = rule.index("  ", rule.index("  ") + 2)
    for cells, line in zip([["a", "层", "b"], *rows], [lines[0], *lines[2:]], strict=True):
        # The middle column ends where its rule ends, for any mixture of wide and narrow.
        before = line.rstrip()[: len(line.rstrip()) - len(cells[2])] if cells[2] else line
        if cells[1]:
            assert width(before.rstrip()) == edge


def test_pad():
    assert pad("层", 4) + "|" == "层  |"
    assert pad("层", 4, ">") == "  层"
    assert pad("too long", 3) == "too long"


@given(st.text("ab 残层，。（）$", max_size=60), st.integers(2, 30))
def test_wrapping_loses_nothing_but_blanks(text: str, columns: int):
    lines = wrap(text, columns)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(line == line.rstrip() for line in lines)


def test_lines_are_as_long_as_they_may_be():
    assert wrap("残差主干不做归一化", 8) == ["残差主干", "不做归一", "化"]
    assert wrap("残差主干，", 8) == ["残差主", "干，"]
    assert wrap("见（残差）", 4) == ["见", "（残", "差）"]
    assert wrap("norm of a row", 7) == ["norm of", "a row"]
    assert wrap("层 norm层", 4) == ["层", "norm", "层"]
    assert wrap("", 5) == []


def test_a_formula_stays_in_one_piece_and_counts_as_printed():
    assert wrap("see $d = 256$, here", 6) == ["see", "$d = 256$,", "here"]
    assert wrap(r"$\sqrt{d}$ and $\sqrt{n}$", 8) == [r"$\sqrt{d}$ and", r"$\sqrt{n}$"]
