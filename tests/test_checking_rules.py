"""What the gradient checker says about broken rules, and that it gives everything back."""

from __future__ import annotations

import numpy as np
import pytest

import npformer as nf
from npformer import functional as F
from npformer.checking import METHODS, check, gradcheck
from npformer.checking.suite import CASES, enter

ALL = pytest.mark.parametrize("method", list(METHODS))


def square(x):
    return x * x, x


def square_backward(dy, x):
    return 2 * dy * x


# --------------------------------------------------------------------- what must not be written to


def test_writing_into_what_was_given_is_refused(rng):
    def forward_writes(x):
        x += 1
        return x * x, x

    def backward_writes(dy, x):
        dy *= 2
        return dy * x

    x = rng.standard_normal((2, 3))
    before = x.copy()
    with pytest.raises(ValueError, match="the forward of forward_writes writes into an array"):
        gradcheck((forward_writes, square_backward), x)
    with pytest.raises(ValueError, match="the backward of square writes into an array"):
        gradcheck((square, backward_writes), x)
    np.testing.assert_array_equal(x, before)
    assert x.flags.writeable

    layer = nf.LayerNorm(3)
    layer.backward = lambda dy, s: s.gamma.__imul__(2)
    with pytest.raises(ValueError, match="writes into"):
        gradcheck(layer, x)
    np.testing.assert_array_equal(layer.gamma.value, np.ones(3))


def test_writing_through_the_owner_of_a_view_is_noticed(rng):
    whole = rng.standard_normal((4, 3))

    def f(x):
        whole[0, 0] += 1
        return 3 * x, None

    with pytest.raises(ValueError, match="something else the second time"):
        gradcheck((f, lambda dy, s: 3 * dy), whole[:2])

    def f_backward(dy, s):
        whole[3, 0] += 1
        whole[0, 0] += 1e-30
        whole[1, 1] += 1.0
        return 3 * dy

    report = gradcheck((lambda x: (3 * x, None), f_backward), whole[:2])
    assert not report.passed
    assert any("x was changed" in problem for problem in report.problems)


def test_writing_into_saved_is_noticed(rng):
    def f(x):
        return x * x, {"twice": 2 * x}

    def f_backward(dy, saved):
        saved["twice"] *= dy
        return saved["twice"].copy()

    report = gradcheck((f, f_backward), rng.standard_normal((2, 3)))
    assert not report.passed
    assert "the backward changes saved.twice, which it only may read" in report.problems
    assert "x: a second backward gives another gradient" in report.problems
    assert "saved.twice" in str(report)


def test_inputs_that_are_not_floating_are_guarded_too():
    ids = np.array([1, 0, 1])

    def f(ids, E):
        ids[0] = 0
        return E[ids], ids

    with pytest.raises(ValueError, match="writes into"):
        gradcheck((f, lambda dy, ids: dy), ids, np.ones((2, 3)))
    assert ids.flags.writeable
    assert ids[0] == 1


# -------------------------------------------------------------------- gradients of parameters


class Scale(nf.Module):
    """y = x w; ``how`` says what its backward does with the gradient."""

    def __init__(self, how="add"):
        self.w = nf.Parameter(np.array([0.5, -1.5, 2.0], np.float32))
        self.how = how
        self.kept = None

    def forward(self, x):
        if self.how == "state":
            self.kept = x
        return x * self.w.value, x

    def backward(self, dy, saved):
        if self.how == "state":
            saved = self.kept
        dw = np.sum(dy * saved, axis=0)
        if self.how == "overwrite":
            self.w.grad = dw
        elif self.how == "in place":
            self.w.grad += dw
        elif self.how == "decay":
            self.w.grad = 0.5 * self.w.grad + dw
        elif self.how != "forget":
            self.w.accumulate(dw)
        return dy * self.w.value


def test_gradients_may_be_added_in_both_ways(rng):
    for how in ("add", "in place"):
        assert gradcheck(Scale(how), rng.standard_normal((2, 3)))


@ALL
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("overwrite", "w: the backward overwrites the parameter's gradient"),
        ("decay", "w: a second backward does not add the same gradient"),
        ("state", "a second forward before the backward changes the gradient"),
    ],
)
def test_bookkeeping_faults_are_named(how, words, method, rng):
    report = gradcheck(Scale(how), rng.standard_normal((2, 3)), method=method)
    assert not report.passed
    assert any(words in problem for problem in report.problems)
    assert words in str(report)
    assert report.max_rel_error < 1e-6  # the numbers alone would have passed


def test_a_gradient_that_never_arrives_is_named(rng):
    report = gradcheck(Scale("forget"), rng.standard_normal((2, 3)))
    assert [row.verdict for row in report.rows] == ["pass", "fail"]
    assert "never adds a gradient to this parameter" in str(report)


def test_gradients_that_share_memory_with_saved_are_noticed(rng):
    class Shares(Scale):
        def forward(self, x):
            return x * self.w.value, np.sum(x, axis=0)

        def backward(self, dy, total):
            if not self.w.has_grad:
                self.w.grad = total
            else:
                self.w.grad += total
            return dy * self.w.value

    report = gradcheck(Shares(), rng.standard_normal((2, 3)))
    assert "the backward changes saved, which it only may read" in report.problems


