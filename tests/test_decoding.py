"""Generation: the same tokens in company as alone, with a cache as without, and by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import npformer as nf
from npformer import functional as F
from npformer.decoding import Sampling, Writer, beam_search
from npformer.decoding.sampling import largest, nucleus, penalised

exact = np.testing.assert_array_equal
close = np.testing.assert_allclose

CONFIGS = {
    "learned": {},
    "sinusoidal": {"positions": "sinusoidal"},
    "rope, grouped, gated": {
        "positions": "rope",
        "H_kv": 1,
        "norm": "rmsnorm",
        "gated": True,
        "activation": "silu",
        "bias": False,
    },
    "window, capped, post": {
        "positions": "rope",
        "window": 3,
        "logit_softcap": 2.0,
        "placement": "post",
    },
}
ROWS = [[5, 1, 9, 2], [3], [7, 7, 0, 10, 8, 4, 6], [2, 6]]


def language_model(**options):
    """A small float64 model with weights of order one, so that its choices are clear."""
    cfg = nf.TransformerConfig(V=11, d=12, L=2, H=2, T_max=23, **options)
    return stirred(nf.DecoderLM(cfg, rng=0, dtype=np.float64))


def translator(**options):
    cfg = nf.TransformerConfig(V=11, d=12, L=2, H=2, T_max=23, L_encoder=1, **options)
    return stirred(nf.EncoderDecoder(cfg, rng=0, dtype=np.float64))


def stirred(model):
    rng = np.random.default_rng(5)
    for p in model.parameters():
        p.value += 0.4 * rng.standard_normal(p.value.shape)
    return model


def by_hand(model, row, new, choose, **source):
    """The plainest loop: the whole text again for every token."""
    text = list(row)
    for _ in range(new):
        if source:
            logits, _ = model.forward(source["source_ids"], np.array([text]))
        else:
            logits, _ = model.forward(np.array([text]))
        text.append(choose(logits[0, -1], text))
    return text


def greedy(logits, text):
    return int(np.argmax(logits))


# ------------------------------------------------------------- the loop, the cache and the rows


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_rows_are_those_of_the_plain_loop(name):
    model, new = language_model(**CONFIGS[name]), 6
    want = [by_hand(model, row, new, greedy) for row in ROWS]
    assert len({tuple(w[-new:]) for w in want}) > 1
    T = max(map(len, ROWS))
    for cached in (True, False):
        out = nf.generate(model, ROWS, new, temperature=0, cached=cached, pad_id=1)
        assert out.shape == (len(ROWS), T + new)
        assert out.dtype == np.int64
        for row, text in zip(out, want, strict=True):
            exact(row[: len(text)], text)
            assert np.all(row[len(text) :] == 1)
    same = np.array([row[:1] for row in ROWS])
    exact(nf.generate(model, same, new, 0.0)[1], by_hand(model, ROWS[1], new, greedy))


def test_rows_of_a_translation_are_those_of_the_plain_loop():
    model, new = translator(), 5
    sources = [[4, 9, 9], [1, 2, 3, 4, 5], [10]]
    starts = [[0], [0, 3], [0]]
    for cached in (True, False):
        out = nf.generate(
            model, starts, new, temperature=0, source_ids=sources, cached=cached, pad_id=9
        )
        for row, start, source in zip(out, starts, sources, strict=True):
            want = by_hand(model, start, new, greedy, source_ids=np.array([source]))
            exact(row[: len(want)], want)
    mask = np.zeros((3, 5), np.bool_)
    padded = np.full((3, 5), 7)
    for b, source in enumerate(sources):
        padded[b, : len(source)], mask[b, : len(source)] = source, True
    again = nf.generate(
        model, starts, new, temperature=0, source_ids=padded, source_mask=mask, pad_id=9
    )
    exact(again, out)


@pytest.mark.parametrize("options", [{}, {"top_k": 4}, {"top_p": 0.8, "temperature": 1.7}])
def test_a_row_is_sampled_alone_as_in_company(options):
    model = language_model(positions="rope")
    seeds = [11, 22, 33, 44]
    out = nf.generate(model, ROWS, 8, rng=seeds, **options)
    for row, text, seed in zip(out, ROWS, seeds, strict=True):
        alone = nf.generate(model, [text], 8, rng=seed, cached=False, **options)
        exact(row[: len(text) + 8], alone[0])
    exact(nf.generate(model, ROWS, 8, rng=seeds, **options), out)
    assert np.any(nf.generate(model, ROWS, 8, rng=[1, 2, 3, 4], **options) != out)
    first = nf.generate(model, ROWS, 8, rng=5, **options)[0]
    exact(nf.generate(model, ROWS[:1], 8, rng=5, **options)[0], first[: len(ROWS[0]) + 8])
    twins = nf.generate(model, [[1, 2]] * 5, 8, rng=5, **options)
    assert len({tuple(row) for row in twins}) > 1  # equal prompts don't write the same
    exact(nf.generate(model, ROWS, 8, rng=np.array(seeds), **options), out)
    generator = np.random.default_rng(5)
    exact(nf.generate(model, ROWS, 8, rng=generator, **options)[0], first)
    assert np.any(nf.generate(model, ROWS, 8, rng=generator, **options)[0] != first)


def test_a_model_keeps_nothing_from_one_text_to_the_next():
    model, fresh = language_model(), language_model()
    long, short = [[1, 2, 3, 4, 5, 6, 7]], [[9, 2]]
    first = nf.generate(model, long, 5, temperature=0)
    exact(nf.generate(model, long, 5, temperature=0), first)
    exact(nf.generate(model, short, 5, temperature=0), nf.generate(fresh, short, 5, temperature=0))


def test_a_row_ends_with_its_own_stop_token():
    model, new = language_model(), 7
    free = nf.generate(model, ROWS, new, temperature=0)
    written = [row[len(t) : len(t) + new].tolist() for row, t in zip(free, ROWS, strict=True)]
    stop = next(i for w in written for i in w if sum(i in other for other in written) in (1, 2))
    steps = []
    out = nf.generate(model, ROWS, new, temperature=0, eos_id=stop, pad_id=3, stream=steps.append)
    for row, text, w in zip(out, ROWS, written, strict=True):
        end = w.index(stop) + 1 if stop in w else new
        exact(row[len(text) : len(text) + end], w[:end])
        assert np.all(row[len(text) + end :] == 3)
    for b, text in enumerate(ROWS):
        exact([step[b] for step in steps], out[b, len(text) : len(text) + len(steps)])
    both = nf.generate(model, ROWS, new, temperature=0, eos_id=[stop, written[0][0]])
    assert both[0, len(ROWS[0]) + 1] == stop  # the first stop token is what pads
    alone = nf.generate(model, ROWS[:1], new, temperature=0, eos_id=written[0][0])
    exact(alone[0], [*ROWS[0], *[written[0][0]] * new])


def test_a_stop_token_in_the_prompt_ends_nothing():
    model = language_model()
    free = nf.generate(model, [[4, 4]], 3, temperature=0)
    assert 4 not in free[0, 2:]
    exact(nf.generate(model, [[4, 4]], 3, temperature=0, eos_id=4), free)


def test_no_new_tokens_is_the_prompt():
    out = nf.generate(language_model(), ROWS, 0, pad_id=1)
    assert out.shape == (4, 7)
    for row, text in zip(out, ROWS, strict=True):
        exact(row, text + [1] * (7 - len(text)))


def test_float32_models_cached_and_not():
    model = language_model(positions="rope").astype(np.float32)
    cached = nf.generate(model, ROWS, 6, temperature=0)
    exact(cached, nf.generate(model, ROWS, 6, temperature=0, cached=False))


# ---------------------------------------------------------------------------------- the choice


def test_top_k_keeps_exactly_k_and_lower_ids_at_the_edge():
    z = np.array([1.0, 3.0, 2.0, 3.0, 2.0, 2.0, -np.inf])
    exact(largest(z, 1), [1])
    exact(largest(z, 2), [1, 3])
    exact(largest(z, 3), [1, 2, 3])
    exact(largest(z, 4), [1, 2, 3, 4])
    exact(largest(z, 99), np.arange(7))


def test_top_p_keeps_the_token_that_crosses_the_line():
    p = np.array([0.1, 0.4, 0.05, 0.25, 0.2])
    exact(nucleus(p, 0.39), [1])
    exact(nucleus(p, 0.4), [1])
    exact(nucleus(p, 0.41), [1, 3])
    exact(nucleus(p, 0.66), [1, 3, 4])
    exact(nucleus(p, 0.96), [0, 1, 2, 3, 4])
    exact(nucleus(np.full(8, 0.125), 0.3), [0, 1, 2])  # equal ones: the lower ids
    exact(nucleus(np.array([1e-9, 1 - 1e-9]), 1e-12), [1])
    p = np.full(100, 1 / 100)  # more than a sort keeps in order by luck
    exact(nucleus(p, 0.295), np.arange(30))
    p[1::2] += 1 / 1000
    exact(nucleus(p / p.sum(), 0.2), np.arange(1, 40, 2))


def test_top_p_prunes_nothing_that_it_needs(rng):
    for _ in range(200):
        p = rng.dirichlet(np.full(13, 0.3))
        top_p = rng.uniform(0.05, 0.999)
        order = np.argsort(-p, kind="stable")
        count = next(n for n in range(1, 14) if p[order[:n]].sum() >= top_p)
        exact(nucleus(p, top_p), np.sort(order[:count]))


def test_the_draws_have_the_probabilities_of_the_formula():
    z = np.array([0.3, -1.0, 1.2, 0.0, 0.9])
    generator, n = np.random.default_rng(1), 20_000
    for options, allowed in (
        ({"temperature": 0.7}, [0, 1, 2, 3, 4]),
        ({"top_k": 3}, [0, 2, 4]),
        ({"top_p": 0.6, "temperature": 2.0}, [0, 2, 4]),
        ({"top_k": 4, "top_p": 0.75}, [0, 2, 4]),
    ):
        want = np.zeros(5)
        temperature = options.get("temperature", 1.0)
        want[allowed] = np.exp(z[allowed] / temperature)
        want /= want.sum()
        choice = Sampling(**options)
        drawn = np.bincount([choice.choose(z, [], generator) for _ in range(n)], minlength=5)
        # Five standard deviations: this seed either passes or does not, every time.
        assert np.all(np.abs(drawn / n - want) <= 5 * np.sqrt(want * (1 - want) / n)), options


def test_a_choice_at_the_edges_of_the_numbers():
    generator = np.random.default_rng(0)
    z = np.array([-np.inf, 1e300, 1e300, -np.inf])
    assert {Sampling().choose(z, [], generator) for _ in range(50)} == {1, 2}
    assert Sampling(0.0).choose(z, [], generator) == 1
    assert Sampling(1e-320).choose(np.array([1.0, 3.0, 2.0]), [], generator) == 1
    assert Sampling(top_p=0.5).choose(np.array([0.0, 50.0]), [], generator) == 1
    assert Sampling(top_k=1).choose(np.array([2.0, 2.0]), [], generator) == 0
    for bad in ([np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]):
        with pytest.raises(FloatingPointError, match="no token can be chosen"):
            Sampling().choose(np.array(bad), [], generator)


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.4999, 1), (0.5, 3), (np.nextafter(1, 0), 3)])
def test_a_token_without_probability_is_never_drawn(u, token):
    class Fixed:
        def random(self):
            return u

    z = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf])
    assert Sampling().choose(z, [], Fixed()) == token


def test_repetition_penalty_lowers_logits_of_either_sign_once():
    z = np.array([2.0, -2.0, 0.5, 0.0])
    exact(penalised(z, np.array([0, 1, 1, 3]), 2.0), [1.0, -4.0, 0.5, 0.0])
    exact(z, [2.0, -2.0, 0.5, 0.0])
    exact(penalised(z, np.array([0]), 1e-320), [np.finfo(float).max, -2.0, 0.5, 0.0])
    assert Sampling(repetition_penalty=1e-320).choose(z, [0], np.random.default_rng(0)) == 0
    model, penalty = language_model(), 1.8

    def choose(logits, text):
        return int(np.argmax(penalised(logits, np.array(text), penalty)))

    want = [by_hand(model, row, 9, choose) for row in ROWS]
    plain = nf.generate(model, ROWS, 9, temperature=0)
    out = nf.generate(model, ROWS, 9, temperature=0, repetition_penalty=penalty)
    assert np.any(out != plain)
    for row, text in zip(out, want, strict=True):
        exact(row[: len(text)], text)


# --------------------------------------------------------------------------------- beam search


def all_texts(model, prompt, new, eos, alpha):
    """Every text there is, with its score: the truth that beam search looks for."""
    V, found = model.cfg.V, {}
    for tokens in itertools.product(range(V), repeat=new):
        end = next((i + 1 for i, t in enumerate(tokens) if t in eos), new)
        text = tokens[:end]
        if text in found:
            continue
        logits = model(np.array([[*prompt, *text]]))[0, len(prompt) - 1 : -1]
        logp = F.log_softmax(logits)[0][np.arange(end), list(text)].sum()
        found[text] = logp / end**alpha
    return found


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.5])
def test_beam_search_wide_enough_finds_the_best_text_of_all(alpha):
    cfg = nf.TransformerConfig(V=4, d=6, L=1, H=2, T_max=9)
    model, eos = stirred(nf.DecoderLM(cfg, rng=3, dtype=np.float64)), {2}
    for prompt in ([1], [3, 0], [0, 1, 3]):
        truth = all_texts(model, prompt, 3, eos, alpha)
        best = max(truth, key=truth.__getitem__)
        writer = Writer(model, 64, 9)
        ((tokens, score),) = beam_search(
            writer,
            np.array([prompt]),
            np.ones((1, len(prompt)), np.bool_),
            max_new_tokens=3,
            beams=64,
            eos=eos,
            length_penalty=alpha,
        )
        assert tuple(tokens) == best
        close(score, truth[best], rtol=1e-12)


def plain_beams(model, prompt, new, beams, eos, alpha):
    """Beam search to the last step, whatever has been found by then."""
    running, ends = [(0.0, [])], []
    for n in range(1, new + 1):
        paths = []
        for score, text in running:
            logp = F.log_softmax(model(np.array([[*prompt, *text]]))[0, -1])[0]
            paths += [(score + x, [*text, i]) for i, x in enumerate(logp)]
        paths.sort(key=lambda path: -path[0])
        ends += [(s / n**alpha, t) for s, t in paths[:beams] if t[-1] in eos]
        running = [path for path in paths if path[1][-1] not in eos][:beams]
    return max([*ends, *((s / new**alpha, t) for s, t in running)], key=lambda end: end[0])


@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_beam_search_never_stops_too_early(alpha):
    short = 0
    for seed in range(4):
        cfg = nf.TransformerConfig(V=6, d=6, L=1, H=2, T_max=9)
        model = nf.DecoderLM(cfg, rng=seed, dtype=np.float64)
        for p in model.parameters():
            p.value += 0.3 * np.random.default_rng(seed).standard_normal(p.value.shape)
        for beams, eos in ((1, {0}), (2, {3}), (3, {1, 4})):
            score, text = plain_beams(model, [1, 5], 7, beams, eos, alpha)
            (found,) = beam_search(
                Writer(model, beams, 9), np.array([[1, 5]]), np.ones((1, 2), np.bool_),
                max_new_tokens=7, beams=beams, eos=eos, length_penalty=alpha,
            )  # fmt: skip
            assert found[0] == text
            close(found[1], score, rtol=1e-12)
            short += len(text) < 7
    assert short > 2 or alpha == 3


def test_beam_search_over_rows_is_that_of_each_alone_cached_or_not():
    model = language_model()
    for eos, alpha in ((None, 1.0), (4, 0.0), ([4, 6], 2.0)):
        options = {"beams": 3, "eos_id": eos, "length_penalty": alpha, "pad_id": 0}
        out = nf.generate(model, ROWS, 6, **options)
        exact(nf.generate(model, ROWS, 6, cached=False, **options), out)
        for row, text in zip(out, ROWS, strict=True):
            alone = nf.generate(model, [text], 6, **options)[0]
            exact(row[: len(text) + 6], alone)


def penalised_beams(model, prompt, new, beams, eos, penalty):
    """`plain_beams` with a repetition penalty on the log-probabilities of what a beam has read."""
    running, ends = [(0.0, [])], []
    for n in range(1, new + 1):
        paths = []
        for score, text in running:
            logp = F.log_softmax(model(np.array([[*prompt, *text]]))[0, -1])[0]
            for i in {*prompt, *text}:
                logp[i] *= penalty
            paths += [(score + x, [*text, i]) for i, x in enumerate(logp)]
        paths.sort(key=lambda path: -path[0])
        ends += [(s / n, t) for s, t in paths[:beams] if t[-1] in eos]
        running = [path for path in paths if path[1][-1] not in eos][:beams]
    return max([*ends, *((s / new, t) for s, t in running)], key=lambda end: end[0])[1]


@pytest.mark.parametrize("penalty", [0.6, 1.4, 3.0])
def test_beam_search_penalises_what_each_beam_has_read(penalty):
    model = language_model()
    options = {"beams": 3, "eos_id": 4, "pad_id": 1}
    out = nf.generate(model, ROWS, 6, repetition_penalty=penalty, **options)
    assert np.any(out != nf.generate(model, ROWS, 6, **options))
    for row, text in zip(out, ROWS, strict=True):
        want = [*text, *penalised_beams(model, text, 6, 3, {4}, penalty)]
        exact(row, want + [1] * (len(row) - len(want)))


def test_a_search_for_nothing_says_so():
    model = language_model()
    model.embedding.tokens.E.value[9] = np.nan
    for beams in (1, 2):
        with pytest.raises(FloatingPointError, match="no token can be chosen: a logit is NaN"):
            nf.generate(model, [[5, 1]], 3, beams=beams)


def test_beam_search_of_a_translation():
    model = translator()
    sources = [[4, 9, 9], [1, 2, 3, 4, 5]]
    options = {"beams": 4, "eos_id": 6, "pad_id": 0, "length_penalty": 1.0}
    out = nf.generate(model, [[0], [0]], 5, source_ids=sources, **options)
    exact(nf.generate(model, [[0], [0]], 5, source_ids=sources, cached=False, **options), out)
    for b, source in enumerate(sources):
        alone = nf.generate(model, [[0]], 5, source_ids=[source], **options)
        exact(alone[0], out[b])


def test_one_beam_is_greedy_and_more_beams_score_no_less():
    model = language_model()

    def search(beams):
        writer = Writer(model, beams, 16)
        prompt = np.array([[5, 1, 9]])
        return beam_search(
            writer, prompt, np.ones_like(prompt, np.bool_), max_new_tokens=6, beams=beams
        )[0]

    tokens, one = search(1)
    exact(tokens, nf.generate(model, [[5, 1, 9]], 6, temperature=0)[0, 3:])
    assert search(40)[1] >= one


# ----------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ids": [[1, 11]]}, IndexError, r"ids must lie in \[0, 11\), but one of them is 11"),
        ({"ids": [[]]}, ValueError, "at least one token each"),
        ({"ids": np.zeros((1, 0), int)}, ValueError, "at least one token each"),
        ({"ids": []}, ValueError, "at least one token each"),
        ({"ids": np.array([1, 2])}, ValueError, r"shape \(B, T\) or be a list of rows"),
        ({"ids": [1, 2]}, ValueError, "rows of at least one token"),
        ({"max_new_tokens": -1}, ValueError, "max_new_tokens must be 0 or more, but is -1"),
        ({"max_new_tokens": 24}, ValueError, r"need 25 positions, but the model has T_max = 23"),
        ({"temperature": -0.5}, ValueError, "temperature must be 0 or more, but is -0.5"),
        ({"temperature": np.nan}, ValueError, "temperature must be 0 or more"),
        ({"top_k": 0}, ValueError, "top_k must be 1 or more, but is 0"),
        ({"top_p": 0.0}, ValueError, r"top_p must lie in \(0, 1\], but is 0"),
        ({"top_p": 1.1}, ValueError, r"top_p must lie in \(0, 1\], but is 1.1"),
        ({"repetition_penalty": 0}, ValueError, "repetition_penalty must be positive, but is 0"),
        ({"eos_id": 11}, IndexError, r"eos_id must lie in \[0, 11\)"),
        ({"beams": 0}, ValueError, "beams must be 1 or more, but is 0"),
        ({"beams": 2, "top_k": 3}, ValueError, "beam search takes no top_k or top_p: it draws"),
        ({"beams": 2, "top_p": 0.5}, ValueError, "beam search takes no top_k or top_p: it draws"),
        ({"beams": 2, "stream": print}, ValueError, "beam search takes no stream"),
        ({"beams": 2, "length_penalty": np.nan}, ValueError, "length_penalty must be a number"),
        ({"beams": 2, "length_penalty": 1e4}, ValueError, "of moderate size for 3 tokens"),
        ({"beams": 2, "length_penalty": -1e4}, ValueError, "of moderate size for 3 tokens"),
        ({"beams": 2.0}, TypeError, "beams must be a whole number, but is 2.0"),
        ({"max_new_tokens": True}, TypeError, "max_new_tokens must be a whole number"),
        ({"top_k": 2.5}, TypeError, "top_k must be a whole number, but is 2.5"),
        ({"rng": -1}, ValueError, "a seed must be 0 or more, but is -1"),
        ({"rng": [1, 2]}, ValueError, "rng has 2 seeds for 1 rows"),
        ({"rng": np.array([1, 2])}, ValueError, "rng has 2 seeds for 1 rows"),
        ({"source_ids": [[1]]}, ValueError, "a DecoderLM reads no source"),
    ],
)
def test_bad_input_is_one_sentence(change, error, message):
    options = {"ids": [[1, 2]], "max_new_tokens": 3} | change
    with pytest.raises(error, match=message):
        nf.generate(language_model(), **options)


def test_models_that_cannot_write_say_so():
    cfg = nf.TransformerConfig(V=11, d=4, L=1, H=1, T_max=5)
    with pytest.raises(TypeError, match=r"DecoderLM or an EncoderDecoder can write .* Encoder"):
        nf.generate(nf.Encoder(cfg, rng=0), [[1]], 1)
    with pytest.raises(ValueError, match="needs source_ids"):
        nf.generate(nf.EncoderDecoder(cfg, rng=0), [[1]], 1)
    with pytest.raises(ValueError, match="source_ids has 1 rows, but ids has 2"):
        nf.generate(nf.EncoderDecoder(cfg, rng=0), [[1], [2]], 1, source_ids=[[1]])


def test_what_is_not_finite_is_not_chosen_from():
    model = language_model()
    model.embedding.tokens.E.value[...] = np.nan
    with pytest.raises(FloatingPointError, match="no token can be chosen"):
        nf.generate(model, [[1]], 2)
