"""Reads every kind of file that the engine reads, row by row, with the line where each starts; memory does not grow.

What stops the engine's loader is reported with its line, and reading goes on behind it. The engine goes by the last
suffix of a name and by the first bytes of the content: a gzip or zstd file named .jsonl is unpacked while it is read.

Source: ms-swift 4.6 swift/dataset/loader.py ``_load_dataset_path``; datasets ``extract_on_the_fly``.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

from swift_autobatch.errors import InputError, MachineError
from swift_autobatch.facts.columnar import arrow_rows, parquet_rows
from swift_autobatch.facts.csv_rows import csv_rows
from swift_autobatch.facts.json_rows import json_rows
from swift_autobatch.facts.lines import Decoder, Fault, Recoded, Stream, Update, lines, utf16
from swift_autobatch.facts.schema import kind_of

SUFFIXES = (".json", ".jsonl", ".csv", ".parquet", ".arrow", ".txt")  # the engine's, for a file given by its name
FOLDER_SUFFIXES = (*SUFFIXES, ".tsv", ".ndjson")  # for the parts of a folder
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_HEAD = 4096


def read_rows(path: Path, update: Update) -> Iterator[tuple[int, Any]]:
    """Yields (line, row) for every row of a file, and (line, Fault) for what is wrong with it.

    A row of a csv, parquet, arrow or text file is a dict, of a json file an object or null. The "line" of a parquet or
    arrow row is its number, counted from 1.

    Args:
        path: a file with one of ``FOLDER_SUFFIXES``, perhaps packed. Lists and lines of JSON are told apart by content.
        update: receives every unpacked byte of the file once, in order.

    Raises:
        InputError: the file cannot be opened, or is no parquet file.
    """
    try:
        with ExitStack() as stack:
            yield from _rows(path, update, stack)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"cannot read the dataset: {getattr(error, 'strerror', None) or error}",
            where=str(path),
            hints=(f"check the file with: ls -l {path}",),
        ) from error


def _rows(path: Path, update: Update, stack: ExitStack) -> Iterator[tuple[int, Any]]:
    kind = kind_of(path)
    if kind in (".parquet", ".arrow"):
        yield from (parquet_rows if kind == ".parquet" else arrow_rows)(path, update)
        return
    opened = _opened(path, stack)
    head = opened.peek(_HEAD)[:_HEAD]
    encoding = utf16(head)
    stream: Stream = opened
    if encoding:
        yield 1, Fault(code="utf-16", text=f"{_name(encoding)}, not UTF-8: {_bytes(head)} at byte 1 of line 1")
        stream = Recoded(cast(BinaryIO, opened), encoding)
    if kind in (".csv", ".tsv"):
        yield from csv_rows(stream, update, delimiter="\t" if kind == ".tsv" else ",")
    elif kind == ".txt":
        yield from _texts(stream, update)
    else:
        starts = head.startswith(b"[") or bool(encoding)
        yield from json_rows(stream, update, starts_at_once=starts, suffix=kind, size=path.stat().st_size)


def _name(encoding: str) -> str:
    return "UTF-16" if encoding == "utf-16" else f"UTF-16 ({encoding[-2:].upper()}, without a mark)"


def _bytes(head: bytes) -> str:
    return "bytes " + " ".join(f"0x{byte:02x}" for byte in head[:2])


def _opened(path: Path, stack: ExitStack) -> io.BufferedReader:
    """The file's content, unpacked where its first bytes say that it is packed."""
    stream = stack.enter_context(path.open("rb"))
    head = stream.peek(4)[:4]
    if head.startswith(_GZIP):
        return io.BufferedReader(cast(io.RawIOBase, stack.enter_context(gzip.GzipFile(fileobj=stream))))
    if head.startswith(_ZSTD):
        try:
            import zstandard
        except ImportError as error:
            raise MachineError(
                "the file is packed with zstd, and the package zstandard is not installed",
                where=str(path),
                hints=("pip install zstandard", f"zstd -d {path}"),
            ) from error
        reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
        return io.BufferedReader(cast(io.RawIOBase, _Unpacked(reader)))
    return stream


class _Unpacked(io.RawIOBase):
    """A zstd reader whose errors are those of a file."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        import zstandard

        try:
            return int(self._reader.readinto(buffer))
        except zstandard.ZstdError as error:
            raise OSError(f"not a whole zstd file: {error}") from error


def _texts(stream: Stream, update: Update) -> Iterator[tuple[int, Any]]:
    """One row a line, empty ones too, in a column named text; a byte order mark stays in the first row, as there."""
    for number, text in lines(stream, update, Decoder(), keep_mark=True):
        if isinstance(text, Fault):
            yield number, text
        else:
            yield number, {"text": text.removesuffix("\n").removesuffix("\r")}
