"""Text in columns: tables and captions in which a Chinese character is two columns wide."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

LANGUAGES = ("en", "zh")

_CLOSING = "，。；：、？！）》」』】”’%"  # must not begin a line
_OPENING = "（《「『【“‘"  # must not end one
_WIDE = r"\u2e80-\u9fff\uff00-\uffef"
_PIECE = re.compile(rf"\$[^$]*\$|[^\s{_WIDE}$]+|[{_WIDE}]|\s+|\$")


def width(text: str) -> int:
    """Return how many columns a terminal gives to ``text``.

    >>> width("LN"), width("层归一化"), width("é")
    (2, 8, 1)
    """
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def pad(text: str, columns: int, align: str = "<") -> str:
    """Fill ``text`` up with spaces, on the right ("<") or on the left (">")."""
    blank = " " * max(0, columns - width(text))
    return blank + text if align == ">" else text + blank


def table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Return lines of aligned columns below a header and a rule.

    Parameters
    ----------
    header : sequence of str
    rows : sequence of sequences of str
        As long as the header.
    align : str
        "<" or ">" for each column.

    Examples
    --------
    >>> print(table(["层", "norm"], [["1", "0.5"], ["12", "0.25"]], "<>"))
    层  norm
    --  ----
    1    0.5
    12  0.25
    """
    columns = [max(width(row[j]) for row in [header, *rows]) for j in range(len(header))]
    rule = ["-" * n for n in columns]
    return "\n".join(
        "  ".join(pad(c, n, a) for c, n, a in zip(row, columns, align, strict=True)).rstrip()
        for row in [header, rule, *rows]
    )


def wrap(text: str, columns: int) -> list[str]:
    """Break ``text`` into lines of at most ``columns``, formulas between ``$`` in one piece.

    Chinese may break anywhere except before closing and after opening marks. A formula counts as
    wide as it is likely to print.

    >>> wrap("one two three", 8)
    ['one two', 'three']
    >>> wrap("残差，归一化。", 6)
    ['残差，', '归一', '化。']
    """
    lines, line = [], ""
    for piece in _pieces(text):
        if line and _printed(line + piece.rstrip()) > columns:
            lines.append(line.rstrip())
            line = ""
        line += piece if line else piece.lstrip()
    return [*lines, line.rstrip()] if line.strip() else lines


def _pieces(text: str) -> list[str]:
    """Cut where a line may break."""
    pieces: list[str] = []
    for piece in _PIECE.findall(text):
        joined = pieces and not pieces[-1].isspace() and not piece.isspace()
        glued = joined and (
            piece[0] in _CLOSING
            or pieces[-1][-1] in _OPENING
            or not (width(piece[0]) == 2 or width(pieces[-1][-1]) == 2)
        )
        if glued:
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return pieces


def _printed(text: str) -> int:
    def formula(match: re.Match[str]) -> str:
        symbols = re.sub(r"\\(?:mathrm|mathcal|left|right|,)", "", match[1])
        return re.sub(r"[{}_^\\]", "", re.sub(r"\\[a-zA-Z]+", "x", symbols))

    return width(re.sub(r"\$([^$]*)\$", formula, text))
