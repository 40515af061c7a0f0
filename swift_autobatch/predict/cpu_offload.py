"""ZeRO offload between CPU processes: device and host are one memory, so both halves of the engine count here.

Bytes per rank; P trainable parameters, w bytes of a weight, n ranks. Counted from DeepSpeed 0.19.8 and compared with
real two-process runs phase by phase (docs/measured/host_ram.md). Nothing is page-locked on CPU processes
(cpu_accelerator.py, ``pin_memory`` returns its argument), so no block is rounded.

What PyTorch frees below 32 MiB stays with the C heap (glibc, M_MMAP_THRESHOLD's greatest value), and ZeRO-3's gathered
weights pass through it: first as many bytes as such weights have, and ``cpu_heap_layers`` times as many once the
order of gathers has settled, in the second step.
"""

from __future__ import annotations

from collections.abc import Mapping

from swift_autobatch.predict import activations, buffers, logits, states, weights
from swift_autobatch.predict.instants import Instant, term
from swift_autobatch.predict.job import Job
from swift_autobatch.records import Phase

HEAP_BLOCK = 32 << 20  # bytes; glibc malloc.c DEFAULT_MMAP_THRESHOLD_MAX


def applies(job: Job) -> bool:
    """Whether this module, not ``instants``, describes the job."""
    return job.candidate.device == "cpu" and job.candidate.offload and job.candidate.uses_deepspeed


def phases(job: Job) -> Mapping[Phase, list[Instant]]:
    """Every phase with its candidates for the peak, per rank."""
    return _zero3(job) if job.candidate.zero_stage == 3 else _zero2(job)


