"""Write ``tests/data/rope_reference.json``: frequencies of every scaling rule by transformers.

Run from the repository's root, with the extra ``parity`` installed::

    python tests/reference/make_rope_reference.py

Each record has our scaling dictionary, the rotary dimension, the length of the text where the rule
depends on it, and what ``transformers.modeling_rope_utils`` makes of them (in float32).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

DATA = Path(__file__).resolve().parents[1] / "data"


def spread(n: int, seed: int) -> list[float]:
    """n / 2 factors as LongRoPE has them: from 1 up, growing with the wavelength."""
    steps = np.random.default_rng(seed).uniform(0, 0.2, n // 2)
    return [round(float(f), 4) for f in np.exp(np.cumsum(steps))]


def yarn(**options: Any) -> dict[str, Any]:
    return {"rope_type": "yarn", **options}


LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 4096}

CASES: list[dict[str, Any]] = [
    {"scaling": {"rope_type": "default", "rope_theta": 5e5}, "d_h": 128},
    {"scaling": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}, "d_h": 64},
    {"scaling": {"rope_type": "linear", "factor": 2.5, "partial_rotary_factor": 0.5}, "d_h": 24},
    {"scaling": {"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.44}, "d_h": 20},
    *(
        {
            "scaling": {
                "rope_type": "dynamic",
                "factor": factor,
                "original_max_position_embeddings": 4096,
                "rope_theta": theta,
            },
            "d_h": d_h,
            "length": length,
        }
        for factor, theta, d_h in ((2.0, 1e4, 128), (4.0, 5e5, 64))
        for length in (1, 4096, 4097, 8192, 50000)
    ),
    {"scaling": yarn(factor=16.0, original_max_position_embeddings=4096), "d_h": 128},
    {
        "scaling": yarn(factor=4.0, original_max_position_embeddings=32768, rope_theta=1e6),
        "d_h": 128,
    },
    {
        "scaling": yarn(
            factor=40.0,
            original_max_position_embeddings=4096,
            mscale=1.0,
            mscale_all_dim=0.707,
            beta_fast=32,
            beta_slow=1,
        ),
        "d_h": 64,
    },
    {
        "scaling": yarn(
            factor=32.0,
            original_max_position_embeddings=4096,
            rope_theta=150000,
            beta_fast=32.0,
            beta_slow=1.0,
            truncate=False,
        ),
        "d_h": 64,
    },
    {
        "scaling": yarn(factor=3.0, original_max_position_embeddings=2048, mscale=0.7),
        "d_h": 32,
    },
    {
        "scaling": yarn(
            factor=8.0,
            original_max_position_embeddings=64,
            attention_factor=1.75,
            beta_fast=24.0,
            beta_slow=3.0,
            partial_rotary_factor=0.5,
        ),
        "d_h": 40,
    },
    {"scaling": yarn(factor=1.0, original_max_position_embeddings=8), "d_h": 16},
    {"scaling": yarn(factor=8.0, original_max_position_embeddings=4), "d_h": 16},
    {"scaling": yarn(factor=8.0, original_max_position_embeddings=262144), "d_h": 16},
    {
        "scaling": LLAMA3
        | {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_theta": 5e5},
        "d_h": 128,
    },
    {
        "scaling": LLAMA3
        | {"factor": 32.0, "original_max_position_embeddings": 8192, "rope_theta": 5e5},
        "d_h": 64,
    },
    *(
        {
            "scaling": LONG | {"short_factor": spread(96, 1), "long_factor": spread(96, 2)} | extra,
            "d_h": 96,
            "length": length,
        }
        for extra in ({"factor": 32.0}, {"attention_factor": 1.19})
        for length in (4096, 4097)
    ),
    {
        "scaling": LONG
        | {
            "short_factor": spread(48, 3),
            "long_factor": spread(48, 4),
            "max_position_embeddings": 131072,
            "partial_rotary_factor": 0.5,
        },
        "d_h": 96,
        "length": 9000,
    },
    {
        "scaling": LONG
        | {
            "short_factor": spread(8, 5),
            "long_factor": spread(8, 6),
            "max_position_embeddings": 2048,
        },
        "d_h": 8,
        "length": 100,
    },
]


def config_of(scaling: dict[str, Any], d_h: int) -> LlamaConfig:
    """A configuration with the lengths where transformers looks for them."""
    scaling = {"rope_theta": 10000.0} | scaling
    longest = scaling.pop("max_position_embeddings", 131072)
    if scaling["rope_type"] == "dynamic":
        longest = scaling.pop("original_max_position_embeddings")
    return LlamaConfig(
        hidden_size=2 * d_h,
        num_attention_heads=2,
        head_dim=d_h,
        max_position_embeddings=longest,
        rope_parameters=scaling,
    )


def main() -> None:
    records = []
    for case in CASES:
        config = config_of(case["scaling"], case["d_h"])
        name = case["scaling"]["rope_type"]
        if name == "default":
            theta, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
        else:
            function = ROPE_INIT_FUNCTIONS[name]
            theta, factor = function(config, torch.device("cpu"), seq_len=case.get("length"))
        records.append(
            case
            | {"frequencies": [float(f"{t:.9g}") for t in theta], "attention_factor": float(factor)}
        )
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}"
    lines = ",\n".join(json.dumps(record) for record in records)
    path = DATA / "rope_reference.json"
    path.write_text(f'{{"made with": "{made_with}", "records": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{path.name}: {len(records)} records, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
