"""Seconds of the matrix products and of attention in one micro batch on one device."""

from __future__ import annotations

from dataclasses import dataclass

from swift_autobatch.predict.job import Job
from swift_autobatch.predict.rates import Device

_FUSED_ATTENTION = frozenset({"flash_attention_2", "sdpa-flash"})
_MEMORY_EFFICIENT = 0.6  # of FlashAttention's rate. Source: FlashAttention-2 paper, figure 4, xformers beside it
FP32 = (
    8  # 16-bit over fp32 rate of a data-centre chip, tensor units off. Source: gpus.jsonl, from 4 (L40S) to 16 (A100)
)
# Width of an expert at which a grouped product runs at half of the dense rate: gathered rows, narrow tiles.
# Source: ScatterMoE paper, figure 5: 0.9 of dense for coarse experts down to 0.4 for experts of about 512.
_GROUPED_WIDTH = 768
_FILL = (
    192  # steps of the sum: four stages of 32 to fill, and writing the tile, about as long as 64 (CUTLASS pipelines)
)
_BATCHED = 0.5  # of the product rate: score matrices of one head are small and not divided evenly into tiles


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward-equivalents of one micro batch: of the layers' products, of attention, of the head's product."""

    layers: float
    attention: float
    head: float
    again: float  # forwards of elementwise work that checkpointing repeats


def passes(job: Job) -> Passes:
    """Full: 1 + 2, adapters: 1 + 1 (frozen weights take no gradient); checkpointing adds a forward of the layers.

    Selective checkpointing keeps attention and every second product. Attention's backward is 2.5 forwards. A frozen
    reference model adds a forward of everything.
    """
    full = job.candidate.tuner == "full"
    backward = 2.0 if full else 1.0 + job.engine.trained_layers / job.shape.layers
    checkpointing, selective = job.candidate.gradient_checkpointing, job.engine.selective
    again = 0.5 if selective else float(checkpointing)
    reference = 1.0 if job.engine.reference_pass else 0.0
    return Passes(
        layers=1.0 + backward + again + reference,
        attention=3.5 + (0.0 if selective else again) + reference,
        head=2.0 + float(full or job.engine.trains_ends or "head" in job.engine.trained_in_place) + reference,
        again=float(checkpointing or selective) + reference,
    )


def stages(job: Job) -> int:
    """Pipeline stages that work at once: layers spread by device_map take turns."""
    return job.candidate.pp if job.candidate.parallel not in ("none", "ddp") else 1


def seconds(flops: float, rows: float, width: float, job: Job, device: Device) -> float:
    """Seconds of products of ``rows`` rows whose outputs are ``width`` wide.

    Few rows read the weights for little work (roofline), and few output tiles leave the last wave half empty; the
    larger of the two counts. A short sum over the hidden width leaves a tile's start and end in sight. On a CPU none
    of this is modelled.
    """
    if flops <= 0:
        return 0.0
    if job.candidate.device == "cpu":
        return flops / device.matmul
    reads = device.matmul / device.memory / rows
    wave = job.rates.wave_outputs / (rows * width)
    fill = _FILL / job.shape.h
    return flops / device.matmul * (1 + max(reads, wave)) * (1 + fill)


def layers(job: Job, tokens: float, found: Passes, device: Device) -> float:
    """Seconds of the decoder layers' products."""
    shape, candidate, model = job.shape, job.candidate, job.facts.model
    split = candidate.tp * stages(job)
    expert = 3 * shape.h * shape.i * shape.layers if model.experts else 0
    dense = max(0, shape.active_layers - expert)
    flops = 2 * dense * tokens * found.layers
    if candidate.tuner != "full":  # adapters do take a weight gradient
        flops += 2 * job.beside * tokens * (found.layers + 1)
    total = seconds(flops / split, tokens, shape.h / candidate.tp, job, device)
    if job.engine.float8:
        total /= 2
    if model.experts:  # each expert sees its share of the tokens
        rows = tokens * model.experts_per_token / model.experts * candidate.ep
        own = max(1.0, shape.i / model.experts_per_token)
        width, share = own * model.experts / candidate.ep, own / (own + _GROUPED_WIDTH)  # they fill the chip together
        if job.engine.expert_loop:
            width, share = own, 1.0
        per_expert = 2 * expert * tokens * found.layers / (candidate.tp * stages(job))
        total += 1 / share * seconds(per_expert, max(1.0, rows), width, job, device)
    return total


def rotations(job: Job, found: Passes, device: Device) -> float:
    """Seconds of building BOFT's rotations: each adapted input's width cubed, twice a forward, in fp32."""
    if not job.engine.rotated:
        return 0.0
    reached = [a for name, a, _ in job.facts.model.linears if not job.engine.targets or name in job.engine.targets]
    flops = sum(2 * 2 * a**3 for a in reached) * job.shape.layers * (found.layers + 1)
    return flops * FP32 / device.matmul


def head(job: Job, kept: float, found: Passes, device: Device) -> float:
    """Seconds of the vocabulary projection."""
    flops = 2 * job.shape.vocab * job.shape.h * kept * found.head / job.candidate.tp
    return seconds(flops, max(1.0, kept), job.shape.vocab / job.candidate.tp, job, device)


def patches(job: Job) -> float:
    """Patches per row that the vision tower sees: the projectors join 2 x 2 of them to a token.

    Source: Qwen2-VL to Qwen3-VL `spatial_merge_size` 2, InternVL `downsample_ratio` 0.5.
    """
    return job.engine.image_patches or 4 * job.facts.data.mean_image_tokens


def tower(job: Job, rows: float, device: Device) -> float:
    """Seconds of the frozen vision tower's forward."""
    seen = rows * patches(job)
    return seconds(2 * job.shape.tower * seen, max(1.0, seen), job.shape.h, job, device)


def attention(job: Job, tokens: float, span: float, found: Passes, device: Device) -> float:
    """Seconds of scores and their product with the values.

    Kernels that know the mask is causal skip half. Fused kernels need long rows to fill the chip.
    """
    shape, kernel = job.shape, job.effective.attention
    causal = 0.5 if kernel in _FUSED_ATTENTION else 1.0
    flops = 4 * causal * shape.layers * shape.q * tokens * span * found.attention / (job.candidate.tp * stages(job))
    if job.candidate.device == "cpu":
        return flops / device.attention
    if kernel in ("eager", "sdpa-math"):
        return flops / (device.matmul * _BATCHED)
    rate = device.attention * _head_share(job.facts.model.head_dim) * span / (span + job.rates.attention_half_tokens)
    return flops / (rate if kernel in _FUSED_ATTENTION else rate * _MEMORY_EFFICIENT)


def _head_share(width: int) -> float:
    """Share of a fused kernel's rate at a head's width: padded to the kernel's next, and 64 a sixth slower than 128.

    Source: flash_attn's compiled head sizes; FlashAttention-2 paper, figure 4, head 64 beside 128.
    """
    padded = next((size for size in (32, 64, 96, 128, 192, 256) if size >= width), width)
    return width / padded * (1.0 if padded > 96 else 0.85)
