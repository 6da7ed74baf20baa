"""The manners of every pair, layer and model: entered once in the checker's suite, covered here."""

import copy

import numpy as np
import pytest

import npformer as nf
from npformer import tree
from npformer.checking.judge import check
from npformer.checking.suite import CASES
from npformer.module import Module

LAYERS = [c for c in CASES.values() if c.kind == "layer"]
PAIRS = [c for c in CASES.values() if c.kind == "pair"]
SMALL = [c for c in CASES.values() if c.kind != "model"]


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=[c.name for c in cases])


def example(case):
    return case.example(np.random.default_rng(0))


def as_tuple(x):
    return x if isinstance(x, tuple) else (x,)


def arrays_of(x):
    return [a for _, a in tree.leaves(list(as_tuple(x)))]


def functions(thing):
    return (thing.forward, thing.backward) if isinstance(thing, Module) else thing


def cotangent(y, seed=1):
    dy = np.random.default_rng(seed).standard_normal(np.shape(y))
    return dy if np.ndim(y) else float(dy)


def float32(x):
    return x.astype(np.float32) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x


@named(list(CASES.values()))
def test_gradient_by_the_complex_step(case):
    thing, inputs, options = example(case)
    report = check(thing, inputs, options, method=case.method)
    assert report.passed, report
    assert report.max_rel_error < 1e-10


@named(SMALL)
def test_gradient_by_central_differences(case):
    thing, inputs, options = example(case)
    report = check(thing, inputs, options, method="central")
    assert report.passed, report
    assert report.max_rel_error < 1e-6


