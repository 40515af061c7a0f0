"""Host RAM over all ranks of this machine, by phase. Pageable file cache of the weights is not counted."""

from __future__ import annotations

from swift_autobatch.predict.job import Job
from swift_autobatch.predict.states import SUB_GROUP, split
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

    fp32 master, two Adam states and a gradient shard per trainable parameter; ZeRO-3 also the 16-bit weights;
    ZeRO-2 16-bit gradients more where micro batches accumulate. Master, gradients and weights are pinned.

    Source: DeepSpeed stage3.py `_create_fp32_partitions`, stage_1_and_2.py `accumulate_grads_in_cpu`.
    """
    candidate = job.candidate
    if not candidate.offload:
        return 0
    trained = split(job, job.trainable) // job.shards
    if candidate.uses_fsdp:  # parameters, gradients and two states, not pinned beyond the parameters
        each = trained * 16
        frozen = job.shape.total * job.weight_bytes_each // job.shards if candidate.tuner != "full" else 0
        return job.shards * (each + pinned(frozen, frozen))
    adam = 8 * trained
    if candidate.zero_stage < 3:
        master = pinned(4 * trained, 4 * trained) + pinned(4 * trained, 4 * trained)
        kept = 2 * trained if candidate.accumulation > 1 else 0
        return job.shards * (adam + master + kept)
    block = min(SUB_GROUP, max(1, trained))
    master = pinned(4 * trained, 4 * block)
    flat_gradients = pinned(job.grad_bytes_each * trained, job.grad_bytes_each * trained)
    step_gradients = pinned(4 * trained, 4 * block)
    weights = job.shape.total * job.weight_bytes_each // job.shards
    return job.shards * (adam + master + flat_gradients + step_gradients + pinned(weights, 2 * SUB_GROUP))


def load(job: Job) -> int:
    """Bytes beyond the processes while weights load.

    One checkpoint shard a rank where weights go straight to the card; under ZeRO-3 and FSDP every rank, or rank
    0, holds the model on the host before it is spread. Source: ms-swift model/utils.py (device_map None there),
    FSDP `cpu_ram_efficient_loading`.
    """
    candidate, shape = job.candidate, job.shape
    model = shape.total * job.weight_bytes_each
    shard = min(model, 5 * 10**9)
    if candidate.zero_stage == 3:
        return candidate.world * shard + states(job)
    if candidate.uses_fsdp:
        return model + (candidate.world - 1) * shape.layer * job.weight_bytes_each
    return candidate.world * shard


def save(job: Job) -> int:
    """Bytes beyond the processes while a checkpoint is written.

    ZeRO-3 gathers 16-bit weights on rank 0 when it trains all of them; FSDP2 the whole model, frozen weights
    included, then both Adam states; elsewhere one shard is copied at a time.

    Source: transformers trainer.py `save_model`; accelerate fsdp_utils.py `save_fsdp_optimizer`, FULL_STATE_DICT.
    """
    candidate, shape = job.candidate, job.shape
    if candidate.uses_fsdp:
        base = 0 if candidate.tuner == "full" else shape.total * job.weight_bytes_each
        return states(job) + max(base + job.trainable * job.trainable_bytes_each, 8 * job.trainable)
    if candidate.zero_stage == 3 and candidate.tuner == "full":
        return states(job) + 2 * shape.total
    written = job.trainable * job.trainable_bytes_each
    return states(job) + min(written, 5 * 10**9)


def resume(job: Job) -> int:
    """Bytes beyond the processes while a checkpoint is read back: each rank reads its own optimizer shard."""
    return states(job) + split(job, job.trainable) * (12 if job.candidate.uses_deepspeed else 8)
