"""How parameters start, against the sources of each rule."""

import math

import numpy as np
import pytest

import npformer as nf
from npformer import init

D, D_FF, V, T_MAX, L = 96, 160, 311, 150, 3
"""Large enough for the spread of a sample: 96 x 160 numbers give it to 0.6 %."""

CFG = nf.TransformerConfig(
    V=V, d=D, L=L, H=4, H_kv=2, d_ff=D_FF, T_max=T_MAX, activation="silu", gated=True, tied=False,
    positions="learned", head_bias=True,
)  # fmt: skip
SPREAD = {
    "gpt2": lambda n, m: 0.02,
    "xavier": lambda n, m: math.sqrt(2 / (n + m)),
    "xavier_uniform": lambda n, m: math.sqrt(2 / (n + m)),
    "pytorch": lambda n, m: 1 / math.sqrt(3 * n),
}


def started(scheme, **options):
    from dataclasses import replace

    return nf.DecoderLM(replace(CFG, init=scheme, **options), rng=3, dtype=np.float64)


@pytest.mark.parametrize("scheme", SPREAD)
def test_every_parameter_starts_by_its_rule(scheme):
    model = started(scheme)
    seen = set()
    for name, p in model.named_parameters():
        a, kind = p.value, name.rpartition(".")[2]
        if kind == "W":
            owner = name.split(".")[-2]
            want = SPREAD[scheme](*a.shape)
            if scheme == "gpt2" and owner in ("Wo", "W2"):
                want /= math.sqrt(2 * L)  # each layer writes twice to the stream
            seen.add(owner)
            assert a.std() == pytest.approx(want, rel=0.05), name
            assert abs(a.mean()) < 5 * want / math.sqrt(a.size), name
        elif kind == "b":
            if scheme == "pytorch" and name != "head.b":
                fan_in = D_FF if name.endswith("W2.b") else D
                assert 0.6 / math.sqrt(fan_in) < np.abs(a).max() <= 1 / math.sqrt(fan_in), name
            else:
                assert not a.any(), name
        elif kind == "gamma":
            assert (a == 1).all(), name
        elif kind == "beta":
            assert not a.any(), name
        elif kind == "P":
            assert a.std() == pytest.approx(0.01, rel=0.05)
        else:
            assert kind == "E"
            assert a.std() == pytest.approx(0.02 if scheme == "gpt2" else D**-0.5, rel=0.05), name
    assert seen == {"Wq", "Wk", "Wv", "Wo", "W1", "W2", "W3"}


@pytest.mark.parametrize(
    ("scheme", "bound"),
    [("xavier_uniform", lambda n, m: math.sqrt(6 / (n + m))), ("pytorch", lambda n, m: n**-0.5)],
)
def test_uniform_rules_fill_their_range_and_no_more(scheme, bound):
    W = init.MATRICES[scheme](np.random.default_rng(0), 40, 90)
    assert W.shape == (40, 90)
    assert 0.995 * bound(40, 90) < np.abs(W).max() <= bound(40, 90)


@pytest.mark.parametrize("scheme", ["gpt2", "xavier"])
def test_normal_rules_have_the_tails_of_a_normal(scheme):
    W = init.MATRICES[scheme](np.random.default_rng(0), 200, 300) / SPREAD[scheme](200, 300)
    assert np.mean(np.abs(W) > 2) == pytest.approx(math.erfc(math.sqrt(2)), rel=0.05)


def test_layers_on_their_own_start_as_those_of_pytorch_do():
    """`torch.nn.Linear` within 1 / sqrt(fan in), bias too; `torch.nn.Embedding` N(0, 1)."""
    layer = nf.Linear(40, 90, rng=0, dtype=np.float64)
    bound = 40**-0.5
    assert 0.995 * bound < np.abs(layer.W.value).max() <= bound
    assert 0.9 * bound < np.abs(layer.b.value).max() <= bound
    assert nf.Embedding(90, 40, rng=0).E.value.std() == pytest.approx(1, rel=0.05)
    assert nf.LearnedPositions(90, 40, rng=0).P.value.std() == pytest.approx(0.02, rel=0.05)


def test_the_same_seed_is_the_same_start_and_another_is_another():
    one, two = (started("gpt2").state_dict() for _ in range(2))
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])
    other = nf.DecoderLM(CFG, rng=4, dtype=np.float64).state_dict()
    assert (one["stack.blocks.0.attn.Wq.W"] != other["stack.blocks.0.attn.Wq.W"]).all()


def test_no_two_matrices_start_alike():
    matrices = [p.value for n, p in started("xavier").named_parameters() if n.endswith(".W")]
    firsts = [W.flat[0] for W in matrices]
    assert len(set(firsts)) == len(firsts) == 7 * L


def test_the_stream_keeps_its_scale_at_any_depth_under_gpt2s_rule():
    """What 2 L sub-layers add has the size of what 2 add in a stack of one layer."""
    added = []
    for depth in (1, 16):
        model = started("gpt2", L=depth)
        total = sum(
            np.square(p.value).sum()
            for name, p in model.named_parameters()
            if name.endswith(("Wo.W", "W2.W"))
        )
        added.append(total)
    assert added[1] == pytest.approx(added[0], rel=0.05)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="init must be one of gpt2, xavier, xavier_uniform"):
        init.initialise(started("gpt2"), "he", L, np.random.default_rng(0))
