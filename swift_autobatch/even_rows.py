"""Rows all of one length: what a sweep over lengths plans, and what stands for rows that nobody has at hand."""

from __future__ import annotations

from dataclasses import replace

from swift_autobatch.records import DataFacts, Facts, Row

_SHOWN = 64  # lengths that stand for all rows
_ASSUMED = 1000  # rows of a dataset that is not here


def rows_of(facts: Facts, tokens: int) -> Facts:
    """The same job with as many rows, each of exactly ``tokens`` tokens and with the same share of answers."""
    data = facts.data
    share = data.mean_supervised_tokens / data.mean_tokens if data.mean_tokens else 1.0
    return replace(facts, data=_even(data, tokens, max(1, round(tokens * min(1.0, share)))))


def assumed_rows(tokens: int, names: tuple[str, ...]) -> DataFacts:
    """Facts on ``_ASSUMED`` rows of exactly ``tokens`` tokens, each trained on whole: the most that a length can cost.

    Args:
        names: the datasets that they stand for.
    """
    row = Row(file=names[0], line=1, tokens=tokens, supervised_tokens=tokens, record={})
    unknown = DataFacts(
        files=names,
        rows=_ASSUMED,
        kept=_ASSUMED,
        problems=(),
        lengths=(tokens,),
        p50_tokens=tokens,
        p95_tokens=tokens,
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
    return _even(unknown, tokens, tokens)


def _even(data: DataFacts, tokens: int, answer: int) -> DataFacts:
    """The data with every row of ``tokens`` tokens, the last ``answer`` of them supervised."""
    return replace(
        data,
        lengths=(tokens,) * min(_SHOWN, max(1, data.kept)),
        p50_tokens=tokens,
        p90_tokens=tokens,
        p95_tokens=tokens,
        p99_tokens=tokens,
        max_tokens=tokens,
        mean_tokens=float(tokens),
        mean_supervised_tokens=float(answer),
        max_supervised_tokens=answer,
        min_prompt_tokens=tokens - answer,
        bound_tokens=0,
        estimated_longest=0,
    )
