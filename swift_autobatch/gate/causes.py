"""Known ways in which the engine dies, as a table: what its output says -> code, words and what to do.

Matched against the last lines of tracebacks (``Type: text``), first match wins. Each row names its origin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from swift_autobatch import engine_flags
from swift_autobatch.engine_log import LogFacts
from swift_autobatch.errors import UsageError
from swift_autobatch.records import Reason
from swift_autobatch.tables import dialect


def _todays_flags(said: str) -> Iterator[str]:
    """What the engine of today calls the flags of a ``remaining_argv`` list."""
    for name in re.findall(r"--([\w-]+)", said):
        try:
            engine_flags.find(name.replace("-", "_"), dialect())
        except UsageError as error:
            yield f"--{name}: {error.hints[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One row: ``pattern`` over exceptions and last lines, the code, words, hints, and where it is from.

    ``more`` makes hints of what the pattern's group ``what`` holds; they come first.
    """

    code: str
    pattern: str
    text: str
    hints: tuple[str, ...]
    source: str
    more: Callable[[str], Iterator[str]] | None = None


CAUSES: tuple[Cause, ...] = (
    Cause(
        code="port",
        pattern=r"EADDRINUSE|[Aa]ddress already in use",
        text="another process took the rendezvous port between choosing and using it",
        hints=("run the same command again: a new port is chosen", "MASTER_PORT=29777 fixes one"),
        source="torch/distributed TCPStore",
    ),
    Cause(
        code="disk-full",
        pattern=r"No space left on device|Errno 28|Disk quota exceeded",
        text="the disk is full",
        hints=("free some space", "--output-dir on another disk", "MODELSCOPE_CACHE or HF_HOME on another disk"),
        source="errno 28, errno 122",
    ),
    Cause(
        code="shm",
        pattern=r"bus error.*shared memory|insufficient shared memory|Signal 7 \(SIGBUS\)",
        text="/dev/shm is too small for the data loader's workers",
        hints=("--dataloader_num_workers 0", "a bigger /dev/shm in containers: --shm-size 8g"),
        source="torch/utils/data/_utils/signal_handling.py",
    ),
    Cause(
        code="environment",
        pattern=r"CUDAMismatchException|does not match the version torch was compiled with",
        text="DeepSpeed cannot compile its CPU optimizer: the CUDA toolkit is not the one torch was built with",
        hints=("install the toolkit of torch.version.cuda", "DS_SKIP_CUDA_CHECK=1 if only the minor version differs"),
        source="deepspeed/ops/op_builder/builder.py",
    ),
    Cause(
        code="environment",
        pattern=r"Unable to JIT load|Error building extension|Ninja is required|CalledProcessError.*ninja",
        text="DeepSpeed cannot compile its extension",
        hints=("install a C++ compiler and ninja: apt install g++; pip install ninja", "a strategy without offload"),
        source="deepspeed/ops/op_builder/builder.py",
    ),
    Cause(
        code="environment",
        pattern=r"driver version is insufficient|no kernel image is available|libcudart|undefined symbol|GLIBC_",
        text="torch, the driver and the compiled extensions do not belong together",
        hints=("install the torch build for this driver's CUDA version", "reinstall flash-attn against this torch"),
        source="CUDA runtime",
    ),
    Cause(
        code="environment",
        pattern=r"Bus error|out of shared memory|insufficient shared memory",
        text="a data loader's worker ran out of shared memory (/dev/shm), which containers keep small",
        hints=("docker run --shm-size 8g, or --ipc=host", "--dataloader_num_workers 0 needs none of it"),
        source="torch/utils/data/_utils/signal_handling.py",
    ),
    Cause(
        code="environment",
        pattern=r"GatedRepoError|[Cc]annot access gated repo|gated repo",
        text="the model is gated: its hub wants to know who downloads it",
        hints=(
            "accept its terms on the model's page, then: export HF_TOKEN=...",
            "--model FOLDER with the files at hand",
        ),
        source="huggingface_hub/errors.py",
    ),
    Cause(
        code="environment",
        pattern=r"RepositoryNotFoundError|404 Client Error|NotExistError",
        text="the hub has no model or dataset of that name, or not for this account",
        hints=("check the spelling of the id", "--use_hf true asks Hugging Face instead of ModelScope, and back"),
        source="huggingface_hub/errors.py; modelscope/hub/errors.py",
    ),
    Cause(
        code="environment",
        pattern=r"Max retries exceeded|Temporary failure in name resolution|ConnectTimeout|Connection refused.*http",
        text="the hub cannot be reached from this machine",
        hints=("--model FOLDER and --dataset FILE with what is at hand", "HTTPS_PROXY, or HF_ENDPOINT for a mirror"),
        source="urllib3, requests",
    ),
    Cause(
        code="environment",
        pattern=r"FlashAttention2 has been toggled on|flash_attn seems to be not installed|requires flash.attn",
        text="FlashAttention was asked for and cannot be used",
        hints=("pip install flash-attn --no-build-isolation (compute capability 8.0 or newer)", "--attn_impl sdpa"),
        source="transformers/modeling_utils.py",
    ),
    Cause(
        code="environment",
        pattern=r"SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer|PytorchStreamReader failed",
        text="a file of weights is cut or damaged",
        hints=("delete it and download it again", "resume from the checkpoint before: --resume_from_checkpoint"),
        source="safetensors; torch/serialization.py",
    ),
    Cause(
        code="data",
        pattern=r"device-side assert triggered|index out of range in self|CUDA error: invalid configuration argument",
        text="an index is out of range on the card: a token id beyond the vocabulary, or a label that is none",
        hints=(
            "--model_type and --template must belong to this checkpoint's tokenizer",
            "CUDA_LAUNCH_BLOCKING=1, or one step on a CPU (autoswift rehearse), shows the line",
        ),
        source="aten/src/ATen/native/cuda/Indexing.cu",
    ),
    Cause(
        code="environment",
        pattern=r"illegal memory access|misaligned address|uncorrectable ECC|Xid|fallen off the bus",
        text="a kernel read where it must not, or the card is faulty",
        hints=(
            "--attn_impl sdpa and --use_liger_kernel false leave the two kernels that are compiled apart out",
            "nvidia-smi -q -d ECC and dmesg | grep Xid say whether the card is at fault",
        ),
        source="CUDA runtime",
    ),
    Cause(
        code="environment",
        pattern=r"ModuleNotFoundError: No module named '(?P<what>[^']+)'",
        text="the engine needs the Python package {what}, which is not installed",
        hints=("pip install {what}",),
        source="Python",
    ),
    Cause(
        code="environment",
        pattern=r"(ImportError|PackageNotFoundError): (?P<what>.*)",
        text="the engine cannot import what it needs: {what}",
        hints=("install what the message names", "autoswift env shows the versions found"),
        source="Python, transformers/utils/import_utils.py",
    ),
    Cause(
        code="environment",
        pattern=r"NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|DistBackendError",
        text="the cards cannot talk to each other (NCCL)",
        hints=("NCCL_P2P_DISABLE=1", "NCCL_DEBUG=INFO shows why", "a bigger /dev/shm in containers: --shm-size 8g"),
        source="torch/distributed",
    ),
    Cause(
        code="data",
        pattern=r"DatasetGenerationError|JSONDecodeError|ArrowInvalid|CastError|StopIteration|ZeroDivisionError",
        text="the engine cannot read the rows of the dataset",
        hints=("autoswift plan checks every row first: look at its warnings",),
        source="datasets; swift/dataset/loader.py",
    ),
    Cause(
        code="rows-dropped",
        pattern=r"TypeError: 'NoneType' object is not iterable|No valid samples|dataset is empty",
        text="the engine dropped every row: all are longer than max_length by its own count, or broken",
        hints=("a larger --max_length", "--truncation_strategy left keeps long rows, cut"),
        source="swift/pipelines/train/sft.py, _show_dataset",
    ),
    Cause(
        code="engine-arguments",
        pattern=r"remaining_argv: (?P<what>.*)",
        text="the engine does not know these flags: {what}",
        hints=("autoswift check FILE reads a whole script and says what each old flag is now",),
        source="swift/pipelines/base.py:35",
        more=_todays_flags,
    ),
    Cause(
        code="engine-arguments",
        pattern=r"Multiple possible types found",
        text="the engine cannot tell the model's type from its folder",
        hints=("add --model_type and --template", "name the folder as the model is named on the hub"),
        source="swift/model/model_meta.py:230",
    ),
)


def known_cause(log: LogFacts) -> Reason | None:
    """The first row of the table that the output matches, filled in; None: nothing known."""
    said = "\n".join((*log.exceptions, *log.tail))
    for cause in CAUSES:
        match = re.search(cause.pattern, said)
        if match:
            what = (match.groupdict().get("what") or "").strip()
            return Reason(
                code=cause.code,
                text=cause.text.format(what=what),
                hints=(
                    *(cause.more(what) if cause.more else ()),
                    *(hint.format(what=what.partition(".")[0]) for hint in cause.hints),
                ),
            )
    if log.argument_error:
        return Reason(
            code="engine-arguments",
            text=f"the engine refuses the command: {log.argument_error}",
            hints=("correct or drop that flag",),
        )
    return None


def in_argument_check(log: LogFacts) -> bool:
    """Whether the traceback ran through the engine's own check of its flags."""
    return any(re.search(r"swift/(arguments|trainers/arguments)|transformers/training_args", f) for f in log.frames)
