"""Peak memory of a training step against PyTorch's, and how cost grows with length and batch.

    python benchmarks/memory_and_growth.py

Peak memory is the largest resident size of a process of its own that does two steps, minus what is
resident before them: parameters and libraries.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
from paired import EXPONENT, Ratio, arguments, report

import npformer as nf
from npformer import functional as F

STEP = """
import resource, sys, numpy as np
side, name, folder = sys.argv[1:]
sys.path.insert(0, folder)
from training_step import SIZES, Model, configuration
import torch, npformer as nf


def make(B, T, d, H, L, V):
    ids, targets = np.random.default_rng(1).integers(0, V, (2, B, T))
    if side == "npformer":
        model = nf.DecoderLM(configuration(B, T, d, H, L, V, False), rng=0)
    else:
        model = Model(V, T, d, H, L, False)
        ids, targets = torch.tensor(ids), torch.tensor(targets)

    def step():
        model.zero_grad()
        if side == "npformer":
            _, saved = model.loss(ids, targets)
            model.loss_backward(1.0, saved)
        else:
            model(ids, targets).backward()

    return step


make(2, 8, 16, 2, 1, 11)()  # libraries that are loaded at first use
step = make(*SIZES[name])
try:  # the largest size so far would count what making the parameters needed and gave back
    with open("/proc/self/statm") as file:
        before = int(file.read().split()[1]) * resource.getpagesize() // 1024
except OSError:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step()
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def peak(side: str, name: str) -> float:
    """MB that two steps add to the process."""
    command = [sys.executable, "-c", STEP, side, name, str(Path(__file__).parent)]
    out = subprocess.check_output(command, text=True)
    return int(out) / 1024


def exponent(x: list[int], y: list[float]) -> float:
    """Slope of log y against log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def blocked_memory(T: int) -> float:
    rng = np.random.default_rng(0)
    q, k, v, dy = (rng.standard_normal((1, 2, T, 64)).astype(np.float32) for _ in range(4))
    tracemalloc.start()
    _, saved = F.flash_attention(q, k, v, causal=True)
    F.flash_attention_backward(dy, saved)
    _, top = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return float(top)


def step_time(B: int) -> float:
    model = nf.DecoderLM(nf.TransformerConfig(V=1024, d=256, L=2, H=8, T_max=128), rng=0)
    ids, targets = np.random.default_rng(1).integers(0, 1024, (2, B, 128))
    times = []
    for _ in range(6):
        start = time.perf_counter()
        _, saved = model.loss(ids, targets)
        model.loss_backward(1.0, saved)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def decode_time(t: int) -> float:
    model = nf.DecoderLM(nf.TransformerConfig(V=100, d=256, L=2, H=8, T_max=9000), rng=0)
    cache = nf.KVCache(model.cfg, 4, t + 40)
    model(np.zeros((4, t), int), cache=cache)
    times = []
    for _ in range(30):
        start = time.perf_counter()
        model(np.zeros((4, 1), int), cache=cache)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def peaks(name: str, pairs: int) -> Ratio:
    """Peak memory of both sides in turns."""
    both = [(peak("npformer", name), peak("torch", name)) for _ in range(pairs)]
    ratios = sorted(a / b for a, b in both)
    a, b = np.median(both, axis=0)
    middle = float(np.median(ratios))
    label = f"peak memory of a step, {name}"
    return Ratio(label, "torch", a, b, middle, ratios[0], ratios[-1], pairs, "MB")


def growth(name: str, letter: str, sizes: list[int], costs: list[float]) -> Ratio:
    """Fit how ``costs`` grow with ``sizes``."""
    label = f"{name}, {letter} = {sizes[0]} to {sizes[-1]}"
    e = exponent(sizes, costs)
    return Ratio(label, letter, costs[-1], sizes[-1], e, e, e, len(sizes), EXPONENT)


def main() -> None:
    args = arguments(__doc__).parse_args()
    sizes = ("small", "medium", "large")
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed: peak memory is not compared", file=sys.stderr)
        sizes = ()
    results = [peaks(name, max(1, args.pairs // 3)) for name in sizes]
    lengths = [1024, 2048, 4096, 8192]
    memory = [blocked_memory(T) for T in lengths]
    results.append(growth("memory of blocked attention", "T", lengths, memory))
    batches = [4, 8, 16, 32]
    results.append(growth("a training step", "B", batches, [step_time(B) for B in batches]))
    lengths = [1000, 2000, 4000, 8000]
    times = [decode_time(t) for t in lengths]  # the weights are its constant part
    results.append(growth("a decoding step", "t", lengths, times))
    report(results, args.save, "benchmarks/memory_and_growth.py")


if __name__ == "__main__":
    main()
