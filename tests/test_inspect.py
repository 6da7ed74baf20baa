"""What is found inside a model is what a pass by hand finds; the model stays as it was."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import npformer as nf
from npformer import functional as F
from npformer import tree
from npformer.experiments import inspection
from npformer.experiments.attention_maps import attention_name, chosen_maps, summary
from npformer.experiments.inspection import inspect, statistics
from npformer.watch import twin_of, watched

close = np.testing.assert_allclose
B, T, V = 3, 7, 13


def config(**changes: Any) -> nf.TransformerConfig:
    sizes = dict(V=V, d=10, L=3, H=5, d_ff=17, T_max=T + 1, init="xavier")
    return nf.TransformerConfig(**{**sizes, **changes})


def awake(model: Any, seed: int = 5) -> Any:
    """Give every parameter a value of order one, gains and shifts too."""
    rng = np.random.default_rng(seed)
    for p in model.parameters():
        if p.value.ndim == 1:
            p.value += rng.standard_normal(p.value.shape)
    return model


def ids(seed: int = 0, length: int = T) -> Any:
    return np.random.default_rng(seed).integers(V, size=(B, length))


@pytest.fixture
def decoder() -> Any:
    return awake(nf.DecoderLM(config(), rng=1, dtype=np.float64))


def norm_of(*parameters: Any) -> float:
    return float(np.sqrt(sum(np.sum(p.grad**2) for p in parameters)))


def test_activations_are_those_of_a_pass_by_hand(decoder):
    x, _ = decoder.embedding.forward(ids(), np.arange(T))
    expected = {"embedding": x}
    for i, block in enumerate(decoder.stack.blocks):
        a = block.attn(block.attn_norm(x))
        x = x + a
        f = block.ffn(block.ffn_norm(x))
        x = x + f
        expected |= {f"blocks.{i}": x, f"blocks.{i}.attn": a, f"blocks.{i}.ffn": f}
    expected["final_norm"] = decoder.stack.final_norm(x)
    expected["head"] = decoder.head(expected["final_norm"])
    found = inspect(decoder, ids(), gradients=False)
    assert [row.name for row in found.rows] == list(expected)
    for row in found.rows:
        y = expected[row.name]
        norms = np.linalg.norm(y, axis=-1)
        assert row.kind == "output"
        assert row.value.shape == y.shape
        close(row.value.mean, y.mean(), rtol=1e-9, atol=1e-12)
        close(row.value.max, np.abs(y).max(), rtol=1e-12)
        close(row.value.rms, np.sqrt((y * y).mean()), rtol=1e-12)
        close(row.value.norm, norms.mean(), rtol=1e-12)
        close(row.value.max_norm, norms.max(), rtol=1e-12)
        assert row.value.bad == 0
        assert row.gradient is row.parameters is None
    assert found.loss is None


def test_gradients_are_those_of_the_model(decoder):
    targets = ids(1)
    loss, saved = decoder.loss(ids(), targets)
    dlogits = F.cross_entropy_backward(1.0, saved["cross_entropy"])
    expected = {"head": dlogits}
    dy = expected["final_norm"] = decoder.head.backward(dlogits, saved["head"])
    dy = decoder.stack.final_norm.backward(dy, saved["stack"]["final_norm"])
    for i in reversed(range(3)):
        # In Pre-LN the sum hands its gradient to the sub-layer as it is.
        expected[f"blocks.{i}"] = expected[f"blocks.{i}.ffn"] = dy
        block, kept = decoder.stack.blocks[i], saved["stack"]["blocks"][i]
        df = block.ffn_norm.backward(block.ffn.backward(dy, kept["ffn"]), kept["ffn_norm"])
        expected[f"blocks.{i}.attn"] = dy = dy + df
        da = block.attn_norm.backward(block.attn.backward(dy, kept["attn"]), kept["attn_norm"])
        dy = dy + da
    expected["embedding"] = dy
    decoder.embedding.backward(dy, saved["embedding"])

    found = inspect(twin_of(decoder), ids(), targets)
    assert found.loss == loss
    assert found.objective == "cross-entropy"
    assert {row.name for row in found.rows} == set(expected)
    modules = {tree.name_of(path): module for path, module in decoder.named_modules()}
    for row in found.rows:
        g = expected[row.name]
        assert row.gradient.shape == g.shape
        close(row.gradient.norm, np.linalg.norm(g, axis=-1).mean(), rtol=1e-10)
        close(row.gradient.rms, np.sqrt((g * g).mean()), rtol=1e-10)
        close(row.parameters, norm_of(*modules[row.name].parameters()), rtol=1e-10)


def test_without_targets_the_last_token_is_what_is_wanted(decoder):
    text = ids(length=T + 1)
    found = inspect(decoder, text)
    assert found.shape == (B, T)
    assert found.loss == inspect(decoder, text[:, :-1], text[:, 1:]).loss
    with pytest.raises(ValueError, match=r"two tokens or more.*\(3, 1\)"):
        inspect(decoder, text[:, :1])


def test_parameters_and_what_was_saved_have_names_too(decoder):
    loss, saved = decoder.loss(ids(), ids(1))
    decoder.loss_backward(loss := 1.0, saved)
    assert loss
    pattern = "blocks.1.ffn.W1.*"
    found = inspect(twin_of(decoder), ids(), ids(1), select=[pattern, "**.lse", "embedding.*.E"])
    assert [(row.name, row.kind) for row in found.rows] == [
        ("embedding.tokens.E", "parameter"),
        ("blocks.0.attn.attention.lse", "saved"),
        ("blocks.1.attn.attention.lse", "saved"),
        ("blocks.1.ffn.W1.x", "saved"),
        ("blocks.1.ffn.W1.W", "parameter"),
        ("blocks.1.ffn.W1.b", "parameter"),
        ("blocks.2.attn.attention.lse", "saved"),
    ]
    W1 = decoder.stack.blocks[1].ffn.W1
    close(found.row("blocks.1.ffn.W1.W").value.norm, np.linalg.norm(W1.W.value), rtol=1e-12)
    close(found.row("blocks.1.ffn.W1.W").gradient.norm, norm_of(W1.W), rtol=1e-10)
    close(found.row("embedding.tokens.E").gradient.norm, norm_of(decoder.head.E), rtol=1e-10)
    kept = saved["stack"]["blocks"][1]["ffn"]["W1"].x
    close(found.row("blocks.1.ffn.W1.x").value.rms, np.sqrt((kept**2).mean()), rtol=1e-12)
    assert found.row("blocks.1.ffn.W1.x").gradient is None


def test_every_name_is_found_once(decoder):
    found = inspect(decoder, ids(), ids(1), select=["**"])
    names = [row.name for row in found.rows]
    assert len(set(names)) == len(names)
    _, saved = decoder.loss(ids(), ids(1))
    floating = {tree.name_of(p) for p, a in tree.leaves(saved) if a.dtype.kind == "f"}
    modules = {tree.name_of(path) for path, _ in decoder.named_modules()} - {""}
    parameters = {tree.name_of(path) for path, _ in decoder.named_parameters()}
    assert set(names) == floating | modules | parameters
    for row in found.rows:
        assert (row.gradient is None) == (row.kind == "saved")
        close(row.value.norm >= 0, True)


@pytest.mark.parametrize("kind", ["decoder", "encoder", "encoder-decoder"])
def test_the_model_stays_as_it_was(kind):
    models = {
        "decoder": nf.DecoderLM, "encoder": nf.Encoder, "encoder-decoder": nf.EncoderDecoder
    }  # fmt: skip
    model = models[kind](config(kind=kind), rng=1)
    rng = np.random.default_rng(3)
    for p in model.parameters():
        p.grad = rng.standard_normal(p.value.shape).astype(np.float32)
    before = [(p.value.copy(), p.grad.copy(), p.grad) for p in model.parameters()]
    inspect(model, ids(), ids(1), select=["**"], attention=["**"])
    for p, (value, grad, held) in zip(model.parameters(), before, strict=True):
        assert p.value.tobytes() == value.tobytes()
        assert p.grad is held
        assert p.grad.tobytes() == grad.tobytes()
    assert all("forward" not in vars(m) for _, m in model.named_modules())
    assert not model.stack.recompute


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
def test_an_encoder_sends_a_projection_back(placement):
    model = awake(nf.Encoder(config(placement=placement), rng=1, dtype=np.float64))
    found = inspect(model, ids(), rng=7)
    u = np.random.default_rng(7).standard_normal((B, T, 10)) * 10**-0.5 / (B * T)
    h, saved = model.forward(ids())
    model.backward(u, saved)
    assert found.objective == "projection"
    close(found.loss, np.sum(u * h), rtol=1e-10)
    for i in range(3):
        attn = model.stack.blocks[i].attn
        close(found.row(f"blocks.{i}.attn").parameters, norm_of(*attn.parameters()), rtol=1e-9)


def test_an_encoder_decoder_has_both_sides():
    model = awake(nf.EncoderDecoder(config(kind="encoder-decoder"), rng=1, dtype=np.float64))
    loss, saved = model.loss(ids(), ids(), ids(1))
    model.loss_backward(1.0, saved)
    found = inspect(twin_of(model), ids(), ids(1))
    names = [row.name for row in found.rows]
    assert names[:2] == ["encoder.embedding", "encoder.blocks.0"]
    assert {"encoder.final_norm", "embedding", "blocks.2.cross", "final_norm", "head"} < set(names)
    assert found.loss == loss
    cross = model.stack.blocks[2].cross
    close(found.row("blocks.2.cross").parameters, norm_of(*cross.parameters()), rtol=1e-10)
    maps = inspect(model, ids(), attention=["blocks.*.cross", "encoder.blocks.0.attn"]).maps
    assert list(maps) == ["encoder.blocks.0.attn", "blocks.0.cross", "blocks.1.cross",
                          "blocks.2.cross"]  # fmt: skip
    close(maps["blocks.1.cross"].sum(axis=-1), 1)


@pytest.mark.parametrize("kernel", ["dense", "flash"])
def test_maps_are_the_weights_of_the_pass(kernel):
    cfg = config(kernel=kernel, H=6, H_kv=2, d=12, positions="rope", window=4)
    model = awake(nf.DecoderLM(cfg, rng=1, dtype=np.float64))
    _, saved = model.forward(ids())
    found = inspect(model, ids(), attention=["blocks.2.attn", "blocks.0.attn"])
    assert list(found.maps) == ["blocks.0.attn", "blocks.2.attn"]
    assert found.rows == []
    assert found.loss is None
    for i in (0, 2):
        P = F.attention_weights(saved["stack"]["blocks"][i]["attn"]["attention"])
        assert found.maps[f"blocks.{i}.attn"].shape == (6, T, T)
        close(found.maps[f"blocks.{i}.attn"], P[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("pattern", ["blocks.*.attn", "blocks.*.attn.attention.*"])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_no_more_is_kept_than_one_block(kind, pattern, gradients, monkeypatch):
    model = nf.DecoderLM if kind == "decoder" else nf.EncoderDecoder
    model = model(config(kind=kind, L=6), rng=0)
    seen: list[weakref.ref[Any]] = []
    most = 0

    def measured(a: Any, **options: Any) -> Any:
        nonlocal most
        seen.append(weakref.ref(a))
        most = max(most, sum(ref() is not None for ref in seen))
        return statistics(a, **options)

    monkeypatch.setattr(inspection, "statistics", measured)
    inspect(model, ids(), ids(1), select=[pattern], gradients=gradients)
    one = 1 if pattern.endswith("attn") else 5
    assert len(seen) >= 6 * one
    assert most <= 2 * one


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("blocks.9.attn", "blocks.2.attn"),
        ("blocks.0.attn.attention", "blocks.0.attn.attention.q"),
        ("block.0.ffn", "blocks.0.ffn"),
        ("", "known are embedding"),
    ],
)
def test_a_name_that_nothing_has(decoder, pattern, hint):
    with pytest.raises(ValueError, match="there are no numbers under the name") as said:
        inspect(decoder, ids(), select=["head", pattern], gradients=False)
    assert repr(pattern) in str(said.value)
    assert hint in str(said.value)


def test_names_as_the_tree_has_them_are_understood(decoder):
    (row,) = inspect(decoder, ids(), select=["stack.blocks.1.attn"], gradients=False).rows
    assert row.name == "blocks.1.attn"


def test_what_is_not_finite_is_counted_where_it_starts(decoder):
    decoder.stack.blocks[1].ffn.W1.b.value[0] = np.nan
    found = inspect(decoder, ids(), ids(1))
    assert found.row("blocks.0").value.bad == found.row("blocks.1.attn").value.bad == 0
    assert found.row("blocks.1.ffn").value.bad == B * T * 10
    assert np.isnan(found.row("blocks.1").value.rms)
    assert np.isnan(found.loss)
    assert found.row("blocks.0").gradient.bad == B * T * 10


def test_a_model_of_zeros():
    model = nf.DecoderLM(config(L=1), rng=0)
    for p in model.parameters():
        p.value[...] = 0
    found = inspect(model, ids(), ids(1))
    assert [r.value.rms for r in found.rows] == [0] * len(found.rows)
    close(found.loss, np.log(V), rtol=1e-6)
    assert found.row("head").gradient.norm > 0


def test_statistics_do_not_overflow_in_float32():
    x = np.full((2, 3), 1e30, np.float32)
    s = statistics(x)
    close([s.rms, s.norm], [1e30, 3**0.5 * 1e30], rtol=1e-6)
    s = statistics(np.array([[3.0, -4.0], [0.0, np.inf]]))
    assert (s.max, s.norm, s.bad) == (np.inf, np.inf, 1)
    s = statistics(np.array([[3.0, -4.0], [0.0, 12.0]]), whole=True)
    assert (s.norm, s.max_norm, s.mean, s.max) == (13, 13, 2.75, 12)


def test_watching_sees_each_module_and_only_those_asked_for(decoder):
    seen: list[str] = []
    twin = watched(
        decoder,
        lambda path, y, saved: seen.append(path),
        lambda path, module, dy: seen.append(f"d {path}"),
        only=["head", "stack.blocks.1.ffn"],
    )
    loss, saved = twin.loss(ids(), ids(1))
    twin.loss_backward(1.0, saved)
    assert seen == ["stack.blocks.1.ffn", "head", "d head", "d stack.blocks.1.ffn"]
    assert loss == decoder.loss(ids(), ids(1))[0]
    assert not any(p.has_grad for p in decoder.parameters())
    assert twin.head.E is twin.embedding.tokens.E
    assert twin.head.E.value is decoder.head.E.value


# ------------------------------------------------------------------------------ attention maps


def test_summary_of_a_head():
    uniform = np.full((4, 4), 0.25)
    s = summary("blocks.0.attn", 2, uniform)
    close([s.entropy, s.distance, s.itself, s.first], [np.log(4), 1.25, 0.25, 0.25])
    s = summary("blocks.0.attn", 0, np.eye(5))
    assert (s.entropy, s.distance, s.itself, s.first) == (0, 0, 1, 0.2)
    s = summary("blocks.0.cross", 0, np.eye(5))
    assert s.entropy == 0
    assert np.isnan(s.distance)
    assert np.isnan(s.itself)
    hidden = np.vstack([np.zeros(3), np.eye(3)[1:]])  # the first query sees nothing
    s = summary("blocks.0.attn", 0, hidden)
    assert (s.entropy, s.distance, s.itself, s.first) == (0, 0, 1, 0)
    hidden = np.vstack([np.zeros(3), [[0.5, 0.5, 0], [1, 0, 0]]])
    s = summary("blocks.0.attn", 0, hidden)
    close([s.entropy, s.distance, s.itself, s.first], [np.log(2) / 2, 1.25, 0.25, 0.75])
    s = summary("blocks.0.attn", 0, np.zeros((3, 3)))
    assert (s.entropy, s.distance, s.itself, s.first) == (0, 0, 0, 0)


def test_short_names_of_maps():
    maps = {f"blocks.{i}.{kind}": np.zeros((4, 2, 2)) for i in (0, 1) for kind in ("attn", "cross")}
    maps["encoder.blocks.1.attn"] = np.zeros((3, 2, 2))

    def chosen(*wanted: str) -> list[tuple[str, tuple[int, ...]]]:
        return [(m.name, m.heads) for m in chosen_maps(maps, list(wanted))]

    assert chosen("1") == [("blocks.1.attn", (0, 1, 2, 3))]
    assert chosen("1.2", "1.0", "blocks.0.cross.3") == [
        ("blocks.0.cross", (3,)), ("blocks.1.attn", (0, 2))
    ]  # fmt: skip
    assert chosen("encoder.blocks.*.attn.2") == [("encoder.blocks.1.attn", (2,))]
    assert len(chosen("all")) == 5
    assert attention_name("12.11") == ("blocks.12.attn", 11)
    with pytest.raises(ValueError, match="has 4 heads, numbered from 0, so there is no head 4"):
        chosen("1.4")
