"""Write ``tests/data/optim_reference.json``: 100 steps of PyTorch's optimizers.

Run from the repository's root, with the extra ``parity`` installed::

    python tests/reference/make_optim_reference.py

Start and gradients come from `sequences`, whole numbers of 2048ths, so nothing of them is stored.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from sequences import gradient, sequence  # noqa: E402

STEPS, SIZE = 100, 17
RUNS = {
    "SGD": ("SGD", {"lr": 0.02, "momentum": 0.9}),
    "SGD, Nesterov, decay": (
        "SGD",
        {"lr": 0.02, "momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    ),
    "Adam": ("Adam", {"lr": 0.01}),
    "Adam, decay": ("Adam", {"lr": 0.01, "betas": (0.9, 0.98), "weight_decay": 0.1}),
    "AdamW": ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "AdamW, large eps": ("AdamW", {"lr": 0.02, "betas": (0.8, 0.95), "eps": 0.1}),
}
STATE = {"SGD": ("momentum_buffer",), "Adam": ("exp_avg", "exp_avg_sq")}


def run(kind: str, options: dict[str, object], dtype: torch.dtype) -> list[list[float]]:
    p = torch.nn.Parameter(torch.tensor(sequence(0, SIZE), dtype=dtype))
    optimizer = getattr(torch.optim, kind)([p], **options)
    for t in range(1, STEPS + 1):
        p.grad = torch.tensor(gradient(t, SIZE), dtype=dtype)
        optimizer.step()
    state = [optimizer.state[p][name] for name in STATE[kind.removesuffix("W")]]
    return [a.detach().double().tolist() for a in (p, *state)]


def main() -> None:
    torch.set_num_threads(1)
    runs = {
        name: {
            "rule": kind,
            "options": options,
            "float32": run(kind, options, torch.float32),
            "float64": run(kind, options, torch.float64),
        }
        for name, (kind, options) in RUNS.items()
    }
    versions = f"torch {torch.__version__}, numpy {np.__version__}"
    record = {"made with": versions, "steps": STEPS, "size": SIZE, "runs": runs}
    path = TESTS / "data" / "optim_reference.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{path.relative_to(TESTS.parent)}: {len(runs)} runs, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
