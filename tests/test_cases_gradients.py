"""Faults of bookkeeping in backward passes: repeats, reuse, tied weights."""

from __future__ import annotations

import numpy as np
import pytest
from cases import case

import npformer as nf
from npformer import functional as F

close = np.testing.assert_allclose
exact = np.testing.assert_array_equal


# --------------------------------------------------------------------------- G04 repeated ids


def test_g04_repeated_ids_add_up():
    c = case("G04")
    E, ids, dy = np.zeros((c["input"]["V"], c["input"]["d"])), c["input"]["ids"], c["input"]["dy"]
    _, saved = F.embedding(ids, E)
    exact(F.embedding_backward(dy, saved), c["right"]["dE"])
    assert (c["wrong"]["dE"] != c["right"]["dE"]).any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex128])
def test_g04_repeats_across_batch_and_time(dtype, rng):
    V, ids = 7, np.array([[3, 3, 0, 6, 3], [0, 3, 6, 6, 6]])
    dy = rng.integers(-8, 8, (2, 5, 3)).astype(dtype)
    E = rng.standard_normal((V, 3)).astype(dtype)
    y, saved = F.embedding(ids, E)
    exact(y, E[ids])
    dE = F.embedding_backward(dy, saved)
    right = np.zeros((V, 3), np.complex128)
    for place in np.ndindex(ids.shape):
        right[ids[place]] += dy[place]
    exact(dE, right)
    assert dE.dtype == dtype
    assert not np.shares_memory(dE, dy)


def test_g04_every_table_of_a_model(rng):
    """Token, position and type tables, each with ids that repeat."""
    cfg = nf.TransformerConfig(V=7, d=4, L=1, H=2, T_max=5, token_types=3, embedding_scale=2.0)
    layer = nf.Encoder(cfg, rng=0, dtype=np.float64).embedding
    ids = np.array([[1, 1, 6], [6, 1, 0]])
    types = np.array([[2, 2, 0], [2, 1, 2]])
    dy = rng.standard_normal((2, 3, 4))
    for positions in (np.array([4, 0, 4]), np.array([[4, 4, 1], [0, 4, 4]])):
        layer.zero_grad()
        _, saved = layer.forward(ids, positions, types)
        layer.backward(dy, saved)
        places = np.broadcast_to(positions, ids.shape)
        for p, index, scale in [
            (layer.tokens.E, ids, 2.0),
            (layer.learned.P, places, 1.0),
            (layer.types.E, types, 1.0),
        ]:
            right = np.zeros(p.value.shape)
            np.add.at(right, index, scale * dy)
            close(p.grad, right, rtol=0, atol=1e-14)


# --------------------------------------------------------------------- G06 one layer, two calls


class TanhLinear(nf.Module):
    def __init__(self, W):
        self.W = nf.Parameter(W)

    def forward(self, x):
        y, linear = F.linear(x, self.W.value)
        y, tanh = F.tanh(y)
        return y, (linear, tanh)

    def backward(self, dy, saved):
        dx, dW = F.linear_backward(F.tanh_backward(dy, saved[1]), saved[0])
        self.W.accumulate(dW)
        return dx


def test_g06_one_layer_used_twice():
    c = case("G06")
    layer = TanhLinear(c["input"]["W"])
    h, first = layer.forward(c["input"]["x"])
    _, second = layer.forward(h)
    layer(np.ones((1, 3)))  # inference between forward and backward
    dx = layer.backward(layer.backward(c["input"]["dy"], second), first)
    close(dx, c["right"]["dx"], rtol=0, atol=1e-12)
    close(layer.W.grad, c["right"]["dW"], rtol=0, atol=1e-12)
    assert np.abs(c["wrong"]["dx_cache_overwritten"] - dx).max() > 0.1


