"""Seconds of collectives, of offload traffic and of the optimizer's update in one optimizer step."""

from __future__ import annotations

from swift_autobatch.predict import rates, states
from swift_autobatch.predict.job import Job
from swift_autobatch.predict.products import FP32, Passes, stages
from swift_autobatch.predict.rates import Device
from swift_autobatch.predict.weights import NF4_BYTES, quantised
from swift_autobatch.units import GB

_PROJECTION_STEPS = 50  # ms-swift galore_update_proj_gap
_SVD_SHARE = 0.1  # of the fp32 rate that cuSOLVER's gesvd reaches. Source: its bidiagonalisation is half matrix-vector
_ADAM_BYTES = 28  # on the host, per parameter: master, two states, gradient read; master, states, 16-bit weight written


def _rate(job: Job) -> float:
    """Bytes per second through one rank where all ranks take part; between machines all their adapters share."""
    inside = rates.link(job.facts.machine, job.candidate.device == "cpu", job.candidate.world, job.rates)
    cards = len(job.facts.machine.gpus)
    if job.candidate.device == "cpu" or job.candidate.world <= cards:
        return inside
    return min(inside, cards * job.rates.network_gb_s * GB * job.rates.link_efficiency)


def _weight_bytes(job: Job) -> float:
    """Bytes of the whole model as it is gathered."""
    each = 4 if job.effective.precision == "fp32" else 2
    total = float(job.shape.total * each)
    if job.candidate.quant == "nf4":
        total -= quantised(job) * (each - NF4_BYTES)
    elif job.candidate.quant == "int8":
        total -= quantised(job) * (each - 1)
    if job.candidate.ep > 1:  # experts are spread over the ranks beforehand
        total -= _experts_of(job) * each * (1 - 1 / job.candidate.ep)
    return total / (job.candidate.tp * stages(job))


def _shared_trained(job: Job) -> int:
    """Trainable parameters whose gradients ranks share; an expert's are shared by the ranks that hold it only."""
    if job.candidate.ep == 1 or job.candidate.tuner != "full":
        return job.trainable
    experts = _experts_of(job)
    return job.trainable - experts + experts // job.candidate.ep


def _experts_of(job: Job) -> int:
    """Parameters of all experts."""
    model = job.facts.model
    if model.experts <= model.experts_per_token:
        return 0
    return (model.params_total - model.params_active) * model.experts // (model.experts - model.experts_per_token)


def collectives(job: Job, tokens: float, micro_s: float, found: Passes) -> float:
    """Seconds of collectives that compute does not hide.

    DDP reduces once a step (no_sync while accumulating) behind the last backward; ZeRO-1/2 reduce every micro batch
    (accelerate keeps DeepSpeed's own boundary) and gather updated weights; ZeRO-3 and FSDP2 gather the weights for
    forward and for backward with its recompute. ms-swift's files leave overlap_comm off: DeepSpeed then gathers and
    reduces on the stream that computes (parameter_offload.py, stage3.py), so nothing hides. FSDP prefetches.
    Sequence, tensor and expert parallel exchange activations in every layer and wait for them.

    Args:
        job: the job.
        tokens: of a micro batch on one rank.
        micro_s: seconds of a micro batch without collectives.
        found: how often the layers run.
    """
    candidate = job.candidate
    if candidate.world == 1:
        return 0.0
    return _gradients_and_weights(job, micro_s) + candidate.accumulation * _activations(job, tokens, found) / _rate(job)


def _visible(job: Job, moved_s: float, behind_s: float) -> float:
    """Seconds of ``moved_s`` that ``behind_s`` of compute does not hide.

    Without peer-to-peer nothing hides: NCCL's kernels hold multiprocessors while the processor copies.
    """
    if job.facts.machine.links == "nop2p":
        return moved_s
    return max(moved_s * (1 - job.rates.hidden), moved_s - behind_s)


