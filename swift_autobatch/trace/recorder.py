"""Writes down every storage that torch allocates and frees, in order."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:  # also imported into a real engine's process, which needs nothing of ours
    from swift_autobatch.records import Phase, StorageKind


@dataclass(slots=True)
class Recording:
    """One run: bytes and kind of each storage in order of allocation, and the events (see records.Stream)."""

    n_bytes: list[int] = field(default_factory=list)
    kinds: list[StorageKind] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    marks: list[tuple[int, Phase, str]] = field(default_factory=list)

    def peak_bytes(self, phase: Phase | None = None) -> int:
        """The most that was alive at once, in one phase or in all."""
        alive = peak = 0
        starts = [*self.marks, (len(self.events), self.marks[-1][1], "end")]
        for (begin, name, _), (end, _, _) in itertools.pairwise(starts):
            for event in self.events[begin:end]:
                alive += self.n_bytes[event] if event >= 0 else -self.n_bytes[~event]
                if alive > peak and (phase is None or phase == name):
                    peak = alive
        return peak


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operator below autograd; a storage counts from the operator that returns it to its last reference.

    Args:
        device: type of the device whose storages count (``meta``, ``cpu``).
        inside: what an operator allocates and frees within itself, by its name: called with the operator's
            arguments, returns bytes. Kernels that are one operator here and several on the device.
    """

    def __init__(self, device: str, inside: dict[str, Callable[..., tuple[int, ...]]] | None = None) -> None:
        super().__init__()
        self.recording = Recording()
        self._device = device
        self._inside = inside or {}
        self._known: dict[int, tuple[int, Any]] = {}
        self._open = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = self._inside.get(func.name()) if self._inside else None
        if inner is not None:
            self._phantom(inner(*args, **(kwargs or {})))
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.see(out)
        elif isinstance(out, (tuple, list)):
            for item in out:
                if isinstance(item, torch.Tensor):
                    self.see(item)
                elif isinstance(item, (tuple, list)):
                    self.see_all(item)
        return out

    def see_all(self, values: Iterable[Any], kind: StorageKind | None = None) -> None:
        """Counts the storages of tensors that were made before the recording began."""
        for value in values:
            if isinstance(value, torch.Tensor):
                self.see(value, kind)

    def see(self, tensor: Any, kind: StorageKind | None = None) -> None:
        """Counts the storage of one tensor, unless it is known; ``kind`` names it, also afterwards."""
        if tensor.device.type != self._device or not self._open:
            return
        storage = tensor.untyped_storage()
        address = storage._cdata
        known = self._known.get(address)
        if known is not None:
            if kind is not None:
                self.recording.kinds[known[0]] = kind
            return
        size = storage.nbytes()
        if size == 0:
            return
        index = self._allocate(size, kind or "passing")
        self._known[address] = (index, weakref.ref(storage, lambda _: self._free(address, index)))

    def mark(self, phase: Phase, place: str) -> None:
        """From here on the run is in ``phase`` at ``place``."""
        self.recording.marks.append((len(self.recording.events), phase, place))

    def close(self) -> Recording:
        """Ends the recording: what dies later is no event of the run."""
        self._open = False
        return self.recording

    def _allocate(self, size: int, kind: StorageKind) -> int:
        index = len(self.recording.n_bytes)
        self.recording.n_bytes.append(size)
        self.recording.kinds.append(kind)
        self.recording.events.append(index)
        return index

    def _free(self, address: int, index: int) -> None:
        if self._open:
            self.recording.events.append(~index)
        self._known.pop(address, None)

    def _phantom(self, sizes: tuple[int, ...]) -> None:
        if self._open:
            made = [self._allocate(size, "passing") for size in sizes]
            self.recording.events.extend(~index for index in made)
