"""``npformer experiment NAME``: a claim of the texts, counted or measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..labels import LANGUAGES, wrap

_DESCRIPTION = """\
Count or measure what a text claims. Prints a table; with --out also the figure (SVG and PNG) and
its data (CSV).
"""

_EXAMPLES = """\
examples:
  npformer experiment attention-traffic
  npformer experiment attention-traffic --N 2048 --d 64 --out traffic
  npformer experiment attention-traffic --backward --json

The Pre-LN and Post-LN experiment has a command of its own: npformer curves.
"""

_TRAFFIC = {
    "en": "Numbers moved between slow and fast memory by one head, counted block by block. Fitted "
    "exponent of M for M between 4 d and N d / 16 (FlashAttention's theorem 2: 0 for the standard "
    "schedule, -1 for the blocked ones; text B's O(T^2 d / M) would be {claimed:,} at the largest "
    "M, less than reading Q, K and V once, {once:,}):",
    "zh": "一个头在慢速与快速存储之间搬运的数，逐块数出。M 在 4 d 与 N d / 16 之间时拟合的幂次"
    "（FlashAttention 定理 2：标准调度为 0，分块调度为 -1；文本 B 的 O(T^2 d / M) 在最大的 M 处"
    "是 {claimed:,}，比把 Q、K、V 各读一遍的 {once:,} 还少）：",
}


def add(verbs: Any) -> None:
    """Add the verb."""
    verb = verbs.add_parser(
        "experiment",
        help="count or measure a claim of the texts",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    names = verb.add_subparsers(dest="experiment", metavar="NAME", required=True)
    traffic = names.add_parser(
        "attention-traffic",
        help="what attention moves between slow and fast memory, by schedule",
        description="Walk through the block schedules of attention and count what they move "
        "(text B section 2.7; FlashAttention, arXiv:2205.14135, theorem 2).",
        epilog=_EXAMPLES,
    )
    traffic.add_argument("--N", type=int, default=1024, help="tokens (default: 1024)")
    traffic.add_argument("--d", type=int, default=32, help="width of the head (default: 32)")
    traffic.add_argument("--backward", action="store_true", help="the backward pass")
    traffic.add_argument("--json", action="store_true", help="print JSON instead of the table")
    traffic.add_argument("--out", type=Path, metavar="DIR", help="write the figure and the CSV")
    traffic.add_argument(
        "--lang", choices=LANGUAGES, default="en", help="language of the text and the figure"
    )
    traffic.set_defaults(run=attention_traffic)


def attention_traffic(args: argparse.Namespace) -> int:
    """Count, print and draw the traffic of attention."""
    from ..experiments.attention_traffic import (
        SCHEDULES,
        Traffic,
        exponent,
        format_traffic,
        memory_sizes,
    )
    from ..experiments.attention_traffic import attention_traffic as counts
    from ..files import write_csv

    N, d = args.N, args.d
    if N < 128 or d < 1:
        raise ValueError(f"--N must be 128 or more and --d 1 or more, but they are {N} and {d}")
    if N > 1 << 12:
        raise ValueError(f"--N must be at most {1 << 12}, or counting takes minutes, but is {N}")
    rows = counts(N, d, backward=args.backward)
    exponents = {name: exponent(name, N, d, backward=args.backward) for name in SCHEDULES}
    if args.json:
        found = {"rows": [row._asdict() | {"total": row.total} for row in rows]}
        print(json.dumps({**found, "exponent_of_M": exponents}, indent=2))
    else:
        print(format_traffic(rows))
        largest = max(memory_sizes(N, d))
        text = _TRAFFIC[args.lang].format(claimed=N * N * d // largest, once=3 * N * d)
        print("\n" + "\n".join(wrap(text, 100)))
        for name, a in exponents.items():
            print(f"  {name:<20} {round(a, 3) + 0.0:+.3f}")
    if args.out:
        from ..plots import language, save_figure
        from ..plots.attention_traffic import traffic_by_memory

        stem = args.out / ("attention_traffic_backward" if args.backward else "attention_traffic")
        write_csv(
            stem.with_suffix(".csv"), (*Traffic._fields, "total"), [(*r, r.total) for r in rows]
        )
        with language(args.lang) as lang:
            paths = save_figure(traffic_by_memory(rows, lang, backward=args.backward), stem)
        if not args.json:
            print(f"\n{args.out}: {stem.name}.csv {' '.join(p.name for p in paths)}")
    return 0
