"""Greedy decoding with the cache, a random model of GPT-2's size, against transformers' `generate`.

The floor is one pass over the weights by matrix-vector products: every token needs each of them.

    python benchmarks/decoding.py --tokens 64
"""

from __future__ import annotations

import time

import numpy as np
from paired import arguments, missing, paired, report

import npformer as nf
from npformer import parallel

try:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
except ModuleNotFoundError as error:
    missing(error)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    model = nf.DecoderLM(nf.preset("gpt2"), rng=0)
    peer = GPT2LMHeadModel(GPT2Config()).eval()
    prompt = np.arange(10, 26)[None]
    tensor = torch.tensor(prompt)

    def ours() -> None:
        nf.generate(model, prompt, max_new_tokens=args.tokens, temperature=0)

    def theirs() -> None:
        with torch.no_grad():
            peer.generate(
                tensor,
                attention_mask=torch.ones_like(tensor),
                max_new_tokens=args.tokens,
                min_new_tokens=args.tokens,
                do_sample=False,
                pad_token_id=0,
            )

    matrices = [  # of the positions one row is read
        p.value for n, p in model.named_parameters() if p.value.ndim == 2 and not n.endswith(".P")
    ]
    vectors = {n: np.ones((1, n), np.float32) for W in matrices for n in W.shape}

    def floor() -> None:
        for _ in range(args.tokens):
            for W in matrices:
                parallel.matmul(vectors[W.shape[1]], W.T) if len(W) > 4000 else parallel.matmul(
                    vectors[len(W)], W
                )

    label = f"decode {args.tokens} tokens, GPT-2 small, batch 1"
    results = [
        paired(label, ours, "weights once", floor, args.pairs),
        paired(label, ours, "transformers", theirs, args.pairs),
    ]
    report(results, args.save, "benchmarks/decoding.py")
    print(
        f"{args.tokens / results[1].ours:.1f} tokens/s, "
        f"transformers {args.tokens / results[1].theirs:.1f}"
    )

    cache = nf.KVCache(model.cfg, 1, 1024)
    model(np.zeros((1, 8), int), cache=cache)
    lengths, times = [], []
    while cache.length < 1000:
        start = time.perf_counter()
        model(np.zeros((1, 1), int), cache=cache)
        times.append(time.perf_counter() - start)
        lengths.append(cache.length)
    first, last = np.median(times[:50]), np.median(times[-50:])
    slope, start_cost = np.polyfit(lengths, times, 1)
    print(
        f"a step costs {1e3 * first:.1f} ms at t = 30 and {1e3 * last:.1f} ms at t = 980: "
        f"{1e3 * start_cost:.1f} ms + {1e6 * slope:.1f} us a token of the cache"
    )


if __name__ == "__main__":
    main()
