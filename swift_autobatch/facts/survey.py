"""Tallies rows as ms-swift 4.6 would read them; parts that were surveyed apart can be merged.

A :class:`Survey` knows what rows say (kept, dropped, doubtful, about whom); its :class:`Tokens` what they weigh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swift_autobatch.facts.checks import doubts, explained, whole
from swift_autobatch.facts.cognition import Cognition
from swift_autobatch.facts.conversation import Conversation, RowError, Shape, conversation
from swift_autobatch.facts.lines import Fault
from swift_autobatch.facts.media import Media, Pictures, with_pictures
from swift_autobatch.facts.repeats import Repeats
from swift_autobatch.facts.tally import Dearest, Lengths, Problems
from swift_autobatch.facts.templates import no_turns
from swift_autobatch.facts.tokens import Count, Counter
from swift_autobatch.records import ModelFacts

Framed = Any  # a row as its counter wants it


@dataclass(slots=True)
class Tokens:
    """What the counted rows weigh. ``supervised`` is a sum of weights, see :class:`Lengths`."""

    lengths: Lengths = field(default_factory=Lengths)
    dearest: Dearest = field(default_factory=Dearest)
    counted: int = 0
    supervised: float = 0
    max_supervised: int = 0
    min_prompt: int | None = None

    def add(self, file: str, order: int, line: int, count: Count, record: Mapping[str, Any]) -> None:
        self.weigh(count)
        self.dearest.add(file, order, line, count.planned, count.supervised_planned, record)

    def weigh(self, count: Count, weight: float = 1) -> None:
        """Adds a row's figures, without a thought of keeping the row."""
        self.lengths.add(count.tokens, count.planned, count.bound, weight)
        self.counted += 1
        self.supervised += count.supervised * weight
        self.max_supervised = max(self.max_supervised, count.supervised_planned)
        self.min_prompt = count.prompt if self.min_prompt is None else min(self.min_prompt, count.prompt)

    def merge(self, other: Tokens, lines_before: int) -> None:
        self.lengths.merge(other.lengths)
        self.dearest.merge(other.dearest, lines_before)
        self.counted += other.counted
        self.supervised += other.supervised
        self.max_supervised = max(self.max_supervised, other.max_supervised)
        prompts = [prompt for prompt in (self.min_prompt, other.min_prompt) if prompt is not None]
        self.min_prompt = min(prompts, default=None)


@dataclass(slots=True)
class Survey:
    """What a pass over rows found."""

    rows: int = 0
    kept: int = 0
    problems: Problems = field(default_factory=Problems)
    cognition: Cognition = field(default_factory=Cognition)
    plain: bool = True  # no row whose tokens are estimated, such as those of tools or media may be
    media: int = 0
    image_tokens: int = 0
    max_image_tokens: int = 0
    own_system: bool = False
    repeats: Repeats = field(default_factory=Repeats)
    tokens: Tokens = field(default_factory=Tokens)

    def drop(self, file: str, line: int, code: str, text: str) -> None:
        """A row that the engine drops."""
        self.rows += 1
        self.problems.add(code, file, line, text, drops_row=True)

    def fault(self, file: str, line: int, fault: Fault) -> None:
        """Something wrong in the file itself; it may cost a row, or the whole file."""
        self.rows += fault.loses
        self.problems.add(fault.code, file, line, fault.text, drops_row=fault.loses)

    def keep(
        self,
        file: str,
        line: int,
        talk: Conversation,
        count: Count | None,
        model: ModelFacts,
        cut_at: int | None = None,
        pictures: Pictures | None = None,
        *,
        plain: bool,
    ) -> None:
        """A row that the engine trains; ``plain``: nothing about its tokens is estimated."""
        self.rows += 1
        self.kept += 1
        self.plain = self.plain and plain
        self.media += bool(pictures.unknown) if pictures is not None else talk.media
        if pictures is not None:
            self.image_tokens += pictures.tokens
            self.max_image_tokens = max(self.max_image_tokens, pictures.tokens)
        self.own_system = self.own_system or talk.system is not None
        self.repeats.add(file, line, talk)
        placeholder = self.cognition.add(talk)
        for code, text in doubts(talk, count, model, placeholder=placeholder, cut_at=cut_at, pictures=pictures):
            self.problems.add(code, file, line, text, drops_row=False)

    def merge(self, other: Survey, lines_before: int = 0) -> None:
        """Adds a part that was surveyed apart; ``lines_before`` stand before its first line in the same file."""
        self.rows += other.rows
        self.kept += other.kept
        self.problems.merge(other.problems, lines_before)
        self.cognition.merge(other.cognition)
        self.plain = self.plain and other.plain
        self.media += other.media
        self.image_tokens += other.image_tokens
        self.max_image_tokens = max(self.max_image_tokens, other.max_image_tokens)
        self.own_system = self.own_system or other.own_system
        self.repeats.merge(other.repeats, lines_before)
        self.tokens.merge(other.tokens, lines_before)

    def finish(self) -> None:
        """Adds the problems that only the whole of the rows shows."""
        for code, file, line, text, times in whole(self.repeats, self.kept):
            self.problems.add(code, file, line, text, drops_row=False, times=times)


class Reader:
    """Reads records as the engine does: what a row says, and the pieces that are tokenized one by one."""

    def __init__(
        self,
        *,
        model: ModelFacts,
        counter: Counter,
        system: str | None,
        cut_at: int | None = None,
        media: Media | None = None,
    ) -> None:
        self.model = model
        self.media = media or Media(block=None)
        self.cut_at = cut_at
        self.counter = counter
        self.system = system

    def talk(self, record: Any, shape: Shape) -> Conversation:
        """Raises RowError when the engine drops the row."""
        try:
            return conversation(record, shape)
        except RowError as error:
            raise explained(error, record, shape) from None
        except RecursionError:
            raise RowError("not-text", "brackets are nested too deeply") from None

    @staticmethod
    def check(talk: Conversation) -> None:
        """Raises RowError when :meth:`pieces` would."""
        if not talk.turns:
            raise no_turns()

    def pieces(self, talk: Conversation) -> Framed:
        """Raises RowError when the engine drops the row."""
        return self.counter.framed(talk, self.system)

    def survey(self, into: Survey, file: str, order: int, batch: Iterable[tuple[int, Any]], shape: Shape) -> None:
        """Reads and counts some rows of a file; ``order`` is the file's place among the datasets."""
        ready: list[tuple[int, Any, Conversation, Framed]] = []
        for line, record in batch:
            try:
                talk = self.talk(record, shape)
                ready.append((line, record, talk, self.pieces(talk)))
            except RowError as error:
                into.drop(file, line, error.code, error.text)
        counts = self.count([pieces for *_, pieces in ready])
        for (line, record, talk, _), text in zip(ready, counts, strict=True):
            if isinstance(text, RowError):
                into.drop(file, line, text.code, text.text)
                continue
            pictures = self.media.of(talk) if talk.media else None
            count = with_pictures(text, pictures) if pictures else text
            into.keep(file, line, talk, count, self.model, self.cut_at, pictures, plain=self.counter.covers(talk))
            into.tokens.add(file, order, line, count, record)

    def count(self, rows: Sequence[Framed]) -> Sequence[Count | RowError]:
        return self.counter.count(rows)
