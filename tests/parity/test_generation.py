"""What is written against transformers' ``generate``: greedy, penalised, by beams; what is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hugging_face import MODELS

import npformer as nf
from npformer.decoding.sampling import largest, nucleus, penalised

torch = pytest.importorskip("torch", reason="needs the extra `parity`")
transformers = pytest.importorskip("transformers", reason="needs the extra `parity`")

from reference.hugging_face_models import reference, true_float64  # noqa: E402

pytestmark = pytest.mark.parity
torch.set_num_threads(1)
exact = np.testing.assert_array_equal
ROWS = [[5, 1, 9, 2], [3], [7, 7, 0, 10, 8], [2, 6]]


@pytest.fixture(scope="module", params=["gpt2", "qwen2", "bart"])
def both(request, tmp_path_factory):
    """A family's model, and ours from the folder that it saved."""
    model, *_ = reference(MODELS[request.param], seed=7)
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder)
    return model, nf.load_pretrained(folder, np.float64)


def theirs(model, rows, new, **options):
    """The rows that transformers writes: prompt and what follows, 1 after the end."""
    T = max(map(len, rows))
    ids = torch.ones(len(rows), T, dtype=torch.long)
    real = torch.zeros(len(rows), T, dtype=torch.long)
    for b, row in enumerate(rows):
        ids[b, T - len(row) :] = torch.tensor(row)
        real[b, T - len(row) :] = 1
    with true_float64(), torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=real,
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=1,
            use_cache=False,
            **options,
        )
    if model.config.is_encoder_decoder:
        return [row.tolist() for row in out.numpy()]
    return [row[T - len(text) :].tolist() for row, text in zip(out.numpy(), rows, strict=True)]


def ours(model, rows, new, **options):
    if isinstance(model, nf.EncoderDecoder):
        return nf.generate(
            model, [[2]] * len(rows), new, source_ids=rows, pad_id=1, temperature=0, **options
        ).tolist()
    out = nf.generate(model, rows, new, pad_id=1, temperature=0, **options)
    return [row[: len(text) + new].tolist() for row, text in zip(out, rows, strict=True)]


def compare(both, new, mine, other):
    model, own = both
    if model.config.is_encoder_decoder:
        other = {**other, "decoder_start_token_id": 2, "forced_eos_token_id": None}
    rows = ROWS if not model.config.is_encoder_decoder else [r * 2 for r in ROWS]
    want, found = theirs(model, rows, new, **other), ours(own, rows, new, **mine)
    for a, b in zip(want, found, strict=True):
        exact(b[: len(a)], a)
        assert set(b[len(a) :]) <= {1}
    return found


def test_greedy(both):
    found = compare(both, 7, {}, {"eos_token_id": None})
    written = [row[-7:] for row in found]
    assert len({tuple(w) for w in written}) > 1
    stop = written[0][2]
    compare(both, 7, {"eos_id": stop}, {"eos_token_id": stop})
    compare(both, 7, {"eos_id": [stop, 4]}, {"eos_token_id": [stop, 4]})


def test_repetition_penalty(both):
    options = {"repetition_penalty": 1.7}
    if both[0].config.is_encoder_decoder:  # transformers penalises the source's tokens too
        with pytest.raises(AssertionError):
            compare(both, 7, options, {**options, "eos_token_id": None})
    else:
        compare(both, 7, options, {**options, "eos_token_id": None})


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("beams", [2, 3, 5])
def test_beam_search(both, beams, alpha):
    for stop in (None, 4, 9, [4, 12]):
        compare(
            both,
            6,
            {"beams": beams, "length_penalty": alpha, "eos_id": stop},
            {
                "num_beams": beams,
                "length_penalty": alpha,
                "eos_token_id": stop,
                "early_stopping": "never",
            },
        )


@pytest.mark.parametrize("penalty", [0.7, 1.3, 2.5])
def test_beam_search_with_a_repetition_penalty(both, penalty):
    if both[0].config.is_encoder_decoder:  # transformers penalises the source's tokens too
        return
    for beams, stop in ((2, None), (3, 9), (4, [4, 12])):
        compare(
            both,
            6,
            {"beams": beams, "repetition_penalty": penalty, "eos_id": stop},
            {
                "num_beams": beams,
                "repetition_penalty": penalty,
                "eos_token_id": stop,
                "early_stopping": "never",
            },
        )


def test_the_same_tokens_are_kept_and_penalised():
    rng = np.random.default_rng(3)
    for _ in range(50):
        z = rng.standard_normal(23)
        row = torch.tensor(z)[None]
        k, top_p = int(rng.integers(1, 23)), float(rng.uniform(0.05, 0.99))
        kept = transformers.TopKLogitsWarper(k)(None, row)[0]
        exact(largest(z, k), torch.isfinite(kept).nonzero()[:, 0])
        kept = transformers.TopPLogitsWarper(top_p)(None, row)[0]
        p = np.exp(z) / np.exp(z).sum()
        exact(nucleus(p, top_p), torch.isfinite(kept).nonzero()[:, 0])
        text = rng.integers(0, 23, 9)
        penalty = transformers.RepetitionPenaltyLogitsProcessor(1.7)
        want = penalty(torch.tensor(text)[None], row.clone())[0]
        np.testing.assert_allclose(penalised(z, text, 1.7), want, rtol=1e-14)
