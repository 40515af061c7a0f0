"""Is this environment sound: machine and probes -> checks, each with what to do. A pure function; reads nothing.

A check fails where a training cannot start, warns where it starts and a strategy is missing or slow.
"""

from __future__ import annotations

from collections.abc import Callable

from swift_autobatch import rules
from swift_autobatch.records import Check, CheckStatus, Machine, Probes
from swift_autobatch.rules.rule import cannot_compile_offload, lacks, without_bf16, without_flash
from swift_autobatch.tables import DIALECT, DIALECTS, dialect_of
from swift_autobatch.units import GIB, MIB, show_gib

_DISK_FAIL_GIB, _DISK_WARN_GIB = 1, 20  # a LoRA checkpoint and its log; a 7B model and a few checkpoints
_RAM_WARN_GIB = 8  # torch, the engine and one worker take 4
_SHM_WARN_MIB = 1024  # NCCL takes up to 33 MiB a channel and peer; Docker gives 64 MiB
_INODES = 10_000

Result = tuple[CheckStatus, str, str]
SKIPPED: Result = ("skipped", "", "")


def examine(machine: Machine, probes: Probes | None) -> tuple[Check, ...]:
    """Checks a machine and its environment.

    Args:
        machine: as read here, or from a hardware file.
        probes: what was tried out there; None: a hardware file alone, then those checks are skipped.

    Returns:
        every check, in the order of the table; ``skipped`` where it does not apply or could not be tried.
    """
    found = []
    for name, check in CHECKS:
        status, text, fix = check(machine, probes)
        found.append(Check(id=name, status=status, text=text or "does not apply here", fix=fix))
    return tuple(found)


def _engine(machine: Machine, probes: Probes | None) -> Result:
    version = machine.software.versions.get("ms-swift")
    best = DIALECT.rsplit("-", 1)[-1]
    if version is None:
        return "fail", "ms-swift is not installed", f"pip install 'ms-swift=={best}.*'"
    if dialect_of(version) is None:
        known = " and ".join(DIALECTS)
        return (
            "fail",
            f"ms-swift {version} is installed; its flags are known for {known} only",
            f"pip install 'ms-swift=={best}.*'",
        )
    if dialect_of(version) != DIALECT:
        return (
            "warn",
            f"ms-swift {version}: commands are rendered in its flags, and the dry run measures nothing inside it",
            f"pip install 'ms-swift=={best}.*'",
        )
    return "pass", f"ms-swift {version}", ""


def _versions(machine: Machine, probes: Probes | None) -> Result:
    if probes is None:
        return SKIPPED
    if probes.wants:
        return "warn", "; ".join(probes.wants), "pip install --upgrade ms-swift 'transformers' peft trl, together"
    return "pass", "the engine's requirements hold", ""


def _torch(machine: Machine, probes: Probes | None) -> Result:
    version = machine.software.versions.get("torch")
    if version is None:
        return "fail", "torch is not installed", "pip install torch"
    if probes is None:
        return SKIPPED
    if probes.torch_error:
        return (
            "fail",
            f"torch {version} cannot be imported: {probes.torch_error}",
            "pip install --force-reinstall torch",
        )
    build = f"CUDA {probes.torch_cuda}" if probes.torch_cuda else "CPU build"
    return "pass", f"torch {version}, {build}", ""


def _torch_sees_gpu(machine: Machine, probes: Probes | None) -> Result:
    if not machine.gpus or probes is None or probes.torch_error or probes.torch_sees_gpu is None:
        return SKIPPED
    if probes.torch_cuda is None:
        return (
            "fail",
            "the machine has a GPU and torch is a CPU build",
            "pip install --force-reinstall torch, from the index for your CUDA version",
        )
    if not probes.torch_sees_gpu:
        driver = machine.software.cuda_driver or "unknown"
        return (
            "fail",
            f"torch sees no GPU: built for CUDA {probes.torch_cuda}, the driver supports {driver}",
            "a newer driver, or a torch built for the driver's CUDA version",
        )
    return "pass", "torch sees the GPU", ""


def _architectures(machine: Machine, probes: Probes | None) -> Result:
    if not machine.gpus or probes is None or not probes.torch_archs:
        return SKIPPED
    for gpu in machine.gpus:
        if not _runs_on(gpu.compute_capability, probes.torch_archs):
            major, minor = gpu.compute_capability
            return (
                "fail",
                f"torch has no kernels for {gpu.name} (sm_{major}{minor}); it has {', '.join(probes.torch_archs)}",
                "a newer torch for a new card, an older one for an old card",
            )
    return "pass", "torch has kernels for every card", ""


