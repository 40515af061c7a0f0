"""Host RAM over all ranks of this machine, by phase, beside cards. Pageable file cache of the weights is not counted.

Runs between CPU processes, where device and host are one memory, are described in cpu_offload.py; what both count
alike (masters, states, gradients, the start, the checkpoint) was measured there (docs/measured/host_ram.md). Here
blocks that DeepSpeed page-locks are rounded up as PyTorch does it.
"""

from __future__ import annotations

from swift_autobatch.predict import weights
from swift_autobatch.predict.buffers import largest_trainable
from swift_autobatch.predict.job import Job
from swift_autobatch.predict.states import SUB_GROUP, adapters, split
from swift_autobatch.units import GIB

WORKERS = 4  # data-loader workers a rank, the most that the plan chooses


def pinned(n_bytes: int, largest_block: int) -> int:
    """Bytes that page-locked buffers take: each block is rounded up to a power of two.

    Args:
        n_bytes: bytes asked for.
        largest_block: bytes of one allocation; the rest comes in equal blocks.

    Source: PyTorch CachingHostAllocator (pytorch #150517): 2.25 GiB takes 4.
    """
    if n_bytes <= 0:
        return 0
    block = min(n_bytes, max(1, largest_block))
    whole, rest = divmod(n_bytes, block)
    return whole * _power_of_two(block) + (_power_of_two(rest) if rest else 0)


def _power_of_two(n_bytes: int) -> int:
    return 1 << (n_bytes - 1).bit_length()


def processes(job: Job) -> int:
    """Bytes resident for the Python processes of all ranks and their data-loader workers."""
    constants = job.constants
    each = constants.gpu_process_gib + WORKERS * constants.worker_gib
    return int(job.candidate.world * each * GIB)


def states(job: Job) -> int:
    """Bytes of parameters, gradients and optimizer states offloaded to the host, all ranks together.

    Source: :func:`started`, and two Adam states of fp32 a trainable parameter, made in the first step, not pinned
    (DeepSpeed ops/adam/cpu_adam.py).
    """
    if not job.candidate.offload:
        return 0
    return started(job) + (0 if job.candidate.uses_fsdp else 8 * _trained(job) * job.shards)


def _trained(job: Job) -> int:
    """Trainable parameters of one rank's shard."""
    return split(job, job.trainable) // job.shards


def started(job: Job) -> int:
    """Bytes that offload holds on the host from the engine's start on, before the first step, all ranks together.

    ZeRO-2: fp32 masters and fp32 gradients of the shard, a 16-bit copy of it through which updates go, and a buffer of
    the largest parameter, all pinned; where micro batches accumulate, 16-bit gradients parameter by parameter.
    ZeRO-3: masters (pageable), pinned fp32 gradients a sub-group at a time, pinned 16-bit gradients and weights in one
    block each, and the pinned partitions that the weights were loaded into: PyTorch keeps those blocks when they are
    moved to the flat buffer. FSDP2: parameters, gradients and two states.

    Source: DeepSpeed stage_1_and_2.py `__init__`, `initialize_optimizer_states`,
    `async_accumulate_grad_in_cpu_via_gpu`; stage3.py `_create_fp32_partitions`, `initialize_optimizer_states`,
    `_setup_for_real_optimizer`, `_create_param_groups_fp16_flat_cpu_memory`; partition_parameters.py
    `_partition_param`.
    """
    candidate = job.candidate
    if not candidate.offload:
        return 0
    trained, wide = _trained(job), job.grad_bytes_each
    if candidate.uses_fsdp:
        frozen = job.shape.total * job.weight_bytes_each // job.shards if candidate.tuner != "full" else 0
        return job.shards * (trained * 16 + pinned(frozen, frozen))
    full = 4 * trained
    if candidate.zero_stage < 3:
        largest = wide * largest_trainable(job)
        kept = pinned(wide * trained, largest) if candidate.accumulation > 1 else 0
        staged = pinned(wide * trained, wide * trained) + pinned(largest, largest)
        return job.shards * (2 * pinned(full, full) + staged + kept)
    flat = pinned(wide * trained, wide * trained)
    gradients = pinned(full, 4 * min(SUB_GROUP, max(1, trained)))
    loaded = pinned(job.shape.total * job.weight_bytes_each // job.shards, _partition(job))
    return job.shards * (full + gradients + 2 * flat + loaded)


def _partition(job: Job) -> int:
    """Bytes of the usual tensor's partition under ZeRO-3: the block in which weights are pinned one by one."""
    return max(1, job.shape.largest_linear * job.weight_bytes_each // job.shards)


def load(job: Job) -> int:
    """Bytes beyond the processes until training begins.

    Weights are mapped from the file and copied to the card, or under ZeRO-3 to the partitions, tensor by tensor: file
    pages, not counted. Then offload makes its buffers; ZeRO-3 casts a sub-group of masters and clones it, and has one
    gradient buffer more for the largest sub-group. FSDP: rank 0 holds the model on the host before it is spread.

    Source: measured (docs/measured/host_ram.md); stage3.py `_create_fp32_partitions`; FSDP `cpu_ram_efficient_loading`.
    """
    candidate, shape = job.candidate, job.shape
    if candidate.uses_fsdp:
        model = shape.total * job.weight_bytes_each
        return model + (candidate.world - 1) * shape.layer * job.weight_bytes_each
    passing = 0
    if candidate.offload and candidate.zero_stage == 3:
        passing = job.shards * 4 * min(SUB_GROUP, _trained(job))
    return started(job) + passing


def save(job: Job) -> int:
    """Bytes beyond the processes while a checkpoint is written.

    ZeRO-3 gathers 16-bit weights on rank 0, the trained ones only for adapters; ZeRO-1 and 2 clone the whole module,
    frozen weights included, to the host on every rank; FSDP2 the whole model, frozen weights included, then both Adam
    states; elsewhere one shard is copied at a time.

    Source: transformers trainer.py `save_model`; accelerate accelerator.py `get_state_dict` (measured: every rank),
    fsdp_utils.py `save_fsdp_optimizer`, FULL_STATE_DICT.
    """
    candidate, shape = job.candidate, job.shape
    written = job.trainable * job.trainable_bytes_each
    if candidate.uses_fsdp:
        base = 0 if candidate.tuner == "full" else shape.total * job.weight_bytes_each
        return states(job) + max(base + written, 8 * job.trainable)
    if candidate.zero_stage == 3:
        return states(job) + written
    if candidate.uses_deepspeed:
        return states(job) + candidate.world * (weights.resident(job) + adapters(job))
    return states(job) + min(written, 5 * 10**9)


def resume(job: Job) -> int:
    """Bytes beyond the processes while a checkpoint is read back.

    Each rank reads its own shard of masters and states beside the buffers it has, and below ZeRO-3 first all trained
    weights. Source: DeepSpeed engine.py `load_checkpoint`, `_load_zero_checkpoint`; measured.
    """
    if not job.candidate.uses_deepspeed:
        return states(job) + split(job, job.trainable) * 8
    read = split(job, job.trainable) * 12
    if job.candidate.zero_stage < 3:
        read = max(read, job.candidate.world * job.trainable * job.trainable_bytes_each)
    return max(load(job), started(job) + read)
