"""The result of a gradient check: a table as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

PASSING = ("pass", "zero", "kink", "empty")
"""Verdicts that are no failure; the others: fail, not finite, wrong shape, not analytic."""


@dataclass(frozen=True)
class Row:
    """What was found for one tensor."""

    tensor: str
    shape: tuple[int, ...]
    compared: int
    """How many of its numbers were compared; 1 where the slope along one direction was."""
    max_abs: float
    """Largest difference between the backward's gradient and the numeric one."""
    max_rel: float
    """The error that is judged: max_abs over the larger gradient's largest number."""
    max_ratio: float
    """Largest relative difference of a single number: shown, not judged."""
    worst_index: tuple[int, ...] | None
    """Where max_abs is; None for a direction or an empty tensor."""
    analytic: float
    """The backward's value there."""
    numeric: float
    """The value measured by the forward alone."""
    bad_share: float
    """Share of the numbers that are off by more than the tolerance."""
    verdict: str
    notes: tuple[str, ...] = ()
    """What is wrong, and hints at why."""

    @property
    def passed(self) -> bool:
        return self.verdict in PASSING


@dataclass(frozen=True)
class GradientReport:
    """Every tensor's row, and what the backward did that no row can show.

    True in a condition where everything passed, so that ``assert gradcheck(...)`` is a test.
    """

    name: str
    method: str
    """How and with which step the slopes were measured."""
    tolerance: float
    rows: tuple[Row, ...]
    problems: tuple[str, ...] = ()
    """Broken rules: an array changed, a gradient overwritten, a number that is not finite."""

    @property
    def passed(self) -> bool:
        return not self.problems and all(row.passed for row in self.rows)

    def __bool__(self) -> bool:
        return self.passed

    @property
    def max_rel_error(self) -> float:
        """The largest judged error; NaN, which passes no comparison, if one is NaN."""
        errors = [row.max_rel for row in self.rows]
        return math.nan if any(math.isnan(e) for e in errors) else max(errors)

    def __str__(self) -> str:
        return text([self])

    def to_json(self) -> str:
        """The report as a JSON object; numbers that are not finite become strings."""
        return json.dumps(_record(self), indent=2)

    def to_csv(self) -> str:
        """The rows as CSV, with a header."""
        return csv_text([self])


# ---------------------------------------------------------------------- many reports at once

_HEADER = (
    "tensor", "shape", "max abs", "rel error", "max ratio",
    "worst at", "backward", "numeric", "bad", "verdict",
)  # fmt: skip


def text(reports: Sequence[GradientReport]) -> str:
    """One aligned table, then what is wrong and the count."""
    several = len(reports) > 1
    table = [[*(["case"] if several else []), *_HEADER]]
    for report in reports:
        for row in report.rows:
            table.append([*([report.name] if several else []), *_cells(row)])
    lines = [] if several else [_title(reports[0])]
    lines += _aligned(table, texts={0, *([1] if several else []), len(table[0]) - 1})
    for report in reports:
        lines += explain(report)
    if several:
        lines += dict.fromkeys(f"{r.method}, tolerance {r.tolerance:.0e}" for r in reports)
    rows = [row for report in reports for row in report.rows]
    failed = [report.name for report in reports if not report.passed]
    if failed:
        named = f": {', '.join(dict.fromkeys(failed))}" if several else ""
        lines.append(f"FAILED{named}")
    elif several:
        lines.append(f"passed: {len(reports)} checks, {len(rows)} tensors")
    else:
        lines.append(f"passed: largest relative error {reports[0].max_rel_error:.1e}")
    return "\n".join(lines)


def explain(report: GradientReport) -> list[str]:
    """One line for every broken rule and bad tensor, with the hints below it."""
    lines = [f"{report.name}: {problem}" for problem in report.problems]
    for row in report.rows:
        for i, note in enumerate(row.notes):
            lines.append(f"  hint: {note}" if i else f"{report.name}: {row.tensor}: {note}")
    return lines


def csv_text(reports: Sequence[GradientReport]) -> str:
    """All rows as CSV, the name of what was checked first."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [f.name for f in fields(Row) if f.name != "notes"]
    writer.writerow(["case", "method", *names, "passed", "notes"])
    for report in reports:
        for row in report.rows:
            record = asdict(row)
            index = "" if row.worst_index is None else " ".join(map(str, row.worst_index))
            record |= {"shape": " ".join(map(str, row.shape)), "worst_index": index}
            notes = " | ".join([*report.problems, *row.notes])
            passed = row.passed and not report.problems
            writer.writerow(
                [report.name, report.method, *(record[n] for n in names), passed, notes]
            )
    return out.getvalue()


def json_text(reports: Sequence[GradientReport], **about: Any) -> str:
    """All reports as one JSON object, with what else is to be noted about the run."""
    record = {"passed": all(reports), **about, "checks": [_record(r) for r in reports]}
    return json.dumps(record, indent=2)


def _record(report: GradientReport) -> dict[str, Any]:
    return {
        "name": report.name,
        "method": report.method,
        "tolerance": report.tolerance,
        "passed": report.passed,
        "max_rel_error": _plain(report.max_rel_error),
        "problems": list(report.problems),
        "rows": [{key: _plain(value) for key, value in asdict(row).items()} for row in report.rows],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _title(report: GradientReport) -> str:
    return f"{report.name}: {report.method}, tolerance {report.tolerance:.0e}"


def _cells(row: Row) -> list[str]:
    where = "" if row.worst_index is None else str(list(row.worst_index))
    return [
        row.tensor,
        "x".join(map(str, row.shape)) or "scalar",
        f"{row.max_abs:.1e}",
        f"{row.max_rel:.1e}",
        f"{row.max_ratio:.1e}",
        where,
        f"{row.analytic:.6g}",
        f"{row.numeric:.6g}",
        f"{row.bad_share:.0%}" if row.bad_share in (0, 1) else f"{row.bad_share:.1%}",
        row.verdict,
    ]


def _aligned(table: list[list[str]], texts: set[int]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if j in texts else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in table
    ]