@ALL
@pytest.mark.parametrize("fault", [None, "forward", "backward"])
def test_everything_is_given_back(method, fault, rng):
    layer = Scale()
    value = layer.w.value
    layer.w.accumulate(grad := np.array([1, 2, 3], np.float32))
    x, fixed = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    fixed.flags.writeable = False
    calls = []

    def breaks(*args):
        calls.append(args)
        raise ZeroDivisionError("of all things")

    if fault:
        setattr(layer, fault, breaks)
        with pytest.raises(ZeroDivisionError, match="of all things"):
            gradcheck(layer, x, method=method)
        assert calls
    else:
        assert gradcheck(layer, x, method=method)
        assert gradcheck(layer, fixed, method=method)
    assert layer.w.value is value
    assert layer.w.grad is grad
    np.testing.assert_array_equal(grad, [1, 2, 3])
    np.testing.assert_array_equal(value, np.array([0.5, -1.5, 2.0], np.float32))
    assert value.flags.writeable
    assert x.flags.writeable
    assert not fixed.flags.writeable


def test_no_gradient_before_means_none_after(rng):
    layer = Scale()
    gradcheck(layer, rng.standard_normal((2, 3)))
    assert not layer.w.has_grad


def test_a_view_and_its_owner_are_both_unlocked(rng):
    k = rng.standard_normal((2, 1, 3, 4))
    for inputs in ((k[:1], k[:1], k[1:]), (k, k[:], k), (k[:], k, k)):
        assert gradcheck(F.attention, *inputs)
        assert all(x.flags.writeable for x in inputs)


# ------------------------------------------------------------------------------ random numbers


def test_dropout_is_active_and_the_same_at_every_call(rng):
    x = rng.standard_normal((5, 7))

    def wrong(dy, saved):
        return dy  # right only where nothing was dropped

    assert gradcheck(F.dropout, x, 0.4)
    assert not gradcheck((F.dropout, wrong), x, 0.4)
    assert check((F.dropout, wrong), (x, 0.4), {"rng": None})
    assert check((F.dropout, F.dropout_backward), (x, 0.4), {"rng": 3})
    layer = nf.Block(nf.AttentionConfig(d=4, H=2, dropout=0.3), 5, dropout=0.3, rng=0)
    assert gradcheck(layer, rng.standard_normal((2, 3, 4)), method="direction", rng=7)


def test_generators_are_refused_as_options():
    for option in (np.random.default_rng(0), True, 1.5):
        with pytest.raises(TypeError, match="the option rng must be an int"):
            check((F.dropout, F.dropout_backward), (np.ones(3), 0.4), {"rng": option})


def test_a_forward_that_changes_from_call_to_call_is_refused():
    source = np.random.default_rng(0)

    def noisy(x):
        return x * source.random(), None

    with pytest.raises(ValueError, match="gives something else the second time"):
        gradcheck((noisy, lambda dy, s: dy), np.ones(3))


# -------------------------------------------------------------------- broken pairs, broken calls


def test_what_a_pair_must_return(rng):
    x = rng.standard_normal((2, 3))
    with pytest.raises(TypeError, match=r"must return \(y, saved\), but it returned an array"):
        gradcheck((lambda x: x * x, square_backward), x)
    with pytest.raises(TypeError, match=r"must return \(y, saved\), but it returned a tuple of 3"):
        gradcheck((lambda x: (x, x, x), square_backward), x)
    with pytest.raises(TypeError, match="the output of <lambda> must be one array, but is a tuple"):
        gradcheck((lambda x: ((x, x), x), square_backward), x)
    with pytest.raises(TypeError, match="must be floating-point, but is int64"):
        gradcheck((lambda x: (np.argsort(x), x), square_backward), x)
    with pytest.raises(
        ValueError, match=r"one gradient for each .* input \(x\), but it returned 0"
    ):
        gradcheck((square, lambda dy, x: None), x)
    with pytest.raises(ValueError, match=r"but it returned 2"):
        gradcheck((square, lambda dy, x: (dy, dy)), x)
    with pytest.raises(ValueError, match=r"input \(x, gamma\), but it returned 1"):
        gradcheck((F.rmsnorm, lambda dy, s: dy), x, np.ones(3))
    with pytest.raises(TypeError, match="the gradient of x must be floating, but it is complex128"):
        gradcheck((square, lambda dy, x: 2j * dy * x), x)


def test_none_for_an_input_that_is_not_differentiable_is_accepted(rng):
    ids = np.array([0, 1, 1])
    pair = (F.embedding, lambda dy, s: (None, F.embedding_backward(dy, s)))
    assert gradcheck(pair, ids, rng.standard_normal((2, 3)))


def test_calls_that_make_no_sense(rng):
    x = rng.standard_normal((2, 3))
    with pytest.raises(ValueError, match="method must be one of complex, central, direction"):
        gradcheck(square, x, method="finite")
    with pytest.raises(ValueError, match="samples must be 1 or more"):
        gradcheck(square, x, samples=0)
    with pytest.raises(TypeError, match=r"does not fit its inputs: .*'gamma'"):
        gradcheck(F.rmsnorm, x)
    with pytest.raises(TypeError, match=r"does not fit its inputs: .*'colour'"):
        gradcheck(square, x, colour="red")
    with pytest.raises(ValueError, match="nothing to check"):
        gradcheck((square, square_backward), "text")
    with pytest.raises(TypeError, match="not its class LayerNorm: make one"):
        gradcheck(nf.LayerNorm, x)
    for thing in (x, 7, (square,), (square, 7)):
        with pytest.raises(TypeError, match="was expected, but not"):
            gradcheck(thing, x)

    class Foreign:
        def forward(self, x):
            return x, x

        def backward(self, dy, saved):
            return dy

    with pytest.raises(TypeError, match=r"Foreign must be a npformer\.Module"):
        gradcheck(Foreign(), x)
    with pytest.raises(ValueError, match="belong to different layers"):
        gradcheck((nf.LayerNorm(3).forward, nf.LayerNorm(3).backward), x)


def test_two_cases_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two cases called 'softmax'"):
        enter("softmax", "pair", CASES["softmax"].example)
