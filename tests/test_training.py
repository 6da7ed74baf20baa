"""The loop: what it computes, and that nothing changes when it is stopped and goes on."""

from __future__ import annotations

import dataclasses
import math
import signal
import threading

import numpy as np
import pytest

import npformer as nf
from npformer import optim, parallel
from npformer.batches import PairBatches, RowBatches, TextBatches
from npformer.data import CharacterVocabulary
from npformer.training import (
    Interrupted,
    TrainingConfig,
    evaluate,
    load_state,
    load_trained,
    save_state,
    train,
)
from npformer.training.loop import accumulated
from npformer.training.signals import Patience

exact = np.testing.assert_array_equal
close = np.testing.assert_allclose
TEXT = np.random.default_rng(8).integers(0, 7, 60).repeat(2)


def language_model(dtype=np.float32, **options):
    cfg = nf.TransformerConfig(V=7, d=6, L=1, H=2, T_max=5, **options)
    return nf.DecoderLM(cfg, rng=0, dtype=dtype)


def translator(dtype=np.float32, **options):
    cfg = nf.TransformerConfig(V=9, d=6, L=1, H=2, T_max=8, **options)
    return nf.EncoderDecoder(cfg, rng=0, dtype=dtype)


def pairs(B=3, seed=0, n=11):
    rng = np.random.default_rng(4)
    sources = [rng.integers(0, 7, rng.integers(1, 6)) for _ in range(n)]
    targets = [s[::-1][:4] for s in sources]
    return PairBatches(sources, targets, start=7, end=8, B=B, seed=seed)


def rows(B=3):
    rng = np.random.default_rng(4)
    return RowBatches([rng.integers(0, 7, rng.integers(2, 6)) for _ in range(11)], B)


def gradients(model):
    return {name: p.grad.copy() for name, p in model.named_parameters()}


# ----------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize("kind", ["text", "rows", "pairs"])
def test_accumulated_gradients_are_those_of_the_mean_over_all_tokens(kind):
    if kind == "pairs":
        model, data = translator(np.float64), pairs()
    else:
        model = language_model(np.float64)
        data = rows() if kind == "rows" else TextBatches(TEXT, 3, 5)
    batches = [data.at(n) for n in range(3)]
    tokens = [batch.tokens for batch in batches]
    assert kind == "text" or len(set(tokens)) > 1  # or any weights would do
    total = 0.0
    for batch in batches:  # the sum of every token's gradient, then one division
        a = batch.arguments
        loss, saved = model.loss(**a)
        counted = int(np.sum(a["targets"] >= 0))
        assert counted == batch.tokens
        model.loss_backward(counted, saved)
        total += loss * counted
    want = {name: g / sum(tokens) for name, g in gradients(model).items()}
    model.zero_grad()
    config = TrainingConfig(accumulate=3)
    close(accumulated(model, batches, config, 0), total / sum(tokens), rtol=1e-13)
    for name, g in gradients(model).items():
        close(g, want[name], rtol=1e-10, atol=1e-14, err_msg=name)


