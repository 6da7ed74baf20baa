"""Attention maps as a page for the browser: one file that loads nothing from anywhere."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..experiments.attention_maps import Maps

MOST = 4_000_000
"""Weights that a page can hold; a browser takes its time with more."""

TEXT: dict[str, dict[str, str]] = {
    "en": {
        "title": "Attention",
        "help": "Choose a head, and point at a token (or move to it with the tab key): the darker "
        "another token, the more the chosen one reads of it. The weights of a row sum to 1.",
        "head": "head",
        "from": "reads (query)",
        "to": "is read (key)",
        "mean": "no token chosen: mean over all that read",
    },
    "zh": {
        "title": "注意力权重",
        "help": "选择一个头，把鼠标移到一个 token 上（或用 Tab 键移动）：另一个 token 颜色越深，所选 token "
        "从它读取得越多。每行权重之和为 1。",
        "head": "头",
        "from": "正在读（查询）",
        "to": "被读（键）",
        "mean": "未选 token：对所有查询取平均",
    },
}

_PAGE = """\
<!DOCTYPE html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ --ink: #1a1a1a; --page: #fff; --line: #ccc; --hue: 0, 114, 178; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #eee; --page: #181818; --line: #555; --hue: 86, 180, 233; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 1.2rem auto; max-width: 62rem; padding: 0 1rem; }}
h1 {{ font-size: 1.3rem; margin: 0 0 .3rem; }}
p {{ margin: .3rem 0 .8rem; }}
.tokens {{ display: flex; flex-wrap: wrap; gap: 2px; margin: .2rem 0 1rem; }}
.tokens > * {{ font: inherit; color: inherit; background: none; border: 1px solid var(--line); border-radius: 3px; padding: .1rem .35rem; min-width: 1.4rem; text-align: center; white-space: pre; }}
.tokens small {{ display: block; font-size: .65rem; opacity: .75; }}
button:focus-visible, button.chosen {{ outline: 3px solid rgb(var(--hue)); }}
select {{ font: inherit; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{subject}</p>
<p>{help}</p>
<p><label>{head}: <select id="map"></select></label></p>
<h2 style="font-size:1rem">{from_}</h2>
<div class="tokens" id="queries"></div>
<h2 style="font-size:1rem">{to} <span id="state"></span></h2>
<div class="tokens" id="keys"></div>
<script id="data" type="application/json">{data}</script>
<script>
const data = JSON.parse(document.getElementById("data").textContent);
const select = document.getElementById("map"), queries = document.getElementById("queries");
const keys = document.getElementById("keys"), state = document.getElementById("state");
let chosen = null;
data.maps.forEach((m, i) => select.add(new Option(m.name + ", " + data.head + " " + m.head, i)));
function show(row) {{
  const P = data.maps[select.value].weights, T = P.length;
  const w = row === null ? P[0].map((_, j) => P.reduce((s, r) => s + r[j], 0) / T) : P[row];
  state.textContent = row === null ? "(" + data.mean + ")" : "";
  [...keys.children].forEach((cell, j) => {{
    const p = w[j] === null ? 0 : w[j];
    cell.style.backgroundColor = "rgba(var(--hue), " + Math.sqrt(p) * 0.75 + ")";
    cell.lastChild.textContent = w[j] === null ? "NaN" : p.toFixed(3);
  }});
  [...queries.children].forEach((cell, i) => cell.classList.toggle("chosen", i === row));
}}
data.queries.forEach((token, i) => {{
  const cell = document.createElement("button");
  cell.textContent = token;
  cell.addEventListener("mouseenter", () => show(i));
  cell.addEventListener("focus", () => show(i));
  cell.addEventListener("click", () => {{ chosen = chosen === i ? null : i; show(chosen); }});
  queries.append(cell);
}});
queries.addEventListener("mouseleave", () => show(chosen));
data.keys.forEach(token => {{
  const cell = document.createElement("span");
  cell.append(token, document.createElement("small"));
  keys.append(cell);
}});
select.addEventListener("change", () => show(chosen));
show(null);
</script>
</body>
</html>
"""


def attention_page(
    maps: Sequence[Maps],
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    subject: str = "",
    lang: str = "en",
) -> str:
    """Return a page on which a reader points at a token and sees where each head looks.

    Parameters
    ----------
    maps : sequence of Maps
    queries, keys : sequences of str
        The tokens.
    subject : str
        What was measured; formulas between ``$`` are shown as they are, without the signs.
    lang : {"en", "zh"}

    Returns
    -------
    str
        HTML. Tokens are data, never markup, and nothing is loaded.

    Raises
    ------
    ValueError
        if there are more than `MOST` weights.
    """
    if weights(maps) > MOST:
        raise ValueError(
            f"{weights(maps):,} weights are too many for a page; it holds {MOST:,} at most"
        )
    text = TEXT[lang]
    data: dict[str, Any] = {
        "head": text["head"],
        "mean": text["mean"],
        "queries": list(queries),
        "keys": list(keys),
        "maps": [
            {"name": m.name, "head": h, "weights": [_row(row) for row in m.P[h]]}
            for m in maps
            for h in m.heads
        ],
    }
    return _PAGE.format(
        lang={"zh": "zh-CN"}.get(lang, lang),
        title=text["title"],
        help=text["help"],
        head=text["head"],
        from_=text["from"],
        to=text["to"],
        subject=html.escape(subject.replace("$", "")),
        data=json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c"),
    )


def weights(maps: Sequence[Maps]) -> int:
    """Return how many weights maps have together."""
    return sum(len(m.heads) * m.P[0].size for m in maps)


def _row(row: Any) -> list[float | None]:
    return [round(float(p), 4) if np.isfinite(p) else None for p in row]
