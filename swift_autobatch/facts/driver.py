"""Asks the NVIDIA driver, through NVML, what cards there are: the one seam between us and the hardware.

Everything above works on a :class:`DriverView`, a plain record, so that any machine can be replayed.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Link = Literal["nvlink", "pcie", "nop2p"]

# nvmlGpuP2PCapsIndex_t and NVML_P2P_STATUS_OK of nvml.h; pynvml 12 and 13 export NVML_P2P_CAPS_INDEX_READ as a tuple.
_P2P_READ, _P2P_NVLINK, _P2P_OK = 0, 2, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCard:
    """One physical card as NVML reports it; ``index`` counts in PCI bus order, bytes are per card."""

    index: int
    name: str
    uuid: str
    total_bytes: int
    free_bytes: int
    compute_capability: tuple[int, int]
    mig: bool = False  # split into MIG slices
    pcie_gen: int | None = None  # highest that card and slot agree on
    pcie_lanes: int | None = None
    nvlinks: int = 0  # active NVLinks


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverView:
    """All cards of the machine, before CUDA_VISIBLE_DEVICES. ``links`` is keyed by ascending index pairs."""

    driver: str | None
    cuda: str | None
    cards: tuple[DriverCard, ...]
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    problem: str | None = None  # the driver is there and does not answer


def read_view(nvml: Any | None = None) -> DriverView | None:
    """The cards and links of this machine; None where there is no NVIDIA driver.

    Args:
        nvml: the ``pynvml`` module; tests pass a recorded machine with the same functions.
    """
    return _with_nvml(_view, nvml)


def read_versions(nvml: Any | None = None) -> DriverView | None:
    """Only the driver's versions (no cards); None where there is no NVIDIA driver."""
    return _with_nvml(lambda asked: DriverView(driver=_driver(asked), cuda=_cuda(asked), cards=()), nvml)


def _with_nvml(ask: Callable[[Any], DriverView], module: Any | None) -> DriverView | None:
    if module is None:
        try:
            module = importlib.import_module("pynvml")
        except ImportError:
            return None
    nvml: Any = module
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        # No library or no module loaded: no NVIDIA machine. Anything else is a broken driver, and said.
        if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
            return None
        return DriverView(driver=None, cuda=None, cards=(), problem=str(error))
    try:
        return ask(nvml)
    except nvml.NVMLError as error:
        return DriverView(driver=None, cuda=None, cards=(), problem=str(error))
    finally:
        nvml.nvmlShutdown()


def _view(nvml: Any) -> DriverView:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    pairs = itertools.combinations(range(len(handles)), 2)
    return DriverView(
        driver=_driver(nvml),
        cuda=_cuda(nvml),
        cards=tuple(_card(nvml, index, handle) for index, handle in enumerate(handles)),
        links={(one, two): _link(nvml, handles[one], handles[two]) for one, two in pairs},
    )


def _card(nvml: Any, index: int, handle: Any) -> DriverCard:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    mode = _or_none(nvml, nvml.nvmlDeviceGetMigMode, handle)
    return DriverCard(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        compute_capability=(int(major), int(minor)),
        mig=bool(mode and mode[0]),
        pcie_gen=_or_none(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_lanes=_or_none(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        nvlinks=_nvlinks(nvml, handle),
    )


def _nvlinks(nvml: Any, handle: Any) -> int:
    """Active NVLinks of a card."""
    states = (_or_none(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(nvml.NVML_NVLINK_MAX_LINKS))
    # The first unknown link ends the list: a card without NVLink is asked once.
    return sum(1 for state in itertools.takewhile(lambda state: state is not None, states) if state)


def _link(nvml: Any, one: Any, two: Any) -> Link:
    if _p2p(nvml, one, two, _P2P_NVLINK):
        return "nvlink"
    return "pcie" if _p2p(nvml, one, two, _P2P_READ) else "nop2p"


def _p2p(nvml: Any, one: Any, two: Any, capability: int) -> bool:
    return bool(_or_none(nvml, nvml.nvmlDeviceGetP2PStatus, one, two, capability) == _P2P_OK)


def _driver(nvml: Any) -> str:
    return _text(nvml.nvmlSystemGetDriverVersion())


def _cuda(nvml: Any) -> str:
    version = nvml.nvmlSystemGetCudaDriverVersion()  # 12080 means 12.8
    return f"{version // 1000}.{version % 1000 // 10}"


def _text(value: bytes | str) -> str:
    """pynvml returned bytes before version 11.5."""
    return value.decode() if isinstance(value, bytes) else value


def _or_none(nvml: Any, function: Callable[..., Any], *args: Any) -> Any:
    """What an optional query says; None where the card or an old driver does not know it."""
    try:
        return function(*args)
    except nvml.NVMLError:
        return None
