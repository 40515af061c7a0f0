"""Decodes a file line by line or piece by piece and says where, and into what, it stops being UTF-8."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

CHUNK_BYTES = 1 << 20

Update = Callable[[bytes], None]  # sees every byte once, in order: the digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something wrong in a file before there is a row to judge; ``code`` is one of codes.py.

    ``loses``: no row could be read there. Otherwise the row follows as it was hardly meant otherwise: without the
    trailing comma, decoded from GB18030; a repair writes that.
    """

    code: str
    text: str
    loses: bool = False


class Stream(Protocol):
    """What the readers need of a file."""

    def __iter__(self) -> Iterator[bytes]: ...
    def read(self, size: int, /) -> bytes: ...
    def readline(self) -> bytes: ...


class Recoded:
    """A UTF-16 file as UTF-8 bytes; line ends are found after decoding, because they are two bytes there."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._text = io.TextIOWrapper(stream, encoding, errors="replace", newline="\n")

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def readline(self) -> bytes:
        return self._text.readline().encode("utf-8", "replace")

    def read(self, size: int, /) -> bytes:
        return self._text.read(size).encode("utf-8", "replace")


def utf16(head: bytes) -> str | None:
    """The UTF-16 that a file's first bytes show, by its mark or by every other byte being 0; else None."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not head.startswith(codecs.BOM_UTF32_LE):
        return "utf-16"
    even, odd = head[0::2], head[1::2]
    if len(head) >= 4 and odd.count(0) > len(odd) / 2 and not even.count(0):
        return "utf-16-le"
    if len(head) >= 4 and even.count(0) > len(even) / 2 and not odd.count(0):
        return "utf-16-be"
    return None


class Decoder:
    """Turns bytes into text; the first bytes that are not UTF-8 are reported, and others of their encoding read on."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def line(self, number: int, raw: bytes) -> Iterator[str | Fault]:
        """One line: its text, a Fault, or a Fault and the text that it stands for."""
        try:
            yield raw.decode("utf-8")
            return
        except UnicodeDecodeError as error:
            at = error.start
        where = f"byte 0x{raw[at]:02x} at byte {at + 1} of line {number}"
        encoding = _legacy(raw)
        text = _decoded(raw, encoding)
        if text is None:
            yield Fault(code="not-utf-8", text=f"not UTF-8, nor GB18030 or Windows-1252: {where}", loses=True)
            return
        if encoding not in self._told:
            self._told.add(encoding)
            code = _NAMES[encoding].lower()
            yield Fault(code=code, text=f"{_NAMES[encoding]}, not UTF-8: {where}")
        yield text


_NAMES = {"gb18030": "GB18030", "cp1252": "Windows-1252"}


def _legacy(raw: bytes) -> str:
    """GB18030 writes two bytes or four a character, so high bytes come in pairs; in Windows-1252 they stand alone."""
    pairs = alone = run = 0
    for byte in (*raw, 0):
        if byte >= 0x80:
            run += 1
            continue
        pairs, alone, run = pairs + run // 2, alone + run % 2, 0
    return "gb18030" if pairs >= alone else "cp1252"


def _decoded(raw: bytes, encoding: str) -> str | None:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        return None


def lines(
    stream: Stream, update: Update, decoder: Decoder, *, keep_mark: bool = False
) -> Iterator[tuple[int, str | Fault]]:
    """Yields (line number, text with its newline, or what is wrong with it); a byte order mark is dropped."""
    for number, raw in enumerate(stream, 1):
        update(raw)
        if number == 1 and not keep_mark and raw.startswith(codecs.BOM_UTF8):
            raw = raw[len(codecs.BOM_UTF8) :]
        for part in decoder.line(number, raw):
            yield number, part


def pieces(line: int, stream: Stream, update: Update, decoder: Decoder) -> Iterator[tuple[int, str | Fault]]:
    """The rest of a file after ``line`` in pieces of about 1 MiB, each with the line where it starts."""
    line += 1
    while raw := stream.read(CHUNK_BYTES):
        raw += stream.readline()  # a piece ends with a line, so that an error can name its line
        update(raw)
        try:
            yield line, raw.decode("utf-8")
        except UnicodeDecodeError:
            for offset, part in enumerate(raw.splitlines(keepends=True)):
                for text in decoder.line(line + offset, part):
                    yield line + offset, text
        line += raw.count(b"\n")
