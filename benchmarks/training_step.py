"""One training step (loss and backward) against the same model in PyTorch, and against its sgemm.

The floor is the time of the matrix products that a step can't do without, by OpenBLAS with all its
threads, on buffers of their own.

    python benchmarks/training_step.py                  all sizes
    python benchmarks/training_step.py --only medium
"""

from __future__ import annotations

import numpy as np
from paired import Ratio, arguments, missing, paired, report

import npformer as nf

try:
    import torch
    import torch.nn.functional as TF
    from torch import nn
except ModuleNotFoundError as error:
    missing(error)

SIZES = {  # B, T, d, H, L, V
    "small": (4, 128, 256, 8, 4, 1024),
    "medium": (8, 256, 512, 8, 4, 8000),
    "large": (4, 512, 768, 12, 2, 32000),
}


class Block(nn.Module):
    """Pre-LN block, LayerNorm and GELU or RMSNorm and SwiGLU with rotary grouped queries."""

    def __init__(self, d: int, H: int, H_kv: int, llama: bool) -> None:
        super().__init__()
        norm = (lambda: nn.RMSNorm(d, eps=1e-5)) if llama else (lambda: nn.LayerNorm(d))
        self.H, self.H_kv, self.d_h, self.llama = H, H_kv, d // H, llama
        self.norm1, self.norm2 = norm(), norm()
        self.qkv = nn.Linear(d, (H + 2 * H_kv) * self.d_h, bias=not llama)
        self.out = nn.Linear(d, d, bias=not llama)
        d_ff = nf.TransformerConfig(V=1, d=d, L=1, H=H, gated=llama).d_ff
        self.w1 = nn.Linear(d, d_ff, bias=not llama)
        self.w3 = nn.Linear(d, d_ff, bias=False) if llama else None
        self.w2 = nn.Linear(d_ff, d, bias=not llama)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        B, T, d = x.shape
        heads = self.qkv(self.norm1(x)).view(B, T, -1, self.d_h).transpose(1, 2)
        q, k, v = heads.split((self.H, self.H_kv, self.H_kv), dim=1)
        if self.llama:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = TF.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.llama)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, d))
        h = self.norm2(x)
        if self.w3 is not None:
            return x + self.w2(TF.silu(self.w1(h)) * self.w3(h))
        return x + self.w2(TF.gelu(self.w1(h), approximate="tanh"))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Model(nn.Module):
    """A decoder with a tied head."""

    def __init__(self, V: int, T: int, d: int, H: int, L: int, llama: bool) -> None:
        super().__init__()
        H_kv = H // 4 if llama else H
        self.E = nn.Embedding(V, d)
        self.positions = None if llama else nn.Parameter(torch.zeros(T, d))
        self.blocks = nn.ModuleList(Block(d, H, H_kv, llama) for _ in range(L))
        self.norm = nn.RMSNorm(d, eps=1e-5) if llama else nn.LayerNorm(d)
        angles = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d // H, 2) / (d // H))
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.E(ids)
        if self.positions is not None:
            x = x + self.positions
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return TF.cross_entropy((self.norm(x) @ self.E.weight.T).flatten(0, 1), targets.flatten())


def configuration(
    B: int, T: int, d: int, H: int, L: int, V: int, llama: bool
) -> nf.TransformerConfig:
    more = (
        {
            "norm": "rmsnorm",
            "activation": "silu",
            "gated": True,
            "positions": "rope",
            "rope_layout": "half",
            "H_kv": H // 4,
            "bias": False,
        }
        if llama
        else {}
    )
    return nf.TransformerConfig(V=V, d=d, L=L, H=H, T_max=T, **more)


def products(B: int, T: int, cfg: nf.TransformerConfig) -> list[tuple[int, int, int]]:
    """(n, k, m) of the forward products of one step, attention's own left out."""
    n, d, width = B * T, cfg.d, cfg.d_h
    block = [(n, d, cfg.H * width), (n, d, cfg.H_kv * width), (n, d, cfg.H_kv * width)]
    block += [(n, cfg.H * width, d), (n, d, cfg.d_ff), (n, cfg.d_ff, d)]
    block += [(n, d, cfg.d_ff)] if cfg.gated else []
    return block * cfg.L + [(n, d, cfg.V)]


def floor(B: int, T: int, cfg: nf.TransformerConfig) -> object:
    """Return a function that does each product of a step, forward and both of its backward."""
    rng = np.random.default_rng(0)
    work = []
    for n, k, m in products(B, T, cfg):
        x, W, y = (rng.random(s, np.float32) for s in ((n, k), (k, m), (n, m)))
        work.append((x, W, y, np.empty_like(x), np.empty_like(W)))

    def run() -> None:
        for x, W, y, dx, dW in work:
            np.matmul(x, W, out=y)
            np.matmul(y, W.T, out=dx)
            np.matmul(x.T, y, out=dW)

    return run


def measure(name: str, llama: bool, pairs: int) -> list[Ratio]:
    B, T, d, H, L, V = SIZES[name]
    cfg = configuration(*SIZES[name], llama)
    ours, theirs = nf.DecoderLM(cfg, rng=0), Model(V, T, d, H, L, llama)
    ids, targets = np.random.default_rng(1).integers(0, V, (2, B, T))
    tensors = torch.tensor(ids), torch.tensor(targets)

    def step() -> None:
        ours.zero_grad()
        _, saved = ours.loss(ids, targets)
        ours.loss_backward(1.0, saved)

    def torch_step() -> None:
        theirs.zero_grad()
        theirs(*tensors).backward()

    label = f"step {name}{' llama' if llama else ''} B{B} T{T} d{d} H{H} L{L} V{V}"
    return [
        paired(label, step, "torch", torch_step, pairs),
        paired(label, step, "sgemm", floor(B, T, cfg), pairs),
    ]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=[*SIZES, "llama"])
    args = parser.parse_args()
    runs = [(name, False) for name in SIZES] + [("medium", True)]
    for name, llama in runs:
        if args.only in (None, "llama" if llama else name):
            report(measure(name, llama, args.pairs), args.save, "benchmarks/training_step.py")


if __name__ == "__main__":
    main()
