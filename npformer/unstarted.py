"""The generator of a model that is about to be loaded.

It stands apart from `npformer.init` because a class of NumPy's generators needs `numpy.random`,
which takes a sixth of the time of ``import npformer`` and which `numpy` itself loads late.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Unstarted(np.random.Generator):
    """A generator for a model whose parameters are filled from a file: it draws nothing.

    Its arrays are zeros that the system has not even laid out, so that only filling them costs.
    """

    draws = False

    def __init__(self, dtype: npt.DTypeLike) -> None:
        super().__init__(np.random.PCG64(0))
        self.dtype = dtype

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return np.zeros(size, self.dtype)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        return np.zeros(size, self.dtype)
