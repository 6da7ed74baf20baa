"""Blocked attention, forward and backward, against PyTorch's fused kernel and its plain one.

python benchmarks/blocked_attention.py
"""

from __future__ import annotations

import numpy as np
from paired import Ratio, arguments, missing, paired, report

from npformer import functional as F

try:
    import torch
    import torch.nn.functional as TF
except ModuleNotFoundError as error:
    missing(error)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    T = q.shape[-2]
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


def measure(T: int, pairs: int) -> list[Ratio]:
    rng = np.random.default_rng(0)
    q, k, v, dy = (rng.standard_normal((1, 8, T, 64)).astype(np.float32) for _ in range(4))
    tensors = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    cotangent = torch.tensor(dy)

    def ours() -> None:
        _, saved = F.flash_attention(q, k, v, causal=True)
        F.flash_attention_backward(dy, saved)

    def dense() -> None:
        _, saved = F.attention(q, k, v, causal=True)
        F.attention_backward(dy, saved)

    def fused() -> None:
        for x in tensors:
            x.grad = None
        TF.scaled_dot_product_attention(*tensors, is_causal=True).backward(cotangent)

    def torch_plain() -> None:
        for x in tensors:
            x.grad = None
        plain(*tensors).backward(cotangent)

    name = f"B1 H8 T{T} d_h64 causal"
    results = [paired(f"flash {name}", ours, "torch fused", fused, pairs)]
    results.append(paired(f"dense {name}", dense, "torch fused", fused, pairs))
    results.append(paired(f"flash {name}", ours, "torch plain", torch_plain, max(3, pairs // 3)))
    return results


def main() -> None:
    args = arguments(__doc__).parse_args()
    for T in (1024, 4096):
        report(measure(T, args.pairs), args.save, "benchmarks/blocked_attention.py")


if __name__ == "__main__":
    main()
