"""Bytes of communication and dequantisation buffers on one device."""

from __future__ import annotations

from swift_autobatch.predict.job import Job
from swift_autobatch.units import GIB

BUCKET = 2 * 10**8  # elements; ms-swift zero1/zero2.json reduce_bucket_size and allgather_bucket_size
MAX_LIVE = 10**9  # parameters; ms-swift zero3.json stage3_max_live_parameters


def permanent(job: Job) -> int:
    """Bytes held through the whole step: reduce buckets, offload staging, cuBLAS workspace.

    ZeRO-1/2 allocate the bucket whole, however few parameters train; `auto` makes ZeRO-3's h squared.
    Source: DeepSpeed stage_1_and_2.py `setup_buckets`, stage3.py `__setup_ipg`.
    """
    candidate, shape = job.candidate, job.shape
    total = 0 if candidate.device == "cpu" else int(job.constants.workspace_gib * GIB)
    if candidate.zero_stage in (1, 2):
        total += _bucket(job) * job.grad_bytes_each * (2 if job.engine.two_buckets else 1)
        if candidate.offload:
            total += largest_trainable(job) * job.grad_bytes_each
    elif candidate.zero_stage == 3:
        total += shape.h * shape.h * job.grad_bytes_each
    return total


def layer(job: Job) -> int:
    """Bytes of weights made whole while one layer runs: gathers and dequantised copies.

    ZeRO-3 keeps what it has gathered until ``max_live`` parameters are live; FSDP2 holds this layer and the
    prefetched next one. Source: partitioned_param_coordinator.py; PyTorch FSDPMemTracker.
    """
    candidate, shape = job.candidate, job.shape
    total = 0
    if _gathers(job):
        total += min(MAX_LIVE, shape.total) * job.weight_bytes_each
    elif candidate.uses_fsdp and job.engine.never_resharded:
        total += shape.total * job.weight_bytes_each
    elif candidate.uses_fsdp:
        total += 2 * shape.layer * 2 // candidate.tp
        if candidate.tuner == "full":
            total += 6 * shape.layer  # the layer's 16-bit gradients and the fp32 input of the reduction
    if candidate.quant == "nf4":
        total += int(shape.largest_linear * (2 + 4 / 64))  # one dequantised linear and its fp32 scales
    elif candidate.quant == "int8":
        total += shape.largest_linear * 2
    if candidate.sp > 1:
        total += 4 * job.tokens * shape.h * 2  # all-to-all of q, k, v and the output
    return total


def loss(job: Job) -> int:
    """Bytes of the embedding and head made whole beside the logits, sharded runs only."""
    candidate, shape = job.candidate, job.shape
    ends = shape.embedding + shape.head
    if _gathers(job):
        return max(min(MAX_LIVE, shape.total), shape.head or shape.embedding) * job.weight_bytes_each
    if candidate.uses_fsdp:
        return 2 * ends  # the root group stays gathered through the whole backward
    return 0


def step(job: Job) -> int:
    """Bytes of the all-gather of updated parameters at the end of an optimizer step (ZeRO-1/2)."""
    if job.candidate.zero_stage in (1, 2) and job.shards > 1:
        return min(_bucket(job), job.trainable) * job.trainable_bytes_each
    return 0


def root(job: Job) -> int:
    """Bytes of FSDP's root group while the layers run: gathered, and the head's gradient not yet reduced."""
    if not job.candidate.uses_fsdp:
        return 0
    shape = job.shape
    waiting = 2 * (shape.head or shape.embedding) if job.candidate.tuner == "full" else 0
    return 2 * (shape.embedding + shape.head) + waiting


def root_reduction(job: Job) -> int:
    """Bytes at the end of backward under FSDP2: two 16-bit copies of the root group and its fp32 reduction."""
    if not job.candidate.uses_fsdp or job.candidate.tuner != "full":
        return 0
    return 6 * (job.shape.embedding + job.shape.head)


def _bucket(job: Job) -> int:
    return BUCKET if job.engine.bucket is None else job.engine.bucket


def _gathers(job: Job) -> bool:
    """Whether ZeRO-3 makes whole copies on the device: with one rank and no offload the shard is the parameter."""
    return job.candidate.zero_stage == 3 and (job.shards > 1 or job.candidate.offload)


def largest_trainable(job: Job) -> int:
    """Parameters of the largest trainable tensor."""
    shape = job.shape
    if job.candidate.tuner == "full":
        return max(shape.embedding, shape.largest_linear)
    return job.candidate.lora_rank * max(shape.h, shape.i, shape.q)
