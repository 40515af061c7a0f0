"""Rows that nobody has at hand: every one of the same length, so that a job can be costed before its data is here."""

from __future__ import annotations

from swift_autobatch.records import DataFacts, Row

_ROWS = 1000


def assumed_rows(tokens: int, names: tuple[str, ...]) -> DataFacts:
    """Facts on ``_ROWS`` rows of exactly ``tokens`` tokens, each trained on whole: the most that a length can cost.

    Args:
        names: the data sets that they stand for.
    """
    row = Row(file=names[0], line=1, tokens=tokens, supervised_tokens=tokens, record={})
    return DataFacts(
        files=names,
        rows=_ROWS,
        kept=_ROWS,
        problems=(),
        lengths=(tokens,) * 16,
        p50_tokens=tokens,
        p90_tokens=tokens,
        p95_tokens=tokens,
        p99_tokens=tokens,
        max_tokens=tokens,
        mean_tokens=float(tokens),
        mean_supervised_tokens=float(tokens),
        max_supervised_tokens=tokens,
        costliest=(row,),
        tokenizer="assumed",
        exact=False,
        digest="0" * 64,
        self_cognition=False,
    )
