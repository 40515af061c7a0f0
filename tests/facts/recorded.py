"""A recorded machine: the functions of pynvml that we call, answering from a table."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from swift_autobatch.units import MIB

_real = importlib.import_module("pynvml")


@dataclass(frozen=True)
class Card:
    name: str
    mib: int
    uuid: str
    capability: tuple[int, int] = (8, 9)
    used_mib: int = 400
    mig: bool | None = None  # None: the card does not know MIG
    pcie: tuple[int, int] | None = (4, 16)
    nvlinks: int | None = None  # active links; None: the card has none


@dataclass
class Recorded:
    """Stands where the module ``pynvml`` stands; errors and constants are pynvml's own."""

    cards: tuple[Card, ...]
    p2p: dict[tuple[int, int, int], int] = field(default_factory=dict)  # (card, card, capability) -> status
    init_error: int | None = None
    query_error: int | None = None
    open: int = 0

    def __post_init__(self) -> None:
        called = [name for name in dir(self) if name.startswith("nvml")]
        assert all(callable(getattr(_real, name, None)) for name in called), "pynvml has no such function"

    def __getattr__(self, name: str) -> Any:
        return getattr(_real, name)  # constants and NVMLError; functions not recorded would reach the real driver

    def _fail(self, code: int = _real.NVML_ERROR_NOT_SUPPORTED) -> Any:
        raise _real.NVMLError(code)

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            self._fail(self.init_error)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"550.90.07"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 12040

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards) if self.query_error is None else self._fail(self.query_error)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.cards[handle].name

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.cards[handle].uuid

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        card = self.cards[handle]
        return SimpleNamespace(total=card.mib * MIB, free=(card.mib - card.used_mib) * MIB, used=card.used_mib * MIB)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.cards[handle].capability

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        mig = self.cards[handle].mig
        return self._fail() if mig is None else [int(mig), int(mig)]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        pcie = self.cards[handle].pcie
        return pcie[0] if pcie else self._fail()

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        pcie = self.cards[handle].pcie
        return pcie[1] if pcie else self._fail()

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        links = self.cards[handle].nvlinks
        return int(link < links) if links is not None and link < 18 else self._fail()

    def nvmlDeviceGetP2PStatus(self, one: int, two: int, capability: int) -> int:
        assert isinstance(capability, int), "ctypes takes a number"
        return self.p2p.get((one, two, capability), _real.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED)


def four_4090() -> Recorded:
    uuids = ("GPU-aaaa1111-0", "GPU-aaaa2222-1", "GPU-bbbb3333-2", "GPU-cccc4444-3")
    return Recorded(tuple(Card("NVIDIA GeForce RTX 4090", 24564, uuid) for uuid in uuids))
