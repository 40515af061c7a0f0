"""What the engine trains without a word although it is hardly meant: one code a check, row by row."""

from __future__ import annotations

from collections.abc import Iterator

from swift_autobatch.facts.conversation import Conversation
from swift_autobatch.facts.tokens import Count
from swift_autobatch.records import ModelFacts

Doubt = tuple[str, str]  # code and text of a Problem that drops no row


def doubts(talk: Conversation, count: Count | None, model: ModelFacts, *, placeholder: bool) -> Iterator[Doubt]:
    """What is doubtful about one row.

    Args:
        talk: the row as the engine reads it.
        count: its tokens; None when they were not counted, as most rows of a large file are not.
        placeholder: it holds an unfilled ``{{NAME}}`` or ``{{AUTHOR}}``.
    """
    answers = [turn for turn in talk.turns if turn.role == "assistant"]
    if not answers:
        yield "no-assistant-turn", "no answer to learn from: the engine trains the row with every label masked"
    elif not any(turn.content.strip() for turn in answers):
        yield "empty-answer", "the answer is empty: the row teaches the model to say nothing"
    elif count is not None and count.supervised == 0:
        yield "masked", "the row switches its loss off: every label is masked"
    if placeholder:
        yield "placeholder", "{{NAME}} or {{AUTHOR}} is trained as it stands: the engine fills it in hub data only"
    if count is not None and 0 < model.max_position < count.tokens:
        yield over_context(count.tokens, model.max_position)


def over_context(tokens: int, context: int) -> Doubt:
    """A row longer than the model reads."""
    return "over-context", f"{tokens} tokens exceed the model's context of {context}: cut or dropped"
