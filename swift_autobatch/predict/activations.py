"""Bytes of activations of one micro batch on one device.

The coefficients are counts, not fits: bytes per token in units of (h, q, k, i), read from the allocations of real
transformers + PEFT layers (two against three layers, two lengths, seven geometries, each matching to the last byte
of the slope). What a layer keeps for backward without checkpointing is a base (norms, attention, the product of
gate and up) and, per adapted linear, what its adapter keeps of the input; ``extra`` is what one layer's backward
holds at its worst instant on top of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from swift_autobatch.predict.job import Job
from swift_autobatch.predict.shape import Reach

Units = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class _Case:
    saved: Units  # by the frozen layer; by the trained one in full tuning
    extra: Units
    backward: Units
    boundary: int  # bytes per token and hidden unit between layers
    input: int = 0  # bytes per element of an adapted linear's input
    mask: int = 0  # bytes per element more with adapter dropout
    dry: float | None = None  # the i unit of extra without dropout, where it was counted apart
    shared: bool = False  # adapters read the layer's own input where nothing is dropped: one copy for all


# Adapters in fp32 run under autocast (plain, DDP): each casts its own input, except beside quantised linears, where
# PEFT leaves the input alone. DeepSpeed runs adapters in 16 bits without autocast.
_CASES: dict[str, _Case] = {
    "full-16": _Case((16, 4, 4, 8), (4, 0.3, 0.5, 4), (21, 0, 0, 1.5), 2),
    "full-32-amp": _Case((26, 4, 4, 8), (-0.6, 3, 1, 4), (21, 0.5, 0, 1.6), 4),
    "full-32": _Case((24, 8, 8, 16), (4.3, 0.5, 1, 8), (10, 0.4, 0, 7.3), 4),
    "lora-autocast": _Case((8, 4, 4, 6), (8, 0.3, 0.7, 10), (3, 0.2, 0.5, 10), 2, input=2, mask=1, dry=6.7),
    "lora-16": _Case((8, 4, 4, 6), (12, 0.3, 0.7, 2), (15.4, 0.2, 0, 1), 2, input=2, mask=1, shared=True, dry=3),
    "lora-32": _Case((8, 8, 8, 12), (13, 0.7, -2.4, 6), (11, 0.4, 0, 5.3), 4, input=4, mask=1),
}
# extra beside 4-bit linears with adapter dropout: PEFT does not cast their input again, so the dropped inputs pass one
# at a time. Read from the traces of 25 models (data/footprints): 16-bit minus 4-bit is 8 i - 4 h.
_DROPPED_4BIT: Units = (12, 0.3, 0.7, 2)
_FROZEN_MLP: Units = (4, 0.3, 0.5, 6.1)  # extra where adapters reach attention only; counted in the same way
# Liger and other fused kernels: RMSNorm keeps its 16-bit input instead of an fp32 copy (and, trained, of the normed
# one too); SwiGLU keeps gate and up, not their product. Source: Liger rms_norm.py, swiglu.py.
_FUSED_FROZEN: Units = (4, 0, 0, 2)
_FUSED_TRAINED: Units = (8, 0, 0, 2)
# torch.utils.checkpoint with a policy: the boundary, attention's output, every second product.
_SELECTIVE: Units = (4, 4, 2, 2)
_UNGATED: Units = (0, 0, 0, 4)  # fc1, activation, fc2: no gate and no product to keep


def case_of(job: Job) -> str:
    """Which counted case a job is."""
    precision = job.effective.precision
    if job.whole_layers:
        if precision == "fp32":
            return "full-32"
        wide = job.trainable_bytes_each == 4 and job.candidate.tuner == "full"
        masters = wide and not job.candidate.uses_fsdp
        return "full-32-amp" if masters else "full-16"
    if precision == "fp32":
        return "lora-32"
    autocast = job.engine.adapters_autocast
    if autocast is None:
        autocast = not job.candidate.uses_deepspeed
    return "lora-autocast" if autocast else "lora-16"


def _per_token(job: Job, units: Units) -> float:
    """Bytes per token and layer; tensor parallel splits what is not hidden-wide."""
    shape = job.shape
    tp = 1 if _shares_rows(job) else job.candidate.tp  # then the tokens are split already
    h, q, k, i = units
    return h * shape.h + (q * shape.q + k * shape.k + i * shape.i) / tp


def _shares_rows(job: Job) -> bool:
    return job.engine.rows_over_tp or job.candidate.parallel == "megatron"


def _in_stage(job: Job) -> int:
    """Layers times micro batches whose activations a pipeline rank keeps: its own layers, one batch a later stage."""
    candidate = job.candidate
    waiting = min(candidate.pp, candidate.accumulation) if _shares_rows(job) else 1
    return job.shape.layers // candidate.pp * waiting


def _adapted(case: _Case, reach: Reach, dropout: bool, quantised: bool) -> Units:
    """What adapters keep of their inputs."""
    each = case.input + case.mask
    if dropout:
        return (each * reach.hidden, each * reach.attention, 0, each * reach.mlp)
    if case.shared or quantised:  # attention's output is kept by attention itself
        return (case.input * reach.hidden_inputs, 0, 0, case.input * reach.mlp)
    return (case.input * reach.hidden, case.input * reach.attention, 0, case.input * reach.mlp)


def _saved_units(job: Job) -> Units:
    candidate = job.candidate
    return _saved_counts(
        case_of(job),
        None if job.whole_layers else job.reach,
        candidate.lora_dropout > 0,
        candidate.quant != "none",
        job.engine.layer_kernels or candidate.liger or candidate.parallel == "megatron",
        job.shape.gated,
    )


@lru_cache(maxsize=1024)
def _saved_counts(name: str, reach: Reach | None, dropout: bool, quantised: bool, fused: bool, gated: bool) -> Units:
    """What one layer keeps; ``reach`` None in full tuning."""
    case = _CASES[name]
    wide = -2 if name.endswith("-32") else -1
    parts = [case.saved]
    if reach is not None:
        parts.append(_adapted(case, reach, dropout, quantised))
    if fused:
        parts.append(_scale(_FUSED_TRAINED if reach is None else _FUSED_FROZEN, wide))
    if not gated:
        parts.append(_scale(_UNGATED, wide))
    return _sum(*parts)


def _extra_units(job: Job) -> Units:
    if not job.whole_layers and not job.reach.mlp:
        return _FROZEN_MLP
    case, candidate = _CASES[case_of(job)], job.candidate
    if candidate.quant == "nf4" and candidate.lora_dropout and case_of(job) == "lora-autocast":
        return _DROPPED_4BIT
    if case.dry is not None and candidate.quant == "none" and not candidate.lora_dropout:
        return (*case.extra[:3], case.dry)
    return case.extra


def _sum(*many: Units) -> Units:
    h, q, k, i = (sum(values) for values in zip(*many, strict=True))
    return (h, q, k, max(0.0, i))


def _scale(units: Units, factor: float) -> Units:
    h, q, k, i = units
    return (h * factor, q * factor, k * factor, i * factor)


def boundaries(job: Job) -> int:
    """Bytes kept between layers with checkpointing: one hidden state a layer."""
    each = 4 if job.engine.kbit_fp32_stream else _CASES[case_of(job)].boundary
    if job.engine.selective:
        return int(_per_token(job, _SELECTIVE) * job.tokens) * _in_stage(job)
    return each * job.shape.h * job.tokens * _in_stage(job)


def saved(job: Job) -> int:
    """Bytes that all layers keep for backward without checkpointing."""
    layers = _in_stage(job)
    per_layer = _per_token(job, _saved_units(job)) * job.tokens + attention_saved(job) + experts(job)
    return int(per_layer * layers)


def in_flight(job: Job) -> int:
    """Bytes that one layer's recompute and backward hold with checkpointing, besides boundaries."""
    units = _sum(_saved_units(job), _extra_units(job))
    if job.engine.layers_fp32:
        units = _sum(_CASES["full-32"].saved, _CASES["full-32"].extra)
    return int(_per_token(job, units) * job.tokens + attention_saved(job) + attention_backward(job) + 2 * experts(job))


def _backward_units(job: Job) -> Units:
    if not job.whole_layers and not job.reach.mlp:
        return _FROZEN_MLP
    return _CASES[case_of(job)].backward


def backward(job: Job) -> int:
    """Bytes that backward adds to :func:`saved` without checkpointing."""
    extra = _per_token(job, _backward_units(job)) * job.tokens
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
    if job.effective.precision != "fp32" and not job.whole_layers and not job.candidate.uses_deepspeed:
        return 2 * (job.trainable - job.as_weights) if job.trainable_bytes_each == 4 else 0
    return 0