def shard(job: Job) -> int:
    """Trainable parameters of one rank."""
    return -(-states.split(job, job.trainable) // job.shards)


# ----------------------------------------------------------------------------------------------------- ZeRO-2


def _zero2(job: Job) -> Mapping[Phase, list[Instant]]:
    """Whole weights; masters, Adam states, fp32 gradients and a 16-bit copy of one shard.

    The bucket is filled, then flattened once more to be reduced. Over gloo the gather of updated weights takes a
    second copy of them. A checkpoint clones the whole module on every rank, frozen weights included; reading it back,
    every rank holds the trained weights, then its own shard of masters and states beside the ones it has.

    Source: stage_1_and_2.py `__init__`, `setup_buckets`, `allreduce_bucket`, `initialize_optimizer_states`;
    runtime/utils.py `all_gather_dp_groups`; accelerate `get_state_dict`; engine.py `load_checkpoint`.
    """
    mine, wide = shard(job), job.grad_bytes_each
    whole, trained = weights.resident(job) + states.adapters(job), job.trainable * wide
    largest = buffers.largest_trainable(job) * wide
    early = (
        *_weights(job),
        *term("buffers", mine * (4 + wide) + 2 * largest, "fp32 gradients, staging of updates, two largest tensors"),
        *term("optimizer", 4 * mine, "fp32 masters of one shard"),
    )
    accumulated = term("copies", mine * wide, "accumulated gradients") if job.candidate.accumulation > 1 else ()
    adam = term("optimizer", 12 * mine, "fp32 masters and Adam states of one shard")
    grown = (*early[:-1], *adam, *accumulated)  # made once, in the first step, and kept
    bucket = term("buckets", 2 * min(buffers.BUCKET, job.trainable) * wide, "the reduce bucket and its flattened copy")
    gathered = term("gathered weights", trained, "all-gather of updated weights") if _spread(job) else ()
    steps = {
        name: [(*static, *bucket, *passing) for passing in _passing(job)]
        for name, static in (("first", (*early, *accumulated)), ("steady", grown))
    }
    update = (*grown, *gathered)
    return {
        "load": [early],
        "first_step": [*steps["first"], update],
        "steady": [*steps["steady"], update],
        "eval": [(*grown, *passing) for passing in _evaluation(job)],
        "save": [(*grown, *term("copies", whole, "the module's state dict, cloned on every rank"))],
        "resume": [
            (*early, *term("copies", max(trained, 12 * mine), "the checkpoint's module, then its masters and states"))
        ],
    }


# ----------------------------------------------------------------------------------------------------- ZeRO-3


def _zero3(job: Job) -> Mapping[Phase, list[Instant]]:
    """One shard of everything, and gathered weights, of which as many stay as the reuse distance reaches.

    While the engine starts, each trainable partition is copied to a flat buffer, masters are cast and cloned, and a
    gradient buffer for the largest sub-group exists once more than later.

    Source: stage3.py `_create_fp16_partitions_with_defragmentation`, `_create_fp32_partitions`,
    `initialize_optimizer_states`, `_setup_for_real_optimizer`; partitioned_param_coordinator.py.
    """
    mine, wide = shard(job), job.grad_bytes_each
    group = min(mine, states.SUB_GROUP)
    heap = heaped(job)
    kept = _weights(job)
    buffer = term("buffers", mine * (4 + wide) + buffers.permanent(job), "fp32 and 16-bit gradients of one shard")
    masters = term("optimizer", 4 * mine, "fp32 masters of one shard")
    adam = term("optimizer", 12 * mine, "fp32 masters and Adam states of one shard")
    passed = term("heap", heap, "freed blocks of weights that passed through")
    settled = term("heap", job.constants.cpu_heap_layers * heap, "freed blocks of gathered weights")
    moved = term("copies", _heap_share(job) * mine * wide, "partitions that were copied to the flat buffer")
    whole = min(buffers.REUSE, job.shape.total) * job.weight_bytes_each
    live = term("gathered weights", whole, "weights that are used again within the reuse distance, made whole")
    steady = [(*kept, *buffer, *adam, *settled, *live, *passing) for passing in _passing(job)]
    first = [(*kept, *buffer, *masters, *live, *passing) for passing in _passing(job)]
    read = (
        *term("copies", job.shape.total * job.weight_bytes_each // job.shards, "the file, mapped by rank 0 alone"),
        *term("gathered weights", largest(job), "the largest tensor made whole"),
        *term("heap", heap * (1 - 1 / job.shards), "holes that partitions leave in freed tensors"),
    )
    started = [
        (*kept, *passed, *term("copies", mine * wide + 4 * (mine + group), "partitions and masters, copied")),
        (
            *kept,
            *passed,
            *moved,
            *masters,
            *term("buffers", 4 * (mine + group), "fp32 gradients and a spare sub-group"),
        ),
        (*kept, *passed, *term("gathered weights", largest(job), "the largest tensor made whole")),
        (*kept, *read),
    ]
    return {
        "load": started,
        "first_step": [*first, (*kept, *buffer, *adam, *settled)],
        "steady": steady,
        "eval": [(*kept, *buffer, *adam, *settled, *live, *passing) for passing in _evaluation(job)],
        "save": [(*kept, *buffer, *adam, *settled, *live)],
        "resume": [
            (*kept, *buffer, *masters, *passed, *moved, *term("copies", 12 * mine, "masters and states read back"))
        ],
    }


def heaped(job: Job) -> int:
    """Bytes of the model's tensors that the C heap serves when they are made whole: those below 32 MiB each."""
    each, shape = job.weight_bytes_each, job.shape
    body = shape.layers * sum(a * b for _, a, b in job.facts.model.linears if a * b * each < HEAP_BLOCK)
    ends = sum(tensor for tensor in (shape.embedding, shape.head) if tensor * each < HEAP_BLOCK)
    return (body + ends) * each


def _heap_share(job: Job) -> float:
    return min(1.0, heaped(job) / max(1, job.shape.total * job.weight_bytes_each))


def largest(job: Job) -> int:
    """Bytes of the largest tensor of the model."""
    return max(job.shape.embedding, job.shape.largest_linear) * job.weight_bytes_each


# -------------------------------------------------------------------------------------------------- in common


def _weights(job: Job) -> Instant:
    """The weights that stay on one rank: all of them, or under ZeRO-3 its shard."""
    total = weights.resident(job)
    if job.candidate.zero_stage == 3:
        total = -(-job.shape.total * job.weight_bytes_each // job.shards)
    return (*term("weights", total, weights.why(job)), *term("adapters", states.adapters(job), "adapters"))


def _spread(job: Job) -> bool:
    return job.shards > 1


def _passing(job: Job) -> list[Instant]:
    """What the rows of one micro batch hold at the loss and in a layer's backward."""
    if job.candidate.gradient_checkpointing:
        kept = term("boundaries", activations.boundaries(job), "one hidden state a layer")
        layer = term("layer in flight", activations.in_flight(job), "recompute and backward of one layer")
    else:
        kept = term("activations", activations.saved(job), "all layers, no checkpointing")
        layer = term("backward", activations.backward(job), "temporaries of one layer's backward")
    rows = f"{job.kept_rows:,} rows x {job.shape.vocab:,} entries"
    loss = max(logits.forward(job), logits.loss(job))
    return [(*kept, *term("logits", loss, rows)), (*kept, *layer)]


def _evaluation(job: Job) -> list[Instant]:
    return [term("logits", logits.evaluation(job), "one row, no gradient")]
