"""The experiment behind ``npformer curves``: its models, its numbers, and what is said of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scales import theory_curves, transformer_curves

import npformer as nf
from npformer import functional as F
from npformer.experiments import gradient_scale as experiment
from npformer.experiments.findings import claims, findings
from npformer.experiments.gradient_scale import (
    ScaleCurves,
    TheorySetup,
    TransformerSetup,
    activation_norms,
    gradient_norms,
    gradient_scale,
    prefix,
    with_placement,
)
from npformer.experiments.theory_stack import (
    MeanAttention,
    TheoryModel,
    token_mean,
    token_mean_backward,
)
from npformer.multihead import AttentionConfig
from npformer.parallel import set_threads, threads

IDS = np.random.default_rng(5).integers(11, size=500)
DECODER = TransformerSetup(IDS, 11, d=12, H=3, d_ff=17, n=5, B=2)
THEORY = TheorySetup(d=13, n=5, B=3, V=19)


# -------------------------------------------------------------------- the stack of the theory


def test_token_mean_gradient(rng: np.random.Generator):
    x = rng.standard_normal((2, 3, 5))
    assert nf.gradcheck((token_mean, token_mean_backward), x, rng=rng).max_rel_error < 1e-12


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_theory_model_gradient(placement: str, rng: np.random.Generator):
    model = TheoryModel(5, 2, 7, placement, rng=rng, dtype=np.float64)
    for p in model.parameters():
        p.value = rng.standard_normal(p.value.shape)  # gains other than 1, shifts other than 0
    report = nf.gradcheck(model, rng.standard_normal((2, 3, 5)), rng=rng, method="complex")
    assert report.passed, report
    assert report.max_rel_error < 1e-10
    names = {row.tensor for row in report.rows}
    assert {n for n, _ in model.named_parameters()} <= names


def test_theory_loss_gradient(rng: np.random.Generator):
    model = TheoryModel(5, 2, 7, rng=rng, dtype=np.float64)
    x, targets = rng.standard_normal((2, 3, 5)), rng.integers(7, size=(2, 3))
    _, saved = model.loss(x, targets)
    model.zero_grad()
    model.loss_backward(1.0, saved)
    for p in model.parameters():
        v = rng.standard_normal(p.value.shape)
        value, h = p.value, 1e-30
        p.value = value + 1j * h * v
        slope = model.loss(x.astype(complex), targets)[0].imag / h
        p.value = value
        assert np.sum(p.grad * v) == pytest.approx(slope, rel=1e-10)


def test_mean_attention_is_one_head_with_no_queries_and_keys(rng: np.random.Generator):
    d = 5
    config = AttentionConfig(d=d, H=1, bias=False, out_bias=False)
    whole = nf.MultiHeadAttention(config, rng=rng, dtype=np.float64)
    mean = MeanAttention(d, rng, np.float64)
    whole.Wq.W.value[...] = whole.Wk.W.value[...] = 0
    whole.Wo.W.value[...] = np.eye(d)
    whole.Wv.W.value[...] = mean.Wv.W.value
    x, dy = rng.standard_normal((2, 2, 3, d))
    (y, s), (y_mean, s_mean) = whole.forward(x), mean.forward(x)
    np.testing.assert_allclose(y_mean, y, atol=1e-14)
    np.testing.assert_allclose(mean.backward(dy, s_mean), whole.backward(dy, s), atol=1e-14)
    np.testing.assert_allclose(mean.Wv.W.grad, whole.Wv.W.grad, atol=1e-14)


def test_the_stack_starts_as_the_paper_says():
    model = TheoryModel(64, 3, 100, rng=0)
    for name, p in model.named_parameters():
        kind = name.rpartition(".")[2]
        if kind == "gamma":
            assert np.all(p.value == 1)
        elif kind == "beta":
            assert np.all(p.value == 0)
        else:
            assert p.value.std() == pytest.approx(64**-0.5, rel=0.05)
            assert abs(p.value.mean()) < 0.01
        assert p.value.dtype == np.float32
    names = {name for name, _ in model.named_parameters()}
    assert not {n for n in names if ".Wq" in n or ".Wk" in n or ".Wo" in n or n.endswith(".b")}


# ----------------------------------------------------------------- sharing one sample's weights


@pytest.mark.parametrize("setup", [THEORY, DECODER], ids=["theory", "transformer"])
@pytest.mark.parametrize("L", [1, 3])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_prefix_in_another_placement_is_the_model_built_that_way(
    setup: Any, L: int, placement: str
):
    sample = setup.sample(3, np.random.default_rng(1))
    model = prefix(with_placement(sample.model, placement), L)
    if isinstance(setup, TheorySetup):
        built: Any = TheoryModel(setup.d, L, setup.V, placement)
    else:
        built = nf.DecoderLM(replace(setup.config(L), placement=placement))
    built.load_state_dict(model.state_dict())  # the same names, or it would raise
    loss, _ = model.loss(sample.inputs, sample.targets)
    expected, built_saved = built.loss(sample.inputs, sample.targets)
    assert loss == expected
    norms = gradient_norms(model, sample)
    built.loss_backward(1.0, built_saved)
    for layer, block in enumerate(built.stack.blocks):
        for i, p in enumerate((block.ffn.W1.W, block.ffn.W2.W)):
            assert norms[layer, i] == pytest.approx(math.sqrt((p.grad**2).sum()), rel=1e-5)
    assert norms.shape == (L, 2)


@pytest.mark.parametrize("setup", [THEORY, DECODER], ids=["theory", "transformer"])
def test_a_shallower_stack_is_the_beginning_of_the_deepest(setup: Any):
    """Only then are the deepest one's activations the shallower ones' too."""
    model = setup.sample(3, np.random.default_rng(1)).model
    first = prefix(model, 2).stack.blocks
    assert [b.ffn.W1.W for b in first] == [b.ffn.W1.W for b in model.stack.blocks[:2]]


def test_the_sample_is_left_as_it_was():
    sample = THEORY.sample(2, np.random.default_rng(0))
    with_placement(sample.model, "post")
    prefix(sample.model, 1)
    assert [b.placement for b in sample.model.stack.blocks] == ["pre", "pre"]
    assert sample.model.stack.final_norm is not None


# ------------------------------------------------------------------------------ what is measured


@pytest.mark.parametrize("setup", [THEORY, DECODER], ids=["theory", "transformer"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_activation_norms_are_those_of_the_formula(setup: Any, placement: str):
    sample = setup.sample(3, np.random.default_rng(2))
    blocks = with_placement(sample.model, placement).stack.blocks
    measured = activation_norms(blocks, sample.x, setup.d)

    x = sample.x.astype(float)
    ones, zeros = np.ones(setup.d), np.zeros(setup.d)

    def norm(x: np.ndarray) -> np.ndarray:
        return F.layernorm(x, ones, zeros)[0]

    for layer, block in enumerate(b.astype(float) for b in blocks):
        if placement == "pre":
            x = x + block.attn(norm(x))
            y = x = x + block.ffn(norm(x))
        else:
            x = norm(x + block.attn(x))
            y = x + block.ffn(x)
            x = norm(y)
        lengths, before = np.linalg.norm(x, axis=-1), np.linalg.norm(y, axis=-1)
        expected = [lengths.mean(), (lengths**2).mean() / setup.d, (before**2).mean() / setup.d]
        np.testing.assert_allclose(measured[layer], expected, rtol=1e-5)


@pytest.mark.parametrize("setup", [THEORY, DECODER], ids=["theory", "transformer"])
def test_rows_hold_every_depth_layer_and_seed(setup: Any):
    curves = gradient_scale(setup, [3, 1, 3], gradient_seeds=2, activation_seeds=4)
    assert curves.depths == (1, 3)
    gradients = list(curves.gradient_rows())
    expected = {
        (placement, setup.name, L, layer, parameter, seed)
        for placement in ("pre", "post")
        for L in (1, 3)
        for layer in range(1, L + 1)
        for parameter in ("W1", "W2")
        for seed in range(2)
    }
    assert len(gradients) == len(expected)
    assert {row[:-1] for row in gradients} == expected
    activations = list(curves.activation_rows())
    assert len(activations) == 2 * (1 + 3) * 4
    by_place = {row[:5]: row[5:] for row in activations}
    for seed in range(4):  # the shallow stack is the beginning of the deep one
        assert by_place["pre", setup.name, 1, 1, seed] == by_place["pre", setup.name, 3, 1, seed]
    sample = setup.sample(3, np.random.default_rng(1))
    expected_norms = gradient_norms(prefix(with_placement(sample.model, "post"), 1), sample)
    row = next(r for r in gradients if r[:-1] == ("post", setup.name, 1, 1, "W2", 1))
    assert row[-1] == expected_norms[0, 1]
    assert curves.last_gradients("post")[1, 0] == expected_norms[0, 1]


def test_threads_change_nothing():
    before, results = threads(), []
    try:
        for n in (1, 3):
            set_threads(n)
            results.append(gradient_scale(DECODER, [2], gradient_seeds=3, activation_seeds=5))
    finally:
        set_threads(before)
    one, three = results
    for key, g in one.gradients.items():
        np.testing.assert_array_equal(g, three.gradients[key])
    for placement, a in one.activations.items():
        np.testing.assert_array_equal(a, three.activations[placement])


def test_progress_is_told_of_every_seed():
    told: list[None] = []
    gradient_scale(
        THEORY, [1], gradient_seeds=2, activation_seeds=5, progress=lambda: told.append(None)
    )
    assert len(told) == 5


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        (np.nan, r"theory, pre-LN, seed 0, layer 2: the mean_norm is nan"),
        (np.inf, r"theory, pre-LN, seed 0, layer 2: the mean_norm is (nan|inf)"),
        (1e25, r"theory, pre-LN, seed 0, layer 2: the mean_norm is inf"),
        (0.0, r"theory, pre-LN, seed 0, depth 2, layer 2: the gradient of W1 is 0\.0"),
    ],
)
def test_what_can_not_be_drawn_is_named(
    planted: float, message: str, monkeypatch: pytest.MonkeyPatch
):
    draw = TheorySetup.sample

    def sample(self: TheorySetup, L: int, rng: np.random.Generator) -> Any:
        drawn = draw(self, L, rng)
        drawn.model.stack.blocks[1].ffn.W2.W.value[...] = planted
        return drawn

    monkeypatch.setattr(TheorySetup, "sample", sample)
    with pytest.raises(ValueError, match=message):
        gradient_scale(THEORY, [2], gradient_seeds=1, activation_seeds=1)


def test_the_decoder_is_a_real_one():
    cfg = DECODER.config(2)
    assert cfg.H > 1
    assert cfg.bias
    assert cfg.placement == "pre"
    sample = DECODER.sample(2, np.random.default_rng(0))
    lengths = np.linalg.norm(sample.model.embedding.tokens.E.value, axis=-1)
    assert lengths.mean() * cfg.embedding_scale == pytest.approx(math.sqrt(cfg.d), rel=0.2)
    assert "ids" not in DECODER.describe()
    assert sample.model.head.E is not sample.model.embedding.tokens.E
    assert DECODER.describe()["tied"] is False
    assert DECODER.describe()["tokens"] == len(IDS)


# ----------------------------------------------------------------------------- what is said of it


def verdicts(curves: ScaleCurves) -> dict[tuple[str, str], str]:
    return {(f.placement, f.quantity): f.verdict for f in findings(curves)}


def test_everything_holds_where_everything_is_as_expected():
    found = findings(theory_curves())
    assert {f.verdict for f in found} == {"holds"}
    assert [(f.placement, f.quantity) for f in found] == [
        ("pre", "slope"),
        ("pre", "constancy"),
        ("pre", "size"),
        ("post", "slope"),
        ("post", "constancy"),
        ("post", "size"),
        ("pre", "stream"),
        ("post", "sum"),
    ]
    slope = found[0]
    assert slope.measured == pytest.approx(slope.expected)
    assert slope.error == pytest.approx(0, abs=1e-12)  # the spread is the same at all depths
    found = findings(transformer_curves())
    assert [f.verdict for f in found] == ["holds"] * 4


FAULTS = {
    ("pre", "slope"): lambda c: scale_gradients(c, "pre", lambda L: L**0.1),
    ("post", "slope"): lambda c: scale_gradients(c, "post", lambda L: L**-0.15),
    ("pre", "constancy"): lambda c: scale_gradients(c, "pre", lambda L: 1 + 0.3 * (L == 4)),
    ("post", "constancy"): lambda c: scale_gradients(c, "post", lambda L: 1 - 0.3 * (L == 4)),
    ("pre", "size"): lambda c: scale_gradients(c, "pre", lambda _: 1.25),
    ("post", "size"): lambda c: scale_gradients(c, "post", lambda _: 0.75),
    ("pre", "stream"): lambda c: scale_activations(c, "pre", 3, 1, 0.94),
    ("post", "sum"): lambda c: scale_activations(c, "post", slice(None), 2, 1.03),
}


def scale_gradients(curves: ScaleCurves, placement: str, factor: Any) -> ScaleCurves:
    changed = {
        key: g * factor(key[1]) if key[0] == placement else g for key, g in curves.gradients.items()
    }
    return replace(curves, gradients=changed)


def scale_activations(
    curves: ScaleCurves, placement: str, layer: Any, quantity: int, factor: float
) -> ScaleCurves:
    changed = {p: a.copy() for p, a in curves.activations.items()}
    changed[placement][:, layer, quantity] *= factor
    return replace(curves, activations=changed)


@pytest.mark.parametrize("place", FAULTS)
def test_a_planted_fault_misses(place: tuple[str, str]):
    assert verdicts(FAULTS[place](theory_curves()))[place] == "misses"
    few = theory_curves(seeds=4, activation_seeds=19)
    assert verdicts(FAULTS[place](few))[place] == "unclear"


def test_the_directions_of_the_decoder_are_judged():
    curves = transformer_curves()
    flat = scale_gradients(curves, "pre", lambda L: L**0.5)
    assert verdicts(flat)["pre", "slope"] == "misses"
    falling = scale_gradients(curves, "post", lambda L: L**-0.3)
    assert verdicts(falling)["post", "slope"] == "misses"
    growing = scale_activations(curves, "post", -1, 0, 1.25)
    assert verdicts(growing)["post", "flatness"] == "misses"
    still = scale_activations(curves, "pre", -1, 0, 0.4)
    assert verdicts(still)["pre", "growth"] == "misses"


def test_one_depth_or_one_seed_is_no_reason_to_fail():
    one = theory_curves((1,), seeds=1, activation_seeds=1)
    assert {f.quantity for f in findings(one)} == {"size", "stream", "sum"}
    assert all(f.error is None for f in findings(one))
    assert claims(one) == []
    assert findings(transformer_curves((1,), seeds=1, activation_seeds=1)) == []


def test_claims_are_judged_by_their_numbers():
    curves = theory_curves((2, 4, 8))
    shown = {(c.claim, c.parameter): c for c in claims(curves)}
    assert {c.verdict for c in shown.values()} == {"no"}
    assert shown["post_decay", "W2"].measured == pytest.approx(1)

    g = curves.gradients
    decaying = {("post", L): g["post", L] * (2 / 3) ** (np.arange(L, 0, -1)[:, None] / 2)
                for L in curves.depths}  # fmt: skip
    flat = {("pre", L): np.ones_like(g["pre", L]) for L in curves.depths}
    shown = {(c.claim, c.parameter): c for c in claims(replace(curves, gradients=decaying | flat))}
    assert shown["post_decay", "W1"].verdict == "yes"
    assert shown["post_decay", "W1"].measured == pytest.approx(math.sqrt(2 / 3))
    assert shown["pre_flat", "W2"].verdict == "yes"
    assert shown["pre_depth", "W2"].verdict == "yes"
    assert shown["post_depth", "W2"].verdict == "no"
    piling = {("post", L): g["post", L] * L for L in curves.depths}
    found = claims(replace(curves, gradients=piling | flat))
    claim = next(c for c in found if c.claim == "post_depth")
    assert claim.verdict == "yes"
    assert claim.measured == pytest.approx(4)
    slightly = {("post", L): g["post", L] * L**0.05 for L in curves.depths}
    found = claims(replace(curves, gradients=slightly | flat))
    assert next(c for c in found if c.claim == "post_depth").verdict == "slightly"


def test_the_decay_of_post_ln_is_that_of_the_deepest_stack_up_to_16_layers():
    """Enough layers for a slope; in deeper ones the noise of the last layers decides."""
    for depths, taken in (((2, 8, 16, 32), 16), ((2, 4), 4), ((12, 20), 12)):
        found = claims(theory_curves(depths))
        assert {c.depth for c in found if c.claim == "post_decay"} == {taken}
    assert "post_decay" not in {c.claim for c in claims(theory_curves((20, 40)))}


def test_pre_ln_compares_the_layers_half_way_and_last():
    """Layer l of L = 8 has the gradient 1 / l here, so that layer 4 has twice that of layer 8."""
    curves = theory_curves((2, 4, 8))
    falling = {("pre", L): np.ones_like(curves.gradients["pre", L])
               / np.arange(1, L + 1)[:, None] for L in curves.depths}  # fmt: skip
    found = claims(replace(curves, gradients=curves.gradients | falling))
    for claim in (c for c in found if c.claim == "pre_flat"):
        assert (claim.depth, claim.measured) == (8, pytest.approx(2))


def test_the_standard_error_is_that_of_the_mean_over_the_seeds():
    """Of Post-LN's sum: single seeds lie at 1.4 and 1.6, four of each."""
    curves = theory_curves((2, 4), activation_seeds=8)
    post = curves.activations["post"].copy()
    post[:, :, 2] = 1.5 + 0.1 * np.array([-1, 1] * 4)[:, None]
    found = findings(replace(curves, activations=curves.activations | {"post": post}))
    row = next(f for f in found if f.quantity == "sum")
    assert row.measured == pytest.approx(1.5)
    assert row.error == pytest.approx(0.1 / math.sqrt(7))


def test_the_experiment_says_what_it_measures():
    assert experiment.GRADIENT_COLUMNS == (
        "placement", "setup", "depth", "layer", "parameter", "seed", "grad_norm",
    )  # fmt: skip
    assert experiment.ACTIVATION_COLUMNS == (
        "placement", "setup", "depth", "layer", "seed", "mean_norm", "mean_square", "sum_square",
    )  # fmt: skip
