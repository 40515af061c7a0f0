"""The child process of a trace: ``python -m swift_autobatch.trace.worker REQUEST.json``.

The request is a JSON object: ``model`` (a folder, or the content of a config.json), ``keys`` (a list of
FootprintKey as objects), ``device`` (``cuda`` or ``cpu``: whose kernels are emulated), ``out``, a folder, and maybe
``params_total``, what the model is known to have. Key number
i leaves ``<out>/<i>.footprint`` there (see footprint_file.py), or ``<out>/<i>.why`` with a sentence. One line a key
on stdout. Exit code 0 unless the request cannot be read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
import traceback
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from swift_autobatch import footprint_file
from swift_autobatch.records import Footprint, FootprintKey, Polynomial, Stream
from swift_autobatch.trace import build, loop
from swift_autobatch.trace.errors import CannotTrace
from swift_autobatch.trace.fit import Fit, values
from swift_autobatch.trace.instants import instants
from swift_autobatch.trace.recorder import Recording
from swift_autobatch.trace.shelf import LIBRARIES

# Distinct primes: a storage's bytes then tell its monomial. More points where two do not explain every storage.
# Lengths lie above the short attention windows in use (up to 1024) and below the long ones (from 2047).
POINTS = tuple(
    loop.Point(b=b, s=s, t=t) for b, s, t in ((101, 1103, 499), (113, 1499, 701), (127, 1801, 853), (139, 1999, 977))
)
_FEWEST = 2
_SAME_COUNT = 0.01  # of the published parameters: buffers and ties are counted in different ways
_BUILT_FROM = ("tuner", "quant", "checkpointing", "dtype", "lora_rank", "dropout", "deepspeed")


def trace_streams(
    model: Mapping[str, Any] | str, keys: list[FootprintKey], device: str = "cuda", params_total: int | None = None
) -> list[Footprint | CannotTrace]:
    """Traces every key in this process, which torch patches are put on while it runs.

    Args:
        model: content of a config.json, or a folder that holds one.
        keys: variants, answered in order.
        device: whose kernels are emulated, ``cuda`` or ``cpu``.
        params_total: what the model is known to have; another count is a refusal.
    """
    tracer = Tracer(model, device, params_total)
    return [tracer.try_footprint(key) for key in keys]


class Tracer:
    """One model; keeps the last one built, as keys in a row often share it."""

    def __init__(self, model: Mapping[str, Any] | str, device: str, params_total: int | None = None) -> None:
        self._source, self._device, self._params_total = model, device, params_total
        self._built: tuple[tuple[Any, ...], Any, frozenset[str]] | None = None

    def try_footprint(self, key: FootprintKey) -> Footprint | CannotTrace:
        """The footprint, or why there is none; any other failure of the model's code is such a reason too."""
        try:
            return self.footprint(key)
        except CannotTrace as error:
            return error
        except Exception as error:  # the model's own code, or a library that does not take meta tensors
            self._built = None
            logging.getLogger(__name__).debug("%s", traceback.format_exc())
            first = (str(error).strip().splitlines() or [""])[0][:200]
            return CannotTrace(f"the model does not run without data: {type(error).__name__}: {first}")

    def footprint(self, key: FootprintKey) -> Footprint:
        """Traces one variant.

        Raises:
            CannotTrace: it cannot be built, or its runs are not alike.
        """
        model, built_notes = self._model(key)
        notes = set(built_notes)
        recordings = [loop.record(model, key, point, self._device, notes) for point in POINTS[:_FEWEST]]
        sizes = _sizes(recordings)
        while any(size is None for size in sizes) and len(recordings) < len(POINTS):
            recordings.append(loop.record(model, key, POINTS[len(recordings)], self._device, notes))
            sizes = _sizes(recordings)
        stream = _stream(recordings, sizes, notes)
        return Footprint(
            key=key,
            weights_bytes=_static(stream, "weights"),
            adapters_bytes=_static(stream, "adapters"),
            instants=instants(stream),
            stream=stream,
        )

    def _model(self, key: FootprintKey) -> tuple[Any, frozenset[str]]:
        wanted = (*(getattr(key, name) for name in _BUILT_FROM), key.attention == "eager")
        if self._built is None or self._built[0] != wanted:
            self._built = None
            notes: set[str] = set()
            config = build.config_of(self._source)
            built = build.build(config, key, notes, self._check)
            self._built = (wanted, built, frozenset(notes))
        return self._built[1], self._built[2]

    def _check(self, count: int) -> None:
        known = self._params_total
        if known and abs(count - known) > _SAME_COUNT * known:
            raise CannotTrace(f"what is known of its shape gives {count:,} parameters instead of {known:,}")


def _sizes(recordings: list[Recording]) -> list[Polynomial | None]:
    """One polynomial a storage.

    Raises:
        CannotTrace: the runs differ in more than sizes.
    """
    first = recordings[0]
    for other in recordings[1:]:
        if (other.events, other.kinds, other.marks) != (first.events, first.kinds, first.marks):
            raise CannotTrace("the run allocates differently for other batch sizes and lengths")
    fit = Fit([values(point.b, point.s, point.k) for point in POINTS[: len(recordings)]])
    return [fit.polynomial(sizes) for sizes in zip(*(one.n_bytes for one in recordings), strict=True)]


def _stream(recordings: list[Recording], sizes: list[Polynomial | None], notes: set[str]) -> Stream:
    fit = Fit([values(point.b, point.s, point.k) for point in POINTS[: len(recordings)]])
    measured = list(zip(*(one.n_bytes for one in recordings), strict=True))
    loose = [index for index, size in enumerate(sizes) if size is None]
    if loose:
        notes.add(f"{len(loose)} of {len(sizes)} storages follow no polynomial and are rounded up")
    whole = [size if size is not None else fit.nearest(bytes_) for size, bytes_ in zip(sizes, measured, strict=True)]
    unique = {size: index for index, size in enumerate(dict.fromkeys(whole))}
    first = recordings[0]
    kinds = [
        "logits" if kind == "passing" and size[-1] else kind for kind, size in zip(first.kinds, whole, strict=True)
    ]
    return Stream(
        sizes=tuple(unique),
        storages=tuple((unique[size], kind) for size, kind in zip(whole, kinds, strict=True)),
        events=tuple(first.events),
        marks=tuple(first.marks),
        notes=tuple(sorted(notes)),
        versions=versions(),
    )


def _static(stream: Stream, kind: str) -> int:
    return sum(stream.sizes[size][0] for size, name in stream.storages if name == kind)


def versions() -> dict[str, str]:
    """The libraries whose code was traced."""
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def main(argv: list[str]) -> int:
    request = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    out = Path(request["out"])
    _quiet()
    tracer = Tracer(request["model"], request.get("device", "cuda"), request.get("params_total"))
    keys = [FootprintKey(**key) for key in request["keys"]]
    for index, key in enumerate(keys):
        began = time.monotonic()
        result = tracer.try_footprint(key)
        answer = out / f"{index}.{'footprint' if isinstance(result, Footprint) else 'why'}"
        part = answer.with_suffix(".part")
        part.write_bytes(footprint_file.dump([result]) if isinstance(result, Footprint) else str(result).encode())
        part.rename(answer)
        print(f"traced {index + 1} of {len(keys)} in {time.monotonic() - began:.1f} s", flush=True)
    return 0


def _quiet() -> None:
    """Libraries that are imported for their shapes have nothing to tell."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
