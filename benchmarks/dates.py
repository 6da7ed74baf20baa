"""Dates as people write them in many languages, to ISO: an encoder-decoder trained and examined.

    python benchmarks/dates.py                     train, and print the share of exact answers
    python benchmarks/dates.py --save              append a line to learning.csv, draw the figure

The sources are made by the patterns of `babel` (extra ``bench``): the locale, a bar, and a day
between 1970 and 2069 in its short, medium, long or full form, ``zh_Hans_CN|2009年5月31日``. Two
days in ten are held out: no form of them in any language is trained on.
"""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any

import numpy as np
from learning import Outcome, arguments, report

import npformer as nf
from npformer import functional as F
from npformer.batches import PairBatches
from npformer.data import CharacterVocabulary
from npformer.plots.style import add_texts, language, new_figure, save_figure
from npformer.training import TrainingConfig
from npformer.vocabulary import MarkedVocabulary

LOCALES = (
    "en_US", "en_GB", "de_DE", "fr_FR", "es_ES", "it_IT", "pt_BR", "nl_NL", "sv_SE", "da_DK",
    "nb_NO", "fi_FI", "pl_PL", "cs_CZ", "hu_HU", "ro_RO", "ru_RU", "uk_UA", "el_GR", "tr_TR",
    "he_IL", "hi_IN", "vi_VN", "id_ID", "ja_JP", "ko_KR", "zh_Hans_CN", "zh_Hant_TW",
)  # fmt: skip
FORMS = ("short", "medium", "long", "full")
FIRST, DAYS = dt.date(1970, 1, 1), 36525

MODEL = {"d": 96, "L": 2, "H": 4, "positions": "rope", "init": "xavier"}
TRAINING = TrainingConfig(
    steps=1500, B=64, lr=0.003, warmup=100, schedule="cosine", weight_decay=0.01, beta2=0.99
)


def written(day: int, locale: str, form: str) -> str:
    """Return a day as people of a locale write it."""
    from babel.dates import format_date

    date = FIRST + dt.timedelta(days=int(day))
    return f"{locale}|{format_date(date, form, locale=locale)}"


def iso(day: int) -> str:
    """Return a day as ISO 8601 has it."""
    return (FIRST + dt.timedelta(days=int(day))).isoformat()


def examples(days: np.ndarray, n: int, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """Return n sources and their targets, days, locales and forms at random."""
    chosen = rng.choice(days, n)
    locales, forms = rng.choice(LOCALES, n), rng.choice(FORMS, n)
    sources = [written(*row) for row in zip(chosen, locales, forms, strict=True)]
    return sources, [iso(day) for day in chosen]


def answer(model: Any, words: MarkedVocabulary, sources: list[str]) -> list[str]:
    """Return what the model writes, greedily, for each source."""
    found = []
    for i in range(0, len(sources), 200):
        rows = [words.encode(s) for s in sources[i : i + 200]]
        starts = [[words.start]] * len(rows)
        out = nf.generate(model, starts, 11, temperature=0, eos_id=words.end, source_ids=rows)
        found += [words.decode(row) for row in out]
    return found


def exact(model: Any, words: MarkedVocabulary, sources: list[str], wanted: list[str]) -> list[bool]:
    """Say of each source whether the answer is the one that is wanted."""
    return [a == w for a, w in zip(answer(model, words, sources), wanted, strict=True)]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=TRAINING.steps)
    parser.add_argument("--pairs", type=int, default=60_000, help="of the training set")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    days = rng.permutation(DAYS)
    train, held_out = days[: DAYS * 8 // 10], days[DAYS * 8 // 10 :]
    sources, targets = examples(train, args.pairs, rng)
    questions, answers = examples(held_out, 2000, rng)
    words = MarkedVocabulary(CharacterVocabulary("".join(sources + questions + targets)))
    data = PairBatches(
        [words.encode(s) for s in sources],
        [words.encode(t) for t in targets],
        words.start,
        words.end,
        TRAINING.B,
        args.seed,
    )
    longest = max(map(len, sources + questions))
    cfg = nf.TransformerConfig(V=words.V, T_max=longest, **MODEL)
    model = nf.EncoderDecoder(cfg, rng=args.seed)
    warmup = min(TRAINING.warmup, args.steps // 10)
    changed = {"steps": args.steps, "warmup": warmup, "seed": args.seed}
    result = nf.train(model, data, config=TRAINING, progress=True, **changed)
    right = exact(model, words, questions, answers)
    for q, a, r in zip(questions, answers, right, strict=True):
        if not r:
            print(f"wrong: {q} is {a}")
    share = float(np.mean(right))
    name = "dates, encoder-decoder"
    report(Outcome(name, model, result, "exact on held-out days", share, 0.99, 300), args)
    day = int(held_out[0])
    for locale in ("en_US", "de_DE", "ru_RU", "zh_Hans_CN", "ja_JP"):
        question = written(day, locale, "full")
        print(f"{question} -> {answer(model, words, [question])[0]}")
    if args.save:
        attention_map(model, words, written(day, "zh_Hans_CN", "full"))


def attention_map(model: Any, words: MarkedVocabulary, question: str) -> None:
    """Draw where the decoder looks in the source as it writes each character of the answer."""
    reply = answer(model, words, [question])[0]
    asked, fed = words.encode(question)[None], [[words.start, *words.encode(reply)]]
    _, saved = model.forward(asked, fed)
    P = F.attention_weights(saved["stack"]["blocks"][-1]["cross"]["attention"])[0].mean(axis=0)
    with language("zh") as lang:
        figure = new_figure(9, 5.6)
        ax = figure.subplots()
        picture = ax.imshow(P, cmap="viridis", vmin=0, aspect="auto")
        figure.colorbar(picture, ax=ax, label="mean weight of the heads")
        ax.set_xticks(range(len(question)), question)
        ax.set_yticks(range(P.shape[0]), [*reply, "end"])
        ax.set(xlabel="read", ylabel="written next")
        ax.grid(visible=False)
        add_texts(
            figure,
            "Cross-attention of the last layer",
            f"Each row is one character of the answer {reply} before it is written, each column a "
            "character of the source; weights are averaged over the heads and sum to 1 in a row. "
            "Year, month and day are read where they stand, in whatever order the language has "
            "them.",
        )
        assert lang in ("zh", "en")
        save_figure(figure, Path(__file__).with_name("dates_attention"))


if __name__ == "__main__":
    sys.exit(main())
