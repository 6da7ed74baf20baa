"""Options of the command line and of TOML files, made from the fields of a dataclass."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from typing import Any


def add_fields(
    parser: Any,
    kind: Any,
    *,
    without: Iterable[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> None:
    """Add an option for each field, with the help of the class's own docstring.

    An option that is not given leaves no trace in the namespace, so that a file may say it. The
    help tells the field's default, or the one in ``defaults`` that a command puts in its place.
    """
    given_here = defaults or {}
    texts = documented(kind)
    for field in fields(kind):
        if field.name in without:
            continue
        option = "--" + field.name.replace("_", "-")
        common: dict[str, Any] = {
            "dest": field.name,
            "default": argparse.SUPPRESS,
            "help": (
                texts.get(field.name, "") + _default(given_here.get(field.name, field.default))
            ).replace("%", "%%"),
        }
        if field.type == "bool":
            parser.add_argument(option, action=argparse.BooleanOptionalAction, **common)
        else:
            parser.add_argument(option, type=reader(field), metavar=metavar(field), **common)


def _default(value: Any) -> str:
    """Say what is taken where an option is not given; None is told by the field's own text."""
    if value is None or value is MISSING:
        return ""
    if isinstance(value, bool):
        word = "yes" if value else "no"
    elif isinstance(value, tuple):
        word = ",".join(map(str, value))
    else:
        word = str(value)
    return f" (default: {word or 'none'})"


def given(args: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """Return what of the fields was given on the command line."""
    return {f.name: getattr(args, f.name) for f in fields(kind) if hasattr(args, f.name)}


def check_names(table: dict[str, Any], known: Iterable[str], where: str) -> None:
    """Raise ValueError where a table has a name that is not known."""
    known = list(known)
    for name in table:
        if name not in known:
            alike = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f", did you mean {alike[0]}?" if alike else ""
            raise ValueError(f"{where} has {name!r}, which is no option{hint}")


def reader(field: Field[Any]) -> Any:
    """Return what turns a word of the command line into a value of the field."""
    kinds = [part.strip() for part in str(field.type).split("|")]

    def read(word: str) -> Any:
        if word == "none" and "None" in kinds:
            return None
        if any(kind.startswith("dict") for kind in kinds):
            return json.loads(word)
        several = any(kind.startswith("tuple") for kind in kinds)
        if several and ("," in word or kinds[0].startswith("tuple")):
            return tuple(one(part) for part in word.split(",") if part)
        return one(word)

    def one(word: str) -> Any:
        words = re.findall(r"int|float|str|bool|None", str(field.type))
        if word == "none" and "None" in words:
            return None
        if "bool" in words:
            return {"yes": True, "no": False}[word]
        for name, kind in (("int", int), ("float", float), ("str", str)):
            if name in words:
                return kind(word)
        raise ValueError(word)

    def said(word: str) -> Any:
        try:
            return read(word)
        except (ValueError, KeyError):
            raise argparse.ArgumentTypeError(f"must be {metavar(field)} and not {word!r}") from None

    return said


def metavar(field: Field[Any]) -> str:
    """Return a name for a field's value."""
    kind = str(field.type)
    if kind.startswith("tuple"):
        return "NAME,..."
    if "dict" in kind:
        return "JSON"
    if "bool" in kind:
        return "yes|no"
    word = {"int": "N", "float": "X", "str": "NAME"}[re.findall(r"int|float|str", kind)[0]]
    return f"{word}[,{word},...]" if "tuple" in kind else word


def documented(kind: Any) -> dict[str, str]:
    """Return the description of each attribute from a numpydoc docstring."""
    text = (kind.__doc__ or "").partition("Attributes\n")[2]
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in text.splitlines()[1:]:
        if match := re.match(r"    ([A-Za-z_0-9]+(?:, [A-Za-z_0-9]+)*)(?: : .*)?$", line):
            names = match[1].split(", ")
            choices = re.search(r"\{(.*)\}", line)
            for name in names:
                found[name] = [f"one of {choices[1]}:".replace('"', "")] if choices else []
        elif line.startswith("        "):
            for name in names:
                found[name].append(line.strip().replace("`", ""))
        elif line.strip():
            names = []
    return {name: " ".join(lines).removesuffix(":") for name, lines in found.items()}
