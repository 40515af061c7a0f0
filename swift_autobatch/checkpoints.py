"""What checkpoints cost: bytes on disk, and rows that a resumed stream reads again."""

from __future__ import annotations

import re
from collections.abc import Iterator

from swift_autobatch.records import DTYPE_BYTES, Candidate, Facts, ModelFacts, Request
from swift_autobatch.schedule import SAVE_TOTAL_LIMIT
from swift_autobatch.units import show_count, show_gib

# The best checkpoint is kept beside the latest ones, and a new one is written before the oldest is deleted.
# Source: transformers trainer.py `_save_checkpoint` before `_rotate_checkpoints`.
_BESIDE_THE_LIMIT = 2


def checkpoint_bytes(candidate: Candidate, model: ModelFacts, request: Request) -> int:
    """Bytes of one checkpoint on disk, all ranks' files together.

    Full tuning writes 16-bit weights and, unless only the model is saved, the optimizer: two states in the weights'
    dtype, or under DeepSpeed fp32 masters and two fp32 states; FSDP2 two fp32 states. Adapters are fp32.

    Source: DeepSpeed engine.py `_save_zero_checkpoint`; accelerate fsdp_utils.py; torch.optim state dicts.
    """
    weight = DTYPE_BYTES[candidate.torch_dtype]
    if candidate.tuner == "full":
        trained, each = model.params_total - model.params_vision, weight
        written = model.params_total * weight
    else:
        trained = candidate.lora_rank * model.layers * sum(a + b for _, a, b in model.linears)
        each, written = 4, trained * 4
    if _is(request, "save_only_model"):
        return written
    states = 12 if candidate.uses_deepspeed and candidate.zero_stage else 8 if candidate.uses_fsdp else 2 * each
    return written + trained * states


def disk_needed(candidate: Candidate, model: ModelFacts, request: Request, one: int | None = None) -> int:
    """Bytes that the checkpoints of a whole job take at their most.

    Args:
        one: bytes of one checkpoint, where one has been written; None: by ``checkpoint_bytes``.
    """
    one = checkpoint_bytes(candidate, model, request) if one is None else one
    if _text(request, "save_strategy") == "no":
        return one
    limit = _text(request, "save_total_limit")
    kept = int(limit) if limit and limit.isdigit() else SAVE_TOTAL_LIMIT
    return (kept + _BESIDE_THE_LIMIT) * one


def notes(candidate: Candidate, facts: Facts, request: Request) -> Iterator[str]:
    """What a person should know before launch, in sentences."""
    free, needed = facts.machine.host.disk_free_bytes, disk_needed(candidate, facts.model, request)
    if free is not None and needed > free:
        one = checkpoint_bytes(candidate, facts.model, request)
        yield (
            f"checkpoints need up to {show_gib(needed)} of disk ({show_gib(one)} each) and {show_gib(free)} are free: "
            "--save_only_model true, a smaller --save_total_limit, or --output-dir on another disk"
        )
    resumed = re.search(r"checkpoint-(\d+)/?$", _text(request, "resume_from_checkpoint") or "")
    if resumed and _is(request, "streaming") and not _is(request, "ignore_data_skip"):
        rows = int(resumed[1]) * candidate.effective_batch
        yield (
            f"resuming a stream at step {resumed[1]} reads {show_count(rows)} rows again before the first step: "
            "--ignore_data_skip true starts at the first row, a cached data set skips at once"
        )


def _text(request: Request, flag: str) -> str | None:
    pin = request.pins.get(flag)
    return pin.value if pin is not None and isinstance(pin.value, str) else None


def _is(request: Request, flag: str) -> bool:
    return _text(request, flag) == "true"