LAYERS = {
    "linear": lambda: nf.Linear(6, 6, rng=1, dtype=np.float64),
    "layernorm": lambda: nf.LayerNorm(6, dtype=np.float64),
    "rmsnorm": lambda: nf.RMSNorm(6, dtype=np.float64),
    "softmax": nf.Softmax,
    "attention": lambda: nf.MultiHeadAttention(
        nf.AttentionConfig(6, 3, 1, causal=True, rope=True, qk_norm="head"),
        rng=1,
        dtype=np.float64,
    ),
    "ffn": lambda: nf.FeedForward(6, 5, gated=True, activation="silu", rng=1, dtype=np.float64),
    "pre": lambda: nf.Block(nf.AttentionConfig(6, 2), 5, rng=1, dtype=np.float64),
    "post": lambda: nf.Block(
        nf.AttentionConfig(6, 2), 5, placement="post", rng=1, dtype=np.float64
    ),
    "recompute": lambda: nf.Recompute(
        nf.Block(nf.AttentionConfig(6, 2), 5, rng=1, dtype=np.float64)
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_g06_weights_shared_by_two_depths(name, rng):
    """y = f(f(x)) with one layer must be what two equal layers give, their gradients added."""
    once, below, above = (LAYERS[name]() for _ in range(3))
    for p, q, r in zip(*(m.parameters() for m in (once, below, above)), strict=True):
        p.value[...] = rng.standard_normal(p.value.shape)
        q.value[...] = r.value[...] = p.value
    x, other, dy = rng.standard_normal((3, 2, 5, 6))
    h, first = once.forward(x)
    y, second = once.forward(h)
    once(other)
    once.forward(other)
    dx = once.backward(once.backward(dy, second), first)

    h2, first2 = below.forward(x)
    y2, second2 = above.forward(h2)
    exact(y, y2)
    exact(dx, below.backward(above.backward(dy, second2), first2))
    for p, q, r in zip(*(m.parameters() for m in (once, below, above)), strict=True):
        close(p.grad, q.grad + r.grad, rtol=0, atol=1e-12 * np.abs(p.grad).max())


@pytest.mark.parametrize("name", LAYERS)
def test_g06_backward_passes_in_any_order_and_number(name, rng):
    layer = LAYERS[name]()
    x1, x2, dy = rng.standard_normal((3, 2, 5, 6))
    (_, saved1), (_, saved2) = layer.forward(x1), layer.forward(x2)
    a = layer.backward(dy, saved1)
    grads = [p.grad.copy() for p in layer.parameters()]
    layer.backward(dy, saved2)
    exact(layer.backward(dy, saved1), a)
    layer.zero_grad()
    layer.backward(dy, saved1)
    for p, g in zip(layer.parameters(), grads, strict=True):
        exact(p.grad, g)
        assert not np.shares_memory(p.grad, dy)


def test_g06_one_layer_in_two_models(rng):
    shared = nf.Linear(6, 6, rng=1, dtype=np.float64)

    class Two(nf.Module):
        def __init__(self, layer):
            self.layer, self.norm = layer, nf.LayerNorm(6, dtype=np.float64)

        def forward(self, x):
            h, first = self.layer.forward(x)
            y, second = self.norm.forward(h)
            return y, (first, second)

        def backward(self, dy, saved):
            return self.layer.backward(self.norm.backward(dy, saved[1]), saved[0])

    x, y, dy = rng.standard_normal((3, 4, 6))
    one, two = Two(shared), Two(shared)
    (_, saved1), (_, saved2) = one.forward(x), two.forward(y)
    two.backward(dy, saved2)
    both = shared.W.grad.copy()
    one.backward(dy, saved1)
    both += one.layer.W.grad - both
    shared.zero_grad()
    one.backward(dy, saved1)
    alone = shared.W.grad.copy()
    shared.zero_grad()
    two.backward(dy, saved2)
    close(both, alone + shared.W.grad, rtol=0, atol=1e-13)


# -------------------------------------------------------------------------- O04 tied embeddings


def test_o04_both_sides_of_a_tied_table_count():
    c = case("O04")
    table = nf.Parameter(c["input"]["E"])
    h, looked_up = F.embedding(c["input"]["ids"], table.value)
    logits, scored = F.linear(h, table.value.T)
    loss, saved = F.cross_entropy(logits, c["input"]["targets"])
    dh, dET = F.linear_backward(F.cross_entropy_backward(1.0, saved), scored)
    from_input = F.embedding_backward(dh, looked_up)
    close(loss, c["right"]["loss"], rtol=1e-13)
    close(from_input, c["right"]["grad_from_input_side"], rtol=0, atol=1e-12)
    close(dET.T, c["right"]["grad_from_output_side"], rtol=0, atol=1e-12)
    table.accumulate(dET.T.copy())
    table.accumulate(from_input)
    close(table.grad, c["right"]["grad"], rtol=0, atol=1e-12)
    close(np.linalg.norm(table.grad), c["right"]["grad_norm"], rtol=1e-12)
    assert abs(c["wrong"]["grad_norm"] - c["right"]["grad_norm"]) > 0.1


@pytest.mark.parametrize("options", [{}, {"embedding_scale": 3.0, "logit_softcap": 2.0}])
def test_o04_tied_model_is_the_untied_one_with_gradients_added(options, rng):
    options = dict(V=11, d=6, L=2, H=2, T_max=7) | options
    tied = nf.DecoderLM(nf.TransformerConfig(**options), rng=1, dtype=np.float64)
    free = nf.DecoderLM(nf.TransformerConfig(**options, tied=False), rng=2, dtype=np.float64)
    values, own = tied.state_dict(), free.state_dict()
    (head,) = own.keys() - values.keys()
    for name, value in values.items():
        value[...] = rng.standard_normal(value.shape)
        own[name][...] = value
    (table,) = (name for name in values if values[name].shape == (11, 6))
    own[head][...] = values[table]
    assert sum(p.value.size for p in tied.parameters()) + 11 * 6 == sum(
        p.value.size for p in free.parameters()
    )
    ids, targets = rng.integers(0, 11, (2, 2, 5))
    for model in (tied, free):
        loss, saved = model.loss(ids, targets)
        model.loss_backward(1.7, saved)
        model.last = loss
    assert tied.last == free.last
    grads = {name: p.grad for name, p in free.named_parameters()}
    for name, p in tied.named_parameters():
        right = grads[name] + grads[head] if name == table else grads[name]
        close(p.grad, right, rtol=0, atol=1e-12 * np.abs(right).max())


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_o04_one_table_through_copy_cast_and_load(kind):
    import copy

    cfg = nf.TransformerConfig(V=11, d=6, L=1, H=2, T_max=7)
    make = nf.DecoderLM if kind == "decoder" else nf.EncoderDecoder
    model = make(cfg, rng=0)
    other = make(cfg, rng=1)
    other.load_state_dict(model.state_dict())
    for m in (model, copy.deepcopy(model), model.astype(np.float64), other):
        tables = [name for name, p in m.named_parameters() if p.value.shape == (11, 6)]
        assert len(tables) == 1
        assert m.head.E is m.embedding.tokens.E
        if kind == "encoder-decoder":
            assert m.encoder.embedding.tokens.E is m.head.E
        m.head.E.value[3] += 1
        exact(m.embedding.tokens.E.value[3], m.head.E.value[3])
    names = {id(p) for p in model.parameters()}
    assert len(names) == len(model.parameters())
