"""The state of a run in one file, ``state.npz``: it is there whole or as it was before.

The file is a plain .npz archive, never a pickle: ``weights/<name>``, ``optimizer/<name>`` and
``meta``, the bytes of a JSON text with everything else. All randomness of a run is drawn from
generators seeded by (seed, step), so the step is the state of the generators and the position in
the data.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..arrays import Array
from ..config import TransformerConfig
from ..data import Vocabulary
from ..files import atomic_write
from ..models import DecoderLM, EncoderDecoder
from ..vocabulary import description, restored
from .options import TrainingConfig

FORMAT, VERSION = "npformer training state", 1
MODELS: dict[str, type[DecoderLM | EncoderDecoder]] = {
    "decoder": DecoderLM,
    "encoder-decoder": EncoderDecoder,
}


@dataclass(frozen=True)
class TrainingState:
    """What a run was at the end of a step.

    Attributes
    ----------
    step : int
    seconds : float
        Spent on it so far.
    config : TransformerConfig
    options : TrainingConfig
    vocabulary : dict, optional
        See `npformer.vocabulary.description`.
    digest : str
        Of the training data.
    weights, optimizer : dict of name to array
    """

    step: int
    seconds: float
    config: TransformerConfig
    options: TrainingConfig
    vocabulary: dict[str, Any] | None
    digest: str
    weights: dict[str, Array]
    optimizer: dict[str, Array]

    def model(self) -> DecoderLM | EncoderDecoder:
        """Return the model with these weights."""
        dtype = next(iter(self.weights.values())).dtype
        model = MODELS[self.config.kind](self.config, rng=0, dtype=dtype)
        model.load_state_dict(self.weights)
        return model


def save_state(path: str | os.PathLike[str], state: TrainingState) -> None:
    """Write a state; if that fails, ``path`` stays as it was and the error names it."""
    arrays = {f"weights/{name}": a for name, a in state.weights.items()}
    arrays |= {f"optimizer/{name}": a for name, a in state.optimizer.items()}
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "step": state.step,
        "seconds": state.seconds,
        "config": asdict(state.config),
        "options": asdict(state.options),
        "vocabulary": state.vocabulary,
        "digest": state.digest,
        "arrays": list(arrays),  # a damaged archive may lack some without a word
    }
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    try:
        with atomic_write(path, binary=True) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, f"the state can't be written: {reason}", str(path)) from None


def load_state(path: str | os.PathLike[str]) -> TrainingState:
    """Read a state.

    Raises
    ------
    OSError
        if there is no such file or it can't be read.
    ValueError
        if it is no state, is damaged, or is of another version.
    """
    path = Path(path)
    with path.open("rb") as file:
        try:
            return parsed(file, path)
        except (WrongVersionError, MemoryError):
            raise
        except Exception as error:  # a damaged archive raises a dozen kinds
            raise ValueError(
                f"{path} is no training state, or it is damaged ({type(error).__name__}: {error})"
            ) from None


def parsed(file: IO[bytes], path: Path) -> TrainingState:
    """Return the state in an open file."""
    with np.load(file, allow_pickle=False) as archive:
        meta = json.loads(archive["meta"].tobytes())
        if meta["format"] != FORMAT:
            raise KeyError("format")
        if meta["version"] != VERSION:
            raise WrongVersionError(
                f"{path} holds a training state of version {meta['version']}, but this npformer "
                f"reads version {VERSION}"
            )
        arrays = {name: archive[name] for name in archive.files if name != "meta"}
    if arrays.keys() != set(meta["arrays"]):
        raise KeyError("arrays")
    parts: dict[str, dict[str, Array]] = {"weights": {}, "optimizer": {}}
    for name, a in arrays.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = a
    return TrainingState(
        step=int(meta["step"]),
        seconds=float(meta["seconds"]),
        config=TransformerConfig(**meta["config"]),
        options=TrainingConfig(**meta["options"]),
        vocabulary=meta["vocabulary"],
        digest=meta["digest"],
        **parts,
    )


class WrongVersionError(ValueError):
    """A state that another version of npformer wrote."""


def load_trained(
    folder: str | os.PathLike[str],
) -> tuple[DecoderLM | EncoderDecoder, Vocabulary | None]:
    """Return the model of a run's folder, and the vocabulary where the run had one."""
    state = load_state(Path(folder) / "state.npz")
    vocabulary = None if state.vocabulary is None else restored(state.vocabulary)
    return state.model(), vocabulary


def described(vocabulary: Vocabulary | None) -> dict[str, Any] | None:
    """Return the `description` of a vocabulary that may be None."""
    return None if vocabulary is None else description(vocabulary)