def _runs_on(capability: tuple[int, int], archs: tuple[str, ...]) -> bool:
    """Binary code runs on its own major version from its minor on; ``compute_XX`` is compiled for anything newer."""
    for arch in archs:
        kind, _, digits = arch.partition("_")
        number = "".join(c for c in digits if c.isdigit())
        if len(number) < 2:
            continue
        built = (int(number[:-1]), int(number[-1]))
        same_major = built[0] == capability[0] and built <= capability
        if same_major or (kind == "compute" and built <= capability):
            return True
    return False


def _cards(machine: Machine, probes: Probes | None) -> Result:
    if not machine.gpus:
        if machine.visible_devices is not None:
            return (
                "warn",
                f"CUDA_VISIBLE_DEVICES={machine.visible_devices!r} hides every card",
                "unset CUDA_VISIBLE_DEVICES",
            )
        if probes is not None and probes.other_accelerator:
            return "warn", f"{probes.other_accelerator} is not planned for: trainings run on the CPU", ""
        return "warn", "no accelerator: trainings run on the CPU, for small models only", ""
    held = [gpu for gpu in machine.gpus if gpu.total_bytes - gpu.free_bytes > 2 * GIB]
    if held:
        used = show_gib(held[0].total_bytes - held[0].free_bytes)
        return "warn", f"{used} of GPU {held[0].index} are in use by something else", "nvidia-smi names the processes"
    names = sorted({gpu.name for gpu in machine.gpus})
    return "pass", f"{len(machine.gpus)} x {', '.join(names)}", ""


def _bf16(machine: Machine, probes: Probes | None) -> Result:
    if not machine.gpus:
        return SKIPPED
    old = without_bf16(machine)
    if old is not None:
        return "warn", f"{old} has no native bf16: plans train in float16 with loss scaling", ""
    return "pass", "native bf16", ""


def _flash(machine: Machine, probes: Probes | None) -> Result:
    if not machine.gpus:
        return SKIPPED
    version = machine.software.versions.get("flash-attn")
    if without_flash(machine) is not None:
        return "skipped", rules.find("flash-needs-ampere").why, ""
    if version is None:
        return "pass", "flash-attn is not installed: PyTorch's own kernel is used; packing needs flash-attn", ""
    if probes is not None and probes.flash_attn_error:
        return (
            "fail",
            f"flash-attn {version} is installed and cannot be imported: {probes.flash_attn_error}",
            "pip uninstall flash-attn, or build it against this torch: pip install flash-attn --no-build-isolation",
        )
    return "pass", f"flash-attn {version}", ""


def _deepspeed(machine: Machine, probes: Probes | None) -> Result:
    version = machine.software.versions.get("deepspeed")
    if lacks(machine, "deepspeed"):
        return "warn", "deepspeed is not installed: no ZeRO, no offload", rules.find("deepspeed-not-installed").fix
    return "pass", f"deepspeed {version}", ""


def _offload(machine: Machine, probes: Probes | None) -> Result:
    """DeepSpeed compiles its CPU optimizer at first use: C++ compiler, ninja and, beside a GPU, nvcc."""
    software = machine.software
    if software.versions.get("deepspeed") is None:
        return SKIPPED
    missing = [name for name in (cannot_compile_offload(machine),) if name]
    if probes is not None and probes.ninja is False:
        missing.append("ninja")
    if missing:
        return (
            "warn",
            f"optimizer offload cannot compile its kernel: {' and '.join(missing)} missing",
            "apt install g++; pip install ninja; the CUDA toolkit of torch.version.cuda for nvcc",
        )
    if probes is not None and machine.gpus and _other_major(probes.nvcc_cuda, probes.torch_cuda):
        return (
            "warn",
            f"nvcc is of CUDA {probes.nvcc_cuda}, torch of {probes.torch_cuda}: DeepSpeed refuses to compile",
            f"install the CUDA {probes.torch_cuda} toolkit and set CUDA_HOME to it",
        )
    return "pass", "the CPU optimizer of offload can be compiled", ""


def _other_major(one: str | None, other: str | None) -> bool:
    return bool(one and other) and str(one).split(".")[0] != str(other).split(".")[0]


