"""Ctrl-C, SIGTERM and a terminal that is closed wait until a step is complete."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
HANG_UP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""What a terminal sends that is closed; Windows has none."""


class Patience:
    """Remember a signal instead of dying of it; a second Ctrl-C interrupts at once.

    Python delivers signals to the main thread only, so elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Patience:
        if threading.current_thread() is threading.main_thread():
            wanted = list(SIGNALS)
            if HANG_UP is not None and signal.getsignal(HANG_UP) != signal.SIG_IGN:  # nohup
                wanted.append(HANG_UP)
            self._before = {s: signal.signal(s, self._remember) for s in wanted}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            if handler is not None:  # one that was not set from Python can't be put back
                signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number

    def asked(self) -> bool:
        """Whether to stop."""
        return self.received is not None
