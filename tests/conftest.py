"""Set-up for every test: one BLAS thread a process, no screen, repeatable examples."""

from __future__ import annotations

import os
import sys

if "numpy" not in sys.modules:  # OpenBLAS reads this once, when NumPy is imported
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

# A plugin may have imported NumPy before this file was read. Two test processes whose products
# take two threads each wait for one another: four times as slow on two cores.
if "OPENBLAS_NUM_THREADS" not in os.environ:
    threadpool_limits(1, user_api="blas")

# The same examples at every run, and no verdict that depends on how busy the machine is.
settings.register_profile("npformer", deadline=None, derandomize=True, max_examples=30)
settings.load_profile("npformer")

# Scripts that need what the extra `test` does not install.
collect_ignore_glob = ["reference/*"]


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator that starts the same in every test."""
    return np.random.default_rng(2718)