def _quantisation(machine: Machine, probes: Probes | None) -> Result:
    version = machine.software.versions.get("bitsandbytes")
    if lacks(machine, "bitsandbytes"):
        said = "bitsandbytes is not installed: no QLoRA, no 8-bit optimizer"
        return "warn", said, rules.find("bitsandbytes-not-installed").fix
    return "pass", f"bitsandbytes {version}", ""


def _links(machine: Machine, probes: Probes | None) -> Result:
    if len(machine.gpus) < 2:
        return SKIPPED
    if machine.links == "nop2p":
        return "warn", "the cards cannot reach each other directly: traffic goes through host memory", ""
    return "pass", f"{machine.links} between the cards", ""


def _ram(machine: Machine, probes: Probes | None) -> Result:
    host = machine.host
    said = f"{show_gib(host.ram_budget_bytes, 0)} usable ({host.ram_source})"
    if host.ram_budget_bytes < _RAM_WARN_GIB * GIB:
        return "warn", f"{said}: little for loading a model", "a larger memory limit, or close what else uses RAM"
    return "pass", said, ""


def _shm(machine: Machine, probes: Probes | None) -> Result:
    if machine.host.shm_bytes is None or len(machine.gpus) < 2:
        return SKIPPED
    size = machine.host.shm_bytes
    if size < _SHM_WARN_MIB * MIB:
        return (
            "warn",
            f"/dev/shm has {show_gib(size)}: NCCL and data-loader workers may stop",
            "docker run --shm-size 8g",
        )
    return "pass", f"/dev/shm has {show_gib(size, 0)}", ""


def _disk(machine: Machine, probes: Probes | None) -> Result:
    free = machine.host.disk_free_bytes
    if free is None:
        return SKIPPED
    said = f"{show_gib(free, 0)} free in the working folder"
    if free < _DISK_FAIL_GIB * GIB:
        return "fail", said, "free some space, or --output-dir on another disk"
    if probes is not None and probes.free_inodes is not None and probes.free_inodes < _INODES:
        return "warn", f"only {probes.free_inodes} files can still be made on this disk", "remove small files"
    if free < _DISK_WARN_GIB * GIB:
        return "warn", f"{said}: a 7B model and its checkpoints take more", "--output-dir on another disk"
    return "pass", said, ""


def _memlock(machine: Machine, probes: Probes | None) -> Result:
    if probes is None or not probes.infiniband:
        return SKIPPED
    if probes.memlock_bytes is not None and probes.memlock_bytes < GIB:
        return (
            "warn",
            f"InfiniBand needs locked memory and the limit is {probes.memlock_bytes // 1024} KiB",
            "ulimit -l unlimited, or docker run --ulimit memlock=-1",
        )
    return "pass", "locked memory is not limited", ""


def _wsl(machine: Machine, probes: Probes | None) -> Result:
    if probes is None or not probes.wsl:
        return SKIPPED
    return (
        "warn",
        "WSL: page-locked memory is limited and the driver counts all of Windows; offload may fail",
        "raise memory= in .wslconfig",
    )


def _port(machine: Machine, probes: Probes | None) -> Result:
    if probes is None:
        return SKIPPED
    if not probes.port:
        return "fail", "no local port can be opened: ranks cannot meet", "allow sockets on 127.0.0.1"
    return "pass", "local ports can be opened", ""


def _interfaces(machine: Machine, probes: Probes | None) -> Result:
    if probes is None:
        return SKIPPED
    if probes.no_interface:
        variable = probes.no_interface.split("=")[0]
        return (
            "fail",
            f"{probes.no_interface} names no network interface of this machine: ranks cannot meet",
            f"unset {variable}, or name one that `ip -br link` lists",
        )
    return "pass", "network interfaces are left to the engine, or exist", ""


CHECKS: tuple[tuple[str, Callable[[Machine, Probes | None], Result]], ...] = (
    ("engine", _engine),
    ("versions", _versions),
    ("torch", _torch),
    ("devices", _cards),
    ("torch-gpu", _torch_sees_gpu),
    ("torch-kernels", _architectures),
    ("bf16", _bf16),
    ("flash-attention", _flash),
    ("deepspeed", _deepspeed),
    ("offload", _offload),
    ("quantisation", _quantisation),
    ("links", _links),
    ("host-ram", _ram),
    ("shared-memory", _shm),
    ("disk", _disk),
    ("locked-memory", _memlock),
    ("wsl", _wsl),
    ("port", _port),
    ("interfaces", _interfaces),
)
