"""docs/errata.md: numbers that no other test holds, and that what it refers to is there."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import npformer as nf
from npformer import functional as F
from npformer.cli import build_parser

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if re.match(r"\| (A|B|Xiong)\b", line)]
SHOWN = [re.split(r"(?<!\\)\|", row.strip().strip("|"))[-1].strip() for row in ROWS]


# --------------------------------------------------------------------------- the references


def test_every_row_has_four_cells():
    assert len(ROWS) > 50
    for row in ROWS:
        assert len(re.split(r"(?<!\\)\|", row.strip().strip("|"))) == 4, row


@pytest.mark.parametrize(
    "reference", sorted({r for cell in SHOWN for r in re.findall(r"`(tests/[^`]+)`", cell)})
)
def test_tests_that_are_named_exist(reference: str):
    file, name = reference.split("::")
    source = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^ *def {name}\(", source, re.MULTILINE), reference


COMMANDS = sorted({c for cell in SHOWN for c in re.findall(r"`npformer ([^`]+)`", cell)})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_are_named_can_be_given(command: str, capsys: pytest.CaptureFixture[str]):
    args = build_parser().parse_args(shlex.split(command))
    if args.verb in ("account", "inspect"):
        assert args.run(args) == 0
        assert capsys.readouterr().out


def test_pages_that_are_named_exist():
    pages = {p for cell in SHOWN for p in re.findall(r"\]\(([^)]+)\)", cell)}
    assert pages
    for page in pages:
        assert (ROOT / "docs" / page).exists(), page


# ------------------------------------------------------------------------------ the numbers


def test_where_exp_overflows():
    with np.errstate(over="ignore"):
        assert np.exp(np.float32(100)) == np.inf
        assert np.exp(np.float32(88.7)) < np.inf
        assert np.exp(np.float32(88.8)) == np.inf
        assert np.exp(np.float16(11.0)) < np.inf
        assert np.exp(np.float16(11.2)) == np.inf
    assert f"{np.exp(100.0):.2e}" == "2.69e+43"


def test_cross_attention_the_wrong_way_round_does_not_fit():
    """Queries from the encoder's output (7 tokens), keys and values from the decoder (5)."""
    rng = np.random.default_rng(0)
    source, target = rng.standard_normal((2, 7, 6)), rng.standard_normal((2, 5, 6))
    cross = nf.MultiHeadAttention(nf.AttentionConfig(d=6, H=2), rng=0, dtype=np.float64)
    assert cross(target, source).shape == target.shape
    with pytest.raises(ValueError, match="broadcast"):
        target + cross(source, target)


def test_attention_sees_order_only_through_a_mask():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 6, 8))
    order = rng.permutation(6)
    for causal in (False, True):
        attend = nf.MultiHeadAttention(
            nf.AttentionConfig(d=8, H=2, causal=causal), rng=0, dtype=np.float64
        )
        moved = np.abs(attend(x[:, order]) - attend(x)[:, order]).max()
        assert moved > 0.01 if causal else moved < 1e-14


def test_a_rotation_keeps_lengths_and_not_products():
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 1, 4, 8))
    positions = np.array([0, 3, 5, 9])
    rotated_q, _ = F.rope(q, positions)
    rotated_k, _ = F.rope(k, np.zeros(4, int))
    np.testing.assert_allclose(np.linalg.norm(rotated_q, axis=-1), np.linalg.norm(q, axis=-1))
    before, after = (np.sum(a * b, axis=-1)[0, 0] for a, b in ((q, k), (rotated_q, rotated_k)))
    assert before[0] == pytest.approx(after[0])
    assert (np.abs(np.abs(before[1:]) - np.abs(after[1:])) > 0.05).all()


def test_longest_wavelengths():
    def longest(d_h: int, base: float) -> float:
        return 2 * math.pi / F.rope_frequencies(d_h, base=base)[0][-1]

    assert round(longest(128, 1e4)) == 54_410
    assert round(longest(64, 1e4)) == 47_117
    assert f"{longest(128, 5e5):.2e}" == "2.56e+06"


def test_share_of_embeddings():
    cfg = nf.preset("chapter-12-layer")
    for tied, share in ((True, 22.4), (False, 36.6)):
        found = nf.accounting.parameters(nf.TransformerConfig(
            V=cfg.V, d=cfg.d, L=cfg.L, H=cfg.H, tied=tied, positions="none"))  # fmt: skip
        tables = cfg.V * cfg.d * (1 if tied else 2)
        assert round(100 * tables / found.total, 1) == share


def test_a_text_of_t_tokens_has_t_minus_1_targets():
    from npformer.data import windows

    ids = np.arange(9)
    inputs, targets = windows(ids, 8, 1)
    assert (inputs[0, -1], targets[0, -1]) == (7, 8)
    with pytest.raises(ValueError, match="the token after it"):
        windows(ids, 9, 1)


def test_attention_passes_the_matrices_late():
    """A step at length t: 4 t d operations of attention, 24 d^2 of the matrices (d_ff = 4d)."""
    d = 4096
    cfg = nf.TransformerConfig(V=8, d=d, L=1, H=32, positions="none")
    a = nf.accounting.flops(cfg, 1, 1)
    matrices = 24 * d * d
    assert matrices <= a.forward < matrices + 4 * d + 2 * d * 8 + 10 * d * 10
    assert matrices // (4 * d) == 6 * d == 24_576


def test_when_the_cache_passes_the_weights():
    """2 bytes a number: weights of 12 L d^2, and 2 L T n_kv d_h of cache."""
    L, d, d_h = 32, 4096, 128
    weights = 2 * 12 * L * d * d
    for heads, T, batch in ((32, 24_576, 3), (8, 98_304, 12), (1, 786_432, 96)):
        cfg = nf.TransformerConfig(V=8, d=d, L=L, H=32, H_kv=heads, d_h=d_h, positions="rope")
        assert nf.accounting.kv_cache_bytes(cfg, 1, T, dtype="float16") == weights
        assert nf.accounting.kv_cache_bytes(cfg, batch, 8192, dtype="float16") == weights
    one = nf.accounting.kv_cache_bytes(nf.preset("llama-2-7b"), 1, 1, dtype="float16")
    assert (one, one // 32) == (524_288, 16_384)


def test_twelve_l_d_squared():
    n = 12 * 32 * 4096**2
    assert n == 6_442_450_944
    assert f"{2 * n / 1e9:.2f} GB, {2 * n / 2**30:.1f} GiB" == "12.88 GB, 12.0 GiB"


def test_question_4():
    weights = 2 * 12 * 24 * 2048**2
    assert weights == 2.25 * 2**30
    for heads, size, ratio in ((16, 805_306_368, 3), (4, 201_326_592, 12)):
        cfg = nf.TransformerConfig(V=8, d=2048, L=24, H=16, H_kv=heads, positions="rope")
        cache = nf.accounting.kv_cache_bytes(cfg, 1, 4096, dtype="float16")
        assert (cache, weights / cache) == (size, ratio)


def test_network_against_attention():
    network = 3 * 4096 * 11008
    assert network == 135_266_304
    assert round(network / (4 * 4096**2), 3) == 2.016
    assert round(network / (2.5 * 4096**2), 3) == 3.225
