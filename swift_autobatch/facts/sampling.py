"""Which rows ``path#N`` trains: the engine's own draw, row for row.

Source: ms-swift 4.6 swift/dataset/utils.py ``sample_dataset`` and loader.py ``load_dataset``: one
``RandomState(data_seed)`` for all datasets of a command, in their order; every row N // rows times, and the rest drawn
without repeats, of the rows that the loader kept. ``--dataset_shuffle false`` and ``--streaming true`` take the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swift_autobatch.errors import InputError
from swift_autobatch.facts.conversation import RowError, Shape, conversation
from swift_autobatch.facts.lines import Fault
from swift_autobatch.facts.spelling import Pins
from swift_autobatch.records import DataFacts

if TYPE_CHECKING:
    from numpy.random import RandomState

_SEED = 42  # --data_seed
_MOST = 2**31 - 1  # Source: swift/utils/np_utils.py get_seed
_NO = ("false", "0", "no")
_YES = ("true", "1", "yes")


class Draw:
    """The draws of one command; each call goes on with the random numbers of the one before."""

    def __init__(self, pins: Pins) -> None:
        said = {name: str(pin.value).lower() for name, pin in pins.items() if pin.value is not None}
        in_order = said.get("dataset_shuffle", "true") in _NO or said.get("streaming", "false") in _YES
        self.seed = int(said["data_seed"]) if said.get("data_seed", "").isdigit() else _SEED
        self.shuffle = not in_order
        self._state: RandomState | None = None
        self._begun = 0  # datasets since the last draw: the engine takes one number for each before it loads it

    def begin(self) -> None:
        """The next dataset of the command; one without ``#N`` counts too."""
        self._begun += 1

    def times(self, rows: int, wanted: int) -> list[int]:
        """How often each of ``rows`` kept rows is trained when ``wanted`` are asked for."""
        from numpy.random import RandomState

        every, rest = divmod(wanted, rows)
        found = [every] * rows
        if rest and self.shuffle:
            self._state = self._state or RandomState(self.seed)
            self._state.randint(0, _MOST, size=self._begun)
            self._begun = 0
            for index in self._state.permutation(rows)[:rest]:
                found[index] += 1
        else:
            for index in range(rest):
                found[index] += 1
        return found


def survives(record: Any, shape: Shape) -> bool:
    """Whether the loader keeps a row, to draw from; what it keeps may still fail in the template."""
    try:
        conversation(record, shape)
    except RowError as error:
        return error.late
    except RecursionError:
        return False
    return True


def sampled(rows: Iterator[tuple[int, Any]], shape: Shape, times: Iterator[int]) -> Iterator[tuple[int, Any]]:
    """The rows that are trained, as often as they are; those that the loader drops, and faults, stay to be told."""
    for line, row in rows:
        if isinstance(row, Fault) or not survives(row, shape):
            yield line, row
            continue
        for _ in range(next(times)):
            yield line, row


def set_apart(data: DataFacts, pins: Pins) -> DataFacts:
    """The data without the rows that ``--split_dataset_ratio`` takes for evaluation.

    The engine splits before the template drops rows, so that a few of those may fall on the other side than here.

    Raises:
        InputError: not one row of a dataset is left to train on.

    Source: ms-swift 4.6 swift/dataset/dataset_meta.py ``post_process`` (a share of each dataset, one row at least);
    swift/arguments/base_args/data_args.py (none with --val_dataset or --streaming); swift/arguments/sft_args.py
    ``_init_eval_strategy`` (no evaluation: no split).
    """
    ratio = float(_pinned(pins, "split_dataset_ratio") or 0)
    strategy = _pinned(pins, "eval_strategy") or _pinned(pins, "save_strategy")
    kept = data.kept + data.evaluated_rows
    given = "val_dataset" in pins or (_pinned(pins, "streaming") or "").lower() in _YES
    if not ratio or given or strategy == "no":
        return replace(data, kept=kept, evaluated_rows=0)
    sizes = [size for size in data.kept_by_dataset or (kept,) if size]
    if 1 in sizes:
        raise InputError(
            f"--split_dataset_ratio {ratio:g} leaves no row to train on: of a dataset, one row is fit to train",
            where="--split_dataset_ratio",
            hints=("drop it, or name rows to evaluate on: --val_dataset FILE",),
        )
    apart = sum(max(int(size * ratio), 1) for size in sizes)
    return replace(data, kept=kept - apart, evaluated_rows=apart)


def _pinned(pins: Pins, flag: str) -> str | None:
    pin = pins.get(flag)
    return pin.value if pin is not None and isinstance(pin.value, str) else None
