"""What the engine trains without a word although it is hardly meant: one code a check, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from swift_autobatch.facts.conversation import Conversation, RowError, Shape, shape_of
from swift_autobatch.facts.media import Pictures
from swift_autobatch.facts.repeats import Repeats
from swift_autobatch.facts.tokens import Count
from swift_autobatch.records import ModelFacts

Doubt = tuple[str, str]  # code and text of a Problem that drops no row


def doubts(
    talk: Conversation,
    count: Count | None,
    model: ModelFacts,
    *,
    placeholder: bool,
    cut_at: int | None = None,
    pictures: Pictures | None = None,
) -> Iterator[Doubt]:
    """What is doubtful about one row.

    Args:
        talk: the row as the engine reads it.
        count: its tokens; None when they were not counted, as most rows of a large file are not.
        placeholder: it holds an unfilled ``{{NAME}}`` or ``{{AUTHOR}}``.
        pictures: its images, whose tokens are among ``count``.
        cut_at: ``--max_length`` in tokens where rows are cut on the right; None: none is.
    """
    yield from _order(talk)
    answers = [turn for turn in talk.turns if turn.role == "assistant"]
    if not answers:
        yield "no-assistant-turn", "no answer to learn from: the engine trains the row with every label masked"
    elif not any(turn.content.strip() for turn in answers):
        yield "empty-answer", "the answer is empty: the row teaches the model to say nothing"
    elif count is not None and count.supervised == 0:
        yield "masked", "the row switches its loss off: every label is masked"
    if cut_at is not None and count is not None and 0 < cut_at <= count.prompt_least:
        least = "" if count.prompt else "at least "
        yield (
            "cut-answer",
            f"{least}{count.prompt_least} tokens stand before the answer: cut to {cut_at}, every label is gone",
        )
    if pictures is not None:
        yield from _pictured(talk, count, model, pictures)
    if placeholder:
        yield "placeholder", "{{NAME}} or {{AUTHOR}} is trained as it stands: the engine fills it in hub data only"
    if count is not None and 0 < model.max_position < count.tokens:
        yield over_context(count.tokens, model.max_position)


def over_context(tokens: int, context: int) -> Doubt:
    """A row longer than the model reads."""
    return "over-context", f"{tokens} tokens exceed the model's context of {context}: cut or dropped"


def _pictured(talk: Conversation, count: Count | None, model: ModelFacts, pictures: Pictures) -> Iterator[Doubt]:
    """What is doubtful about the images of a row."""
    if pictures.broken:
        yield "broken-image", f"{pictures.broken}; the engine trains another row in its place"
    asked = sum(turn.content.count("<image>") for turn in talk.turns)
    if talk.images and asked > len(talk.images):
        yield "image-count", f"<image> stands {asked} times in the text and the row names {len(talk.images)}"
    room = model.max_position
    if count is not None and 0 < room < count.tokens and count.tokens - pictures.tokens <= room:
        yield "long-image", f"{pictures.tokens} of {count.tokens} tokens are images, and the context is {room}"


def _order(talk: Conversation) -> Iterator[Doubt]:
    """Turns that do not go question, answer, question, answer; the engine trains them in its own way."""
    roles = [turn.role for turn in talk.turns]
    if not roles:
        return
    if talk.doubled:
        yield "user-twice", "two questions in a row: the engine joins them into one"
    if roles[0] == "assistant" and "user" in roles:
        yield "assistant-first", "the conversation starts with an answer: the engine puts an empty question before it"
    if roles[-1] == "user" and "assistant" in roles:
        yield "unanswered", "the last question has no answer: the engine trains what comes before it"
    questions = [turn for turn in talk.turns if turn.role == "user"]
    if questions and "assistant" in roles and not any(turn.content.strip() for turn in questions):
        yield "empty-field", "the question is empty"


def explained(error: RowError, record: Any, shape: Shape) -> RowError:
    """The same refusal, or that the row is written in another form than the one its file is read in."""
    if not isinstance(record, dict):
        return error
    filled = [name for name, value in record.items() if value not in (None, "", [])]
    own = shape_of(filled)
    used = {shape.rename.get(name, name) for name in filled} & _TARGETS[shape.reading]
    if own is None or used:
        return error
    names = ", ".join(str(name) for name in filled[:4])
    return RowError("mixed-schema", f"the file is read as {_READINGS[shape.reading]}, and this row has {names}")


_TARGETS = {
    "messages": frozenset({"messages"}),
    "alpaca": frozenset({"instruction", "input"}),
    "pairs": frozenset({"query", "response"}),
}
_READINGS = {"messages": "messages", "alpaca": "instruction, input and output", "pairs": "query and response"}


def whole(repeats: Repeats, kept: int) -> Iterator[tuple[str, str, int, str, int]]:
    """Problems that only all rows together show: (code, file, line, text, rows)."""
    for file, line, first_file, first_line in repeats.copies:
        place = f"line {first_line}" if file == first_file else f"{first_file}:{first_line}"
        yield "duplicate", file, line, f"says the same as {place}", 1
    if repeats.copies and repeats.total() > len(repeats.copies):
        file, line, *_ = repeats.copies[-1]
        about = "" if repeats.exact else f" (estimated: 1 text in {repeats.every} is watched)"
        yield "duplicate", file, line, f"more copies{about}", repeats.total() - len(repeats.copies)
