"""Bytes of communication and dequantisation buffers on one device."""

from __future__ import annotations

from typing import Literal

from swift_autobatch.predict.job import Job

BUCKET = 2 * 10**8  # elements; ms-swift zero1/zero2.json reduce_bucket_size and allgather_bucket_size
REUSE = 10**9  # parameters; ms-swift zero3.json stage3_max_reuse_distance
# cuBLAS keeps a workspace for each handle and stream: 4096 KiB x 2 + 16 KiB x 8. Source: PyTorch CUDABlas.cpp.
WORKSPACE, WORKSPACE_HOPPER = 8_519_680, 32 * 2**20


def permanent(job: Job) -> int:
    """Bytes held through the whole step: reduce buckets, offload staging, cuBLAS workspace.

    ZeRO-1/2 allocate the bucket whole, however few parameters train; `auto` makes ZeRO-3's h squared.
    Source: DeepSpeed stage_1_and_2.py `setup_buckets`, stage3.py `__setup_ipg`.
    """
    candidate, shape = job.candidate, job.shape
    total = 0 if candidate.device == "cpu" else _workspace(job)
    if candidate.zero_stage in (1, 2):
        total += _bucket(job) * job.grad_bytes_each * (2 if job.engine.two_buckets else 1)
        if candidate.offload:
            total += largest_trainable(job) * job.grad_bytes_each
    elif candidate.zero_stage == 3:
        total += shape.h * shape.h * job.grad_bytes_each
    return total


def layer(job: Job) -> int:
    """Bytes of weights made whole while one layer runs: gathers and dequantised copies."""
    candidate, shape = job.candidate, job.shape
    total = gathered(job)
    if candidate.quant == "nf4":
        total += int(shape.largest_linear * (2 + 4 / 64))  # one dequantised linear and its fp32 scales
    elif candidate.quant == "int8" or job.facts.model.packed_bytes is not None:
        total += shape.largest_linear * 2
    if candidate.sp > 1:
        total += 4 * job.tokens * shape.h * 2  # all-to-all of q, k, v and the output
    return total


def gathered(job: Job) -> int:
    """Bytes of sharded weights made whole while one layer runs, and of its gradients before they are spread.

    FSDP2 holds this layer and the prefetched next one. Source: PyTorch FSDPMemTracker; ZeRO-3: :func:`_fetched`.
    """
    candidate, shape = job.candidate, job.shape
    total = 0
    if _gathers(job):
        total += _fetched(job, shape.layer)
    elif candidate.uses_fsdp and job.engine.never_resharded:
        total += shape.total * job.weight_bytes_each
    elif candidate.uses_fsdp:
        total += 2 * shape.layer * 2 // candidate.tp
        if candidate.tuner == "full":
            total += 6 * shape.layer  # the layer's 16-bit gradients and the fp32 input of the reduction
    return total


def loss(job: Job) -> int:
    """Bytes of the embedding and head made whole beside the logits, sharded runs only."""
    candidate, shape = job.candidate, job.shape
    if _gathers(job):
        return _fetched(job, shape.head or shape.embedding)
    if candidate.uses_fsdp:
        return 2 * (shape.embedding + shape.head)  # the root group stays gathered through the whole backward
    return 0


def head_cast(job: Job) -> int:
    """Bytes of the 16-bit copy that autocast makes of an fp32 head: the gradient of its input needs it.

    Source: traced Qwen2.5-7B with NF4, with and without prepare_model_for_kbit_training (12.71 and 9.28 GiB: fp32 ends
    2.03, fp32 hidden states 0.38, this copy 1.01).
    """
    return 2 * (job.shape.head or job.shape.embedding) if job.engine.kbit_fp32_stream else 0


def _fetched(job: Job, needed: int) -> int:
    """Bytes of parameters that ZeRO-3 holds whole beside its shards.

    What runs now (``needed`` parameters), what of the last layers is used again within the reuse distance (forward,
    with checkpointing recompute, then backward pass over them), and one prefetch: at least 0.9 h squared elements and
    up to one linear more, twice, because a coalesced gather is copied out of its flat buffer, which lives until the
    last of its parameters is used.

    Source: DeepSpeed partitioned_param_coordinator.py `__params_to_release` and `fetch_sub_module`,
    partition_parameters.py `AllGatherCoalescedHandle.wait`; transformers deepspeed.py (auto: 0.9 h squared).
    """
    shape = job.shape
    passes = 3 if job.candidate.gradient_checkpointing else 2
    again = max(0, REUSE - 2 * (shape.head or shape.embedding)) // passes
    prefetched = int(0.9 * shape.h**2) + shape.largest_linear
    live = max(needed, min(again, shape.layers * shape.layer)) + 2 * prefetched
    return min(live, shape.total) * job.weight_bytes_each


def whole_gradients(job: Job, where: Literal["head", "layer", "end"]) -> int:
    """Bytes of gradients that are not spread yet, in full tuning under ZeRO-2 and 3, or not added up yet.

    A gradient stays whole until the next one comes (ZeRO-3, wider than the bucket) or until it is copied into the
    bucket. The one of a tied embedding waits for the whole backward, since both its parts are summed first.

    Source: DeepSpeed stage3.py `reduce_independent_p_g_buckets_and_remove_grads`; torch autograd's AccumulateGrad.
    """
    shape = job.shape
    if job.candidate.zero_stage < 2:
        return _not_added(job, where)
    if job.candidate.tuner != "full":
        return 0
    waiting = 0 if shape.head else shape.embedding
    elements = {
        "head": shape.head or shape.embedding,
        "layer": waiting + shape.largest_linear * (2 if job.candidate.zero_stage == 3 else 1),
        "end": waiting + shape.embedding,
    }[where]
    return elements * job.grad_bytes_each // (job.candidate.tp * job.candidate.pp)


def _not_added(job: Job, where: Literal["head", "layer", "end"]) -> int:
    """Bytes of the one new gradient beside those of earlier micro batches: it is added to the old one once whole.

    Under FSDP the reduction counts it, a tied embedding's is in ``states.tied_gradients``.

    Source: torch csrc/autograd/functions/accumulate_grad.h (adds in place where a gradient exists).
    """
    candidate, shape, engine = job.candidate, job.shape, job.engine
    if (
        candidate.accumulation == 1
        or candidate.uses_fsdp
        or candidate.parallel == "megatron"
        or engine.step_in_backward
    ):
        return 0
    full = candidate.tuner == "full"
    ends = full or engine.trains_ends
    embedding = shape.embedding if shape.head or not full else 0
    elements = {
        "head": shape.head if ends or "head" in engine.trained_in_place else 0,
        "layer": shape.largest_linear if job.whole_layers else 0,
        "end": embedding if ends or "embedding" in engine.trained_in_place else 0,
    }[where]
    return elements * job.grad_bytes_each // (candidate.tp * candidate.pp)


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


def _workspace(job: Job) -> int:
    hopper = any(gpu.compute_capability[0] == 9 for gpu in job.facts.machine.gpus)
    return WORKSPACE_HOPPER if hopper else WORKSPACE


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
