"""Explains any log or traceback of a training that died: what ended it, where in the step, with which figures.

Needs no plan and no telemetry, so it reads logs of other machines and of other trainers as well. The causes are those
of the gate (:mod:`causes`); out-of-memory errors are read further, because the same words stand for six different
jobs that did not fit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from swift_autobatch import engine_log
from swift_autobatch.gate.causes import known_cause
from swift_autobatch.gate.oom import Oom, figures, first_aid, read_oom
from swift_autobatch.units import show_gib

Place = str  # a key of PLACES, or "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmortem:
    """Why a log ended. ``code`` is one of gate/verdict.py's; ``line`` is the line of the log that says so."""

    code: str
    text: str
    place: Place
    line: int | None
    said: str  # that line
    figures: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    oom: Oom | None = None


# Innermost first wins: a frame of the last traceback -> where in the job. Source: transformers 5.19 trainer.py,
# accelerate, torch.optim, DeepSpeed stage3.py, ms-swift 4.6 trainers; matched on "file, function".
_PLACES: tuple[tuple[Place, str], ...] = (
    ("save", r"_save_checkpoint|save_model|save_pretrained|_save_optimizer|consolidated_16bit|save_fsdp"),
    ("resume", r"_load_from_checkpoint|_load_optimizer|_load_rng|load_checkpoint|resume_from"),
    ("eval", r"evaluation_loop|prediction_step|prediction_loop|\bevaluate\b|pad_across_processes"),
    ("optimizer", r"optim/|_foreach_|adamw?\b|_init_group|_single_tensor|_fused_|optimizer_step|_take_model_step"),
    ("loss", r"cross_entropy|ForCausalLMLoss|loss_utils|loss_function|compute_loss_func|lm_head|log_softmax"),
    ("backward", r"\bbackward\b|autograd/graph|_engine_run_backward|reduce_scatter|__reduce_and_partition"),
    ("load", r"from_pretrained|_load_state_dict|load_state_dict|core_model_loading|get_model_tokenizer|quantiz"),
    ("forward", r"\bforward\b|_call_impl|modeling_"),
)

PLACES = {
    "load": "while loading the model",
    "forward": "in the forward pass",
    "loss": "at the loss (logits over the vocabulary)",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer's step",
    "eval": "in evaluation",
    "save": "while saving a checkpoint",
    "resume": "while resuming from a checkpoint",
}

# What to change, least change first, by where it did not fit.
_REMEDIES: dict[Place, tuple[str, ...]] = {
    "load": (
        "--quant_method bnb --quant_bits 4 with --tuner_type lora: a quarter of the weights",
        "--deepspeed zero3: each card holds a share of the weights",
    ),
    "forward": (
        "--gradient_checkpointing true",
        "half the --per_device_train_batch_size, twice the --gradient_accumulation_steps: the same batch",
        "--attn_impl flash_attn: without it memory grows with the square of the length",
        "a smaller --max_length",
    ),
    "loss": (
        "half the --per_device_train_batch_size, twice the --gradient_accumulation_steps: the same batch",
        "--use_liger_kernel true: the logits are never whole",
        "a smaller --max_length",
    ),
    "backward": (
        "--gradient_checkpointing true",
        "half the --per_device_train_batch_size, twice the --gradient_accumulation_steps: the same batch",
        "a smaller --max_length",
    ),
    "optimizer": (
        "--optim adamw_8bit: a quarter of the states",
        "--deepspeed zero2 on several cards, zero2_offload on one",
        "--tuner_type lora: states of the adapters only",
    ),
    "eval": (
        "--per_device_eval_batch_size 1",
        "--prediction_loss_only true: the logits of the evaluation are not kept",
        "--eval_strategy no, and evaluate apart",
    ),
    "save": (
        "more host RAM, or --save_only_model true",
        "under ZeRO-3: stage3_gather_16bit_weights_on_model_save false",
    ),
    "resume": ("--resume_only_model true: without the optimizer's states",),
}
_ANYWHERE = ("autoswift sft with the same flags plans for the longest row and tries it before training",)
_FRAME = re.compile(r'File "([^"]+)", line \d+, in (\S+)')
_SHELL_KILLED = re.compile(r"(?:\S+: line \d+:\s+\d+ )?Killed\b(?:\s{2,}.*)?")  # what bash says of SIGKILL
_NAN_ROW = re.compile(r"""['"](loss|grad_norm)['"]: ['"]?nan\b""", re.IGNORECASE)  # of any Trainer


