"""``npformer experiment``: what it prints, writes and refuses."""

import csv
import json

import pytest

from npformer.cli import main

VERB = ["experiment", "attention-traffic", "--N", "256", "--d", "4"]


def test_the_table_ends_with_the_exponents(capsys):
    assert main(VERB) == 0
    out = capsys.readouterr().out
    assert out.startswith("schedule")
    assert "theorem 2" in out
    exponents = {line.split()[0]: float(line.split()[-1]) for line in out.splitlines()[-4:]}
    assert exponents["standard"] == 0
    assert abs(exponents["flash-1"] + 1) < 0.1


def test_json_and_files_hold_the_same_numbers(capsys, tmp_path):
    assert main([*VERB, "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    with (tmp_path / "attention_traffic.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(r["total"]) for r in rows] == [r["total"] for r in found["rows"]]
    assert all(r["total"] == r["reads"] + r["writes"] for r in found["rows"])
    assert (tmp_path / "attention_traffic.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "attention_traffic.svg").read_bytes()


def test_the_backward_pass_moves_more(capsys):
    totals = []
    for options in ([], ["--backward"]):
        main([*VERB, "--json", *options])
        totals.append(json.loads(capsys.readouterr().out)["rows"][0]["total"])
    assert totals[1] > totals[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--N", "100"], "--N must be 128 or more"),
        (["--N", "100000"], "at most 4096"),
        (["--d", "0"], "--d 1 or more"),
        (["--N", "many"], "invalid int value"),
        (["--lang", "fr"], "invalid choice"),
    ],
)
def test_one_line_for_bad_input(options, words, capsys):
    assert main([*VERB, *options]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_an_unknown_experiment_is_one_line(capsys):
    assert main(["experiment", "perpetual-motion"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