def test_evaluation_counts_every_token_once_and_alike():
    model = language_model(np.float64)
    for data in (TextBatches(TEXT[:38], 3, 5), rows(2)):
        total = count = 0.0
        for batch in data.whole():
            for b in range(len(batch.arguments["ids"])):
                ids, targets = (batch.arguments[name][b] for name in ("ids", "targets"))
                n = int(np.sum(targets >= 0))
                logits = model(ids[None, :n])[0]
                logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
                total -= logp[np.arange(n), targets[:n]].sum()
                count += n
        close(evaluate(model, data), total / count, rtol=1e-12)
        assert evaluate(model, data, batches=1) != evaluate(model, data)
    assert evaluate(model, data, stop=lambda: True) is None


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_the_loop_is_the_plain_loop(optimizer):
    options = {
        "optimizer": optimizer,
        "steps": 5,
        "B": 3,
        "accumulate": 2,
        "lr": 0.05,
        "warmup": 2,
        "schedule": "inverse-sqrt",
        "clip": 0.7,
        "label_smoothing": 0.1,
        "weight_decay": 0.2,
        "seed": 3,
    }
    model, plain = language_model(np.float64), language_model(np.float64)
    result = train(model, TEXT, **options)
    groups = nf.optim.parameter_groups(plain, 0.2)
    kwargs = {"momentum": 0.9} if optimizer == "sgd" else {"betas": (0.9, 0.99)}
    steps = nf.optim.OPTIMIZERS[optimizer](groups, **kwargs)
    data = TextBatches(TEXT, 3, 5, seed=3)
    for t in range(1, 6):
        plain.zero_grad()
        losses = []
        for n in (2 * t - 2, 2 * t - 1):
            loss, saved = plain.loss(**data.at(n).arguments, label_smoothing=0.1)
            plain.loss_backward(0.5, saved)
            losses.append(loss)
        norm = steps.step(0.05 * min(t / 2, math.sqrt(2 / t)), clip=0.7)
        row = result.rows["steps"][t - 1]
        close(row[:3], [t, np.mean(losses), norm], rtol=1e-9)
        close(row[3], 0.05 * min(t / 2, math.sqrt(2 / t)), rtol=1e-14)
        assert row[4] == 30
    for (name, a), (_, b) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        close(a.value, b.value, rtol=1e-8, atol=1e-12, err_msg=name)


def test_every_option_reaches_its_schedule():
    options = {"steps": 50, "lr": 0.3, "lr_min": 0.1, "warmup": 7, "decay": 11}
    for name, want in {
        "constant": optim.Constant(0.3, 7),
        "inverse-sqrt": optim.InverseSquareRoot(0.3, 7),
        "noam": optim.Noam(13, 7, 0.3),
        "cosine": optim.Cosine(0.3, 50, 7, 0.1),
        "warmup-stable-decay": optim.WarmupStableDecay(0.3, 50, 7, 11, 0.1),
    }.items():
        assert TrainingConfig(schedule=name, **options).make_schedule(13) == want
    assert TrainingConfig().make_schedule(13) == optim.Cosine(1e-3, 1000)
    assert TrainingConfig(schedule="noam").make_schedule(13) == optim.Noam(13, 1, 1.0)


def test_every_option_reaches_its_optimizer():
    model = language_model()
    options = {"beta1": 0.8, "beta2": 0.95, "adam_eps": 1e-6, "momentum": 0.7}
    options |= {"weight_decay": 0.3, "decayed": ("norm", "bias")}
    for name, kind in optim.OPTIMIZERS.items():
        config = TrainingConfig(optimizer=name, schedule="noam", **options)
        made = config.make_optimizer(model, 13)
        assert type(made) is kind
        assert made.lr == optim.Noam(13, 1, 1.0)
        if name == "sgd":
            assert made.momentum == 0.7
        else:
            assert (made.betas, made.eps) == ((0.8, 0.95), 1e-6)
        kinds = optim.kinds(model)
        for group in made.groups:
            for tensor in group.parameters:
                assert group.weight_decay == (0.3 if kinds[tensor] in ("norm", "bias") else 0)


def test_a_language_model_learns():
    pattern = np.arange(200) % 7
    result = train(language_model(), pattern, pattern, steps=70, B=8, lr=0.05)
    assert result.losses[0] > 1.8
    assert result.losses[-1] < 0.1
    assert result.held_out < 0.1
    assert result.step == 70


def test_an_encoder_decoder_learns_what_only_the_source_tells():
    model = translator(d_h=6)
    data = pairs(B=11)
    result = train(model, data, data, steps=150, lr=0.03, warmup=10)
    assert result.losses[0] > 1.9
    assert result.held_out < 0.3
    batch = next(data.whole()).arguments
    written = nf.generate(
        model,
        np.full((11, 1), 7),
        5,
        temperature=0,
        eos_id=8,
        source_ids=batch["source_ids"],
        source_mask=batch["source_mask"],
    )
    wanted = batch["targets"]
    hits = [
        row[1 : 1 + n].tolist() == want[:n].tolist()
        for row, want, n in zip(written, wanted, (wanted >= 0).sum(1), strict=True)
    ]
    assert np.mean(hits) > 0.7