@named(list(CASES.values()))
def test_inputs_cotangent_and_saved_stay_as_they_were(case):
    thing, inputs, options = example(case)
    forward, backward = functions(thing)
    before = copy.deepcopy(inputs)
    y, saved = forward(*inputs, **options)
    dy = cotangent(y)
    kept, dy_kept = [a.copy() for a in arrays_of(saved)], copy.deepcopy(dy)
    first = copy.deepcopy(as_tuple(backward(dy, saved)))
    second = as_tuple(backward(dy, saved))
    for a, b in zip(arrays_of(before), arrays_of(inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(kept, arrays_of(saved), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(dy_kept, dy)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@named([c for c in CASES.values() if c.kind != "pair"])
def test_used_twice(case):
    """A second forward before the backward of the first changes nothing; gradients add up."""
    thing, inputs, options = example(case)
    forward, backward = functions(thing)
    layer = thing if isinstance(thing, Module) else forward.__self__
    y, saved = forward(*inputs, **options)
    dy = cotangent(y)
    layer.zero_grad()
    want = as_tuple(backward(dy, saved))
    grads = [p.grad.copy() for p in layer.parameters()]
    layer.zero_grad()
    _, saved = forward(*inputs, **options)
    other = tuple(-x if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in inputs)
    forward(*other, **options)
    got = as_tuple(backward(dy, saved))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)
    for p, g in zip(layer.parameters(), grads, strict=True):
        np.testing.assert_array_equal(p.grad, g)
    backward(dy, saved)
    for p, g in zip(layer.parameters(), grads, strict=True):
        np.testing.assert_allclose(p.grad, 2 * g, rtol=1e-12, atol=1e-300)


@named(list(CASES.values()))
def test_float32_stays_float32(case):
    thing, inputs, options = example(case)
    if isinstance(thing, Module):
        thing = thing.astype(np.float32)
        forward, backward, layer = thing.forward, thing.backward, thing
    elif isinstance(owner := getattr(thing[0], "__self__", None), Module):
        layer = owner.astype(np.float32)
        forward, backward = (getattr(layer, f.__name__) for f in thing)
    else:
        (forward, backward), layer = thing, Module()
    y, saved = forward(*map(float32, inputs), **options)
    dy = cotangent(y)
    grads = as_tuple(backward(dy.astype(np.float32) if np.ndim(y) else dy, saved))
    assert not np.ndim(y) or y.dtype == np.float32
    for a in [*arrays_of(saved), *arrays_of(grads), *(p.grad for p in layer.parameters())]:
        assert a.dtype.kind != "f" or a.dtype == np.float32
        assert a.dtype.kind != "c"


@named(SMALL)
def test_float32_and_float64_agree(case):
    thing, inputs, options = example(case)
    low = thing.astype(np.float32) if isinstance(thing, Module) else thing
    y, saved = functions(thing)[0](*inputs, **options)
    y32, saved32 = functions(low)[0](*map(float32, inputs), **options)
    dy = cotangent(y)
    np.testing.assert_allclose(y32, y, rtol=1e-3, atol=1e-4)
    for a, b in zip(
        as_tuple(functions(low)[1](float32(dy), saved32)),
        as_tuple(functions(thing)[1](dy, saved)),
        strict=True,
    ):
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3 * max(1, np.abs(b).max()))


@named([c for c in CASES.values() if c.kind != "pair"])
def test_calling_a_layer_is_its_forward(case):
    thing, inputs, options = example(case)
    if not isinstance(thing, Module):
        pytest.skip("a bound pair has no call")
    if "rng" in options and isinstance(thing, nf.Encoder | nf.DecoderLM | nf.EncoderDecoder):
        pytest.skip("the call of a model is inference, which drops nothing")
    y = thing(*inputs, **options)
    np.testing.assert_array_equal(y, thing.forward(*inputs, **options)[0])


ROWS = (
    "Linear",
    "LayerNorm",
    "RMSNorm",
    "FeedForward",
    "Activation",
    "Softmax",
    "Embedding",
    "MultiHeadAttention",
    "Block",
)


@named([c for c in LAYERS if c.name.split(",")[0].split()[0] in ROWS])
def test_batch_rows_are_independent(case):
    thing, inputs, options = example(case)
    if isinstance(getattr(thing, "axis", -1), int) and getattr(thing, "axis", -1) != -1:
        pytest.skip("along another axis the rows belong together")
    if "rng" in options:
        pytest.skip("dropout draws for the whole batch")
    B = len(inputs[0])

    def row(x, i):
        return x[i : i + 1] if isinstance(x, np.ndarray) and x.ndim > 1 and len(x) == B else x

    y, saved = thing.forward(*inputs, **options)
    dy = cotangent(y)
    grads = as_tuple(thing.backward(dy, saved))
    for i in range(B):
        batch_options = {k: row(v, i) for k, v in options.items()}
        yi, saved_i = thing.forward(*(row(x, i) for x in inputs), **batch_options)
        np.testing.assert_allclose(yi, y[i : i + 1], rtol=1e-12, atol=1e-13)
        for a, b in zip(as_tuple(thing.backward(dy[i : i + 1], saved_i)), grads, strict=True):
            if b is not None:
                np.testing.assert_allclose(a, b[i : i + 1], rtol=1e-11, atol=1e-12)


@named(
    [
        c
        for c in PAIRS
        if c.name.split(",")[0]
        in (
            "softmax",
            "log_softmax",
            "layernorm",
            "rmsnorm",
            "linear",
            "gelu",
            "silu",
            "relu",
            "sigmoid",
            "tanh",
            "dropout",
            "gate",
            "softcap",
            "unembedding",
        )
    ]
)
def test_an_empty_batch_gives_an_empty_result_and_zero_parameter_gradients(case):
    (f, backward), inputs, options = example(case)
    if options.get("axis", -1) != -1:
        pytest.skip("the batch is the axis")
    full, _ = f(*inputs, **options)
    y_like = {"gate": 2}.get(case.name, 1)  # how many inputs have a batch
    empty = tuple(x[:0] if i < y_like else x for i, x in enumerate(inputs))
    y, saved = f(*empty, **options)
    assert y.shape == (0, *full.shape[1:])
    assert y.dtype == full.dtype
    grads = as_tuple(backward(np.zeros_like(y), saved))
    for x, g in zip((x for x in empty if isinstance(x, np.ndarray)), grads, strict=True):
        assert g.shape == x.shape
        assert not g.any()


def test_every_public_layer_and_pair_is_in_the_suite():
    """So that none can be written without its proof."""
    names = " ".join(CASES)
    public = vars(nf).items()
    layers = [
        n for n, v in public if isinstance(v, type) and issubclass(v, Module) and v is not Module
    ]
    assert [n for n in layers if n not in names] == []
    functions = [n for n in dir(nf.functional) if f"{n}_backward" in dir(nf.functional)]
    covered = {c.example(np.random.default_rng(0))[0][0].__name__ for c in PAIRS}
    assert len(functions) > 15
    assert sorted(set(functions) - covered) == []
