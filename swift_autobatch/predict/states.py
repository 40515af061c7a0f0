"""Bytes that training keeps for trainable parameters: adapters, gradients, optimizer states. Trainable ones only."""

from __future__ import annotations

from swift_autobatch.predict import megatron
from swift_autobatch.predict.job import Job

# Optimizer bytes per trainable parameter as (in units of the parameter's own size, plain bytes).
# Source: torch.optim.AdamW keeps two states in the parameter's dtype; bitsandbytes 8-bit two bytes and a scale
# per 256; Lion one state; SGD without momentum none.
_PER_PARAMETER: dict[str, tuple[float, float]] = {
    "fused-adamw": (2, 0),
    "foreach-adamw": (2, 0),
    "paged-adamw": (0, 8),
    "adamw-8bit": (0, 2 + 8 / 256),
    "paged-adamw-8bit": (0, 2 + 8 / 256),
    "adamw-4bit": (0, 1 + 8 / 128),
    "lion": (1, 0),
    "lion-8bit": (0, 1 + 4 / 256),
    "sgd": (0, 0),
    "adafactor": (0, 0),
    "deepspeed-cpu-adam": (2, 0),
}
SUB_GROUP = 10**9  # ZeRO-3 steps this many parameters at a time (ms-swift zero3.json: sub_group_size)

# ZeRO-3 keeps tensors of up to 10 h elements whole ("auto": transformers deepspeed.py), adapters of a small rank too.
PERSISTENT_RANK = 10


def adapters(job: Job) -> int:
    """Bytes of LoRA parameters on one device; full tuning trains the weights themselves."""
    if job.candidate.tuner == "full" or job.candidate.parallel == "fsdp2_offload":
        return 0
    if job.candidate.parallel == "megatron":
        return megatron.adapters(job)
    own = job.trainable - job.beside
    total = job.of_trainable(job.trainable_bytes_each) - min(job.trainable_bytes_each, job.weight_bytes_each) * own
    if job.candidate.uses_fsdp or (job.candidate.zero_stage == 3 and job.candidate.lora_rank > PERSISTENT_RANK):
        return -(-total // job.shards)
    return total


def gradients(job: Job) -> int:
    """Bytes of gradients kept between micro batches on one device.

    ZeRO-2 and 3 keep a shard, offload none (they stream to the host), DDP a second copy in its buckets.
    """
    candidate = job.candidate
    if candidate.offload:
        return 0
    if candidate.parallel == "megatron":
        return megatron.gradients(job)
    if job.engine.step_in_backward:
        return max(job.shape.embedding, job.shape.largest_linear) * job.grad_bytes_each
    total = split(job, job.of_trainable(job.grad_bytes_each))
    if candidate.zero_stage >= 2 or candidate.uses_fsdp:
        return -(-total // job.shards)
    if candidate.parallel in ("ddp", "zero0"):  # zero0 flattens a bucket of up to 5e8 elements to reduce it
        return 2 * total
    return total


def gradients_of_layers(job: Job) -> int:
    """Bytes of gradients alive while the first layer runs backward: an untied embedding's comes after it."""
    if job.candidate.tuner != "full" or not job.shape.head:
        return gradients(job)
    return int(gradients(job) * (1 - job.shape.embedding / job.trainable))


def tied_gradients(job: Job) -> int:
    """Bytes at the end of backward where embedding and head are one tensor: the head's gradient waits until the
    embedding's is there, and their sum is a third.

    Source: torch autograd InputBuffer (accumulates out of place); the traces of 13 tied models (data/footprints).
    """
    if (
        job.candidate.tuner != "full"
        or job.shape.head
        or job.candidate.uses_fsdp
        or job.candidate.parallel == "megatron"
    ):
        return 0
    return 2 * job.shape.embedding * job.grad_bytes_each


def optimizer(job: Job) -> int:
    """Bytes of optimizer states on one device, the fp32 master copy of DeepSpeed included."""
    candidate = job.candidate
    if candidate.offload:
        return 0
    if candidate.parallel == "megatron":
        return megatron.optimizer(job)
    total = state_bytes(job)
    if candidate.uses_deepspeed and not (candidate.parallel == "zero0" and job.trainable_bytes_each == 4):
        total += split(job, job.trainable * 4)  # DeepSpeed without ZeRO wraps no fp32 optimizer: no masters
    if candidate.zero_stage or candidate.uses_fsdp:
        return -(-total // job.shards)
    return total


def state_bytes(job: Job) -> int:
    """Bytes of the optimizer's own states over all shards, without master weights."""
    each = 4 if job.candidate.uses_deepspeed else job.trainable_bytes_each
    name = job.effective.optimizer.removeprefix("host-")
    if name == "adafactor":  # a row and a column of fp32 per matrix
        return split(job, 4 * job.shape.linear_io)
    if job.engine.galore_rank:
        return split(job, _galore(job, each))
    scaled, plain = _PER_PARAMETER.get(name, (2, 0))
    return split(job, int(scaled * job.of_trainable(each) + plain * job.trainable))


def _galore(job: Job, each: int) -> int:
    """Two states of rank x the longer side and a projector of rank x the shorter one per matrix; whole Adam states
    for embedding and head unless they are projected too. Source: GaLore galore_projector.py."""
    shape, rank = job.shape, job.engine.galore_rank
    scaled, plain = _PER_PARAMETER.get(job.effective.optimizer, (2, 0))
    per_entry = scaled * each + plain
    projected = rank * shape.linear_io  # about 2 x longer + shorter side, at most 3/2 of in + out
    whole = shape.embedding + shape.head
    ends = 2 * rank * (shape.vocab + shape.h) if job.engine.galore_ends else whole
    return int((projected + ends) * per_entry)


def step_temporaries(job: Job) -> int:
    """Bytes that exist only inside the optimizer's step on one device.

    foreach AdamW takes the square root of a whole state at once. DeepSpeed flattens the gradients of its shard and
    casts the flat copy to fp32 (ZeRO-3: one sub-group at a time); until then ZeRO-1 and 2 hold the old ones too.

    Source: DeepSpeed stage_1_and_2.py `step`, stage3.py `_prepare_fp32_grad_for_sub_group`; torch adamw.py.
    """
    candidate = job.candidate
    if candidate.offload:
        return 0
    if candidate.uses_deepspeed:
        shard = split(job, job.trainable) // (job.shards if candidate.zero_stage else 1)
        if candidate.zero_stage == 3:
            shard = min(shard, SUB_GROUP)
        rooted = candidate.zero_stage == 3 and job.effective.optimizer == "foreach-adamw"
        return (4 + max(job.grad_bytes_each if job.grad_bytes_each == 2 else 0, 4 * rooted)) * shard
    if job.effective.optimizer == "foreach-adamw" and not (job.engine.galore_rank or job.engine.step_in_backward):
        total = split(job, job.of_trainable(job.trainable_bytes_each))
        return total // job.shards if candidate.uses_fsdp else total
    return 0


def flat_block(job: Job) -> int:
    """Bytes of the largest one allocation that DeepSpeed's step makes: the fp32 gradients of a shard or sub-group."""
    if not job.candidate.uses_deepspeed or step_temporaries(job) == 0:
        return 0
    shard = split(job, job.trainable) // (job.shards if job.candidate.zero_stage else 1)
    return 4 * (min(shard, SUB_GROUP) if job.candidate.zero_stage == 3 else shard)


def split(job: Job, total: int) -> int:
    """A tensor- or pipeline-parallel rank trains its own part only."""
    return -(-total // (job.candidate.tp * job.candidate.pp))
