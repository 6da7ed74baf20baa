"""What holds the project together: its metadata, its documents, and rules that no linter knows."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import cases
import pytest

import npformer as nf
from npformer import functional as F

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "npformer"
MODULES = sorted(PACKAGE.rglob("*.py"))


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


# ----------------------------------------------------------------------------- the documents


def readme_command(name):
    """The command below a marker of README.md, as ``.ci/run`` reads it."""
    lines = rf"^<!-- command: {name} -->\n```\w*\n(.*?)```$"
    found = re.search(lines, text("README.md"), re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no command below <!-- command: {name} -->"
    return found[1].strip()


@pytest.mark.parametrize("name", ["curves", "test"])
def test_readme_commands_do_their_own_set_up_in_one_line(name):
    command = readme_command(name)
    assert "\n" not in command
    steps = command.split(" && ")
    assert steps[0] == "python3 -m venv .venv"
    assert steps[1].startswith(".venv/bin/pip install ")
    assert all(".venv/bin/" in step for step in steps[1:])
    if name == "test":
        assert "[test]" in steps[1]
        assert "OPENBLAS_NUM_THREADS=1" in steps[-1]
        assert "pytest" in steps[-1]
    else:
        assert "npformer curves --out " in steps[-1]


def test_ci_script_is_sound_and_reads_the_same_commands():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    body = script.read_text(encoding="utf-8")
    function = re.search(r"^readme_command\(\).*?^}", body, re.MULTILINE | re.DOTALL)[0]
    for name in ("curves", "test"):
        out = subprocess.run(
            ["bash", "-c", f"{function}\nreadme_command {name}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert out.strip() == readme_command(name)


def test_one_version():
    project = tomllib.loads(text("pyproject.toml"))
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "npformer/__init__.py"
    assert re.fullmatch(r"\d+\.\d+\.\d+", nf.__version__)
    assert "version:" not in text("CITATION.cff").replace("cff-version:", "")


def test_changelog_is_kept():
    sections = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", text("CHANGELOG.md"), re.MULTILINE)
    assert sections, "CHANGELOG.md has no sections"
    released = [name for name, _ in sections if name != "Unreleased"]
    assert [n for n, _ in sections] == ["Unreleased"] * (len(sections) - len(released)) + released
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", d) for n, d in sections if n != "Unreleased")
    assert not released or released[0] == nf.__version__
    kinds = re.findall(r"^### (.+)$", text("CHANGELOG.md"), re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_licence():
    licence = text("LICENSE")
    assert licence.startswith("MIT License\n\nCopyright (c) 2026 npformer contributors\n")
    assert tomllib.loads(text("pyproject.toml"))["project"]["license"] == "MIT"
    assert "license: MIT" in text("CITATION.cff")
    assert (PACKAGE / "py.typed").exists()


# ------------------------------------------------------------------------------- the code


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_are_read_in_one_sitting(path):
    source = path.read_text(encoding="utf-8")
    assert source.count("\n") <= 400
    if path.name != "__main__.py" and source.strip():
        assert ast.get_docstring(ast.parse(source)), "a file says what it is about"


BACKWARDS = sorted(name for name in F.__all__ if name.endswith("_backward"))


def test_every_backward_has_its_forward():
    assert len(BACKWARDS) > 15
    for name in BACKWARDS:
        assert name.removesuffix("_backward") in F.__all__


@pytest.mark.parametrize("name", BACKWARDS)
def test_pairs_are_formula_shapes_and_derivation(name):
    forward, backward = (getattr(F, n) for n in (name.removesuffix("_backward"), name))
    for f in (forward, backward):
        assert f.__doc__, f
        assert ":math:" in f.__doc__ or ".. math::" in f.__doc__ or "``" in f.__doc__, f
    assert "Gradient of" in backward.__doc__
    assert list(inspect.signature(backward).parameters)[1:] == ["saved"]
    assert next(iter(inspect.signature(backward).parameters)).startswith("d")


def test_saved_values_are_named_tuples():
    for name in BACKWARDS:
        hint = inspect.signature(getattr(F, name.removesuffix("_backward"))).return_annotation
        kind = re.search(r"(\w+Saved)\]$", hint)
        assert kind, f"{name.removesuffix('_backward')} returns {hint}"


def test_public_classes_have_docstrings():
    for name, thing in vars(nf).items():
        if not name.startswith("_") and inspect.isclass(thing):
            assert thing.__doc__, name


def test_no_module_bears_the_name_of_a_public_function():
    modules = {p.stem for p in PACKAGE.glob("*.py")} | {p.name for p in PACKAGE.iterdir()}
    for name in dir(nf):
        if name.startswith("_") or name not in modules:
            continue
        assert not inspect.isroutine(getattr(nf, name)), name


def test_import_is_light_and_quiet():
    """Reading a model needs NumPy only; figures, SciPy and the checker come when asked for."""
    code = (
        "import sys, npformer; from npformer import functional;"
        "print(*sorted({m.split('.')[0] for m in sys.modules}"
        "      & {'scipy', 'matplotlib', 'tqdm', 'torch', 'threadpoolctl', 'pytest'}))"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == ""
    assert run.stderr == ""


# ------------------------------------------------------------------------------- the cases

WAITING = {
    # Cases of parts of the package that have no tests yet.
    *("C01", "C03", "G01", "G02", "O02", "O06", "R02", "R05"),
}


def test_every_case_is_tested():
    sources = " ".join(p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    unused = {name for name in cases.names() if f'case("{name}")' not in sources}
    assert unused <= WAITING | {"K04"}  # K04 is a list of properties, each with its own test


def test_cases_say_where_they_come_from():
    assert len(cases.names()) == 43
    for name in cases.names():
        record = cases.case(name)
        assert record.keys() <= {"kind", "references", "input", "right", "wrong"}
        assert record["kind"]
        for reference in record["references"]:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", reference), reference
