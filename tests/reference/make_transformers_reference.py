"""Write ``tests/data/transformers_reference.json``; needs the extra `parity`.

From the repository: ``PYTHONPATH=tests python tests/reference/make_transformers_reference.py``

For each model of ``tests/hugging_face.py``, run by transformers in float64: its result at the last
token of the first text, and of every parameter the shape and the product of its gradient with
random numbers, in 12 digits. The weights are drawn from a seed, so none are stored.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import transformers
from hugging_face import MODELS, projections
from reference.hugging_face_models import reference

SEED = 7
OUT = Path(__file__).parents[1] / "data" / "transformers_reference.json"


def record(settings: dict) -> dict:
    """Return what is stored of one model."""
    model, y, grads = reference(settings, SEED)
    tensors = dict(model.named_parameters())
    tensors |= {name: b for name, b in model.named_buffers() if name == "final_logits_bias"}
    products = projections(grads, SEED)
    return {
        "last": [short(x) for x in y[0, -1]],
        "tensors": {
            name: [list(a.shape), short(products[name]) if name in products else None]
            for name, a in tensors.items()
        },
    }


def short(x: float) -> float:
    """Return a number that JSON writes in 12 digits."""
    return float(f"{x:.12g}")


def main() -> None:
    torch.set_num_threads(1)
    lines = [
        f'"{name}": {json.dumps(record(settings), separators=(",", ":"))}'
        for name, settings in MODELS.items()
    ]
    about = {"seed": SEED, "torch": torch.__version__, "transformers": transformers.__version__}
    about["numpy"] = np.__version__
    text = ",\n".join([f'"about": {json.dumps(about)}', *lines])
    OUT.write_text("{\n" + text + "\n}\n", encoding="utf-8")
    print(f"{OUT}: {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
