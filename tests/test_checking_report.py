"""The report as text, JSON and CSV, and the hints of a failed check."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

from npformer import functional as F
from npformer.checking import check, gradcheck


def square(x):
    return x * x, x


def square_backward(dy, x):
    return 2 * dy * x


# ------------------------------------------------------------------------------------ the report


def failing(rng):
    def wrong(dy, s):
        dx, dW, db = F.linear_backward(dy, s)
        dW[1, 2] = np.nan
        return dx, dW, 2.5 * db

    inputs = (rng.standard_normal(s) for s in ((2, 3, 5), (5, 7), (7,)))
    return gradcheck((F.linear, wrong), *inputs)


def test_json(rng):
    record = json.loads(failing(rng).to_json(), parse_constant=pytest.fail)
    assert record["passed"] is False
    assert record["max_rel_error"] == "nan"
    assert record["tolerance"] == 1e-10
    assert [row["tensor"] for row in record["rows"]] == ["x", "W", "b"]
    assert [row["verdict"] for row in record["rows"]] == ["pass", "not finite", "fail"]
    assert record["rows"][1]["worst_index"] == [1, 2]
    assert record["rows"][1]["analytic"] == "nan"
    assert record["rows"][2]["analytic"] == pytest.approx(2.5 * record["rows"][2]["numeric"])


def test_csv(rng):
    rows = list(csv.DictReader(io.StringIO(failing(rng).to_csv())))
    assert [row["tensor"] for row in rows] == ["x", "W", "b"]
    assert [row["passed"] for row in rows] == ["True", "False", "False"]
    assert rows[0]["shape"] == "2 3 5"
    assert rows[1]["worst_index"] == "1 2"
    assert float(rows[2]["max_rel"]) == pytest.approx(0.6)
    assert "factor 2.5" in rows[2]["notes"]
    needed = "tensor shape max_abs max_rel worst_index analytic numeric bad_share verdict"
    assert set(needed.split()) <= set(rows[0])


def test_text(rng):
    lines = str(failing(rng)).splitlines()
    assert lines[0] == "linear: complex step 1e-30, tolerance 1e-10"
    assert lines[1].split()[:2] == ["tensor", "shape"]
    ends = {
        line.index(word) for line, word in zip(lines[2:5], ("pass", "not", "fail"), strict=True)
    }
    assert ends == {lines[1].index("verdict")}
    assert lines[-1] == "FAILED"
    passed = str(gradcheck(square, rng.standard_normal(3)))
    assert "passed: largest relative error" in passed.splitlines()[-1]


# ------------------------------------------------------------------------------------- the hints


def linear_fault(change):
    def wrong(dy, s):
        return change(dy, s, *F.linear_backward(dy, s))

    return (F.linear, wrong), ((2, 3, 5), (5, 7), (7,))


def norm_fault(change):
    def wrong(dy, s):
        return change(dy, s, *F.layernorm_backward(dy, s))

    return (F.layernorm, wrong), ((3, 5, 7), (7,), (7,))


def softmax_fault(change):
    return (F.softmax, change), ((3, 5, 7),)


def attention_fault(change):
    def wrong(dy, s):
        return change(dy, s, *F.attention_backward(dy, s))

    return (F.attention, wrong), ((2, 3, 5, 7), (2, 3, 4, 7), (2, 3, 4, 7))


HINTS = {
    "factor B": (
        linear_fault(lambda dy, s, dx, dW, db: (dx, dW / 2, db)),
        "W",
        "same factor 0.5; that is 1 / B with B = 2",
    ),
    "factor B T": (
        linear_fault(lambda dy, s, dx, dW, db: (dx, dW, db / 6)),
        "b",
        "that is 1 / (B T) with B T = 6",
    ),
    "factor T": (
        norm_fault(lambda dy, s, dx, dg, db: (dx, 5 * dg, db)),
        "gamma",
        "same factor 5; that is T with T = 5",
    ),
    "factor sqrt(d_h)": (
        attention_fault(lambda dy, s, dq, dk, dv: (dq * 7**0.5, dk, dv)),
        "q",
        "that is sqrt(d_h) with d_h = 7",
    ),
    "factor 1 / sqrt(d_h)": (
        attention_fault(lambda dy, s, dq, dk, dv: (dq, -dk / 7**0.5, dv)),
        "k",
        "0.377964 and has the wrong sign; that is 1 / sqrt(d_h) with d_h = 7",
    ),
    "factor d - 1": (
        norm_fault(lambda dy, s, dx, dg, db: (dx * 6 / 7, dg, db)),
        "x",
        "that is (d - 1) / d with d = 7",
    ),
    "some factor": (
        norm_fault(lambda dy, s, dx, dg, db: (1.037 * dx, dg, db)),
        "x",
        "off by the same factor 1.037",
    ),
    "sign": (
        norm_fault(lambda dy, s, dx, dg, db: (-dx, dg, db)),
        "x",
        "the sign is wrong: everything else is right",
    ),
    "transposed": (
        attention_fault(lambda dy, s, dq, dk, dv: (dq, dk.swapaxes(2, 3).reshape(dk.shape), dv)),
        "k",
        "transposed: axes 2 and 3 are swapped, and a reshape made the shape fit",
    ),
    "heads and positions": (
        attention_fault(lambda dy, s, dq, dk, dv: (dq, dk, dv.swapaxes(1, 2).reshape(dv.shape))),
        "v",
        "transposed: axes 1 and 2 are swapped",
    ),
    "flipped": (
        norm_fault(lambda dy, s, dx, dg, db: (dx, dg[::-1], db)),
        "gamma",
        "right but in the wrong places",
    ),
    "one row of the batch": (
        linear_fault(lambda dy, s, dx, dW, db: (dx, s.x[0].T @ dy[0], db)),
        "W",
        "it comes from index 0 of the output's axis 0 alone: the sum over the batch is missing",
    ),
    "last row of the batch": (
        linear_fault(lambda dy, s, dx, dW, db: (dx, s.x[-1].T @ dy[-1], db)),
        "W",
        "it comes from index 1 (the last) of the output's axis 0 alone",
    ),
    "last position": (
        linear_fault(lambda dy, s, dx, dW, db: (dx, s.x[:, -1].T @ dy[:, -1], db)),
        "W",
        "index 2 (the last) of the output's axis 1 alone: the sum over the positions is missing",
    ),
    "no sum at all": (
        linear_fault(lambda dy, s, dx, dW, db: (dx, dW, dy)),
        "b",
        "the sum over the batch is missing: .sum(axis=(0, 1)) gives the right gradient",
    ),
    "no sum, and a factor": (
        linear_fault(lambda dy, s, dx, dW, db: (dx, dW, 3 * dy)),
        "b",
        "the sum over the batch is missing: .sum(axis=(0, 1)) gives the right shape",
    ),
    "wrong way round": (
        linear_fault(lambda dy, s, dx, dW, db: (dx, dW.T, db)),
        "W",
        "it is transposed: its transpose is right",
    ),
    "kept axis": (
        linear_fault(lambda dy, s, dx, dW, db: (dx, dW.reshape(5, 1, 7), db)),
        "W",
        "the numbers are right: reshape it to (5, 7)",
    ),
    "swapped": (
        norm_fault(lambda dy, s, dx, dg, db: (dx, db, dg)),
        "beta",
        "it is the gradient of gamma: two gradients are swapped",
    ),
    "passed through": (
        softmax_fault(lambda dy, s: dy.copy()),
        "x",
        "the incoming gradient is passed on unchanged",
    ),
    "no projection": (
        softmax_fault(lambda dy, s: s.p * dy),
        "x",
        "off by a multiple of the output's row: the projection is missing",
    ),
    "no mean": (
        norm_fault(
            lambda dy, s, dx, dg, db: (dx + s.r * (dy * s.gamma).mean(-1, keepdims=True), dg, db)
        ),
        "x",
        "off by a constant: a term with a mean",
    ),
    "no mean, no variance": (
        norm_fault(lambda dy, s, dx, dg, db: (s.r * dy * s.gamma, dg, db)),
        "x",
        "the terms through mean and variance are missing",
    ),
    "zero": (
        norm_fault(lambda dy, s, dx, dg, db: (dx, 0 * dg, db)),
        "gamma",
        "the backward's gradient is zero everywhere",
    ),
    "only the last": (
        norm_fault(lambda dy, s, dx, dg, db: (np.where(np.arange(7) == 6, 0, dx), dg, db)),
        "x",
        "only numbers with index 6 (the last) on axis 2 are wrong",
    ),
    "float32": (
        norm_fault(lambda dy, s, dx, dg, db: (dx.astype(np.float32), dg, db)),
        "x",
        "the gradient is float32 though everything given was float64",
    ),
}


@pytest.mark.parametrize("fault", HINTS)
def test_hints(fault, rng):
    (pair, shapes), tensor, words = HINTS[fault]
    report = gradcheck(pair, *(rng.standard_normal(shape) for shape in shapes))
    assert not report.passed
    wrong = [row for row in report.rows if not row.passed]
    assert tensor in [row.tensor for row in wrong]
    row = next(row for row in wrong if row.tensor == tensor)
    assert words in " | ".join(row.notes)
    assert words in str(report)
    if row.verdict == "fail":
        assert f"at {list(row.worst_index)} the backward gives {row.analytic:.8g}" in row.notes[0]
        assert f"the forward's slope is {row.numeric:.8g}" in row.notes[0]


def test_hint_of_a_mean_square_layer(rng):
    """x / rms(x) without the term through the rms, with a gain."""

    def wrong(dy, s):
        return dy * s.gamma * s.r, F.rmsnorm_backward(dy, s)[1]

    report = gradcheck((F.rmsnorm, wrong), rng.standard_normal((3, 7)), rng.standard_normal(7))
    assert "the term through the row's length (rms, norm) is missing" in str(report)


def test_hint_of_repeated_ids(rng):
    def wrong(dy, saved):
        dE = np.zeros((saved.V, dy.shape[-1]))
        dE[saved.ids] += dy
        return dE

    ids = np.array([[3, 2, 2], [1, 2, 0]])
    report = gradcheck((F.embedding, wrong), ids, rng.standard_normal((4, 3)))
    assert "with repeated indices g[ids] += d keeps one of them" in str(report)


def test_hint_of_a_forgotten_gain(rng):
    def f(x, gamma):
        return np.tanh(x) * gamma, (x, gamma)

    def wrong(dy, s, power):
        t = np.tanh(s[0])
        return dy * (1 - t * t) * s[1] ** power, (dy * t).reshape(-1, 7).sum(0)

    x, gamma = rng.standard_normal((2, 3, 7)), rng.standard_normal(7)
    for power, words in ((0, "a factor gamma is missing"), (2, "one factor gamma too many")):
        report = gradcheck((f, lambda dy, s, p=power: wrong(dy, s, p)), x, gamma)
        assert words in str(report)


def test_hint_of_dropout_scaled_the_wrong_way(rng):
    def wrong(dy, saved):
        return dy * saved.keep * (1 - saved.p)

    report = check((F.dropout, wrong), (rng.standard_normal((5, 7)),), {"p": 0.25, "rng": 1})
    assert "same factor 0.5625" in str(report)
    report = check(
        (F.dropout, lambda dy, s: dy * s.keep),
        (rng.standard_normal((5, 7)),),
        {"p": 0.25, "rng": 1},
    )
    assert "1 - p with p = 0.25" in str(report)


def test_hint_of_a_direction(rng):
    report = gradcheck((square, lambda dy, x: -2 * dy * x), np.ones(3), method="direction")
    assert "the sign is wrong" in str(report)
    report = gradcheck((square, lambda dy, x: 0 * dy), rng.standard_normal(3), method="direction")
    assert "zero, or missing" in str(report)
