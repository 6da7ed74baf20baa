"""What NumPy would stretch, flatten or cut without a word is refused in one sentence."""

import numpy as np
import pytest

import npformer as nf
from npformer import functional as F

rng = np.random.default_rng(5)
x = rng.standard_normal((2, 3, 4))
gamma, beta = rng.standard_normal((2, 4))
CFG = nf.TransformerConfig(V=11, d=8, L=1, H=2, T_max=8)
IDS = rng.integers(0, 11, (2, 3))


def saved_of(pair):
    return pair[1]


# A cotangent of the right size but another shape would be flattened to the wrong rows.
BACKWARDS = {
    "softmax": lambda dy: F.softmax_backward(dy, saved_of(F.softmax(x))),
    "log_softmax": lambda dy: F.log_softmax_backward(dy, saved_of(F.log_softmax(x))),
    "layernorm": lambda dy: F.layernorm_backward(dy, saved_of(F.layernorm(x, gamma, beta))),
    "rmsnorm": lambda dy: F.rmsnorm_backward(dy, saved_of(F.rmsnorm(x, gamma))),
    "gelu": lambda dy: F.gelu_backward(dy, saved_of(F.gelu(x))),
    "dropout": lambda dy: F.dropout_backward(dy, saved_of(F.dropout(x, 0.5, 0))),
    "gate": lambda dy: F.gate_backward(dy, saved_of(F.gate(x, x))),
    "softcap": lambda dy: F.softcap_backward(dy, saved_of(F.softcap(x, 2.0))),
    "unembedding": lambda dy: F.unembedding_backward(dy, saved_of(F.unembedding(x, np.eye(4)))),
    "linear": lambda dy: F.linear_backward(dy, saved_of(F.linear(x, np.eye(4)))),
}


@pytest.mark.parametrize("name", BACKWARDS)
@pytest.mark.parametrize("shape", [(3, 2, 4), (1, 3, 4), (4,), (24,)])
def test_a_cotangent_of_another_shape_is_refused(name, shape):
    BACKWARDS[name](np.ones(x.shape))
    with pytest.raises(ValueError, match=r"d[yzp] must have shape \(2, 3, 4\)"):
        BACKWARDS[name](np.ones(shape))


@pytest.mark.parametrize("shape", [(3, 2, 4), (1, 6, 4), (6, 4), (24,)])
def test_the_cotangent_of_an_embedding_has_a_row_for_each_id(shape):
    _, saved = F.embedding(np.zeros((2, 3), int), np.ones((5, 4)))
    assert F.embedding_backward(np.ones((2, 3, 4)), saved).shape == (5, 4)
    with pytest.raises(ValueError, match=r"dy must have shape \(2, 3, "):
        F.embedding_backward(np.ones(shape), saved)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 1)])
def test_the_cotangents_of_single_losses_have_the_shape_of_the_targets(shape):
    _, saved = F.cross_entropy(x[0, :2], [1, 3], reduction="none")
    F.cross_entropy_backward(np.ones(2), saved)
    with pytest.raises(ValueError, match=r"dloss must have shape \(2,\)"):
        F.cross_entropy_backward(np.ones(shape), saved)


@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (5,)])
def test_a_shift_is_not_stretched_over_the_features(shape):
    with pytest.raises(ValueError, match=r"beta must have shape \(4,\)"):
        F.layernorm(x, gamma, np.zeros(shape))


@pytest.mark.parametrize("shape", [(4, 1), (4, 4)])
def test_a_gain_is_one_number_for_each_feature(shape):
    for norm in (lambda g: F.layernorm(x, g, beta), lambda g: F.rmsnorm(x, g)):
        with pytest.raises(ValueError, match=r"gamma must have shape \(4,\)"):
            norm(np.ones(shape))


def test_the_bias_of_the_logits_is_not_stretched():
    with pytest.raises(ValueError, match=r"b must have shape \(5,\)"):
        F.unembedding(x, np.ones((5, 4)), np.zeros(1))


@pytest.mark.parametrize("shape", [(), (1,), (6, 5), (6, 1)])
def test_a_bias_is_one_number_for_each_feature(shape):
    with pytest.raises(ValueError, match=r"b must have shape \(5,\)"):
        F.linear(x, np.ones((4, 5)), np.zeros(shape))


@pytest.mark.parametrize("shape", [(4,), (4, 5, 6)])
def test_a_linear_map_is_a_matrix(shape):
    with pytest.raises(ValueError, match=r"W must be a matrix"):
        F.linear(x, np.ones(shape))


def test_the_branches_of_a_gate_are_not_stretched():
    with pytest.raises(ValueError, match=r"u must have shape \(2, 3, 4\)"):
        F.gate(x, x[..., :1])


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
@pytest.mark.parametrize("positions", [[5], [[0, 1, 2]], [[0], [1]], 3, [0, 1]])
def test_positions_are_one_for_each_token(kind, positions):
    """One position for the whole text would run, and every token would stand in that place."""
    model = nf.DecoderLM(nf.TransformerConfig(V=11, d=8, L=1, H=2, T_max=8, positions=kind), rng=0)
    model(IDS, positions=np.arange(3))
    model(IDS, positions=np.tile(np.arange(3), (2, 1)))
    with pytest.raises(ValueError, match=r"positions must have shape .*B, T = 2, 3"):
        model(IDS, positions=np.array(positions))


@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 1), (3, 2)])
def test_token_types_are_one_for_each_token(shape):
    cfg = nf.TransformerConfig(V=11, d=8, L=1, H=2, T_max=8, token_types=2)
    with pytest.raises(ValueError, match=r"token_types must have shape \(2, 3\)"):
        nf.Encoder(cfg, rng=0)(IDS, token_types=np.zeros(shape, int))


