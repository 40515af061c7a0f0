"""Reads parquet and arrow files in batches; a row's "line" is its number, counted from 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swift_autobatch.errors import InputError
from swift_autobatch.facts.lines import CHUNK_BYTES, Update

_BATCH = 512  # rows decoded at a time: memory is that of a row group and of these


def parquet_rows(path: Path, update: Update) -> Iterator[tuple[int, Any]]:
    """Yields (number, row) of a parquet file, one row group in memory at a time. Raises InputError: it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    _digest(path, update)
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(batch_size=_BATCH, row_groups=[group]):
                    for row in batch.to_pylist():
                        number += 1
                        yield number, row
    except (pa.ArrowException, pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        raise _unreadable(path, "parquet", error) from error


def arrow_rows(path: Path, update: Update) -> Iterator[tuple[int, Any]]:
    """Yields (number, row) of an arrow file, a stream or the random-access kind. Raises InputError: it is neither."""
    import pyarrow as pa

    _digest(path, update)
    number = 0
    try:
        with pa.memory_map(str(path)) as source:
            for batch in _batches(source):
                for start in range(0, batch.num_rows, _BATCH):
                    for row in batch.slice(start, _BATCH).to_pylist():
                        number += 1
                        yield number, row
    except (pa.ArrowException, pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        raise _unreadable(path, "arrow", error) from error


def _batches(source: Any) -> Iterator[Any]:
    import pyarrow as pa

    try:
        yield from pa.ipc.open_stream(source)
    except pa.ArrowInvalid:
        source.seek(0)
        file = pa.ipc.open_file(source)
        for index in range(file.num_record_batches):
            yield file.get_batch(index)


def _digest(path: Path, update: Update) -> None:
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            update(chunk)


def _unreadable(path: Path, kind: str, error: Exception) -> InputError:
    return InputError(
        f"not a readable {kind} file: {str(error).splitlines()[0]}",
        where=str(path),
        hints=("copy or download the file again: it may be cut off",),
    )
