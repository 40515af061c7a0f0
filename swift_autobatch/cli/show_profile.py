"""What people read on stdout of ``autoswift profile``."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from pathlib import Path

from swift_autobatch.api import Profile
from swift_autobatch.cli import text
from swift_autobatch.cli.text import joined, section
from swift_autobatch.facts.summary import told, trained
from swift_autobatch.records import DataFacts
from swift_autobatch.units import show_count, show_gib, show_seconds
from swift_autobatch.worth import Worth

_BARS = 12
_EXAMPLES = 3


def profile(found: Profile, *, verbose: bool = False, columns: int | None = None) -> list[str]:
    """A profile for people: rows, lengths, problems, and what can be chosen."""
    columns = columns or text.width()
    data = found.facts.data
    parts = [
        ["Profile", *text.rows(_summary(found), columns)],
        section("Tokens per row", _histogram(data, columns)),
        section("Problems", problems(data, columns, verbose=verbose)),
    ]
    if found.worth is not None:
        parts += [
            section("max_length", _lengths(found, found.worth, columns)),
            section("Padding and packing", _padding(found.worth, columns)),
        ]
    else:
        parts.append(section("No plan", text.wrapped(found.why_no_plan or "", columns)))
    return joined(parts)


def _summary(found: Profile) -> list[tuple[str, str]]:
    data = found.facts.data
    as_planned = " planned for" if data.estimated_longest else ""
    pairs = [
        ("data", ", ".join(Path(name).name for name in data.files)),
        ("model", f"{found.facts.model.id}, template {found.facts.model.swift_template or 'unknown'}"),
        ("rows", trained(data)),
        (
            "tokens",
            f"P50 {data.p50_tokens}, P90 {data.p90_tokens}, P95 {data.p95_tokens}, P99 {data.p99_tokens}, "
            f"{longest(data)}; {show_count(data.mean_tokens * data.kept)} in all",
        ),
        (
            "supervised",
            f"{data.mean_supervised_tokens:.1f} a row on average, at most {data.max_supervised_tokens}{as_planned}",
        ),
        ("counted by", _counted(data)),
    ]
    if data.confidence:
        pairs.append(
            (
                "sample",
                f"{data.counted_rows} rows counted; percentiles at 95 % confidence: {data.confidence}; rows, problems, "
                "costliest rows and the longest are exact (--full counts all)",
            )
        )
    if data.costliest:
        rows = [f"{Path(row.file).name}:{row.line} {row.tokens}" for row in data.costliest[:_EXAMPLES]]
        pairs.append(("costliest", ", ".join(rows) + as_planned))
    if data.media_rows:
        pairs.append(("media", f"{data.media_rows} rows with images, video or audio"))
    return pairs


def longest(data: DataFacts) -> str:
    """The longest row; where lengths are estimates, also what it is planned for as."""
    if not data.estimated_longest:
        return f"longest {data.max_tokens}"
    return f"longest {data.estimated_longest}, planned for as {data.max_tokens}"


def _counted(data: DataFacts) -> str:
    if data.exact:
        return f"{data.tokenizer}: exactly as the engine will"
    if data.tokenizer == "assumed":
        return f"assumed, no tokenizer at hand: bytes / 4; no row has more than {data.bound_tokens or data.max_tokens}"
    return f"{data.tokenizer}: not exact"


def _histogram(data: DataFacts, columns: int) -> list[str]:
    """Bars over ranges that grow with the lengths, so that a long tail does not hide the bulk."""
    lengths = data.even_lengths
    low, high = lengths[0], lengths[-1]
    bars = min(_BARS, high - low + 1)
    ratio = (high / max(1, low)) ** (1 / bars) if high > 4 * low else 0.0
    edges = [round(max(1, low) * ratio**at) if ratio else low + (high - low) * at // bars for at in range(bars)]
    edges = [*sorted({*edges, low}), high + 1]
    weight = data.kept / len(lengths)
    counts = []
    for start, end in pairwise(edges):
        inside = bisect_left(lengths, end) - bisect_left(lengths, start)
        counts.append((f"{start}-{end - 1}", round(inside * weight)))
    wide = max(len(name) for name, _ in counts)
    number = max(len(str(count)) for _, count in counts)
    cells = max(8, columns - wide - number - 6)
    most = max(count for _, count in counts) or 1
    return [f"  {name:>{wide}}  {count:>{number}}  {text.bar(count / most, cells)}" for name, count in counts]


def problems(data: DataFacts, columns: int, *, verbose: bool = False) -> list[str]:
    """One paragraph a code: how many rows, where, and what helps. ``verbose``: every place that is listed."""
    lines: list[str] = []
    for one in told(data, None) if verbose else told(data):
        lines += text.wrapped(one.sentence, columns, indent="    ", first="  - ")
        lines += text.wrapped(f"fix: {one.fix}", columns, indent="      ", first="    ")
    return lines


def _lengths(found: Profile, worth: Worth, columns: int) -> list[str]:
    data = found.facts.data
    verb = "cut" if found.facts.cuts_rows else "dropped"
    body = [
        (
            str(choice.max_length),
            str(choice.rows_over),
            f"{100 * choice.tokens_lost:.1f} %",
            show_gib(choice.demand_bytes),
            show_seconds(choice.step_s),
            show_seconds(choice.epoch_s),
            _short(choice.why) + ("" if choice.fits else ", no fit"),
        )
        for choice in worth.lengths
    ]
    plan = found.plan
    assert plan is not None
    free = (
        "Batches are padded to their longest row, not to max_length: what no row needs is free. "
        f"Recommended: {worth.recommended}."
    )
    over = sum(length > worth.recommended for length in data.lengths)
    lost = "" if over else " It keeps every row whole."
    shape = f"{plan.candidate.strategy}, micro batch {plan.candidate.micro_batch}"
    return [
        *text.table(("max_length", verb, "lost", "a device", "step", "epoch", "why"), body),
        *text.wrapped(f"Predicted for {shape}, all else equal. {free}{lost}", columns),
    ]


def _short(why: str) -> str:
    """``P90, P95, P99, longest, planned`` as ``P90-longest, planned``: a table has 80 columns."""
    names = why.split(", ")
    lengths = [name for name in names if name not in ("planned", "unused")]
    span = lengths if len(lengths) < 2 else [f"{lengths[0]}-{lengths[-1]}"]
    return ", ".join([*span, *(name for name in names if name not in lengths)])


def _padding(worth: Worth, columns: int) -> list[str]:
    wastes = ", ".join(f"{one.micro_batch}: {100 * one.waste:.0f} %" for one in worth.padding)
    gain = f"{worth.packing_gain:.2f} x fewer tokens to compute at the planned batch"
    return text.rows((("padding", f"share of a batch by micro batch: {wastes}"), ("packing", gain)), columns)