def test_targets_that_are_all_ignored_change_nothing_but_by_decay():
    class Nothing:
        def at(self, n):
            ids = np.zeros((2, 3), np.int64)
            return nf.batches.Batch({"ids": ids, "targets": ids - 100}, 0)

        def digest(self):
            return ""

    model = language_model()
    before = {name: p.value.copy() for name, p in model.named_parameters()}
    result = train(model, Nothing(), steps=2, lr=0.1, weight_decay=0.0)
    assert result.losses.tolist() == [0, 0]
    for name, p in model.named_parameters():
        exact(p.value, before[name])


def test_dropout_differs_between_the_batches_of_a_step():
    class Same:
        def at(self, n):
            return TextBatches(TEXT, 3, 5).at(0)

        def digest(self):
            return ""

    losses = [
        train(language_model(dropout=0.3), Same(), steps=1, accumulate=n).losses[0] for n in (1, 2)
    ]
    assert abs(losses[0] - losses[1]) > 1e-4


def test_dropout_differs_from_step_to_step():
    class Same:
        def at(self, n):
            return TextBatches(TEXT, 3, 5).at(0)

        def digest(self):
            return ""

    losses = train(language_model(dropout=0.3), Same(), steps=3, lr=0.0).losses
    assert np.min(np.abs(np.diff(losses))) > 1e-4
    losses = train(language_model(attention_dropout=0.3), Same(), steps=3, lr=0.0).losses
    assert np.min(np.abs(np.diff(losses))) > 1e-5


def test_data_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="the data must be an array of ids or Batches, but are a l"):
        train(language_model(), [1, 2, 3])
    with pytest.raises(TypeError, match="decayed must be a list of names, but is 'matrix'"):
        train(language_model(), TEXT, decayed="matrix")
    for name in ("lr", "clip", "beta1", "label_smoothing", "save_minutes", "adam_eps"):
        for bad in ("0.1", True, [0.1]):
            with pytest.raises(TypeError, match=f"{name} must be a number, but is "):
                train(language_model(), TEXT, **{name: bad})


# ------------------------------------------------------------------ reproducible, bit for bit


def weights(model):
    return {name: p.value.copy() for name, p in model.named_parameters()}


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        exact(a[name], b[name], err_msg=name)


def test_the_same_seed_gives_the_same_weights():
    found = []
    for seed in (0, 0, 1):
        model = language_model(dropout=0.2, attention_dropout=0.1)
        train(model, TEXT, steps=4, B=3, seed=seed)
        found.append(weights(model))
    same(found[0], found[1])
    assert any(np.any(found[0][n] != found[2][n]) for n in found[0])


def test_losses_agree_between_numbers_of_threads():
    threads, losses = parallel.threads(), []
    try:
        for n in (1, 2):
            parallel.set_threads(n)
            losses.append(train(language_model(), TEXT, steps=5, B=6).losses)
    finally:
        parallel.set_threads(threads)
    close(losses[0], losses[1], rtol=1e-5)