def explain(text: str) -> Postmortem:
    """Reads a log and says what ended it.

    Args:
        text: the output of a training, or a traceback alone; ``\\r`` progress included.

    Returns:
        the post-mortem; code ``unknown`` when nothing in the text is known to end a training.

    Source: formats of torch CUDACachingAllocator.cpp (`OutOfMemoryError`), before and since 2.1.
    """
    lines = text.replace("\r", "\n").splitlines()
    log = engine_log.scan(text)
    if log.oom is not None:
        return _out_of_memory(lines, log.oom)
    killed = next((line for line in lines if _SHELL_KILLED.fullmatch(line.strip())), None)
    if log.host_oom is not None or log.killed_by == 9 or killed is not None:
        return _host_memory(lines, log, log.host_oom or killed or "-9")
    hung = _hung(lines)
    if hung is not None:
        return hung
    cause = known_cause(log)
    if cause is not None:
        at, said = _find(lines, log.exceptions[-1] if log.exceptions else "")
        return Postmortem(
            code=cause.code, text=cause.text, place=_place(lines, at), line=at, said=said, hints=cause.hints
        )
    return _loss_or_unknown(lines, log)


def _out_of_memory(lines: Sequence[str], said: str) -> Postmortem:
    at, line = _find(lines, said)
    place = _place(lines, at)
    oom = read_oom(" ".join([line, *(lines[at : at + 3] if at else ())]))
    asked = f", asking for {show_gib(oom.asked_bytes)} more" if oom.asked_bytes else ""
    card = f"GPU {oom.gpu}" if oom.gpu is not None else "the GPU"
    return Postmortem(
        code="gpu-oom",
        text=f"{card} ran out of memory {PLACES.get(place, 'at a place the log does not show')}{asked}",
        place=place,
        line=at,
        said=line,
        figures=figures(oom),
        hints=(*first_aid(oom), *_REMEDIES.get(place, _REMEDIES["forward"]), *_ANYWHERE),
        oom=oom,
    )


def _host_memory(lines: Sequence[str], log: engine_log.LogFacts, said: str) -> Postmortem:
    at, line = _find(lines, said)
    place = _place(lines, at)
    where = f" {PLACES[place]}" if place in PLACES else ""
    how = "a worker was killed by signal 9" if log.host_oom is None else "the host ran out of memory"
    return Postmortem(
        code="host-kill",
        text=f"{how}{where}; most likely the host, or its container, has too little RAM",
        place=place,
        line=at,
        said=line,
        hints=(
            "dmesg, or the container's memory.events, says whether the kernel killed it",
            "a larger memory limit, or fewer --dataloader_num_workers",
            "a strategy without offload: autoswift plan shows the host RAM of each",
        ),
    )


_WAITED = re.compile(
    r"Rank (\d+)\].*?[Ww]atchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+).*?"
    r"ran for (\d+) milliseconds"
)
_WATCHDOG = re.compile(r"Rank (\d+)\b.*?last completed NCCL work: (\d+)")


