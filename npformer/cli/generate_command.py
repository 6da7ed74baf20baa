"""``npformer generate``: let a model write, one that was trained here or one that was loaded."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model_folder import Found

_DESCRIPTION = """\
Continue texts with the model in a folder: a run of "npformer train", or weights in Hugging Face's
format with a tokenizer.json (which needs the tokenizers package). An encoder-decoder reads each
prompt and answers it.

One text appears as it is written, several at the end.
"""

_EXAMPLES = """\
examples:
  npformer generate run --prompt "The with statement"
  npformer generate run --prompt "def " --prompt "class " --temperature 0
  npformer generate run --top-p 0.9 --seed 7 --max-new-tokens 500
  npformer generate dates --prompt "31 May 2009" --beams 4
  npformer generate gpt2-folder --ids 464,3139,286 --temperature 0 --json
"""


def add(verbs: Any) -> None:
    """Add the verb to the parser."""
    verb = verbs.add_parser(
        "generate",
        help="let a trained or loaded model write text",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    verb.add_argument("folder", metavar="FOLDER", help="a run, or a folder with weights")
    verb.add_argument(
        "--prompt", action="append", metavar="TEXT", help="what to continue; may come several times"
    )
    verb.add_argument("--prompts", metavar="FILE", help="a UTF-8 file, each line a prompt")
    verb.add_argument(
        "--ids", action="append", type=_ids, metavar="N,N,...", help="a prompt as token ids"
    )
    verb.add_argument(
        "--max-new-tokens", type=int, metavar="N", help="at most (default: 200, or what fits)"
    )
    verb.add_argument(
        "--temperature", type=float, default=1.0, metavar="X", help="0 is greedy (default: 1)"
    )
    verb.add_argument("--top-k", type=int, metavar="N", help="choose from the N likeliest tokens")
    verb.add_argument(
        "--top-p", type=float, metavar="X", help="choose from the likeliest that sum to X"
    )
    verb.add_argument(
        "--repetition-penalty", type=float, default=1.0, metavar="X", help="above 1: repeat less"
    )
    verb.add_argument("--beams", type=int, default=1, metavar="N", help="beam search with N beams")
    verb.add_argument(
        "--length-penalty", type=float, default=1.0, metavar="X", help="of beam search (default: 1)"
    )
    verb.add_argument(
        "--eos", action="append", type=int, metavar="N", help="a token that ends a text"
    )
    verb.add_argument("--seed", type=int, default=0, help="of the choices (default: 0)")
    verb.add_argument("--no-cache", action="store_true", help="compute everything at every step")
    verb.add_argument("--json", action="store_true", help="print JSON: prompts, texts and ids")
    verb.add_argument("--out", metavar="FILE", help="write the texts, or the JSON, to a file")
    verb.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load, write, print."""
    from ..decoding import generate
    from ..files import write_text
    from .model_folder import load_folder

    found = load_folder(args.folder)
    model, reads = found.model, found.model.cfg.kind == "encoder-decoder"
    prompts = encoded(args, found)
    rows, source = prompts, None
    if reads:
        if found.start is None:
            raise ValueError(f"{args.folder} does not say which token starts an answer")
        rows, source = [[found.start]] * len(prompts), prompts
    end = found.end if args.eos is None else args.eos
    if args.seed < 0:
        raise ValueError(f"--seed must be 0 or more, but is {args.seed}")
    new = limit(args.max_new_tokens, model.cfg, max(map(len, rows)))
    live = None
    if len(rows) == 1 and not args.json and args.out is None and args.beams == 1:
        live = Live(found, [] if reads else rows[0], set(end))
    out = generate(
        model,
        rows,
        new,
        args.temperature,
        args.top_k,
        args.top_p,
        end,
        args.seed,
        repetition_penalty=args.repetition_penalty,
        beams=args.beams,
        length_penalty=args.length_penalty,
        source_ids=source,
        cached=not args.no_cache,
        stream=None if live is None else live.feed,
    )
    if live is not None:
        live.close()
        return 0
    texts = []
    for row, start in zip(out.tolist(), rows, strict=True):
        ids = ended(row[len(start) : len(start) + new], set(end))
        shown = ids if reads else [*start, *ids]
        texts.append({"ids": ids, "text": readable(found, shown)})
    if args.json:
        for text, prompt in zip(texts, prompts, strict=True):
            text["prompt_ids"] = [int(i) for i in prompt]
        words = json.dumps(texts, ensure_ascii=False) + "\n"
    else:
        words = "\n".join(str(text["text"]) for text in texts) + "\n"
    if args.out is None:
        sys.stdout.write(words)
    else:
        write_text(args.out, words)
    return 0


