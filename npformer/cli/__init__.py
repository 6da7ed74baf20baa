"""``npformer VERB``: parse, call the library, print. Each verb is a file ``VERB_command.py``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

VERBS = ("curves", "gradcheck", "inspect", "account", "experiment", "train", "generate")
"""In the order of ``npformer --help``: a new verb is a module with ``add(verbs)`` and a name."""

_EXAMPLES = """\
examples:
  npformer gradcheck                  check every gradient in the package
  npformer gradcheck my_layer.py      check your own layer
  npformer inspect                    norms of activations and gradients by layer
  npformer account llama-2-7b         count what a model costs
  npformer VERB --help                what a verb does, with examples
"""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line; verbs get one too."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Complain about what is not known here, where the verb's own help can be named."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._nearest(unknown[0])}")
        return namespace, unknown

    def _nearest(self, option: str) -> str:
        """Return ", did you mean ...?" where an option of this parser is nearly the same."""
        known = [name for action in self._actions for name in action.option_strings]
        near = get_close_matches(option.partition("=")[0], known, 1, cutoff=0.8)
        return f", did you mean {near[0]}?" if near else ""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)} (see {self.prog} --help)\n")


def build_parser() -> Parser:
    """Return the parser with all verbs."""
    from .. import __version__

    parser = Parser(
        prog="npformer",
        description="The Transformer in NumPy, with hand-derived and proven gradients.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"npformer {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        import_module(f".{verb}_command", __name__).add(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    0: done; 1: done, and something that was checked is wrong; 2: bad input, said in one line on
    stderr; 130: interrupted; 141: the reader of the output went away.
    """
    try:
        args = build_parser().parse_args(argv)
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except SystemExit as error:  # argparse, after --help and after a complaint
        return error.code if isinstance(error.code, int) else 2
    except KeyboardInterrupt:
        print("npformer: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # or Python complains again when it flushes at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except (ValueError, TypeError, LookupError, ArithmeticError, ImportError) as error:
        return _complain(str(error) or type(error).__name__)
    except MemoryError:
        return _complain("there is not enough memory for this")


def one_line(message: str) -> str:
    """Fold a message into one line."""
    return " ".join(message.split())


def _complain(message: str) -> int:
    print(f"npformer: {one_line(message)}", file=sys.stderr)
    return 2