class Interrupting:
    """Batches that send a signal while a step is being made."""

    def __init__(self, data, at, number):
        self.data, self.when, self.number = data, at, number

    def at(self, n):
        if n == self.when:
            signal.raise_signal(self.number)
        return self.data.at(n)

    def whole(self):
        return self.data.whole()

    def digest(self):
        return self.data.digest()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_a_stopped_run_goes_on_bit_for_bit(kind, number, tmp_path):
    options = {
        "steps": 7,
        "accumulate": 2,
        "lr": 0.02,
        "warmup": 2,
        "label_smoothing": 0.1,
        "evaluate_every": 2,
        "norms_every": 3,
        "seed": 5,
    }

    def make():
        config = {"dropout": 0.2, "attention_dropout": 0.1, "norm": "rmsnorm"}
        if kind == "pairs":
            return translator(**config), pairs(seed=5)
        return language_model(**config), TextBatches(TEXT, 3, 5, seed=5)

    model, data = make()
    through = train(model, data, data, folder=tmp_path / "through", **options)
    want, tables = weights(model), through.rows
    for step in range(7):
        folder = tmp_path / f"stopped in step {step + 1}"
        model, data = make()
        stopping = Interrupting(data, 2 * step + 1, number)
        with pytest.raises(Interrupted) as caught:
            train(model, stopping, stopping, folder=folder, **options)
        assert caught.value.signal == number
        assert caught.value.result.step == step + 1
        with (folder / "steps.csv").open("a") as file:
            # A step after the state was written, and a line that was cut off.
            file.write(f"{step + 2},0.5,0.5,0.5,30,9.0,9.0\n9,0.5")
        model, data = make()
        for p in model.parameters():
            p.value += 1  # whatever it was, the state has the weights
        result = train(model, data, data, folder=folder, resume=True, **options)
        same(weights(model), want)
        assert [r[:5] for r in result.rows["steps"]] == [r[:5] for r in tables["steps"]]
        assert [r[:2] for r in result.rows["held_out"]] == [r[:2] for r in tables["held_out"]]
        assert result.rows["norms"] == tables["norms"]
        for name in ("steps", "held_out", "norms"):
            lines = (folder / f"{name}.csv").read_text().splitlines()
            assert len(lines) == 1 + len(tables[name])
        states = [load_state(f / "state.npz") for f in (folder, tmp_path / "through")]
        same(states[0].optimizer, states[1].optimizer)
        same(states[0].weights, states[1].weights)


def test_a_signal_during_an_evaluation_loses_nothing(tmp_path):
    model, data = language_model(), TextBatches(TEXT, 3, 5)
    want = train(language_model(), data, data, steps=4, evaluate_every=2)

    class Stopping(Interrupting):
        def whole(self):
            for i, batch in enumerate(self.data.whole()):
                if i == 1 and self.number:
                    signal.raise_signal(self.number)
                    self.number = None
                yield batch

    with pytest.raises(Interrupted) as caught:
        train(
            model, data, Stopping(data, None, signal.SIGINT), steps=4, evaluate_every=2,
            folder=tmp_path,
        )  # fmt: skip
    assert caught.value.result.step == 2
    assert caught.value.result.held_out is None
    result = train(model, data, data, steps=4, evaluate_every=2, folder=tmp_path, resume=True)
    assert [r[:2] for r in result.rows["held_out"]] == [r[:2] for r in want.rows["held_out"]]


