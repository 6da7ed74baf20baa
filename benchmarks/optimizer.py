"""One AdamW step on 40 million parameters against ``torch.optim.AdamW`` as it comes.

python benchmarks/optimizer.py
"""

from __future__ import annotations

import numpy as np
from paired import arguments, missing, paired, report

import npformer as nf

try:
    import torch
except ModuleNotFoundError as error:
    missing(error)

CONFIG = nf.TransformerConfig(V=32000, d=512, L=7, H=8, T_max=1024)


def main() -> None:
    args = arguments(__doc__).parse_args()
    model = nf.DecoderLM(CONFIG, rng=0)
    rng = np.random.default_rng(1)
    theirs = []
    for p in model.parameters():
        p.grad = rng.standard_normal(p.value.shape, np.float32)
        theirs.append(torch.nn.Parameter(torch.tensor(p.value)))
        theirs[-1].grad = torch.tensor(p.grad)
    ours = nf.optim.AdamW(model, lr=1e-4)
    others = torch.optim.AdamW(theirs, lr=1e-4)
    count = sum(p.value.size for p in model.parameters())
    name = f"AdamW, {count / 1e6:.1f} M parameters"
    ratio = paired(name, ours.step, "torch", others.step, args.pairs)
    report([ratio], args.save, "benchmarks/optimizer.py")


if __name__ == "__main__":
    main()
