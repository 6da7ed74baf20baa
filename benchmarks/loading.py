"""Reading a model folder of about 100 M parameters, against the safetensors package's own loader.

Both end with float32 arrays in memory: ours is the whole `nf.load_pretrained`, the model included.

    python benchmarks/loading.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from paired import arguments, missing, paired, report

import npformer as nf

try:
    from safetensors.numpy import load_file
except ModuleNotFoundError as error:
    missing(error)


def main() -> None:
    args = arguments(__doc__).parse_args()
    cfg = nf.TransformerConfig(V=32000, d=768, L=11, H=12, T_max=1024)
    with tempfile.TemporaryDirectory() as folder:
        nf.save_pretrained(nf.DecoderLM(cfg, rng=0), folder)
        (file,) = Path(folder).glob("*.safetensors")
        n = sum(p.value.size for p in nf.load_pretrained(folder).parameters())

        def ours() -> None:
            nf.load_pretrained(folder)

        def theirs() -> None:
            for a in load_file(file).values():
                np.add.reduce(a.reshape(-1)[:1])  # they are in memory already

        label = f"load {n / 1e6:.0f} M parameters"
        report(
            [paired(label, ours, "safetensors", theirs, args.pairs)],
            args.save,
            "benchmarks/loading.py",
        )


if __name__ == "__main__":
    main()
