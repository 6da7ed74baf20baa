"""`train`: the loop."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..arrays import Array
from ..batches import Batch, Batches, TextBatches
from ..data import Vocabulary
from ..models import DecoderLM, EncoderDecoder
from ..optim import Optimizer
from .evaluation import evaluate
from .log import Log
from .options import TrainingConfig
from .signals import Patience
from .state import MODELS, TrainingState, described, load_state, save_state

STATE = "state.npz"


@dataclass(frozen=True)
class TrainingResult:
    """What came out of a run.

    Attributes
    ----------
    step : int
        Steps taken, those before it was resumed included.
    seconds : float
    losses : (n,) array
        Of the training batches, nats a token, before the step.
    held_out : float or None
        The last loss on the held-out part.
    rows : dict of name to list of tuples
        The tables of `npformer.training.log`.
    folder : Path or None
    """

    step: int
    seconds: float
    losses: Array
    held_out: float | None
    rows: dict[str, list[tuple[Any, ...]]]
    folder: Path | None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP came; the state, if there is a folder, has been written.

    Attributes
    ----------
    signal : int
    result : TrainingResult
    """

    def __init__(self, signal: int, result: TrainingResult) -> None:
        super().__init__(f"stopped by signal {signal} after step {result.step}")
        self.signal, self.result = signal, result


def train(
    model: DecoderLM | EncoderDecoder,
    data: Batches | Array,
    held_out: Batches | Array | None = None,
    config: TrainingConfig | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    vocabulary: Vocabulary | None = None,
    progress: bool = False,
    **options: Any,
) -> TrainingResult:
    """Train a model in place.

    Parameters
    ----------
    model : DecoderLM or EncoderDecoder
    data, held_out : Batches, or (n,) arrays of ids
        An array is a text, which `TextBatches` cuts into windows.
    config : TrainingConfig, optional
    folder : path, optional
        Where the state and the tables are written, at intervals, at the end, and on Ctrl-C,
        SIGTERM and SIGHUP (a terminal that is closed), which stop the run after a complete step.
    resume : bool
        Go on from the state in ``folder``: everything comes out bit for bit as if the run had
        never been stopped.
    vocabulary : Vocabulary, optional
        Kept in the state, so that `npformer generate` can read and write text.
    progress : bool
        Show a bar with loss, learning rate and tokens a second, on a terminal.
    **options
        Fields of `TrainingConfig` that differ from ``config``.

    Returns
    -------
    TrainingResult

    Raises
    ------
    Interrupted
        a KeyboardInterrupt, after the state was written.
    FloatingPointError
        if a gradient is not finite, naming the step and the tensor; that step is not taken.

    Examples
    --------
    >>> import npformer as nf
    >>> model = nf.DecoderLM(nf.TransformerConfig(V=5, d=8, L=1, H=2, T_max=6), rng=0)
    >>> result = nf.train(model, np.arange(100) % 5, steps=60, B=8, lr=0.03)
    >>> bool(result.losses[-1] < 0.2 < 1.5 < result.losses[0])
    True
    """
    config = replace(config or TrainingConfig(), **options)
    if type(model) not in MODELS.values():
        raise TypeError(
            f"a DecoderLM or an EncoderDecoder can be trained, but the model is a "
            f"{type(model).__name__}"
        )
    T = config.T or model.cfg.T_max
    if isinstance(data, np.ndarray):
        data = TextBatches(data, config.B, T, config.seed)
    if isinstance(held_out, np.ndarray):
        held_out = TextBatches(held_out, config.B, T, config.seed)
    if not hasattr(data, "at"):
        raise TypeError(
            f"the data must be an array of ids or Batches, but are a {type(data).__name__}"
        )
    home = None if folder is None else Path(folder)
    optimizer = config.make_optimizer(model, model.cfg.d)
    digest = data.digest()
    words = described(vocabulary)

    def state() -> TrainingState:
        return TrainingState(
            step=optimizer.t,
            seconds=clock.seconds,
            config=model.cfg,
            options=config,
            vocabulary=words,
            digest=digest,
            weights=model.state_dict(),
            optimizer=optimizer.state_dict(),
        )

    seconds = 0.0
    if resume:
        if home is None:
            raise ValueError("to resume a run, give its folder")
        before = load_state(home / STATE)
        check_same(before, model, config, digest, home)
        model.load_state_dict(before.weights)
        optimizer.load_state_dict(before.optimizer)
        seconds = before.seconds
    elif home is not None and (home / STATE).exists():
        raise FileExistsError(
            17, "there is a run already: resume it, or choose another folder", str(home)
        )
    if home is not None:
        for rest in home.glob(f".{STATE}.*.part"):  # of a process that was killed while it wrote
            rest.unlink(missing_ok=True)
    clock = Clock(seconds)
    log = Log(home, optimizer.t)
    saved_step, saved_at = optimizer.t, clock.seconds
    with Patience() as patience, bar(config.steps, optimizer.t, progress) as show:
        try:
            while True:
                if held_out is not None and due(config, optimizer.t, log):
                    loss = evaluate(
                        model, held_out, batches=config.evaluate_batches, stop=patience.asked
                    )
                    if loss is not None:
                        log.add("held_out", optimizer.t, loss, clock.seconds)
                        show(held_out=loss)
                finished = optimizer.t == config.steps or patience.asked()
                by_step = config.save_every and optimizer.t % config.save_every == 0
                by_clock = clock.seconds - saved_at >= 60 * config.save_minutes > 0
                new = optimizer.t != saved_step and (by_step or by_clock)
                if home is not None and (new or finished):
                    save_state(home / STATE, state())
                    saved_step, saved_at = optimizer.t, clock.seconds
                if finished:
                    break
                show(**step(model, data, optimizer, config, log, clock))
        finally:
            log.close()
    result = TrainingResult(
        step=optimizer.t,
        seconds=clock.seconds,
        losses=np.array([row[1] for row in log.rows["steps"]]),
        held_out=log.rows["held_out"][-1][1] if log.rows["held_out"] else None,
        rows=log.rows,
        folder=home,
    )
    if patience.received is not None:
        raise Interrupted(patience.received, result)
    return result