def _hung(lines: Sequence[str]) -> Postmortem | None:
    """The rank that the others waited for: the one whose last completed collective is the oldest.

    Source: torch ProcessGroupNCCL.cpp, the watchdog's messages; the first one in a log is of a healthy rank.
    """
    done: dict[int, tuple[int, int, str]] = {}
    for number, line in enumerate(lines, 1):
        if match := _WATCHDOG.search(line):
            done.setdefault(int(match[1]), (int(match[2]), number, line.strip()))
    rank, (work, number, said) = min(done.items(), key=lambda item: item[1][0], default=(0, (0, 0, "")))
    ahead = max((value[0] for value in done.values()), default=0)
    if work == ahead:
        return _waited(lines)
    return Postmortem(
        code="timeout",
        text=f"rank {rank} stopped at collective {work} while others reached {ahead}: they waited for it until NCCL's"
        " watchdog gave up",
        place="unknown",
        line=number,
        said=said,
        figures=tuple(f"rank {one}: collective {value[0]}" for one, value in sorted(done.items())),
        hints=(f"look at the last lines of rank {rank}: {_STUCK}", _PATIENCE),
    )


_STUCK = "a slow or broken row, an image that cannot be read, a dead worker"
_PATIENCE = "--ddp_timeout, larger, when one rank only takes long (a first compilation, a large map)"


def _waited(lines: Sequence[str]) -> Postmortem | None:
    """A watchdog that says what it waited for, and not what the others had done."""
    waits = [(number, match) for number, line in enumerate(lines, 1) if (match := _WAITED.search(line))]
    if not waits:
        return None
    number, match = waits[0]
    ranks = sorted({int(wait[1]) for _, wait in waits})
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return Postmortem(
        code="timeout",
        text=f"{who} waited {int(match[4]) // 1000} s for collective {match[2]} ({match[3]}), never reached by another",
        place="unknown",
        line=number,
        said=lines[number - 1].strip(),
        hints=(
            f"look at the ranks that did not wait: {_STUCK}",
            _PATIENCE,
            "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 names each rank's last collective the next time",
        ),
    )


def _loss_or_unknown(lines: Sequence[str], log: engine_log.LogFacts) -> Postmortem:
    """A training that went on with NaN, a crash that is not in the table, or nothing at all."""
    for number, line in enumerate(lines, 1):
        if _NAN_ROW.search(line):
            row = engine_log.row_of_line(line) or {}
            step = row.get("global_step/max_steps")
            return Postmortem(
                code="nan-loss",
                text=f"{' and '.join(sorted(set(_NAN_ROW.findall(line))))} became NaN"
                + (f" at step {step}" if step else ""),
                place="unknown",
                line=number,
                said=line.strip(),
                hints=("a tenth of the --learning_rate", "--torch_dtype bfloat16 where the card can"),
            )
    if log.exceptions:
        at, line = _find(lines, log.exceptions[-1])
        place = _place(lines, at)
        where = f" {PLACES[place]}" if place in PLACES else ""
        return Postmortem(
            code="engine-error",
            text=f"the training stopped{where}: {log.exceptions[-1]}",
            place=place,
            line=at,
            said=line,
        )
    return Postmortem(code="unknown", text="nothing in this text ends a training", place="unknown", line=None, said="")


def _find(lines: Sequence[str], said: str) -> tuple[int | None, str]:
    """(1-based number, text) of the first line that has ``said``."""
    for number, line in enumerate(lines, 1):
        if said and said in line:
            return number, line.strip()
    return None, said


def _place(lines: Sequence[str], at: int | None) -> Place:
    """Where in the job the traceback that ends at line ``at`` was, by its frames, innermost first."""
    if at is None:
        return "unknown"
    frames: list[str] = []
    innermost = ""  # the code of that frame: what was called from there is compiled
    for number in range(at - 2, -1, -1):
        line = lines[number]
        if match := _FRAME.search(line):
            innermost = innermost or lines[number + 1]
            frames.append(f"{match[1]}, {match[2]}")
        if line.lstrip("[]rank0123456789: ").startswith("Traceback"):
            break
    # A save or an evaluation runs forwards too: the outermost of these three names the phase.
    for place, pattern in _PLACES[:3]:
        if any(re.search(pattern, frame) for frame in frames):
            return place
    for frame in (*frames, innermost):
        for place, pattern in _PLACES[3:]:
            if re.search(pattern, frame):
                return place
    return "unknown"