# ---------------------------------------------------------------------------------------- dtypes


@pytest.mark.parametrize("dtype", [int, np.uint8, bool, object])
def test_parameters_are_never_whole_numbers(dtype):
    """A cast to integers would set nearly every weight to 0, and the model would still run."""
    model = nf.DecoderLM(CFG, rng=0)
    for make in (
        lambda: model.astype(dtype),
        lambda: nf.DecoderLM(CFG, rng=0, dtype=dtype),
        lambda: nf.Linear(3, 4, rng=0, dtype=dtype),
        lambda: nf.LayerNorm(3, dtype=dtype),
        lambda: nf.Embedding(3, 4, rng=0, dtype=dtype),
        lambda: nf.Parameter(np.ones(3, dtype)),
    ):
        with pytest.raises(TypeError, match="parameters must be floating-point numbers"):
            make()


def test_gradients_have_the_dtype_of_the_parameter_whatever_the_cotangent_has():
    model = nf.DecoderLM(CFG, rng=0)
    logits, saved = model.forward(IDS)
    dlogits = rng.standard_normal(logits.shape)
    for _ in range(2):  # the first gradient is kept, the second added
        model.backward(dlogits, saved)
        assert {p.grad.dtype for p in model.parameters()} == {np.dtype(np.float32)}
    with nf.gradients_apart() as apart:
        model.backward(dlogits, saved)
    model.zero_grad()
    apart.add()
    assert {p.grad.dtype for p in model.parameters()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda a: a + 1j, TypeError, "must hold real numbers, but its dtype is complex"),
        (lambda a: np.full(a.shape, "a"), TypeError, "must hold real numbers"),
        (lambda a: np.full(a.shape, None), TypeError, "must hold real numbers"),
        (lambda a: np.full(a.shape, 1e300), ValueError, "too large for float32"),
    ],
)
def test_a_state_that_would_become_another_one_is_refused_and_changes_nothing(
    wrong, error, message
):
    model = nf.DecoderLM(CFG, rng=0)
    before = {k: v.copy() for k, v in model.state_dict().items()}
    name = list(before)[-1]
    with pytest.raises(error, match=message):
        model.load_state_dict({k: v + 1 for k, v in before.items()} | {name: wrong(before[name])})
    for k, v in model.state_dict().items():
        np.testing.assert_array_equal(v, before[k])


def test_infinite_numbers_of_a_state_are_kept():
    layer = nf.Linear(2, 3, rng=0)
    layer.load_state_dict({"W": np.full((2, 3), -np.inf), "b": np.zeros(3)})
    assert np.isneginf(layer.W.value).all()


# ----------------------------------------------------------------------------------------- masks


def test_a_mask_over_no_keys_has_no_keys():
    assert F.causal_mask(3, 0).shape == (3, 0)
    assert F.window_mask(3, 0, window=2).shape == (3, 0)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_holds_at_least_the_query_itself(window):
    with pytest.raises(ValueError, match="window must be 1 or more"):
        F.window_mask(3, window=window)


@pytest.mark.parametrize("mask", [np.zeros((2, 2)), np.ones((2, 2), int), [[True, True]]])
def test_masks_that_are_joined_are_booleans(mask):
    with pytest.raises(TypeError, match="masks must be boolean arrays"):
        F.combine_masks(None, mask)
    with pytest.raises(TypeError, match="masks must be boolean arrays"):
        F.combine_masks(np.ones((2, 2), bool), mask)


SIZES = {
    "LayerNorm": (nf.LayerNorm, "d"),
    "RMSNorm": (nf.RMSNorm, "d"),
    "Linear, n": (lambda n: nf.Linear(n, 2), "n"),
    "Linear, m": (lambda m: nf.Linear(2, m), "m"),
    "Embedding, V": (lambda V: nf.Embedding(V, 2), "V"),
    "Embedding, d": (lambda d: nf.Embedding(2, d), "d"),
    "LearnedPositions, T_max": (lambda n: nf.LearnedPositions(n, 2), "T_max"),
    "LearnedPositions, d": (lambda d: nf.LearnedPositions(2, d), "d"),
    "FeedForward, d": (nf.FeedForward, "d"),
    "FeedForward, d_ff": (lambda n: nf.FeedForward(2, n), "d_ff"),
}


@pytest.mark.parametrize("name", SIZES)
def test_layers_have_sizes_from_one_on(name):
    make, said = SIZES[name]
    make(1)
    make(np.int64(2))
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"^{said} must be 1 or more, but is {size}$"):
            make(size)
    for size in (2.0, "2", True):
        with pytest.raises(TypeError, match=f"^{said} must be a whole number, but is"):
            make(size)


@pytest.mark.parametrize("eps", [-1e-9, -1.0, float("nan")])
@pytest.mark.parametrize("norm", [nf.LayerNorm, nf.RMSNorm])
def test_no_norm_takes_an_eps_below_zero(norm, eps):
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match="eps must be 0 or more, but is"):
        norm(3, eps=eps)(x)
    assert np.isfinite(norm(3, eps=0.0)(x + np.arange(3, dtype=np.float32))).all()


@pytest.mark.parametrize("kernel", [F.attention, F.flash_attention])
@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (1, 2, 3, 0)])
def test_attention_needs_rows_heads_and_features(kernel, shape):
    q = np.ones(shape)
    with pytest.raises(ValueError, match=r"must have|can't share"):
        kernel(q, q, q)