def _gradients_and_weights(job: Job, micro_s: float) -> float:
    candidate, rate, micros = job.candidate, _rate(job), job.candidate.accumulation
    ring = (job.shards - 1) / job.shards
    trained = states.split(job, _shared_trained(job))
    gradients = ring * trained * job.grad_bytes_each / rate
    if candidate.parallel in ("ddp", "zero0"):
        return _visible(job, 2 * gradients, 0.5 * micro_s)
    updated = ring * trained * job.trainable_bytes_each / rate
    if candidate.parallel == "megatron":  # distributed optimizer: scattered, then gathered
        return _visible(job, gradients + updated, 0.0)
    if candidate.zero_stage == 1:
        return 2 * gradients + updated
    if candidate.zero_stage == 2:
        return micros * gradients + updated
    if candidate.zero_stage == 3:
        times = 3 if job.engine.reference_pass else 2  # the reference model's weights are sharded and gathered too
        return micros * (times * ring * _weight_bytes(job) / rate + gradients)
    if candidate.uses_fsdp:
        times = 3 if job.engine.checkpoints_units and candidate.gradient_checkpointing else 2
        gathers = (1 if job.engine.never_resharded else times) * ring * _weight_bytes(job) / rate
        return micros * _visible(job, gathers + gradients, micro_s)
    return 0.0


def _activations(job: Job, tokens: float, found: Passes) -> float:
    """Bytes of one micro batch through one rank."""
    candidate, shape, model = job.candidate, job.shape, job.facts.model
    layers = shape.layers / stages(job)
    hidden = 2 * tokens * shape.h * layers
    forwards = 2 + found.again  # forward and backward move alike
    total = 0.0
    if candidate.sp > 1:  # q, k, v and the output
        total += 4 * forwards * hidden * (candidate.sp - 1) / candidate.sp
    if candidate.cp > 1:  # keys and values go round
        total += 2 * forwards * hidden * shape.k / shape.h * (candidate.cp - 1)
    if candidate.tp > 1:  # two sums a layer, a ring moves each twice
        total += 4 * forwards * hidden * (candidate.tp - 1) / candidate.tp
    if candidate.ep > 1 and model.experts:
        own = tokens / candidate.tp if candidate.parallel == "megatron" else tokens
        routed = 2 * own * shape.h * layers * model.experts_per_token
        total += 2 * forwards * routed * (candidate.ep - 1) / candidate.ep
    return total


def offload(job: Job, micro_s: float, device: Device) -> float:
    """Seconds of PCIe traffic and host Adam in one optimizer step."""
    candidate = job.candidate
    if not candidate.offload:
        return 0.0
    host = job.facts.machine.host.memory_gb_s * GB * job.rates.host_adam_efficiency
    trained = states.split(job, job.trainable)
    adam = trained * _ADAM_BYTES / host
    if candidate.device == "cpu":
        return adam
    down = candidate.accumulation * trained / job.shards * job.grad_bytes_each / device.bus
    up = trained / job.shards * 2 / device.bus
    if candidate.zero_stage == 3 or candidate.uses_fsdp:
        fetched = 2 * _weight_bytes(job) / job.shards / device.bus
        up = candidate.accumulation * _visible(job, fetched, micro_s)
    return adam + down + up


def optimizer(job: Job, device: Device) -> float:
    """Seconds of the update on the device: states and masters read and written, gradients read, norm taken.

    Paged states that live in host memory are not modelled: they stay where there is room.
    """
    if job.candidate.offload:
        return 0.0
    return _update(job, device) + _projections(job, device)


def _update(job: Job, device: Device) -> float:
    moved = 2 * states.optimizer(job) + 3 * states.gradients(job)
    moved += 2 * states.split(job, job.trainable) * job.trainable_bytes_each // job.shards
    return moved / device.memory


def _projections(job: Job, device: Device) -> float:
    """Seconds of GaLore's singular value decompositions, spread over the steps between two of them.

    Source: GaLore galore_projector.py (torch.linalg.svd in fp32); Golub and Van Loan, table 8.6.1: 4 m n^2 + 22 n^3.
    """
    if not job.engine.galore_rank or job.engine.lazy_projection:
        return 0.0
    sides = ((min(a, b), max(a, b)) for _, a, b in job.facts.model.linears)
    flops = job.shape.layers * sum(4 * long * short**2 + 22 * short**3 for short, long in sides)
    return flops * FP32 / (device.matmul * _SVD_SHARE) / _PROJECTION_STEPS
