"""``npformer gradcheck``: its own cases, a reader's file, and every way to break one."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npformer import cli
from npformer.checking import suite
from npformer.cli import main
from npformer.cli.example_file import check_file

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "my_layer.py"


@pytest.fixture
def run(capsys):
    """Run the command in this process; return status, stdout and stderr."""

    def command(*argv):
        status = main([str(a) for a in argv])
        out, err = capsys.readouterr()
        return status, out, err

    return command


@pytest.fixture
def write(tmp_path):
    """Write a reader's file and return its path."""

    def file(text, name="my.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return file


def one_line(err):
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err.strip()


# ---------------------------------------------------------------------------- the package's cases


def test_a_few_cases(run):
    status, out, err = run("gradcheck", "--only", "softmax*")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["case", "tensor", "shape"]
    assert [line[:16].strip() for line in lines[1:3]] == ["softmax", "softmax, axis 1"]
    assert lines[-1] == "passed: 2 checks, 2 tensors"


def test_only_takes_a_word_too(run):
    _, out, _ = run("gradcheck", "--list", "--only", "cross")
    assert "MultiHeadAttention, cross" in out.splitlines()
    assert "cross_entropy" in out.splitlines()
    assert "softmax" not in out.splitlines()
    _, out, _ = run("gradcheck", "--list")
    assert out.splitlines() == list(suite.CASES)


@pytest.mark.parametrize("method", ["complex", "central", "direction"])
def test_methods(run, method):
    status, out, _ = run("gradcheck", "--only", "Linear*", "--method", method, "--json")
    assert status == 0
    record = json.loads(out)
    word = {"complex": "complex step", "central": "central", "direction": "random directions"}
    assert all(word[method] in one["method"] for one in record["checks"])
    tensors = [row["tensor"] for row in record["checks"][0]["rows"]]
    assert ("all together" in tensors) == (method == "direction")


def test_models_are_checked_along_directions_or_by_samples(run):
    _, out, _ = run("gradcheck", "--only", "DecoderLM.loss", "--json")
    (record,) = json.loads(out)["checks"]
    assert record["rows"][-1]["tensor"] == "all together"
    status, out, _ = run("gradcheck", "--only", "DecoderLM.loss", "--method", "central", "--json")
    (record,) = json.loads(out)["checks"]
    assert status == 0
    assert max(row["compared"] for row in record["rows"]) == 10
    _, out, _ = run("gradcheck", "--only", "rmsnorm", "--samples", 3, "--json")
    assert {r["compared"] for r in json.loads(out)["checks"][0]["rows"]} == {3}


def test_seeds(run):
    _, one, _ = run("gradcheck", "--only", "gate", "--csv")
    _, same, _ = run("gradcheck", "--only", "gate", "--csv", "--seed", 0)
    _, other, _ = run("gradcheck", "--only", "gate", "--csv", "--seed", 1)
    assert one == same != other


def test_files_of_results(run, tmp_path):
    out_dir = tmp_path / "new" / "results"
    status, out, _ = run("gradcheck", "--only", "gelu*", "--out", out_dir)
    assert status == 0
    assert sorted(p.name for p in out_dir.iterdir()) == [
        "gradcheck.csv",
        "gradcheck.json",
        "gradcheck.txt",
    ]
    assert (out_dir / "gradcheck.txt").read_text() == out
    record = json.loads((out_dir / "gradcheck.json").read_text())
    assert record["passed"] is True
    assert record["seed"] == 0
    rows = list(csv.DictReader(io.StringIO((out_dir / "gradcheck.csv").read_text())))
    assert [row["case"] for row in rows] == ["gelu", "gelu, tanh form"]
    assert {row["verdict"] for row in rows} == {"pass"}
    _, again, _ = run("gradcheck", "--only", "gelu*", "--json")
    assert json.loads(again) == record


def test_a_wrong_gradient_ends_with_status_1(run, monkeypatch):
    def example(rng):
        return (lambda x: (x * x, x), lambda dy, x: 3 * dy * x), (rng.standard_normal(3),), {}

    monkeypatch.setitem(suite.CASES, "gate", suite.Case("gate", "pair", example))
    status, out, _ = run("gradcheck", "--only", "gate")
    assert status == 1
    assert "gate: x: every number is wrong" in out
    assert "hint: every number is off by the same factor 1.5" in out
    assert out.splitlines()[-1] == "FAILED"
    status, out, _ = run("gradcheck", "--only", "g[ae]*")
    assert status == 1
    assert out.splitlines()[-1] == "FAILED: gate"
    status, out, _ = run("gradcheck", "--only", "gate", "--json")
    assert status == 1
    assert json.loads(out)["passed"] is False


# ------------------------------------------------------------------------------- a reader's file


def test_the_worked_example(run):
    status, out, err = run("gradcheck", EXAMPLE)
    assert (status, err) == (0, "")
    assert out.startswith("my_layer.py: UnitRows: complex step")
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["x", "gamma"]
    for method in ("central", "direction"):
        assert run("gradcheck", EXAMPLE, "--method", method, "--seed", 3)[0] == 0


FAULTS = {
    "factor": (
        ".sum(axis=0)",
        ".mean(axis=0)",
        "gamma: every number is wrong",
        "same factor 0.166667; that is 1 / (B T) with B T = 6",
    ),
    "sign": (
        "return dz * self.gamma.value",
        "return -dz * self.gamma.value",
        "x: every number is wrong",
        "the sign is wrong: everything else is right",
    ),
    "transposed": (
        "return dz * self.gamma.value",
        "return (dz * self.gamma.value).swapaxes(0, 1).reshape(x.shape)",
        "x: ",
        "transposed: axes 0 and 1 are swapped, and a reshape made the shape fit",
    ),
    "missing sum over the batch": (
        "(dz * x).reshape(-1, x.shape[-1]).sum(axis=0)",
        "(dz * x)[-1].sum(axis=0)",
        "gamma: every number is wrong",
        "index 1 (the last) of the output's axis 0 alone: the sum over the batch is missing",
    ),
    "missing term": (
        "r * (dy - y * np.sum(y * dy, axis=-1, keepdims=True))",
        "r * dy",
        "x: every number is wrong",
        "each row is off by a multiple of the output's row: the projection is missing",
    ),
    "overwritten": (
        "self.gamma.accumulate(dgamma)",
        "self.gamma.grad = dgamma",
        "gamma: the backward overwrites the parameter's gradient",
        "write accumulate(g) or grad += g",
    ),
    "forgotten": (
        "self.gamma.accumulate(dgamma)",
        "pass",
        "gamma: every number is wrong",
        "the backward never adds a gradient to this parameter",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_in_homework_are_explained(fault, run, write):
    right, wrong, finding, hint = FAULTS[fault]
    text = EXAMPLE.read_text(encoding="utf-8")
    assert text.count(right) == 1
    status, out, err = run("gradcheck", write(text.replace(right, wrong)))
    assert (status, err) == (1, "")
    assert f"my.py: UnitRows: {finding}" in out
    assert hint in out
    assert out.splitlines()[-1] == "FAILED"


PAIR = """
import numpy as np

def f(x, scale=1.0):
    return {y}, (x, scale)

def f_backward(dy, saved):
    x, scale = saved
    return {dx}

def example(rng):
    return {returned}
"""


def pair(y="scale * x * x", dx="2 * scale * dy * x", returned=""):
    returned = returned or "(f, f_backward), (rng.standard_normal((2, 3)),), {'scale': 0.5}"
    return PAIR.format(y=y, dx=dx, returned=returned)


def test_pairs_functions_and_options(run, write):
    assert run("gradcheck", write(pair()))[0] == 0
    assert run("gradcheck", write(pair(returned="f, (rng.standard_normal(3),)")))[0] == 0
    assert run("gradcheck", write(pair(returned="f, [rng.standard_normal(3), 2.5]")))[0] == 0
    status, out, _ = run("gradcheck", write(pair(dx="2 * dy * x")))
    assert status == 1
    assert "same factor 2; that is B with B = 2, or 1 / scale with scale = 0.5" in out


def test_several_files(run, write):
    right, wrong = write(pair(), "right.py"), write(pair(dx="dy * x * 3"), "wrong.py")
    status, out, _ = run("gradcheck", right, wrong)
    assert status == 1
    assert out.splitlines()[-1] == "FAILED: wrong.py: f"


def test_files_may_import_their_neighbours(run, write):
    write("def twice(x):\n    return 2 * x\n", "neighbour_of_my.py")
    before = list(sys.path)
    text = "from neighbour_of_my import twice\n" + pair(y="twice(x)", dx="twice(dy)")
    try:
        assert run("gradcheck", write(text))[0] == 0
    finally:
        sys.modules.pop("neighbour_of_my", None)
    assert sys.path == before


def test_a_changed_file_is_read_again(run, write, tmp_path):
    for dx, status in (("2 * scale * dy * x", 0), ("3 * scale * dy * x", 1)):
        assert run("gradcheck", write(pair(dx=dx)))[0] == status
    assert [p.name for p in tmp_path.iterdir()] == ["my.py"]  # no cache left beside it


def test_what_is_not_analytic_is_checked_by_differences(run, write):
    for y, dx in (
        ("np.abs(x)", "dy * np.sign(x)"),
        ("x.var(axis=-1)", "2 * dy[:, None] * (x - x.mean(-1, keepdims=True)) / 3"),
    ):
        path = write(pair(y=y, dx=dx))
        status, out, _ = run("gradcheck", path)
        assert status == 0
        assert "central differences" in out
        assert run("gradcheck", write(pair(y=y, dx=f"1.01 * ({dx})")))[0] == 1
    status, out, err = run("gradcheck", write(pair(y="np.abs(x)", dx="dy")), "--method", "complex")
    assert (status, out) == (2, "")
    assert 'use method="central"' in one_line(err)


BROKEN = {
    "syntax": ("def example(rng):\n    return (\n", r"my\.py, line 2: SyntaxError: '\(' was never"),
    "name": ("import numpy as np\nx = unknown\n", r"my\.py, line 2: NameError: name 'unknown'"),
    "import": ("import no_such_module\n", r"my\.py, line 1: ModuleNotFoundError: No module named"),
    "exit": ("import sys\nsys.exit('bye')\n", r"my\.py, line 2: SystemExit: bye"),
    "empty": ("", r"my\.py: the file must define a function example\(rng\)"),
    "no function": ("example = 3\n", r"must define a function example\(rng\)"),
    "no argument": (pair().replace("(rng):", "():"), r"example\(\) takes 0 positional arguments"),
    "raises": (pair(returned="1 / 0"), r"my\.py, line 12, in example: ZeroDivisionError: division"),
    "nothing": (pair(returned="None"), r"must return .* but it returned a NoneType"),
    "one value": (pair(returned="((f, f_backward),)"), r"must return .* but it returned 1 values"),
    "pair alone": (
        pair(returned="f, f_backward"),
        r"write the pair .* as \(\(f, f_backward\), inp",
    ),
    "array": (pair(returned="f, np.ones(3)"), r"inputs must be a tuple such as \(x,\), not an arr"),
    "options": (pair(returned="f, (np.ones(3),), 3"), r"options must be a dict of keywords, not a"),
    "thing": (pair(returned="3, (np.ones(3),)"), r"my\.py: .* was expected, but not a int"),
    "float32": (
        pair(returned="f, (np.ones(3, np.float32),)"),
        r"my\.py: .*x is float32, but a gradient check needs float64 inputs",
    ),
    "integer": (
        pair(returned="f, (np.arange(3),)"),
        r"x is int64, but a gradient check needs float64",
    ),
    "forward": (
        pair(y="x @ x"),
        r"my\.py, line 5, in f: ValueError: matmul: .*mismatch",
    ),
    "backward": (
        pair(dx="(dy * x)[7]"),
        r"my\.py, line 9, in f_backward: IndexError: index 7 is out of bounds",
    ),
    "deep": (
        pair(dx="np.linalg.solve(dy, dy)"),
        r"my\.py, line 9, in f_backward: LinAlgError: ",
    ),
    "writes": (
        pair(dx="dy.__imul__(2)"),
        r"my\.py, line 9, in f_backward: the backward of f writes into an array that it was given",
    ),
    "count": (pair(dx="dy, dy"), r"my\.py: the backward of f must return one gradient for each"),
    "nan": (pair(returned="f, (np.full(3, np.nan),)"), r"my\.py: x holds nan at \[0\]"),
    "long": (pair(returned="{}['a\\n\\nb']"), r"in example: KeyError: 'a\\n\\nb'$"),
    "several lines": (
        "raise ValueError('one\\ntwo\\n\\nthree')\n",
        r"my\.py, line 1: ValueError: one two three",
    ),
    "own": (
        "class E(Exception):\n    pass\n\nraise E\n",
        r"my\.py, line 4: E$",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_files_end_with_status_2_and_one_line(fault, run, write):
    text, words = BROKEN[fault]
    status, out, err = run("gradcheck", write(text))
    assert (status, out) == (2, "")
    line = one_line(err)
    assert line.startswith("npformer: ")
    assert re.search(words, line), line


def test_files_that_are_no_python(run, tmp_path):
    for name, content in (("a.py", b"\xff\xfe\x00"), ("b.py", b"# coding: nonsense\n")):
        (tmp_path / name).write_bytes(content)
        status, _, err = run("gradcheck", tmp_path / name)
        assert status == 2
        assert name in one_line(err)
    status, _, err = run("gradcheck", tmp_path / "missing.py")
    assert status == 2
    assert one_line(err).endswith("missing.py: No such file or directory")
    status, _, err = run("gradcheck", tmp_path)
    assert status == 2
    assert "Is a directory" in one_line(err)


def test_warnings_of_numpy_are_not_printed(run, write):
    status, out, err = run("gradcheck", write(pair(y="x / (x * 0)", dx="dy")))
    assert (status, err) == (1, "")
    assert "the output holds" in out


def test_check_file_gives_a_report(write):
    report = check_file(str(write(pair())), seed=5)
    assert report.passed
    assert report.name == "my.py: f"


# --------------------------------------------------------------------------------------- the frame


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "the following arguments are required: VERB"),
        (("nonsense",), "invalid choice: 'nonsense'"),
        (("gradcheck", "--method", "magic"), "invalid choice: 'magic'"),
        (("gradcheck", "--only", "zzz"), "no case matches 'zzz'"),
        (("gradcheck", "--seed", "-1"), "--seed must be 0 or more, but is -1"),
        (("gradcheck", "--seed", "x"), "invalid int value: 'x'"),
        (("gradcheck", "--samples", "0", "--only", "gate"), "samples must be 1 or more, but is 0"),
        (("gradcheck", "--json", "--csv"), "not allowed with argument"),
        (("gradcheck", "--colour"), "unrecognized arguments: --colour (see npformer gradcheck"),
        (("gradcheck", "--jsson=1"), "--jsson=1, did you mean --json? (see npformer gradcheck"),
        (("gradcheck", "my.py", "--only", "gate"), "--only and --list choose among"),
    ],
)
def test_usage_errors(run, argv, words):
    status, out, err = run(*argv)
    assert (status, out) == (2, "")
    assert words in one_line(err)


def test_a_folder_that_can_not_be_made(run, tmp_path):
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        status, out, err = run("gradcheck", "--only", "gate", "--out", target)
        assert (status, out) == (2, "")
        assert str(target) in one_line(err)


@pytest.mark.parametrize("argv", [("--help",), ("gradcheck", "--help")])
def test_help(run, argv):
    status, out, err = run(*argv)
    assert (status, err) == (0, "")
    assert "examples:" in out
    assert "npformer gradcheck" in out


def test_version(run):
    import npformer

    assert run("--version") == (0, f"npformer {npformer.__version__}\n", "")


def test_interrupted(run, monkeypatch):
    def example(rng):
        raise KeyboardInterrupt

    monkeypatch.setitem(suite.CASES, "gate", suite.Case("gate", "pair", example))
    status, _, err = run("gradcheck", "--only", "gate")
    assert status == 130
    assert one_line(err) == "npformer: interrupted"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "there is not enough memory for this"),
        (OSError("disk on fire"), "disk on fire"),
        (ImportError("no module called x"), "no module called x"),
        (ValueError("two\nlines"), "two lines"),
        (ValueError(), "ValueError"),
    ],
)
def test_errors_are_one_line(run, monkeypatch, error, words):
    def example(rng):
        raise error

    monkeypatch.setitem(suite.CASES, "gate", suite.Case("gate", "pair", example))
    status, _, err = run("gradcheck", "--only", "gate")
    assert status == 2
    assert one_line(err) == f"npformer: {words}"


