"""A character model of less than half a million parameters on the documentation inside Python.

    python benchmarks/characters.py                 Pre-LN with LayerNorm and GELU
    python benchmarks/characters.py --llama         RMSNorm, SwiGLU, RoPE, grouped queries
    python benchmarks/characters.py --save          append a line to learning.csv, keep a sample

The last tenth of the text is held out; the measure is the mean cross-entropy on all of it, in
windows as long as those of the training. The first run is what ``npformer train`` does unless told
otherwise.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from learning import Outcome, arguments, report

import npformer as nf
from npformer.batches import TextBatches, split
from npformer.cli.train_command import MODEL, TRAINING, WINDOW, training_options
from npformer.data import CharacterVocabulary, load_text

LLAMA = {
    **MODEL,
    "norm": "rmsnorm",
    "gated": True,
    "activation": "silu",
    "positions": "rope",
    "H_kv": 2,
    "bias": False,
}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--llama", action="store_true", help="RMSNorm, SwiGLU, RoPE, two KV heads")
    parser.add_argument("--steps", type=int, default=TRAINING["steps"])
    args = parser.parse_args()
    text = load_text()
    words = CharacterVocabulary(text)
    ids, held_out = split(words.encode(text), 0.1)
    options = LLAMA if args.llama else MODEL
    model = nf.DecoderLM(
        nf.TransformerConfig(V=words.V, T_max=WINDOW, window=WINDOW, **options), rng=args.seed
    )
    changed = {"steps": args.steps, "T": WINDOW, "seed": args.seed, "evaluate_every": 0}
    training = nf.TrainingConfig(**training_options(changed))
    result = nf.train(model, ids, config=training, progress=True)
    loss = nf.evaluate(model, TextBatches(held_out, 64, WINDOW))
    assert loss is not None
    name = "characters, RMSNorm SwiGLU RoPE GQA" if args.llama else "characters"
    outcome = Outcome(name, model, result, "held-out nats a character", loss, 1.35, 90)
    report(outcome, args)
    prompt = words.encode("The ")
    out = nf.generate(model, [prompt], 600, temperature=0.8, rng=args.seed)[0]
    sample = words.decode(np.asarray(out))
    print(f"\nit writes, at temperature 0.8:\n\n{sample}")
    if args.save and not args.llama:
        Path(__file__).with_name("characters_sample.txt").write_text(sample + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
