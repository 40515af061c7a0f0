"""Bytes of weights that stay on one device."""

from __future__ import annotations

from swift_autobatch.predict import megatron
from swift_autobatch.predict.job import Job

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # 4-bit codes, 8-bit scales per 64, fp32 scale per 256 of those


def resident(job: Job) -> int:
    """Bytes of the model's own weights on one device, adapters not included.

    Quantisation, here or in the checkpoint, reaches the linears of the decoder layers only: embeddings, head, norms
    and (fused) experts stay 16-bit. ZeRO-3 and FSDP shard what is there; offload of parameters keeps none.

    Source: bitsandbytes functional.py (blocksize 64, double quantisation); DeepSpeed memory.rst.
    """
    candidate, shape = job.candidate, job.shape
    if candidate.parallel == "megatron":
        return megatron.weights(job) * (2 if job.engine.reference_model else 1)
    if candidate.parallel in ("zero3_offload", "fsdp2_offload"):
        return 0
    each = job.trainable_bytes_each if candidate.tuner == "full" else job.weight_bytes_each
    total = shape.total * each
    if candidate.quant == "nf4":
        total -= int(quantised(job) * (job.weight_bytes_each - NF4_BYTES))
    elif candidate.quant == "int8":
        total -= quantised(job) * (job.weight_bytes_each - 1)
    elif (packed := _packed(job)) is not None:
        total -= int(quantised(job) * (job.weight_bytes_each - packed))
    if job.engine.kbit_fp32_stream:
        total += (4 - job.weight_bytes_each) * (shape.embedding + shape.head)
    if job.engine.reference_model:
        total += shape.total * job.weight_bytes_each
    if candidate.zero_stage == 3 or candidate.uses_fsdp:
        total = -(-total // job.shards)
    split = candidate.tp * candidate.pp
    if split > 1:  # embedding stays whole on every tensor-parallel rank under AutoTP
        whole = shape.embedding * each if candidate.pp == 1 else 0
        total = whole + (total - whole) // split
    return total


def _packed(job: Job) -> float | None:
    """Bytes a parameter of the linears of a checkpoint that is packed already; None where it is not."""
    return job.facts.model.packed_bytes if job.candidate.tuner != "full" else None


def quantised(job: Job) -> int:
    """Parameters that quantisation reaches: the linears, and the experts where they are linears too."""
    if job.engine.quantised_experts and job.facts.model.experts:
        return job.shape.layer * job.shape.layers
    return job.shape.linears


def why(job: Job) -> str:
    """In words, for the term table."""
    candidate = job.candidate
    kind = {"none": f"{job.weight_bytes_each} B a parameter", "nf4": "NF4 linears, the rest 16-bit"}.get(
        candidate.quant, "int8 linears, the rest 16-bit"
    )
    packed = _packed(job)
    if candidate.quant == "none" and packed is not None:
        kind = f"{job.facts.model.quantised} checkpoint: {packed:.3g} B a parameter of the linears, the rest 16-bit"
    if candidate.tuner == "full":
        kind = f"{job.trainable_bytes_each} B a parameter"
    if candidate.zero_stage == 3 or candidate.uses_fsdp:
        kind += f", 1/{job.shards} on each rank" if not candidate.offload else ", on the host"
    return kind + (f", tensor parallel {candidate.tp}" if candidate.tp > 1 else "")
