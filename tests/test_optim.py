"""Optimizers against PyTorch's recorded steps, against cases by hand, and in many pieces."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from cases import case
from sequences import gradient, sequence

import npformer as nf
from npformer import parallel
from npformer.module import Module, Parameter
from npformer.optim import OPTIMIZERS, SGD, Adam, AdamW, Group, global_norm, kinds, parameter_groups

exact = np.testing.assert_array_equal
close = np.testing.assert_allclose
REFERENCE = json.loads(
    (Path(__file__).parent / "data" / "optim_reference.json").read_text(encoding="utf-8")
)


class Bag(Module):
    """Parameters under the names they are given."""

    def __init__(self, **arrays):
        for name, a in arrays.items():
            setattr(self, name, Parameter(np.array(a)))


def alone(value, weight_decay=0.0):
    """One parameter that decays whatever its shape, in a group of its own."""
    p = Parameter(np.array(value))
    return p, [Group({"p": p}, weight_decay)]


# ------------------------------------------------------------------------- against known values


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", REFERENCE["runs"])
def test_a_hundred_steps_as_pytorch_takes_them(name, dtype):
    run = REFERENCE["runs"][name]
    options = dict(run["options"])
    p, groups = alone(sequence(0, REFERENCE["size"]).astype(dtype), options.pop("weight_decay", 0))
    if run["rule"] == "AdamW" and "weight_decay" not in run["options"]:
        groups = [Group({"p": p}, 0.01)]  # the default of both
    optimizer = OPTIMIZERS[run["rule"].lower()](groups, **options)
    for t in range(1, REFERENCE["steps"] + 1):
        p.grad = gradient(t, REFERENCE["size"]).astype(dtype)
        optimizer.step()
    bound = 1e-7 if dtype == "float32" else 1e-14
    for mine, theirs in zip([p.value, *optimizer.state["p"]], run[dtype], strict=True):
        assert mine.dtype == dtype
        error = np.linalg.norm(mine - np.array(theirs)) / np.linalg.norm(theirs)
        assert error <= bound


def test_o02_decay_is_decoupled_and_the_start_corrected():
    c = case("O02")
    given, right = c["input"], c["right"]["params_after_each_step"]
    p, groups = alone(given["p0"], given["weight_decay"])
    optimizer = AdamW(groups, given["lr"], betas=given["betas"], eps=given["eps"])
    for g, want in zip(given["grads"], right, strict=True):
        p.grad = g.copy()
        optimizer.step()
        close(p.value, want, rtol=1e-12)
        exact(p.grad, g)  # gradients stay as they are
    for wrong in c["wrong"].values():
        assert np.abs(wrong - right).max() > 5e-4
    p, groups = alone(given["p0"], given["weight_decay"])
    optimizer = Adam(groups, given["lr"])
    for g, want in zip(given["grads"], c["wrong"]["l2_in_gradient"], strict=True):
        p.grad = g
        optimizer.step()
        close(p.value, want, rtol=1e-12)  # wrong for AdamW is what Adam does


def test_adamw_without_decay_is_adam(rng):
    (p, groups), (q, others) = alone(np.ones(7)), alone(np.ones(7))
    first, second = AdamW(groups, 0.1), Adam(others, 0.1)
    for _ in range(3):
        p.grad = rng.standard_normal(7)
        q.grad = p.grad.copy()
        first.step()
        second.step()
    exact(p.value, q.value)


def test_o04_a_tied_table_is_summed_counted_and_stepped_once():
    c = case("O04")
    given, right = c["input"], c["right"]
    V, d = given["E"].shape
    cfg = nf.TransformerConfig(V=V, d=d, L=1, H=1, T_max=3, positions="none", final_norm=False)
    model = nf.DecoderLM(cfg, rng=0, dtype=np.float64)
    model.embedding.tokens.E.value[...] = given["E"]
    for name in ("Wo", "W2"):  # blocks that add nothing
        for module_name, module in model.named_modules():
            if module_name.endswith(name):
                module.W.value[...] = module.b.value[...] = 0
    names = [n for n, p in model.named_parameters() if p.value.shape == (V, d)]
    assert names == ["embedding.tokens.E"]
    assert dict(model.named_parameters())[names[0]].value.size == right["parameters"]
    loss, saved = model.loss(given["ids"][None], given["targets"][None])
    close(loss, right["loss"], rtol=1e-12)
    model.loss_backward(1.0, saved)
    table = model.embedding.tokens.E
    close(table.grad, right["grad"], rtol=0, atol=1e-12)
    norm = global_norm({"E": table})
    close(norm, right["grad_norm"], rtol=1e-12)
    assert abs(c["wrong"]["grad_norm"] - norm) > 0.4
    groups = parameter_groups(model, given["weight_decay"])
    members = [id(p) for group in groups for p in group.parameters.values()]
    assert members.count(id(table)) == 1
    AdamW(groups, given["lr"]).step()
    close(table.value, right["E_after_adamw"], rtol=1e-12)
    assert model.head.E is model.embedding.tokens.E


def test_o06_what_decays_goes_by_what_a_parameter_is():
    c = case("O06")
    given = c["input"]
    cfg = nf.TransformerConfig(V=5, d=4, L=1, H=2, T_max=3, qk_norm="head")
    model = nf.DecoderLM(cfg, rng=0)
    alike = {  # the names of the case, in another project's spelling
        "embedding.tokens.E": "wte.weight",
        "stack.blocks.0.attn_norm.gamma": "h.0.ln_1.weight",
        "stack.blocks.0.attn_norm.beta": "h.0.ln_1.bias",
        "stack.blocks.0.attn.Wq.W": "h.0.attn.c_attn.weight",
        "stack.blocks.0.attn.Wq.b": "h.0.attn.c_attn.bias",
        "stack.blocks.0.attn.q_norm.gamma": "h.0.attn.q_norm.weight",
        "stack.final_norm.gamma": "ln_f.weight",
    }
    for p in model.parameters():
        p.value[...] = given["p0"]
        p.grad = np.full_like(p.value, given["grad"])
    AdamW(model, given["lr"], weight_decay=given["weight_decay"]).step()
    values = {n: p.value for n, p in model.named_parameters()}
    for name, other in alike.items():
        decayed = other in c["right"]["decayed"]
        want = c["right"]["p_decayed" if decayed else "p_not_decayed"]
        close(values[name], want, rtol=1e-6, err_msg=name)


# ----------------------------------------------------------------------------------- the groups


def test_every_parameter_has_one_kind_and_one_group():
    cfg = nf.TransformerConfig(
        V=7, d=6, L=2, H=2, T_max=5, tied=False, head_bias=True, token_types=2, norm="rmsnorm"
    )
    for model in (nf.DecoderLM(cfg, rng=0), nf.EncoderDecoder(cfg, rng=0)):
        kind = kinds(model)
        named = dict(model.named_parameters())
        assert kind.keys() == named.keys()
        for name, k in kind.items():
            last = name.rpartition(".")[2]
            wanted = {"E": "embedding", "P": "embedding", "W": "matrix", "gamma": "norm"}
            assert k == wanted.get(last, "bias"), name
        for decayed in ((), ("matrix",), ("matrix", "embedding"), ("norm", "bias")):
            groups = parameter_groups(model, 0.3, decayed=decayed, lr_scale={"embedding": 0.5})
            members = [n for group in groups for n in group.parameters]
            assert sorted(members) == sorted(named)
            for group in groups:
                for name in group.parameters:
                    assert group.weight_decay == (0.3 if kind[name] in decayed else 0)
                    assert group.lr_scale == (0.5 if kind[name] == "embedding" else 1)


def test_groups_learn_at_their_own_rates():
    a, b = Parameter(np.zeros(3)), Parameter(np.zeros(3))
    a.grad, b.grad = np.ones(3), np.ones(3)
    SGD([Group({"a": a}), Group({"b": b}, lr_scale=0.25)], 0.4, momentum=0.0).step()
    close(a.value, -0.4, rtol=1e-15)
    close(b.value, -0.1, rtol=1e-15)


def test_a_group_with_a_rate_that_makes_no_sense_is_refused():
    p = Parameter(np.zeros(3))
    with pytest.raises(ValueError, match="lr_scale must be 0 or more and finite, but is -1"):
        SGD([Group({"p": p}, lr_scale=-1)])
    with pytest.raises(ValueError, match="weight_decay must be 0 or more and finite, but is nan"):
        SGD([Group({"p": p}, weight_decay=np.nan)])


def test_a_parameter_in_two_groups_is_named():
    p = Parameter(np.zeros(3))
    with pytest.raises(ValueError, match="twin is in two groups, also as p"):
        SGD([Group({"p": p}), Group({"twin": p})])
    with pytest.raises(ValueError, match="p is in two groups"):
        SGD([Group({"p": p}), Group({"p": Parameter(np.zeros(3))})])
    with pytest.raises(ValueError, match=r"a kind of parameter is one of .*, not 'gain'"):
        parameter_groups(Bag(p=np.zeros(3)), 0.1, decayed=["gain"])


# ------------------------------------------------------------------------------------- the step


@pytest.mark.parametrize("rule", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_pieces_and_threads_change_no_bit(rule, clip, monkeypatch, rng):
    shapes = [(31, 17), (5,), (1,), (101, 3), (2, 3, 5)]
    values = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    grads = [[rng.standard_normal(s).astype(np.float32) for s in shapes] for _ in range(3)]
    threads, found = parallel.threads(), []
    try:
        for n, block in ((1, 1 << 19), (2, 64), (3, 256), (2, 1000)):
            parallel.set_threads(n)
            # The norm's sum depends on the pieces, so with a clip they stay the same.
            monkeypatch.setattr(parallel, "BLOCK_BYTES", 256 if clip else block)
            bag = Bag(**{f"p{i}": v for i, v in enumerate(values)})
            optimizer = OPTIMIZERS[rule](bag, 0.1, weight_decay=0.1)
            for step in grads:
                for p, g in zip(bag.parameters(), step, strict=True):
                    p.grad = g.copy()
                optimizer.step(clip=clip)
            found.append([p.value for p in bag.parameters()])
    finally:
        parallel.set_threads(threads)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            exact(a, b)


def test_values_change_in_place_and_views_of_other_memory_are_copied():
    first = np.arange(6.0).reshape(2, 3)
    bag = Bag(W=np.zeros((2, 3)))
    bag.W.value = first
    bag.W.grad = np.ones((2, 3))
    optimizer = SGD(bag, 1.0, momentum=0.0)
    optimizer.step()
    assert bag.W.value is first
    exact(first, np.arange(6.0).reshape(2, 3) - 1)
    frozen = np.arange(6.0).reshape(3, 2)
    frozen.flags.writeable = False
    for view in (first.T, frozen):
        other = Bag(W=np.zeros((3, 2)))
        other.W.value, before = view, view.copy()
        other.W.grad = np.asfortranarray(np.arange(6.0).reshape(3, 2))
        SGD(other, 1.0, momentum=0.0).step()
        exact(other.W.value, before - np.arange(6.0).reshape(3, 2))
        exact(view, before)


def test_what_no_gradient_reached_is_left_alone():
    bag = Bag(W=np.ones((2, 2)), U=np.ones((2, 2)))
    optimizer = AdamW(bag, 0.1, weight_decay=0.5)
    for _ in range(3):
        bag.zero_grad()
        bag.W.grad = np.ones((2, 2))
        optimizer.step()
    exact(bag.U.value, 1)
    assert not bag.U.has_grad
    bag.zero_grad()
    bag.U.grad = np.ones((2, 2))
    optimizer.step()  # its first step is corrected as a first step
    close(bag.U.value, (1 - 0.05) - 0.1, rtol=1e-7)
    assert optimizer.steps == {"W": 3, "U": 1}
    assert optimizer.t == 4


def test_clipping_scales_the_whole_gradient_to_the_norm(rng):
    shapes = {"W": (3, 5), "b": (7,)}
    grads = {n: rng.standard_normal(s) for n, s in shapes.items()}
    norm = math.sqrt(sum(float(np.sum(g * g)) for g in grads.values()))
    for clip, scale in ((norm / 3, 1 / 3), (norm * 3, 1.0), (None, 1.0)):
        bag = Bag(**{n: np.zeros(s) for n, s in shapes.items()})
        for n, p in bag.named_parameters():
            p.grad = grads[n].copy()
        close(SGD(bag, 0.5, momentum=0.0).step(clip=clip), norm, rtol=1e-14)
        for n, p in bag.named_parameters():
            close(p.value, -0.5 * scale * grads[n], rtol=1e-13)
            exact(p.grad, grads[n])


@pytest.mark.parametrize("size", [1e-30, 1e-21, 1e-3, 1e15, 1e30])
def test_the_norm_of_numbers_whose_squares_do_not_fit(size):
    p = Parameter(np.zeros(7, np.float32))
    p.grad = np.full(7, size, np.float32)
    close(global_norm({"p": p}), size * math.sqrt(7), rtol=1e-6)
    p.grad = np.zeros(7, np.float32)
    assert global_norm({"p": p}) == 0
    assert global_norm({}) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_stops_the_step_by_name(bad):
    bag = Bag(W=np.ones((2, 3)), b=np.ones(5))
    optimizer = AdamW(bag, 0.1)
    bag.W.grad, bag.b.grad = np.ones((2, 3)), np.ones(5)
    bag.b.grad[[1, 3]] = bad
    with pytest.raises(FloatingPointError, match="gradient of b is not finite: 2 of its 5 numbers"):
        optimizer.step()
    exact(bag.W.value, 1)
    exact(bag.b.value, 1)
    assert optimizer.t == 0
    assert optimizer.steps == {"W": 0, "b": 0}


def test_the_rate_follows_a_schedule_or_is_given():
    bag = Bag(W=np.zeros((1, 1)))
    optimizer = SGD(bag, nf.optim.InverseSquareRoot(0.8, warmup=2), momentum=0.0)
    seen = []
    for lr in (None, None, 0.125, None):
        before = bag.W.value.item()
        bag.W.grad = np.ones((1, 1))
        optimizer.step(lr)
        seen.append(before - bag.W.value.item())
    close(seen, [0.4, 0.8, 0.125, 0.8 / math.sqrt(2)], rtol=1e-12)


# ------------------------------------------------------------------------------------ the state


@pytest.mark.parametrize("rule", OPTIMIZERS)
def test_a_state_goes_on_bit_for_bit(rule, rng):
    def take(bag, optimizer, steps):
        for t in steps:
            for i, p in enumerate(bag.parameters()):
                p.grad = sequence(t + i, p.value.size).reshape(p.value.shape).astype(np.float32)
            optimizer.step()

    start = {"W": np.ones((3, 2), np.float32), "b": np.ones(5, np.float32)}
    through, first, second = Bag(**start), Bag(**start), Bag(**start)
    take(through, OPTIMIZERS[rule](through, 0.1), range(7))
    optimizer = OPTIMIZERS[rule](first, 0.1)
    take(first, optimizer, range(4))
    state = {k: a.copy() for k, a in optimizer.state_dict().items()}
    take(first, optimizer, range(4, 6))  # what was copied stays
    again = OPTIMIZERS[rule](second, 0.1)
    again.load_state_dict(state)
    second.load_state_dict({n: p.value for n, p in through.named_parameters()})
    third = Bag(**start)
    take(third, OPTIMIZERS[rule](third, 0.1), range(4))
    second.load_state_dict(third.state_dict())
    take(second, again, range(4, 7))
    for a, b in zip(through.parameters(), second.parameters(), strict=True):
        exact(a.value, b.value)


def test_a_state_that_does_not_fit_is_refused_whole():
    optimizer = AdamW(Bag(W=np.ones((3, 2)), b=np.ones(5)), 0.1)
    state = optimizer.state_dict()
    bad = {k: a for k, a in state.items() if k != "mean/b"} | {
        "square/W": np.ones((2, 3)),
        "extra": np.ones(1),
        "t": np.array(9),
    }
    with pytest.raises(ValueError, match="mean/b is missing; extra is unexpected; square/W has sh"):
        optimizer.load_state_dict(bad)
    assert optimizer.t == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda b: AdamW(b, betas=(0.9, 1.0)), ValueError, "betas must be at least 0 and below 1"),
        (lambda b: AdamW(b, eps=-1e-8), ValueError, "eps must be 0 or more and finite"),
        (lambda b: AdamW(b, weight_decay=-0.1), ValueError, "weight_decay must be 0 or more"),
        (lambda b: SGD(b, momentum=1.5), ValueError, "momentum must be at least 0 and below 1"),
        (lambda b: SGD(b, math.nan).step(), ValueError, "lr must be 0 or more and finite"),
        (lambda b: SGD(b, -0.1).step(), ValueError, "lr must be 0 or more and finite"),
        (lambda b: SGD(b).step(clip=0.0), ValueError, "clip must be positive, but is 0.0"),
        (lambda b: SGD([]), ValueError, "no parameters to train"),
        (lambda b: SGD(b.astype(np.float16)), TypeError, "but W is float16: use model.astype"),
        (lambda b: SGD(b.astype(complex)), TypeError, "but W is complex128"),
    ],
)
def test_bad_options_are_one_sentence(make, error, message):
    bag = Bag(W=np.ones((2, 2)))
    bag.W.grad = np.ones((2, 2))
    with pytest.raises(error, match=message):
        make(bag)
    exact(bag.W.value, 1)
