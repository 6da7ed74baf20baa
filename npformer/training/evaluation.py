"""The loss on data that is not trained on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from ..batches import Batches
from ..models import DecoderLM, EncoderDecoder


def evaluate(
    model: DecoderLM | EncoderDecoder,
    data: Batches,
    *,
    batches: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> float | None:
    """Return the mean cross-entropy in nats a token, every token counted once and alike.

    Parameters
    ----------
    model : DecoderLM or EncoderDecoder
    data : Batches
    batches : int
        Only so many, from the start; 0 for all.
    stop : callable
        Asked before every batch; where it says yes, there is no result.

    Returns
    -------
    float or None
    """
    total, tokens = 0.0, 0
    for batch in islice(data.whole(), batches or None):
        if stop():
            return None
        loss, _ = model.loss(**batch.arguments)
        total += float(loss) * batch.tokens
        tokens += batch.tokens
    return total / tokens
