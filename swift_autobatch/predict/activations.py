"""Bytes of activations of one micro batch on one device.

The coefficients are counts, not fits: bytes per token in units of (h, q, k, i), read from the allocations of real
transformers + PEFT layers (two against three layers, two lengths, seven geometries, each matching to the last byte
of the slope). ``SAVED`` is what one layer keeps for backward without checkpointing; ``IN_FLIGHT`` is what one
layer's recompute and backward hold at their worst instant on top of the boundaries; ``BACKWARD`` what backward adds
to ``SAVED`` of all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from swift_autobatch.predict.job import Job

Units = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class _Case:
    saved: Units
    in_flight: Units
    backward: Units
    boundary: int  # bytes per token and hidden unit between layers


# Adapters in fp32 run under autocast (plain, DDP); DeepSpeed runs them in 16 bits without autocast. Measured with
# adapter dropout; each dropout mask is a byte per element, so 0 dropout takes (5, 1, 0, 1) off what is saved.
_CASES: dict[str, _Case] = {
    "full-16": _Case((16, 4, 4, 8), (20, 4.3, 4.5, 12), (21, 0, 0, 1.5), 2),
    "full-32-amp": _Case((26, 4, 4, 8), (25.4, 7, 5, 12), (21, 0.5, 0, 1.6), 4),
    "full-32": _Case((24, 8, 8, 16), (28.3, 8.5, 9, 24), (10, 0.4, 0, 7.3), 4),
    "lora-autocast": _Case((23, 7, 4, 9), (31, 7.3, 4.7, 19), (3, 0.2, 0.5, 10), 2),
    "lora-16": _Case((23, 7, 4, 9), (35, 7.3, 4.7, 11), (15.4, 0.2, 0, 1), 2),
    "lora-32": _Case((33, 13, 8, 17), (46, 13.7, 5.6, 23), (11, 0.4, 0, 5.3), 4),
}
_DROPOUT: Units = (5, 1, 0, 1)
# bitsandbytes' product keeps its packed weight, not its input: 6h + 2q less saved than a frozen nn.Linear.
_QUANTISED: Units = (6, 2, 0, 0)


def case_of(job: Job) -> str:
    """Which counted case a job is."""
    precision = job.effective.precision
    if job.candidate.tuner == "full":
        if precision == "fp32":
            return "full-32"
        masters = job.trainable_bytes_each == 4 and not job.candidate.uses_fsdp
        return "full-32-amp" if masters else "full-16"
    if precision == "fp32":
        return "lora-32"
    return "lora-16" if job.candidate.uses_deepspeed else "lora-autocast"


def _per_token(job: Job, units: Units) -> float:
    """Bytes per token and layer; tensor parallel splits what is not hidden-wide."""
    shape, tp = job.shape, job.candidate.tp
    h, q, k, i = units
    return h * shape.h + (q * shape.q + k * shape.k + i * shape.i) / tp


def _units(job: Job, which: str) -> Units:
    units: Units = getattr(_CASES[case_of(job)], which)
    less: Units = (0, 0, 0, 0)
    if job.candidate.tuner != "full" and which != "backward":
        if not job.candidate.lora_dropout:
            less = _DROPOUT
        if job.candidate.quant != "none":
            less = (less[0] + _QUANTISED[0], less[1] + _QUANTISED[1], 0, less[3])
    return (units[0] - less[0], units[1] - less[1], units[2] - less[2], units[3] - less[3])


def boundaries(job: Job) -> int:
    """Bytes kept between layers with checkpointing: one hidden state a layer."""
    each = _CASES[case_of(job)].boundary
    return each * job.shape.h * job.tokens * (job.shape.layers // job.candidate.pp)


def saved(job: Job) -> int:
    """Bytes that all layers keep for backward without checkpointing."""
    layers = job.shape.layers // job.candidate.pp
    per_layer = _per_token(job, _units(job, "saved")) * job.tokens + attention_saved(job) + experts(job)
    return int(per_layer * layers)


def in_flight(job: Job) -> int:
    """Bytes that one layer's recompute and backward hold with checkpointing, besides boundaries."""
    return int(
        _per_token(job, _units(job, "in_flight")) * job.tokens
        + attention_saved(job)
        + attention_backward(job)
        + 2 * experts(job)
    )


def backward(job: Job) -> int:
    """Bytes that backward adds to :func:`saved` without checkpointing."""
    extra = _per_token(job, _units(job, "backward")) * job.tokens
    return int(extra + attention_backward(job) + experts(job))


def experts(job: Job) -> int:
    """Bytes of MoE routing per layer: every token copied to its experts, in and out.

    Source: grouped experts of transformers 5 (permuted inputs and outputs, 16-bit).
    """
    top_k = job.facts.model.experts_per_token if job.facts.model.experts else 0
    return 4 * top_k * job.shape.h * job.tokens


def _scores(job: Job) -> float:
    """Elements of one layer's score matrix on one rank."""
    heads = job.facts.model.heads / job.candidate.tp
    return heads * job.tokens * job.row_tokens  # rows x columns: T x s (sequence parallel splits the heads)


def attention_saved(job: Job) -> float:
    """Bytes per layer that the attention kernel keeps beyond q, k, v and its output.

    Eager keeps the fp32 softmax, its 16-bit copy and the dropout input (6 B a score); the math kernel the
    scores in the compute type and their softmax; the memory-efficient kernel the 16-bit mask and repeated
    keys and values. Source: allocation traces of transformers' attention functions.
    """
    kernel, shape = job.effective.attention, job.shape
    wide = 2 if job.effective.precision == "fp32" else 1
    if kernel == "eager":
        return 6 * wide * _scores(job)
    if kernel == "sdpa-math":
        return 4 * wide * _scores(job)
    if kernel == "sdpa-efficient":
        masked = job.candidate.micro_batch > 1
        mask = 2 * job.tokens * job.row_tokens if masked else 0
        return mask + 4 * (shape.q - shape.k) * job.tokens / job.candidate.tp
    return 0.0


def attention_backward(job: Job) -> float:
    """Bytes that one layer's attention backward adds: score gradients where scores exist."""
    wide = 2 if job.effective.precision == "fp32" else 1
    if job.effective.attention in ("eager", "sdpa-math"):
        return 6 * wide * _scores(job)
    return 0.0


def attention_mask(job: Job) -> int:
    """Bytes of the one boolean mask of a padded batch."""
    if job.effective.attention == "sdpa-efficient" and job.candidate.micro_batch > 1:
        return job.tokens * job.row_tokens
    return 0


def autocast_casts(job: Job) -> int:
    """Bytes of the 16-bit copies that autocast makes of trainable fp32 weights and keeps through forward."""
    if case_of(job) == "full-32-amp":
        return 2 * job.trainable
    if job.effective.precision != "fp32" and job.candidate.tuner != "full" and not job.candidate.uses_deepspeed:
        return 2 * job.trainable
    return 0
