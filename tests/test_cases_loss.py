"""Faults of the loss, of labels and of ids that people met in public projects."""

from __future__ import annotations

import numpy as np
import pytest
from cases import case

import npformer as nf
from npformer import functional as F

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal


def small_model(**options):
    cfg = nf.TransformerConfig(**dict(V=7, d=6, L=1, H=2, T_max=5) | options)
    return nf.DecoderLM(cfg, rng=0, dtype=np.float64)


# ------------------------------------------------------------------------ L01 nothing to count


@pytest.mark.parametrize("ignore", [-100, -1, 2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_l01_every_target_ignored(reduction, smoothing, ignore):
    c = case("L01")
    logits = c["input"]["logits"]
    targets = np.full(5, ignore)
    options = {"ignore_index": ignore, "label_smoothing": smoothing, "reduction": reduction}
    with np.errstate(all="raise"):
        loss, saved = F.cross_entropy(logits, targets, **options)
        dloss = np.arange(1.0, 6) if reduction == "none" else 2.5
        grad = F.cross_entropy_backward(dloss, saved)
    exact(loss, c["right"]["none"] if reduction == "none" else c["right"]["sum"])
    exact(grad, np.zeros((5, 4)))
    assert np.isnan(c["wrong"]["torch_mean"])  # ours is 0: a batch of padding changes nothing


def test_l01_ignored_rows_count_nowhere(rng):
    logits, targets = rng.standard_normal((3, 5, 7)), rng.integers(0, 7, (3, 5))
    ignored = rng.random((3, 5)) < 0.4
    ignored[1] = True
    assert 0 < ignored.sum() < 15
    for broken in (0.0, np.nan):
        changed = np.where(ignored[..., None], broken, logits)
        loss, saved = F.cross_entropy(changed, np.where(ignored, -100, targets))
        alone, saved_alone = F.cross_entropy(logits[~ignored], targets[~ignored])
        close(loss, alone, rtol=1e-14)
        grad = F.cross_entropy_backward(1.0, saved)
        exact(grad[ignored], 0)
        close(grad[~ignored], F.cross_entropy_backward(1.0, saved_alone), rtol=1e-13)


def test_l01_a_model_without_a_single_target_has_no_gradient():
    model, ids = small_model(), np.array([[1, 2, 3], [4, 5, 6]])
    with np.errstate(all="raise"):
        loss, saved = model.loss(ids, np.full((2, 3), -100))
        model.loss_backward(1.0, saved)
    assert loss == 0
    for p in model.parameters():
        exact(p.grad, 0)


# ------------------------------------------------------------------------- L03 out of range


def test_l03_labels_out_of_range():
    c = case("L03")
    logits = c["input"]["logits"]
    for label, ignore in c["input"]["label_and_ignore_index"]:
        for targets in ([label, 0], [2, label]):
            with pytest.raises(IndexError, match=rf"\[0, 3\) or be {ignore}, but one is {label}"):
                F.cross_entropy(logits, np.array(targets), ignore_index=int(ignore))
    wrapped = c["wrong"]["loss_where_minus1_wraps"]
    close(F.cross_entropy(logits, np.array([2, 2]))[0], wrapped, rtol=1e-12)  # what -1 would give


@pytest.mark.parametrize("targets", [[0.0, 1.0], [True, False], ["0", "1"], [None, 1]])
def test_l03_labels_are_integers(targets):
    with pytest.raises(TypeError, match="targets must be integers"):
        F.cross_entropy(np.zeros((2, 3)), np.array(targets))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint64])
def test_l03_any_integers_do(dtype):
    logits = case("L03")["input"]["logits"]
    right = F.cross_entropy(logits, np.array([2, 1]))[0]
    assert F.cross_entropy(logits, np.array([2, 1], dtype))[0] == right
    exact(F.embedding(np.array([2, 1], dtype), np.eye(3))[0], np.eye(3)[[2, 1]])


def test_l03_shapes_that_do_not_fit():
    for targets in (np.zeros((2, 1), int), np.zeros(3, int), np.zeros((), int)):
        with pytest.raises(ValueError, match="targets must have the shape"):
            F.cross_entropy(np.zeros((2, 3)), targets)


