"""Write ``tests/data/torch_reference.npz``: every twin's inputs, result and gradients by PyTorch.

Run from the repository's root, with the extra ``parity`` installed::

    python tests/reference/make_torch_reference.py

A twin has two entries. ``name/given`` holds its inputs and the cotangent one after the other, as
int16 numbers of 64ths (ids and masks as they are); ``name/computed`` the result and the gradients
in float64. Names and shapes are not stored: the twin knows them (`twins.unpack`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "reference")]

from torch_twins import TORCH, result_and_gradients  # noqa: E402
from twins import TWINS, draw, pack  # noqa: E402

SEED = 20260101


def main() -> None:
    assert TORCH.keys() == TWINS.keys(), TORCH.keys() ^ TWINS.keys()
    arrays: dict[str, np.ndarray] = {}
    for number, (name, twin) in enumerate(TWINS.items()):
        rng = np.random.default_rng([SEED, number])
        inputs = twin.inputs(rng)
        y, dy, grads = result_and_gradients(name, inputs, lambda *s, rng=rng: draw(rng, *s))
        arrays[f"{name}/given"] = pack({**inputs, "dy": dy})
        arrays[f"{name}/computed"] = np.concatenate([a.ravel() for a in (y, *grads.values())])
    arrays["made with"] = np.array(f"torch {torch.__version__}, numpy {np.__version__}")
    path = TESTS / "data" / "torch_reference.npz"
    np.savez_compressed(path, **arrays)
    print(f"{path.relative_to(TESTS.parent)}: {len(TWINS)} twins, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