def step(
    model: DecoderLM | EncoderDecoder,
    data: Batches,
    optimizer: Optimizer,
    config: TrainingConfig,
    log: Log,
    clock: Clock,
) -> dict[str, float]:
    """Take one step and log it."""
    n, start = optimizer.t, clock.seconds
    batches = [data.at(n * config.accumulate + i) for i in range(config.accumulate)]
    model.zero_grad()
    loss = accumulated(model, batches, config, n)
    lr = optimizer.lr(n + 1) if callable(optimizer.lr) else optimizer.lr
    if config.norms_every and (n + 1) % config.norms_every == 0:
        for name, p in model.named_parameters():
            log.add("norms", n + 1, name, norm(p.value), norm(p.grad) if p.has_grad else 0.0)
    try:
        grad_norm = optimizer.step(lr, clip=config.clip or None)
    except FloatingPointError as error:
        raise FloatingPointError(f"step {n + 1} can't be taken: {error}") from None
    tokens = sum(batch.tokens for batch in batches)
    rate = tokens / max(clock.seconds - start, 1e-9)
    log.add("steps", n + 1, loss, grad_norm, lr, tokens, rate, clock.seconds)
    return {"loss": loss, "lr": lr, "tokens_per_second": rate}


def accumulated(
    model: DecoderLM | EncoderDecoder, batches: list[Batch], config: TrainingConfig, n: int
) -> float:
    r"""Add up the gradients of several batches; return the loss.

    The loss is the mean over the tokens of all batches,
    :math:`\sum_i (n_i / n)\,\ell_i` with :math:`\ell_i` the mean over the :math:`n_i` tokens of
    one, so a batch with much padding weighs less. Its weight is the cotangent of its loss.
    """
    cfg = model.cfg
    tokens = sum(batch.tokens for batch in batches)
    total = 0.0
    for i, batch in enumerate(batches):
        drops = cfg.dropout or cfg.attention_dropout
        rng = np.random.default_rng([config.seed, 2, n, i]) if drops else None
        loss, saved = model.loss(**batch.arguments, label_smoothing=config.label_smoothing, rng=rng)
        weight = batch.tokens / tokens if tokens else 0.0
        model.loss_backward(weight, saved)
        total += weight * float(loss)
    return total


def norm(x: Array) -> float:
    """Return the Frobenius norm, in float64."""
    return float(np.sqrt(np.sum(np.square(x, dtype=np.float64))))


def due(config: TrainingConfig, n: int, log: Log) -> bool:
    """Whether an evaluation belongs after step n and has not been made."""
    rows = log.rows["held_out"]
    if rows and rows[-1][0] == n:
        return False
    every = config.evaluate_every
    return n == config.steps or bool(n and every and n % every == 0)


def check_same(
    before: TrainingState,
    model: DecoderLM | EncoderDecoder,
    config: TrainingConfig,
    digest: str,
    home: Path,
) -> None:
    """Raise ValueError unless a state belongs to this model, these options and these data."""
    faults = []
    if before.config != model.cfg:
        faults.append("another model")
    own = {name: a.dtype for name, a in model.state_dict().items()}
    kept = {name: a.dtype for name, a in before.weights.items()}
    if not faults and own != kept:
        faults.append(f"weights of {next(iter(kept.values()))}, not {next(iter(own.values()))}")
    if names := config.contradictions(before.options):
        values = [f"{n} {getattr(before.options, n)} and not {getattr(config, n)}" for n in names]
        faults.append("other options: " + ", ".join(values))
    if before.digest != digest:
        faults.append("other training data")
    if faults:
        raise ValueError(f"the run in {home} can't be resumed with this: it has {faults[0]}")


class Clock:
    """Seconds of work, those before a run was resumed included."""

    def __init__(self, before: float = 0.0) -> None:
        self._start = time.perf_counter() - before

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start


@contextmanager
def bar(steps: int, start: int, progress: bool) -> Iterator[Any]:
    """Yield what shows numbers on a progress bar, one call a step."""
    if not progress:
        yield lambda **numbers: None
        return
    from tqdm import tqdm  # late: training works without a terminal too

    shown: dict[str, str] = {}
    with tqdm(total=steps, initial=start, unit="step", disable=None) as line:

        def show(**numbers: float) -> None:
            shown.update({name: f"{value:.4g}" for name, value in numbers.items()})
            line.set_postfix(shown, refresh=False)
            line.update(int("loss" in numbers))

        yield show
