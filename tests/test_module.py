"""Parameters, modules and the walk through what a forward pass saved."""

import os
import signal
import threading
import time
import warnings
from typing import NamedTuple

import numpy as np
import pytest

import npformer as nf
from npformer import module, tree
from npformer.module import Module, Parameter, gradients_apart


class Two(Module):
    """Two linear maps, the second of which shares its matrix with a third."""

    def __init__(self):
        self.first = nf.Linear(3, 5, rng=0)
        self.layers = [nf.Linear(5, 5, rng=1), nf.Linear(5, 5, rng=2)]
        self.layers[1].W = self.layers[0].W
        self.scale = Parameter(np.ones(1, np.float32))

    def forward(self, x):
        return x, None


def test_names_are_paths_and_a_tied_parameter_comes_once():
    names = [name for name, _ in Two().named_parameters()]
    assert names == ["scale", "first.W", "first.b", "layers.0.W", "layers.0.b", "layers.1.b"]
    assert len(Two().parameters()) == 6
    assert "layers.1" in dict(Two().named_modules())


def test_a_gradient_is_zeros_before_the_first_and_adds_up():
    p = Parameter(np.ones((2, 3), np.float32))
    assert not p.has_grad
    np.testing.assert_array_equal(p.grad, np.zeros((2, 3)))
    assert p.grad.dtype == np.float32
    p.accumulate(np.full((2, 3), 2, np.float32))
    p.accumulate(np.full((2, 3), 3, np.float32))
    p.grad += 1
    np.testing.assert_array_equal(p.grad, np.full((2, 3), 6))
    with pytest.raises(ValueError, match=r"gradient of shape \(3,\) for a parameter \(2, 3\)"):
        p.accumulate(np.zeros(3, np.float32))


def test_rows_of_a_table_add_up():
    p = Parameter(np.zeros((4, 2)))
    p.accumulate_rows(np.array([1, 3]), np.ones((2, 2)))
    with gradients_apart() as apart:
        p.accumulate_rows(np.array([3, 0]), np.full((2, 2), 2.0))
    np.testing.assert_array_equal(p.grad[:, 0], [0, 1, 0, 1])
    apart.add()
    np.testing.assert_array_equal(p.grad[:, 0], [2, 1, 0, 3])


def test_zero_grad_forgets():
    layer = nf.Linear(3, 5, rng=0)
    x = np.ones((2, 3), np.float32)
    y, saved = layer.forward(x)
    layer.backward(y, saved)
    assert layer.W.grad.any()
    layer.zero_grad()
    assert not layer.W.grad.any()


def test_gradients_of_threads_are_collected_apart_and_added_in_order():
    layer = nf.Linear(7, 5, rng=0, dtype=np.float64)
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((4, 11, 7)), rng.standard_normal((4, 11, 5))
    apart = [None] * 4

    def work(i):
        with gradients_apart() as apart[i]:
            for _ in range(2):  # twice: collected gradients add up too
                _, saved = layer.forward(x[i])
                layer.backward(dy[i], saved)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not layer.W.has_grad
    for one in apart:
        one.add()
    np.testing.assert_allclose(layer.W.grad, 2 * np.einsum("bti,btj->ij", x, dy), rtol=1e-12)
    again = layer.W.grad.copy()
    apart[0].add()  # nothing is added twice
    np.testing.assert_array_equal(layer.W.grad, again)


def test_state_goes_out_and_in():
    a, b = Two(), Two()
    a.scale.value[...] = 3
    a.layers[0].W.value[...] = 7
    b.load_state_dict(a.state_dict())
    for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        np.testing.assert_array_equal(p.value, q.value, err_msg=name)
        assert not np.shares_memory(p.value, q.value)
    assert b.layers[1].W is b.layers[0].W


def test_a_state_that_does_not_fit_is_named_and_changes_nothing():
    layer = nf.Linear(3, 5, rng=0)
    before = layer.W.value.copy()
    with pytest.raises(ValueError, match=r"missing b; unexpected c; W has shape \(5, 3\) and not"):
        layer.load_state_dict({"W": np.zeros((5, 3)), "c": np.zeros(1)})
    np.testing.assert_array_equal(layer.W.value, before)


def test_astype_is_a_copy_that_stays_tied():
    model = Two()
    twin = model.astype(np.float64)
    assert twin.dtype == np.float64
    assert model.dtype == np.float32
    assert twin.layers[1].W is twin.layers[0].W
    twin.first.W.value[...] = 0
    assert model.first.W.value.any()


def test_a_module_without_a_forward_says_so():
    with pytest.raises(NotImplementedError):
        Module().forward()
    with pytest.raises(NotImplementedError):
        Module().backward(None, None)


class Pair(NamedTuple):
    x: np.ndarray
    eps: float


@pytest.fixture
def saved():
    x = np.arange(6.0)
    return {
        "blocks": [{"attn": Pair(x, 1e-5), "ffn": {"W1": (x[1:], 3)}}, {"attn": Pair(x * 2, 0)}]
    }


def test_paths_of_a_saved_tree(saved):
    assert [p for p, _ in tree.leaves(saved)] == [
        "blocks.0.attn.x",
        "blocks.0.ffn.W1.0",
        "blocks.1.attn.x",
    ]


def test_select_by_pattern(saved):
    assert list(tree.select(saved, "blocks.*.attn")) == ["blocks.0.attn", "blocks.1.attn"]
    assert list(tree.select(saved, "blocks.1.attn.x")) == ["blocks.1.attn.x"]
    assert list(tree.select(saved, "blocks.*")) == ["blocks.0", "blocks.1"]
    assert tree.select(saved, "nothing") == {}


def test_nbytes_counts_an_owning_buffer_once(saved):
    assert tree.nbytes(saved) == 48 + 48
    assert tree.nbytes(saved, without=saved["blocks"][0]) == 48
    assert tree.nbytes({"view": np.arange(10.0)[2:4]}) == 80


def test_activation_paths_are_module_paths():
    cfg = nf.TransformerConfig(V=11, d=12, L=2, H=3, T_max=5)
    model = nf.DecoderLM(cfg, rng=0)
    _, saved = model.forward(np.zeros((2, 5), int))
    assert "stack.blocks.1.attn.attention.lse" in dict(tree.leaves(saved))
    modules = dict(model.named_modules())
    for path, node in tree.nodes(saved):
        if isinstance(node, dict) and path not in ("", "stack.blocks"):
            assert path in modules, path


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_another_thread_adds_gradients_is_not_stuck():
    holding = threading.Event()

    def other():
        with module._adding:
            holding.set()
            time.sleep(0.2)

    thread = threading.Thread(target=other)
    thread.start()
    holding.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(20)
            p = Parameter(np.zeros(3))
            p.accumulate(np.ones(3))
            os._exit(0 if p.grad.sum() == 3 else 1)
        finally:
            os._exit(2)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
