"""Decodes a file line by line or piece by piece and names the line where it stops being UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from swift_autobatch.errors import InputError

CHUNK_BYTES = 1 << 20

Update = Callable[[bytes], None]  # sees every byte once, in order: the digest


def lines(path: Path, stream: BinaryIO, update: Update) -> Iterator[tuple[int, str]]:
    """Yields (line number, text with its newline); a byte order mark is dropped."""
    for number, raw in enumerate(stream, 1):
        update(raw)
        if number == 1 and raw.startswith(codecs.BOM_UTF8):
            raw = raw[len(codecs.BOM_UTF8) :]
        try:
            yield number, raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise not_utf8(path, number, raw, error.start) from error


def not_utf8(path: Path, line: int, raw: bytes, at: int) -> InputError:
    marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    guess = "utf-16" if raw.startswith(marks) else "gb18030"
    return InputError(
        f"not UTF-8: byte 0x{raw[at]:02x} at byte {at + 1} of line {line}",
        where=f"{path}:{line}",
        hints=(f"convert it: iconv -f {guess} -t utf-8 {path} > {path.stem}.utf8{path.suffix}",),
    )


def pieces(path: Path, line: int, stream: BinaryIO, update: Update) -> Iterator[str]:
    """The rest of a file in pieces of about 1 MiB, decoded."""
    while raw := stream.read(CHUNK_BYTES):
        raw += stream.readline()  # a piece ends with a line, so that an error can name its line
        update(raw)
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            head = raw[: error.start]
            start = head.rfind(b"\n") + 1
            found = line + 1 + head.count(b"\n")
            raise not_utf8(path, found, raw[start : error.end], error.start - start) from error
        line += raw.count(b"\n")
