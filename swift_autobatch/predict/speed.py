"""Seconds of one optimizer step as a roofline: each named part is the larger of arithmetic and traffic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from swift_autobatch.predict import activations, states
from swift_autobatch.predict.job import Job
from swift_autobatch.units import GB

# Framework operations a decoder layer launches in forward (HF Qwen2-like, 7 linears), and what an adapter adds to
# each linear (dropout, two products, scale, add, casts). Source: counted in a dispatch-mode trace.
_LAYER_OPS = 45
_ADAPTER_OPS = 7
_NF4_OPS = 3
_BACKWARD_OPS = 1.6  # per forward operation
_TRAFFIC_PASSES = 3  # each saved byte is written, read in forward's next operation and read in backward


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens per row that a run meets: real, and as computed with padding."""

    real: float
    padded: float
    rows: int


@lru_cache(maxsize=1024)
def padded_lengths(lengths: tuple[int, ...], limit: int, micro_batch: int, grouped: bool) -> Lengths:
    """Expected tokens per row when ``micro_batch`` random rows are padded to the longest of them.

    E[max of b draws] over the sorted sample is the sum of x_i (F_i^b - F_(i-1)^b). Rows over ``limit`` are
    dropped by the engine (truncation_strategy delete).

    Args:
        lengths: tokens per row, ascending (all rows, or quantiles of them).
        limit: tokens, the max_length of the candidate.
        micro_batch: rows per batch on one rank.
        grouped: batches are made of rows of like length (group_by_length).
    """
    kept = [n for n in lengths if n <= limit] or [limit]
    count = len(kept)
    real = sum(kept) / count
    if micro_batch == 1:
        return Lengths(real, real, count)
    if grouped:
        tops = kept[micro_batch - 1 :: micro_batch] + ([kept[-1]] if count % micro_batch else [])
        return Lengths(real, min(float(kept[-1]), sum(tops) / len(tops)), count)
    expected, below = 0.0, 0.0
    for position, n in enumerate(kept, 1):
        share = (position / count) ** micro_batch
        expected += n * (share - below)
        below = share
    return Lengths(real, expected, count)


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of one optimizer step by part, and how many real tokens and rows it consumes over all ranks."""

    terms: tuple[tuple[str, float], ...]
    real_tokens: float
    rows: float
    bound_by: str


def _device(job: Job) -> tuple[float, float]:
    """(FLOP/s dense at the compute type, bytes/s of memory) of the slowest device."""
    machine, precision = job.facts.machine, job.effective.precision
    if job.candidate.device == "cpu":
        ranks = job.candidate.world
        slow = 0.5 if precision == "bf16" else 1.0  # no bf16 units assumed: products are converted
        rate = machine.host.gflops * 1e9 * job.rates.cpu_gemm_efficiency * slow / ranks
        return rate, machine.host.memory_gb_s * GB * job.rates.traffic_efficiency / ranks
    rate = min(gpu.tflops_16bit or UNKNOWN_TFLOPS for gpu in machine.gpus) * 1e12
    bandwidth = min(gpu.bandwidth_gb_s or UNKNOWN_GB_S for gpu in machine.gpus) * GB
    if precision == "bf16" and not all(gpu.bf16_native for gpu in machine.gpus):
        rate /= 8  # emulated through fp32 on chips without bf16
    return rate, bandwidth * job.rates.traffic_efficiency


UNKNOWN_TFLOPS = 100.0
UNKNOWN_GB_S = 800.0


def step(job: Job) -> Speed:
    """Predicts one optimizer step.

    Returns:
        named seconds that sum to the step, in order of the step.

    Source: 2 FLOPs a parameter and token forward; backward twice that where weights train, once where they are
    frozen; checkpointing repeats the layers' forward; collectives as ring volumes.
    """
    candidate = job.candidate
    lengths = padded_lengths(job.facts.data.lengths, job.row_tokens, candidate.micro_batch, candidate.group_by_length)
    if candidate.packing:
        padded = real = float(job.row_tokens)
        rows = candidate.micro_batch * padded / max(1.0, lengths.real)
    else:
        real, rows = lengths.real, float(candidate.micro_batch)
        padded = real if candidate.padding_free else lengths.padded
    tokens = max(1.0, candidate.micro_batch * padded / (candidate.sp * candidate.cp))
    micros = candidate.accumulation
    rate, bandwidth = _device(job)

    compute = _compute_s(job, tokens, padded, rate)
    traffic = _traffic_s(job, tokens, bandwidth)
    launch = _launch_s(job)
    busy = compute + traffic
    terms = [
        ("matmul", micros * compute),
        ("elementwise", micros * traffic),
        ("launch", micros * (launch if candidate.device == "cpu" else max(0.0, launch - busy))),
        ("dequantise", micros * _dequantise_s(job, bandwidth)),
        ("collectives", _collectives_s(job, micros, max(launch, busy))),
        ("offload", _offload_s(job, micros)),
        ("optimizer", _optimizer_s(job, bandwidth)),
    ]
    named = tuple((name, seconds) for name, seconds in terms if seconds > 0)
    return Speed(
        terms=named,
        real_tokens=micros * candidate.dp * (candidate.micro_batch * real),
        rows=micros * candidate.dp * rows,
        bound_by=_bound(dict(named)),
    )


_BOUND = {
    "matmul": "compute",
    "elementwise": "memory",
    "launch": "host",
    "dequantise": "memory",
    "collectives": "link",
    "offload": "host",
    "optimizer": "memory",
}


def _bound(terms: dict[str, float]) -> str:
    """The resource that takes most of the step."""
    totals: dict[str, float] = {}
    for name, seconds in terms.items():
        totals[_BOUND[name]] = totals.get(_BOUND[name], 0.0) + seconds
    return max(totals, key=lambda key: totals[key]) if totals else "compute"


def passes(job: Job) -> tuple[float, float]:
    """Forward-equivalents of (layers, head) in one micro step.

    Full: 1 + 2, adapters: 1 + 1 (the frozen weights take no gradient); checkpointing adds a forward of the layers.
    """
    backward = 2.0 if job.candidate.tuner == "full" else 1.0
    again = 1.0 if job.candidate.gradient_checkpointing else 0.0
    head = 1.0 + backward
    return 1.0 + backward + again, head


def _compute_s(job: Job, tokens: float, padded: float, rate: float) -> float:
    """Seconds of matrix products of one micro batch, attention scores included."""
    candidate, shape, rates = job.candidate, job.shape, job.rates
    layer_passes, head_passes = passes(job)
    split = candidate.tp * candidate.pp
    kept = tokens * job.kept_rows / max(1, job.tokens)
    flops = 2 * shape.active_layers * tokens * layer_passes / split
    if candidate.tuner != "full":  # adapters do take a weight gradient
        flops += 2 * job.trainable * tokens * (layer_passes + 1) / split
    flops += 2 * shape.vocab * shape.h * kept * head_passes / candidate.tp
    causal = 1.0 if job.effective.attention in ("eager", "sdpa-math", "sdpa-efficient") else 0.5
    score_passes = layer_passes + (0.5 if candidate.tuner == "full" else 1.5)  # backward of scores is 2.5 forwards
    flops += 4 * causal * shape.layers * shape.q * tokens * padded * score_passes / split
    if candidate.device == "cpu":
        return flops / rate
    reached = rates.mfu_dense * tokens / (tokens + rates.mfu_half_tokens)
    return flops / (rate * reached)


def _traffic_s(job: Job, tokens: float, bandwidth: float) -> float:
    """Seconds of elementwise kernels and of the loss of one micro batch."""
    share = tokens / max(1, job.tokens)
    once = activations.saved(job) * share
    again = 1.5 if job.candidate.gradient_checkpointing else 1.0
    loss = 0 if job.effective.loss == "liger_fused" else 3 * 12 * job.kept_rows * share * job.shape.vocab
    return (_TRAFFIC_PASSES * again * once + loss) / bandwidth


def _launch_s(job: Job) -> float:
    """Seconds that Python needs to launch one micro batch's operations: on a GPU a floor for small batches, on a CPU
    added to the work, because one thread does both."""
    candidate = job.candidate
    linears = len(job.facts.model.linears)
    per_layer = _LAYER_OPS + (linears * _ADAPTER_OPS if candidate.tuner != "full" else 0)
    if candidate.quant != "none":
        per_layer += linears * _NF4_OPS
    if job.facts.model.experts:
        per_layer += 20
    again = 1.0 if candidate.gradient_checkpointing else 0.0
    operations = (job.shape.layers / candidate.pp * per_layer + 60) * (1 + again + _BACKWARD_OPS)
    return operations * (job.rates.cpu_op_s if candidate.device == "cpu" else job.rates.op_s)


def _dequantise_s(job: Job, bandwidth: float) -> float:
    """Seconds of expanding 4- or 8-bit weights to 16 bits in forward, recompute and backward."""
    if job.candidate.quant == "none":
        return 0.0
    stored = 0.52 if job.candidate.quant == "nf4" else 1.0
    times = 3.0 if job.candidate.gradient_checkpointing else 2.0
    return job.shape.linears * (stored + 2) * times / bandwidth


def _collectives_s(job: Job, micros: int, busy: float) -> float:
    """Seconds of collectives in one optimizer step that compute does not hide.

    DDP reduces once a step (no_sync while accumulating); ZeRO-1/2 reduce every micro batch (accelerate keeps
    DeepSpeed's own boundary) and gather updated weights; ZeRO-3 and FSDP2 gather the weights for forward, recompute
    and backward of every micro batch. Sequence and tensor parallel exchange activations in every layer.
    """
    candidate, shape, rates = job.candidate, job.shape, job.rates
    ranks, link = candidate.world, job.facts.machine.link_gb_s
    if ranks == 1:
        return 0.0
    rate = _link_rate(job, link)
    n = job.shards
    ring = (n - 1) / n
    gradients = states.split(job, job.trainable) * job.grad_bytes_each
    weights = shape.total * (2 if job.weight_bytes_each == 2 or job.candidate.uses_fsdp else 4)
    hidden = 1.0 - rates.overlap
    seconds = 0.0
    if candidate.parallel in ("ddp", "zero0"):
        seconds += 2 * ring * gradients / rate * hidden
    elif candidate.zero_stage in (1, 2):
        times = micros if candidate.zero_stage == 2 else 1
        seconds += (times * ring * gradients * (2 if candidate.zero_stage == 1 else 1)) / rate
        seconds += ring * states.split(job, job.trainable) * job.trainable_bytes_each / rate
    elif candidate.zero_stage == 3 or candidate.uses_fsdp:
        gathers = 2 * ring * weights / rate  # forward; backward with its recompute
        visible = max(gathers * hidden, gathers - busy)
        seconds += micros * (visible + ring * gradients / rate * hidden)
    if candidate.sp > 1:
        moved = 8 * 2 * job.tokens * shape.h * shape.layers * (candidate.sp - 1) / candidate.sp
        seconds += micros * moved / rate
    if candidate.tp > 1:
        moved = 6 * 2 * 2 * job.tokens * shape.h * shape.layers * (candidate.tp - 1) / candidate.tp
        seconds += micros * moved / rate
    return seconds


def _link_rate(job: Job, link_gb_s: float | None) -> float:
    """Bytes per second that a collective moves through one rank."""
    if job.candidate.device == "cpu":
        return job.facts.machine.host.memory_gb_s * GB / (4 * job.candidate.world)  # gloo: copies through sockets
    crossings = 2 if job.facts.machine.links == "nop2p" else 1  # without P2P every byte goes through host memory
    return (link_gb_s or UNKNOWN_LINK_GB_S) * GB * job.rates.link_efficiency / crossings


UNKNOWN_LINK_GB_S = 8.0


def _offload_s(job: Job, micros: int) -> float:
    """Seconds of PCIe traffic and host Adam in one optimizer step."""
    candidate, shape = job.candidate, job.shape
    if not candidate.offload:
        return 0.0
    host = job.facts.machine.host.memory_gb_s * GB * job.rates.host_adam_efficiency
    trained = states.split(job, job.trainable)
    adam = trained * 28 / host  # read master, two states, gradient; write master, two states and the 16-bit weight
    if candidate.device == "cpu":
        return adam
    pcie = min(gpu.pcie_gb_s or UNKNOWN_PCIE_GB_S for gpu in job.facts.machine.gpus) * GB * job.rates.link_efficiency
    down = micros * trained / job.shards * job.grad_bytes_each / pcie
    up = trained / job.shards * 2 / pcie
    if candidate.zero_stage == 3 or candidate.uses_fsdp:
        hidden = 1.0 - job.rates.overlap
        up = micros * 2 * shape.total / job.shards * job.weight_bytes_each / pcie * hidden
    return adam + down + up


UNKNOWN_PCIE_GB_S = 12.0


def _optimizer_s(job: Job, bandwidth: float) -> float:
    """Seconds of the update on the device: states and masters read and written, gradients read, norm taken."""
    if job.candidate.offload:
        return 0.0
    moved = 2 * states.optimizer(job) + 3 * states.gradients(job)
    moved += 2 * states.split(job, job.trainable) * job.trainable_bytes_each // job.shards
    return moved / bandwidth
