"""Seconds of one optimizer step: what the device does, what the host must launch meanwhile, what goes over wires."""

from __future__ import annotations

from dataclasses import dataclass

from swift_autobatch.predict import products, traffic, wires
from swift_autobatch.predict.job import Job
from swift_autobatch.predict.padding import padded_lengths
from swift_autobatch.predict.rates import Device, cpu_device, gpu_device
from swift_autobatch.predict.weights import quantised

# Bytes moved to expand a 4-bit or 8-bit weight once: read, written in 16 bits. The plain GPTQ layer unpacks with a
# chain of framework operations (auto_gptq qlinear_cuda.py: shift of an int32 copy, mask, subtract, scale).
_EXPANSION_BYTES = {"nf4": 0.52 + 2, "int8": 1 + 2 + 4, "gptq": 26.0, "gptq-fused": 0.55 + 2}
_PACKED_KERNEL = {"gptq": "gptq-fused", "awq": "gptq-fused", "bnb": "nf4"}  # of checkpoints that are quantised already
_HOOKED_OPERATIONS = 12  # ZeRO-3, per module with weights and pass: fetch, wait, release, reduce
_STALLED_OPERATIONS = 3  # before the device has work again
_WRAPPED_OPERATIONS = 20  # FSDP, per layer and pass: streams, events, the gather, freeing
_VIEW_OPERATIONS = 3  # FSDP, per parameter of a layer and pass: split, view, put in place
_BOUND = {
    "matmul": "compute",
    "attention": "compute",
    "elementwise": "memory",
    "launch": "host",
    "dequantise": "memory",
    "collectives": "link",
    "bubble": "link",
    "offload": "host",
    "optimizer": "memory",
}


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of one optimizer step by part, and how many real tokens and rows it consumes over all ranks.

    ``model_flops`` are those a step needs without recompute; ``mfu`` is their share of the peak of all cards.
    """

    terms: tuple[tuple[str, float], ...]
    real_tokens: float
    rows: float
    bound_by: str
    mfu: float | None


@dataclass(frozen=True, slots=True)
class _Batch:
    """One micro batch on one rank."""

    tokens: float
    span: float  # tokens of a row that attention sees
    kept: float  # rows that reach the vocabulary projection
    real_tokens: float  # of the whole micro batch, before any split over ranks
    rows: float


def _batch(job: Job) -> _Batch:
    candidate = job.candidate
    found = padded_lengths(job.facts.data.lengths, job.row_tokens, candidate.micro_batch, candidate.group_by_length)
    doubled = 2 if job.engine.pairs and not candidate.packing else 1
    if candidate.packing:
        real = padded = float(job.row_tokens)
        rows, span = candidate.micro_batch * real / max(1.0, found.real), found.real_span
    else:
        real, rows = doubled * found.real, float(candidate.micro_batch)
        free = candidate.padding_free
        padded, span = real if free else doubled * found.padded, found.real_span if free else found.span
    padded, span = padded + job.engine.virtual_tokens, span + job.engine.virtual_tokens
    tokens = max(1.0, candidate.micro_batch * padded / (candidate.sp * candidate.cp))
    return _Batch(
        tokens=tokens,
        span=span,
        kept=tokens * job.kept_rows / max(1, job.tokens),
        real_tokens=candidate.micro_batch * real,
        rows=rows,
    )


def _device(job: Job) -> Device:
    bf16 = job.effective.precision == "bf16"
    machine = job.facts.machine
    if job.candidate.device == "cpu":
        return cpu_device(machine, job.candidate.world, bf16, job.rates)
    return gpu_device(machine.gpus, bf16, job.rates)


def step(job: Job) -> Speed:
    """Predicts one optimizer step.

    Returns:
        named seconds that sum to the step, in order of the step.

    Source: each part's module. The host launches while the device works, so the larger of both counts; on a CPU one
    thread does both.
    """
    candidate, batch, device = job.candidate, _batch(job), _device(job)
    found, micros, on_cpu = products.passes(job), candidate.accumulation, candidate.device == "cpu"
    matmul = products.layers(job, batch.tokens, found, device) + products.head(job, batch.kept, found, device)
    matmul += products.rotations(job, found, device) + products.tower(job, batch.rows, device)
    attention = products.attention(job, batch.tokens, batch.span, found, device)
    layers = job.shape.layers / products.stages(job)
    moved = traffic.count(
        job, device, tokens=batch.tokens, kept=batch.kept, span=batch.span, again=found.again, layers=layers
    )
    starts = 0.0 if on_cpu else (moved.forward_operations + moved.backward_operations) * job.rates.kernel_s
    elementwise = moved.bytes / device.memory + starts
    dequantise = _dequantise(job, found, device)
    busy = matmul + attention + elementwise + dequantise
    launch = _launch(job, moved, found, layers)
    micro = busy + launch if on_cpu else max(busy, launch) + _stalls(job, found, layers)
    terms = (
        ("matmul", micros * matmul),
        ("attention", micros * attention),
        ("elementwise", micros * elementwise),
        ("dequantise", micros * dequantise),
        ("launch", micros * (micro - busy)),
        ("collectives", wires.collectives(job, batch.tokens, micro, found)),
        ("bubble", (products.stages(job) - 1) * micro),
        ("offload", wires.offload(job, micro, device)),
        ("optimizer", wires.optimizer(job, device)),
    )
    named = tuple((name, seconds) for name, seconds in terms if seconds > 0)
    return Speed(
        terms=named,
        real_tokens=micros * candidate.dp * batch.real_tokens,
        rows=micros * candidate.dp * batch.rows,
        bound_by=_bound(named),
        mfu=_mfu(job, batch, sum(seconds for _, seconds in named)),
    )


def _bound(terms: tuple[tuple[str, float], ...]) -> str:
    """The resource that takes most of the step."""
    totals: dict[str, float] = {}
    for name, seconds in terms:
        totals[_BOUND[name]] = totals.get(_BOUND[name], 0.0) + seconds
    return max(totals, key=lambda key: totals[key]) if totals else "compute"


def _mfu(job: Job, batch: _Batch, step_s: float) -> float | None:
    """Share of the cards' dense peak that the model's own products take, recompute and padding not counted.

    None on a CPU and where the peak is unknown. Source: PaLM paper, appendix B; 4 instead of 6 FLOPs a frozen weight.
    """
    peaks = [gpu.tflops_16bit for gpu in job.facts.machine.gpus]
    if job.candidate.device == "cpu" or not peaks or None in peaks:
        return None
    each = 6.0 if job.candidate.tuner == "full" else 4.0
    shape = job.shape
    flops = each * (shape.active_layers + shape.vocab * shape.h)
    flops += 2 * each * shape.layers * shape.q * batch.span * 0.5
    tokens = job.candidate.accumulation * job.candidate.dp * batch.real_tokens
    peak = min(peak for peak in peaks if peak is not None) * 1e12
    return flops * tokens / (step_s * peak * job.candidate.world)


def _stalls(job: Job, found: products.Passes, layers: float) -> float:
    """Seconds that the device idles because the host asked it something and only then launches on.

    Experts that run one by one ask how many tokens each has, in every forward.
    """
    if not job.engine.expert_loop:
        return 0.0
    return layers * job.facts.model.experts * (1 + found.again) * _STALLED_OPERATIONS * job.rates.op_s


def _launch(job: Job, moved: traffic.Traffic, found: products.Passes, layers: float) -> float:
    """Seconds that the host needs to launch one micro batch."""
    rates = job.rates
    if job.candidate.device == "cpu":
        return (moved.forward_operations + moved.backward_operations) * rates.cpu_op_s
    sharding = 0.0
    if job.candidate.zero_stage == 3:
        sharding = layers * _tensors(job) * _HOOKED_OPERATIONS
    elif job.candidate.uses_fsdp:
        sharding = layers * (_WRAPPED_OPERATIONS + _VIEW_OPERATIONS * _tensors(job))
    hooks = sharding * (2 + found.again) * rates.op_s
    return moved.forward_operations * rates.op_s + moved.backward_operations * rates.backward_op_s + hooks


def _tensors(job: Job) -> int:
    """Modules with weights in one layer: linears, two norms, adapters, experts that are modules of their own."""
    count = len(job.facts.model.linears) + 2
    if job.engine.expert_modules:
        count += 3 * job.facts.model.experts
    if job.candidate.tuner != "full":
        count += 2 * traffic.widths(job.facts.model, job.engine.targets).count
    return count


def _dequantise(job: Job, found: products.Passes, device: Device) -> float:
    """Seconds of expanding 4- or 8-bit weights to 16 bits in forward, recompute and backward."""
    packed = _PACKED_KERNEL.get(job.facts.model.quantised or "") if job.candidate.quant == "none" else None
    if job.candidate.quant == "none" and packed is None:
        return 0.0
    kind = job.engine.quant_kernel or packed or job.candidate.quant
    each = _EXPANSION_BYTES[kind] * quantised(job) / (job.candidate.tp * products.stages(job))
    share = 1.0 if kind == "gptq" else job.rates.dequantise_efficiency / job.rates.traffic_efficiency
    return each * (2 + found.again) / (device.memory * share)
