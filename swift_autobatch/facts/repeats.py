"""Counts rows that say what an earlier row said, in bounded memory.

Every row is remembered by 64 bits of its text. Beyond ``ROOM`` different ones only those are kept whose lowest
bit is 0, then those whose two lowest are, and so on: from there on every second, fourth, ... text is watched,
all its copies are found, and the count is an estimate. No row is ever taken for a copy that is none (short of two texts
that share 64 bits).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from swift_autobatch.facts.conversation import Conversation

ROOM = 1 << 17  # different rows remembered: about 16 MB
LISTED = 100
_FILE = 1 << 40  # more lines than any file has

Copy = tuple[str, int, str, int]  # file and line of the copy, of the row that it repeats


class Repeats:
    """The rows seen so far, and the copies among them."""

    def __init__(self, room: int | None = None) -> None:
        self._room = room or ROOM
        self._first: dict[int, int] = {}  # hash -> file and line of the first row that said it
        self._files: list[str] = []
        self._bits = 0
        self.watched_copies = 0
        self.copies: list[Copy] = []  # at most LISTED

    def add(self, file: str, line: int, talk: Conversation) -> tuple[str, int] | None:
        """Sees a row. Returns file and line of the row that it repeats."""
        return self._see(_fingerprint(talk), file, line)

    def total(self) -> int:
        """Rows that repeat an earlier one; an estimate when ``exact`` is false."""
        return self.watched_copies << self._bits

    @property
    def exact(self) -> bool:
        return self._bits == 0

    @property
    def every(self) -> int:
        """One in so many different texts is watched."""
        return 1 << self._bits

    def merge(self, other: Repeats, lines_before: int = 0) -> None:
        """Adds what a later part of the data showed; ``lines_before`` stand before its first line in the same file."""
        self._narrow(other._bits)
        for file, line, first_file, first_line in other._moved_copies(lines_before):
            self._list(file, line, first_file, first_line)
        mask = (1 << self._bits) - 1
        self.watched_copies += other.watched_copies if other._bits == self._bits else other.total() >> self._bits
        for key, place in other._first.items():
            if not key & mask:
                file, line = other._place(place)
                self._see(key, file, line + lines_before)

    def _see(self, key: int, file: str, line: int) -> tuple[str, int] | None:
        if key & ((1 << self._bits) - 1):
            return None
        place = self._first.get(key)
        if place is None:
            self._first[key] = self._number(file) * _FILE + line
            if len(self._first) > self._room:
                self._narrow(self._bits + 1)
            return None
        first = self._place(place)
        if first == (file, line):
            return None  # the same row, drawn more than once
        self.watched_copies += 1
        self._list(file, line, *first)
        return first

    def _list(self, file: str, line: int, first_file: str, first_line: int) -> None:
        if len(self.copies) < LISTED:
            self.copies.append((file, line, first_file, first_line))

    def _narrow(self, bits: int) -> None:
        while self._bits < bits:
            self._bits += 1
            mask = (1 << self._bits) - 1
            self._first = {key: place for key, place in self._first.items() if not key & mask}
            self.watched_copies //= 2

    def _number(self, file: str) -> int:
        if not self._files or self._files[-1] != file:
            self._files.append(file)
        return len(self._files) - 1

    def _place(self, place: int) -> tuple[str, int]:
        return self._files[place // _FILE], place % _FILE

    def _moved_copies(self, lines_before: int) -> Iterator[Copy]:
        for file, line, first_file, first_line in self.copies:
            yield file, line + lines_before, first_file, first_line + lines_before


def _fingerprint(talk: Conversation) -> int:
    texts = [talk.system or "", *talk.tools, *talk.images]
    for turn in talk.turns:
        texts += (turn.role, turn.content)
    said = "\0".join(texts).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "big")