def test_mistakes_of_ours_are_not_hidden(run, monkeypatch):
    def example(rng):
        raise AssertionError("a bug")

    monkeypatch.setitem(suite.CASES, "gate", suite.Case("gate", "pair", example))
    with pytest.raises(AssertionError, match="a bug"):
        run("gradcheck", "--only", "gate")


def test_every_verb_says_what_it_is(run):
    _, out, _ = run("--help")
    for verb in cli.VERBS:
        assert f"\n    {verb} " in out.replace("\n\n", "\n") or f"    {verb}\n" in out
        assert run(verb, "--help")[0] == 0


# -------------------------------------------------------------------------- as a real process


def process(*argv, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "npformer", *map(str, argv)],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        **options,
    )


def test_the_module_runs(tmp_path):
    done = process("gradcheck", "--only", "relu", "--out", "results", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")  # no progress bar without a terminal
    assert done.stdout.splitlines()[-1].startswith("passed: ")
    assert (tmp_path / "results" / "gradcheck.csv").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs a pipe that breaks")
def test_a_reader_that_goes_away():
    script = (
        f"{sys.executable} -m npformer gradcheck --list 2>errors | true; "
        "echo ${PIPESTATUS[0]}; cat errors; rm errors"
    )
    script = f"cd $(mktemp -d); {script}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        ["bash", "-c", script], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout in ("141\n", "0\n")  # 0 where it was done before its reader left


def test_help_is_quick_to_load():
    """No plots, no SciPy and no checker for a page of text."""
    script = (
        "import sys; from npformer.cli import main; main(['--help']);"
        "heavy = {'matplotlib', 'scipy', 'npformer.checking', 'tqdm'} & set(sys.modules);"
        "sys.exit(', '.join(heavy) or 0)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_reports_do_not_depend_on_the_day(write):
    path = str(write(pair()))
    one, two = (check_file(path, seed=1) for _ in range(2))
    assert one == two
    assert not np.isnan(one.max_rel_error)