def test_a_second_ctrl_c_does_not_wait():
    with Patience() as patience:
        signal.raise_signal(signal.SIGINT)
        assert patience.asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_of_signals_come_back_and_other_threads_can_train():
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    train(language_model(), TEXT, steps=1, B=2)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    found = []
    thread = threading.Thread(
        target=lambda: found.append(train(language_model(), TEXT, steps=2, B=2))
    )
    thread.start()
    thread.join()
    assert found[0].step == 2


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals as POSIX has them")
def test_a_closed_terminal_stops_a_run_unless_that_is_ignored(tmp_path):
    class Closing:
        def at(self, n):
            signal.raise_signal(signal.SIGHUP)
            return TextBatches(TEXT, 2, 5).at(n)

        def digest(self):
            return ""

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with pytest.raises(Interrupted) as caught:
            train(language_model(), Closing(), steps=3, folder=tmp_path)
        assert (caught.value.signal, caught.value.result.step) == (signal.SIGHUP, 1)
        assert load_state(tmp_path / "state.npz").step == 1
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        assert train(language_model(), Closing(), steps=3).step == 3
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_may_be_made_longer_where_its_schedule_does_not_look_ahead(tmp_path):
    model, other = language_model(), language_model()
    options = {"B": 3, "schedule": "constant"}
    train(model, TEXT, steps=3, folder=tmp_path / "a", **options)
    train(model, TEXT, steps=6, folder=tmp_path / "a", resume=True, **options)
    train(other, TEXT, steps=6, **options)
    same(weights(model), weights(other))
    ended = load_state(tmp_path / "a" / "state.npz")
    later = dataclasses.replace(ended, seconds=1000.0)
    save_state(tmp_path / "a" / "state.npz", later)  # what was spent before counts
    result = train(model, TEXT, steps=7, folder=tmp_path / "a", resume=True, **options)
    assert 1000 < result.seconds < 1000 + 600
    assert result.rows["steps"][-1][-1] > 1000 > result.rows["steps"][-2][-1]
    train(other, TEXT, steps=3, B=3, folder=tmp_path / "b")
    with pytest.raises(ValueError, match="other options: steps 3 and not 6"):
        train(other, TEXT, steps=6, B=3, folder=tmp_path / "b", resume=True)


def test_a_run_does_not_go_on_in_another_precision(tmp_path):
    train(language_model(np.float64), TEXT, steps=2, B=3, schedule="constant", folder=tmp_path)
    with pytest.raises(ValueError, match="it has weights of float64, not float32"):
        train(language_model(), TEXT, steps=4, B=3, schedule="constant", folder=tmp_path,
              resume=True)  # fmt: skip
    model = language_model(np.float64)
    train(model, TEXT, steps=4, B=3, schedule="constant", folder=tmp_path, resume=True)
    assert model.dtype == np.float64


def test_an_evaluation_that_was_made_is_not_made_again(tmp_path):
    options = {"B": 3, "schedule": "constant", "evaluate_every": 2, "folder": tmp_path}
    train(language_model(), TEXT, TEXT, steps=4, **options)
    result = train(language_model(), TEXT, TEXT, steps=6, resume=True, **options)
    assert [row[0] for row in result.rows["held_out"]] == [2, 4, 6]
    result = train(language_model(), TEXT, TEXT, steps=6, resume=True, **options)
    assert [row[0] for row in result.rows["held_out"]] == [2, 4, 6]


# ----------------------------------------------------------------------------- what is logged


def test_the_log_holds_the_norms_of_every_tensor(tmp_path):
    model = language_model()
    result = train(model, TEXT, steps=4, B=3, norms_every=2, folder=tmp_path)
    names = [name for name, _ in model.named_parameters()]
    table = result.rows["norms"]
    assert [(r[0], r[1]) for r in table] == [(t, name) for t in (2, 4) for name in names]
    by_step = {t: math.sqrt(sum(r[3] ** 2 for r in table if r[0] == t)) for t in (2, 4)}
    for t, norm in by_step.items():
        close(norm, result.rows["steps"][t - 1][2], rtol=1e-5)
    lines = (tmp_path / "norms.csv").read_text().splitlines()
    assert lines[0] == "step,name,value_norm,grad_norm"
    assert len(lines) == 1 + len(table)