def encoded(args: argparse.Namespace, found: Found) -> list[Any]:
    """Return the prompts as rows of ids."""
    rows: list[Any] = list(args.ids or [])
    texts = list(args.prompt or [])
    if args.prompts is not None:
        from ..data import load_text

        texts += [line for line in load_text(args.prompts).split("\n") if line]
    if texts and found.vocabulary is None:
        raise ValueError(f"{args.folder} has no vocabulary: give the prompt as --ids")
    encode = getattr(found.vocabulary, "encode_whole", None) or getattr(
        found.vocabulary, "encode", None
    )
    marked = hasattr(found.vocabulary, "base") and found.model.cfg.kind == "decoder"
    for text in texts:
        assert encode is not None
        ids = list(encode(text))
        rows.append([found.start, *ids] if marked else ids)
    if not rows:
        rows = [beginning(args, found)]
    for row in rows:
        if not row:
            raise ValueError("a prompt must have at least one token, but it is empty")
    return rows


def beginning(args: argparse.Namespace, found: Found) -> list[int]:
    """Return what to start with where there is no prompt: the start mark, or a new line."""
    if found.model.cfg.kind == "encoder-decoder":
        raise ValueError("an encoder-decoder needs a --prompt to read")
    if found.start is not None:
        return [found.start]
    try:
        assert found.vocabulary is not None
        return [int(i) for i in found.vocabulary.encode("\n")]
    except (AssertionError, ValueError):
        raise ValueError(f"{args.folder} has no token to start with: give a --prompt") from None


def limit(asked: int | None, cfg: Any, longest: int) -> int:
    """Return how many tokens to write."""
    if asked is not None:
        return asked
    room = cfg.T_max - longest + 1 if cfg.positions == "learned" else 200
    return max(1, min(200, room))  # 1 where nothing fits, so that it is said


def ended(ids: list[int], end: set[int]) -> list[int]:
    """Return the ids up to the first stop token, without it."""
    for i, token in enumerate(ids):
        if token in end:
            return ids[:i]
    return ids


def readable(found: Found, ids: list[int]) -> str:
    """Return the text of ids, or the ids as text where there is no vocabulary."""
    if found.vocabulary is None:
        return " ".join(map(str, ids))
    return found.vocabulary.decode(ids)


class Live:
    """Text on the terminal as it comes, in whole characters."""

    def __init__(self, found: Found, prompt: Any, end: set[int]) -> None:
        from ..vocabulary import TextStream

        self._stream = None if found.vocabulary is None else TextStream(found.vocabulary)
        self._prompt, self._end = list(prompt), end

    def feed(self, ids: Any) -> None:
        """Show one more token, with the first one the prompt too."""
        self._begin()
        if int(ids[0]) not in self._end:
            self._show(int(ids[0]))

    def _begin(self) -> None:
        for token in self._prompt:
            self._show(int(token))
        self._prompt = []

    def _show(self, token: int) -> None:
        sys.stdout.write(f"{token} " if self._stream is None else self._stream.feed(token))
        sys.stdout.flush()

    def close(self) -> None:
        """Show what is left and end the line."""
        self._begin()
        sys.stdout.write(("" if self._stream is None else self._stream.flush()) + "\n")
        sys.stdout.flush()


def _ids(given: str) -> list[int]:
    try:
        return [int(part) for part in given.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers with commas between them, but is {given!r}"
        ) from None