@pytest.mark.parametrize("bad", [-1, 7, -7, 100])
def test_l03_token_ids_out_of_range(bad):
    with pytest.raises(IndexError, match=rf"\[0, 7\), but one of them is {bad}"):
        F.embedding(np.array([[0, bad]]), np.ones((7, 2)))
    cfg = nf.TransformerConfig(V=7, d=6, L=1, H=2)
    ids, good = np.array([[1, bad, 2]]), np.array([[1, 3, 2]])
    for model in (nf.DecoderLM(cfg, rng=0), nf.Encoder(cfg, rng=0)):
        for call in (model, model.forward):
            with pytest.raises(IndexError, match=rf"ids must lie in \[0, 7\).* is {bad}"):
                call(ids)
    both = nf.EncoderDecoder(cfg, rng=0)
    with pytest.raises(IndexError, match="source_ids must lie in"):
        both.forward(ids, good)
    with pytest.raises(IndexError, match="target_ids must lie in"):
        both.forward(good, ids)
    with pytest.raises(IndexError, match="targets must lie in"):
        small_model().loss(good, ids)


@pytest.mark.parametrize("ids", [[[0.0, 1.0]], [[True, False]]])
def test_l03_token_ids_are_integers(ids):
    with pytest.raises(TypeError, match="must be integers"):
        F.embedding(np.array(ids), np.ones((7, 2)))
    with pytest.raises(TypeError, match="must be integers"):
        small_model()(np.array(ids))


def test_l03_positions_out_of_range():
    model = small_model()
    model(np.zeros((1, 5), int))
    with pytest.raises(IndexError, match="position 5 lies beyond the table of T_max = 5"):
        model(np.zeros((1, 6), int))
    with pytest.raises((IndexError, ValueError), match="-1"):
        model(np.zeros((1, 2), int), positions=np.array([-1, 0]))


# ----------------------------------------------------------------------- L05 log of a softmax


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_l05_the_log_of_a_weight_that_rounds_to_zero(dtype):
    c = case("L05")
    logits = c["input"]["logits"].astype(dtype)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        loss, saved = F.cross_entropy(logits, np.array([c["input"]["target"]]))
        grad = F.cross_entropy_backward(1.0, saved)
        y, _ = F.log_softmax(logits)
    assert loss == c["right"]["loss"]
    exact(grad, c["right"]["grad"])
    assert grad.dtype == dtype
    exact(y, [[0, -1000]])
    assert np.isinf(c["wrong"]["loss"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_l05_a_class_that_cannot_be(dtype):
    """Logits of -inf, as for the rows that pad a vocabulary."""
    c = case("L05")
    logits, t = c["input"]["masked_logits"].astype(dtype), np.array([c["input"]["masked_target"]])
    with np.errstate(all="raise"):
        loss, saved = F.cross_entropy(logits, t)
        grad = F.cross_entropy_backward(1.0, saved)
        y, saved_y = F.log_softmax(logits)
        dx = F.log_softmax_backward(np.array([[1.0, 2.0, 3.0]], dtype), saved_y)
        smoothed, _ = F.cross_entropy(logits, t, label_smoothing=0.1)
    close(loss, c["right"]["masked_loss"], rtol=1e-6 if dtype == np.float32 else 1e-14)
    close(grad, c["right"]["masked_grad"], rtol=0, atol=1e-7 if dtype == np.float32 else 1e-14)
    assert grad[0, 2] == 0
    assert y[0, 2] == -np.inf
    assert np.isfinite(dx[0, :2]).all()
    assert smoothed == c["right"]["masked_smoothed_loss"] == np.inf


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0, 700.0, 1e5])
def test_l05_cross_entropy_is_log_softmax_at_the_target(scale, rng):
    logits, targets = scale * rng.standard_normal((5, 7)), rng.integers(0, 7, 5)
    y, saved_y = F.log_softmax(logits)
    losses, saved = F.cross_entropy(logits, targets, reduction="none")
    close(losses, -y[np.arange(5), targets], rtol=1e-12, atol=1e-12 * scale)
    dy = rng.standard_normal(5)
    spread = np.zeros((5, 7))
    spread[np.arange(5), targets] = -dy
    close(
        F.cross_entropy_backward(dy, saved),
        F.log_softmax_backward(spread, saved_y),
        rtol=0,
        atol=1e-12 * max(1, scale),
    )