def test_states_are_written_by_steps_and_by_the_clock(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(nf.training.loop, "save_state", lambda _, state: written.append(state.step))
    for options, steps in (
        ({"save_minutes": 0.0}, [7]),
        ({"save_minutes": 0.0, "save_every": 3}, [3, 6, 7]),
        ({"save_minutes": 1e-9}, [1, 2, 3, 4, 5, 6, 7]),
        ({"save_minutes": 1e9}, [7]),
    ):
        written.clear()
        train(language_model(), TEXT, steps=7, B=2, folder=tmp_path, **options)
        assert written == steps


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(language_model(), TEXT, TEXT, steps=2, B=2, norms_every=1, save_every=1)
    assert list(tmp_path.iterdir()) == []


def test_a_trained_model_comes_back_with_its_vocabulary(tmp_path):
    vocabulary = CharacterVocabulary("abcdefg")
    model = language_model(placement=("post",), window=(3,))
    train(model, TEXT, steps=2, B=2, folder=tmp_path, vocabulary=vocabulary)
    again, words = load_trained(tmp_path)
    assert again.cfg == model.cfg
    same(weights(again), weights(model))
    assert words.decode([0, 6]) == "ag"
    train(model, TEXT, steps=2, B=2, folder=tmp_path / "plain")
    assert load_trained(tmp_path / "plain")[1] is None


# ----------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be a whole number from 1 on, but is 0"),
        ({"B": 2.5}, "B must be a whole number from 1 on, but is 2.5"),
        ({"warmup": -1}, "warmup must be a whole number from 0 on, but is -1"),
        ({"steps": 5, "warmup": 6}, "a schedule of 5 steps has no room for warmup 6"),
        ({"optimizer": "lion"}, "optimizer must be one of sgd, adam, adamw, but is 'lion'"),
        ({"schedule": "step"}, "schedule must be one of constant, .*, but is 'step'"),
        ({"lr": -1.0}, "lr must be 0 or more, but is -1.0"),
        ({"lr": np.inf}, "learning rates must be finite"),
        ({"clip": -1.0}, "clip must be 0 or more, but is -1.0"),
        ({"decayed": ("gain",)}, "not 'gain'"),
        ({"label_smoothing": 2}, r"label_smoothing must lie in \[0, 1\], but is 2"),
        ({"beta1": 1.0}, "beta1 must be at least 0 and below 1, but is 1.0"),
        ({"momentum": 2.0}, "momentum must be at least 0 and below 1, but is 2.0"),
        ({"adam_eps": np.nan}, "adam_eps must be 0 or more and finite, but is nan"),
        ({"T": 0}, "T must be a whole number from 1 on, but is 0"),
        ({"T": 2.5}, "T must be a whole number from 1 on, but is 2.5"),
        ({"optimizer": ["adam"]}, "optimizer must be one of sgd, adam, adamw, but is"),
        ({"T": 200}, "the text is too short: 120 tokens"),
        ({"resume": True}, "to resume a run, give its folder"),
    ],
)
def test_bad_options_are_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        train(language_model(), TEXT, **options)


def test_other_models_are_refused():
    encoder = nf.Encoder(nf.TransformerConfig(V=7, d=6, L=1, H=2), rng=0)
    with pytest.raises(TypeError, match="can be trained, but the model is a Encoder"):
        train(encoder, TEXT)


def test_a_run_is_not_overwritten_nor_mixed_with_another(tmp_path):
    train(language_model(), TEXT, steps=2, B=3, folder=tmp_path)
    with pytest.raises(FileExistsError, match="there is a run already"):
        train(language_model(), TEXT, steps=2, B=3, folder=tmp_path)
    for model, text, options, message in (
        (language_model(norm="rmsnorm"), TEXT, {}, "it has another model"),
        (language_model(), TEXT, {"lr": 0.5}, "other options: lr None and not 0.5"),
        (language_model(), TEXT[::-1].copy(), {}, "other training data"),
    ):
        with pytest.raises(ValueError, match=message):
            train(
                model, text, **{"steps": 2, "B": 3, "folder": tmp_path, "resume": True, **options}
            )
    with pytest.raises(FileNotFoundError):
        train(language_model(), TEXT, folder=tmp_path / "none", resume=True)


def test_a_gradient_that_is_not_finite_stops_the_run_by_name(tmp_path):
    model = language_model()
    model.stack.blocks[0].ffn.W1.W.value[2, 1] = np.nan
    with pytest.raises(FloatingPointError, match=r"step 1 can't be taken: the gradient of \S+ is"):
        train(model, TEXT, steps=2, B=3, folder=tmp_path)
