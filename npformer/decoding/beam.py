"""Beam search: the best few beginnings are kept at every step."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..arrays import Array
from ..softmax import log_softmax
from .sampling import largest, penalised, require_choice
from .writer import Writer


def beam_search(
    writer: Writer,
    prompt: Array,
    real: Array,
    *,
    max_new_tokens: int,
    beams: int,
    eos: Collection[int] = (),
    length_penalty: float = 1.0,
    repetition_penalty: float = 1.0,
) -> list[tuple[list[int], float]]:
    r"""Return the best continuation found for each prompt, with its score.

    The score of n new tokens, the stop token among them, is

    .. math:: n^{-\alpha} \textstyle\sum_{t=1}^{n} \log p(y_t \mid y_{<t})

    with :math:`\alpha` the ``length_penalty``: 0 is the plain log-probability, which favours short
    texts. Each step extends every kept beginning by every token and keeps the ``beams`` best of
    them; those among the best that end are set aside. A row is done when it has as many ends as
    beams and no beginning could still overtake the worst of them, even if all further tokens had
    probability 1. Equal scores: the earlier beam, then the lower id.

    Parameters
    ----------
    writer : Writer
        With ``len(prompt) * beams`` rows.
    prompt, real : (B, T) arrays
        Ids, and which of them are no padding.
    max_new_tokens, beams : int
    eos : ids
        Tokens that end a text.
    length_penalty : float
    repetition_penalty : float
        Above 1, the log-probability of a token that stands in the prompt or in what this beam
        has written is multiplied by it before it is added to the sum, so a score is then no
        log-probability any more. `Sampling` penalises logits; here it must be log-probabilities,
        which beams compare with one another. The transformers package does the same.

    Returns
    -------
    list of (tokens, score), one a prompt

    Raises
    ------
    FloatingPointError
        if a logit is NaN or infinite.

    References
    ----------
    Wu et al., 2016, arXiv:1609.08144, section 7, for a penalty of the length.
    """
    B, k, stops = len(prompt), beams, list(eos)
    texts: list[list[list[int]]] = [[[] for _ in range(k)] for _ in range(B)]
    ends: list[list[tuple[float, list[int]]]] = [[] for _ in range(B)]
    scores = np.full((B, k), -np.inf)
    scores[:, 0] = 0.0  # all beams of a row start alike: one stands for them

    def rate(total: float, n: int) -> float:
        return float(total) / n**length_penalty

    logits = writer.feed(np.repeat(prompt, k, axis=0), np.repeat(real, k, axis=0))
    for n in range(1, max_new_tokens + 1):
        require_choice(logits)
        logp = log_softmax(logits.astype(np.float64))[0].reshape(B, k, -1)
        if repetition_penalty != 1:
            for b, beam in np.ndindex(B, k):
                read = np.concatenate([prompt[b][real[b]], np.array(texts[b][beam], np.int64)])
                logp[b, beam] = penalised(logp[b, beam], read, repetition_penalty)
        V = logp.shape[-1]
        paths = (scores[..., None] + logp).reshape(B, -1)
        origin, tokens = np.zeros((B, k), np.int64), np.zeros((B, k), np.int64)
        for b in range(B):
            old = texts[b]
            kept: list[tuple[int, int, float]] = []
            best = largest(paths[b], k * (1 + len(stops)))  # k of them end no text
            best = best[np.argsort(-paths[b, best], kind="stable")]
            for rank, place in enumerate(best):
                beam, token = divmod(int(place), V)
                if token in stops:
                    if rank < k and paths[b, place] > -np.inf:
                        ends[b].append((rate(paths[b, place], n), [*old[beam], token]))
                elif len(kept) < k:
                    kept.append((beam, token, paths[b, place]))
            kept += [(0, 0, -np.inf)] * (k - len(kept))  # fewer tokens than beams
            origin[b], tokens[b], scores[b] = zip(*kept, strict=True)
            texts[b] = [[*old[beam], token] for beam, token, _ in kept]
            ends[b] = sorted(ends[b], key=lambda end: -end[0])[:k]
        longest = max_new_tokens if length_penalty > 0 else n
        hopes = [rate(scores[b].max(), longest) for b in range(B)]
        if n == max_new_tokens or all(
            len(ends[b]) == k and hopes[b] <= ends[b][-1][0] for b in range(B)
        ):
            break
        writer.reorder((origin + np.arange(B)[:, None] * k).reshape(-1))
        logits = writer.feed(tokens.reshape(-1, 1))
    found = []
    for b in range(B):
        running = [(rate(s, len(t)), t) for s, t in zip(scores[b], texts[b], strict=True)]
        score, text = max([*ends[b], *running], key=lambda end: end[0])
        found.append((text, score))
    return found
