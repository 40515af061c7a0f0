"""Bytes that the elementwise kernels of one micro batch read and write on one device, and how many kernels there are.

Counted from the framework code that runs, operation by operation: every operation reads its inputs and writes its
output once. Units as in activations.py: bytes per token of a layer, per unit of (h, q, k, i).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from swift_autobatch.predict import activations
from swift_autobatch.predict.activations import Units
from swift_autobatch.predict.job import Job
from swift_autobatch.predict.rates import Device
from swift_autobatch.records import ModelFacts


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer: bytes per token of forward and backward, and operations of a forward."""

    forward: Units
    backward: Units
    operations: int


# transformers' eager layer (modeling_qwen2.py, modeling_llama.py). RMSNorm: cast up 6, square 8, mean 4, scale 8, cast
# down 6, weight 4: 36 h, twice; two residual sums 12 h. Rotary: two products, negate, concatenate, add: 20 for q and k,
# the rest is attention's own reading and writing. SwiGLU: 4 + 6. Backward: norm 56 h each, sums of the gradients that
# meet at the norms 18 h, residuals 12 h; SwiGLU 12 + 6. Operations include views, which take no time on the device.
_EAGER = _Layer((84, 28, 24, 10), (142, 30, 30, 18), 45)
# One kernel a norm (4 h), a rotary (4), a SwiGLU (6); residuals as before. Liger, Megatron-LM's fused layers.
_FUSED = _Layer((20, 12, 8, 6), (42, 10, 10, 10), 28)
# torch.compile joins residual sums, casts and norms with their neighbours.
_COMPILED = _Layer((14, 8, 6, 6), (32, 10, 8, 10), 14)
_NORM_GRADIENTS: Units = (20, 0, 0, 0)  # trained norms: products and their sum over the tokens


@dataclass(frozen=True, slots=True)
class _Adapter:
    """One adapted linear: bytes per token and element of its (input, output), forward and backward."""

    forward: tuple[int, int]
    backward: tuple[int, int]
    operations: int


# peft tuners/lora/layer.py. Under autocast with dropout: cast up 6, dropout 9, cast down 6, read by A 2; B's output 2,
# scaled 4, added 6. DeepSpeed runs adapters in 16 bits: no casts. Fused: one read of the input, one write of the sum.
_ADAPTERS = {
    ("autocast", True): _Adapter((23, 12), (31, 8), 10),
    ("autocast", False): _Adapter((14, 12), (22, 8), 9),
    ("plain", True): _Adapter((7, 12), (15, 8), 7),
    ("plain", False): _Adapter((2, 12), (10, 8), 6),
    ("fused", True): _Adapter((4, 6), (8, 4), 4),
    ("fused", False): _Adapter((4, 6), (8, 4), 4),
}

# Bytes per kept row and vocabulary entry, forward and backward: logits written 2, cast 6, log-softmax 12, loss gradient
# 4, its softmax 12, cast down 6, read by two products 4. A shift copies both ways; one Triton pass rewrites in place.
_LOSS: dict[str, float] = {
    "hf_fp32_logits": 46,
    "bf16_logits": 26,
    "shifted_fp32": 62,
    "shifted_fp32_held": 62,
    "shifted_16bit": 50,
    "inplace_held": 24,
    "inplace": 24,
    "vocab_parallel": 36,
    "liger_fused": 14,
    "none": 14,
}
# Bytes per score of attention that builds its matrix: written 2, scaled 4, masked 6, softmax in fp32 6, cast 6, read 2;
# backward about twice. The math kernel leaves softmax in 16 bits.
_SCORES = {"eager": (26, 40), "sdpa-math": (18, 30)}
_ATTENTION_OPERATIONS = {"eager": 6, "sdpa-math": 6}
_REBUILT_BYTES = 12  # per element of a tensor made anew in fp32: two read, one written
_BACKWARD_KERNELS = 1.6  # per forward operation. Source: counted in a dispatch-mode trace
_NF4_OPERATIONS = 5  # nested scales, their sum, the expansion, two views
_INT8_OPERATIONS = 14  # rows scaled and rounded, outliers found and taken out, product, scales back
_INT8_BYTES = (9, 8)  # per token and (input, output): the input read twice and written in int8; the output rescaled
_EXPERT_OPERATIONS = 12  # of one expert run from Python: rows found and picked, products, activation, rows added
_GROUPED_OPERATIONS = 20  # sort, gather, three grouped products, scatter
_ROUTED_BYTES = 24  # per token, expert and hidden unit: gathered, weighted, scattered, in fp32 where they are summed
_ENDS_OPERATIONS = 60  # embedding, mask, last norm, head, loss


@dataclass(frozen=True, slots=True)
class Widths:
    """Sums over the adapted (or quantised) linears of one layer."""

    count: int
    inputs: int  # about as wide as the hidden state
    outputs: int
    wide_inputs: int  # wider by half or more: the MLP's
    wide_outputs: int
    weights: int


@lru_cache(maxsize=1024)
def widths(model: ModelFacts, targets: tuple[str, ...] | None) -> Widths:
    """Widths of the linears that ``targets`` name; None is all of them."""
    found = [(a, b) for name, a, b in model.linears if targets is None or name in targets]
    broad = 1.5 * model.hidden
    return Widths(
        count=len(found),
        inputs=sum(a for a, _ in found if a < broad),
        outputs=sum(b for _, b in found if b < broad),
        wide_inputs=sum(a for a, _ in found if a >= broad),
        wide_outputs=sum(b for _, b in found if b >= broad),
        weights=sum(a * b for a, b in found),
    )


def _layer(job: Job) -> _Layer:
    if job.engine.compiled:
        return _COMPILED
    fused = job.engine.layer_kernels or job.candidate.liger or job.candidate.parallel == "megatron"
    return _FUSED if fused else _EAGER


def _adapter(job: Job) -> _Adapter:
    if job.engine.adapter_kernels or job.candidate.parallel == "megatron" or job.engine.compiled:
        kind = "fused"
    else:
        kind = "autocast" if activations.case_of(job) == "lora-autocast" else "plain"
    return _ADAPTERS[kind, job.candidate.lora_dropout > 0]


@dataclass(frozen=True, slots=True)
class _Held:
    """What a byte costs against one from memory, by the width of its tensor: what a kernel reads and writes may stay in
    the second-level cache. An operation reads and writes its tensor in fp32, 8 bytes a token and unit of width."""

    narrow: float  # tensors as wide as the hidden state
    wide: float  # tensors of the MLP's width


def _held(job: Job, tokens: float, device: Device) -> _Held:
    def cost(width: float) -> float:
        share = max(0.0, 1 - 8 * tokens * width / device.cache) if device.cache else 0.0
        return 1 / (1 + (job.rates.cache_speedup - 1) * share)

    return _Held(cost(job.shape.h), cost(job.shape.i / job.candidate.tp))


def _measure(job: Job, units: Units, held: _Held) -> float:
    """Bytes per token of one layer on one rank, as if all came from memory."""
    shape, tp = job.shape, job.candidate.tp
    h, q, k, i = units
    each = 2 if job.effective.precision == "fp32" else 1
    hidden = h * shape.h / (tp if job.candidate.parallel == "megatron" else 1)
    narrow = hidden + (q * shape.q + k * shape.k) / tp
    return each * (held.narrow * narrow + held.wide * i * shape.i / tp)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of one micro batch on one rank; ``operations`` are of one forward and backward, checkpointing included."""

    bytes: float  # what the cache serves counts for less
    forward_operations: float
    backward_operations: float


def count(job: Job, device: Device, *, tokens: float, kept: float, span: float, again: float, layers: float) -> Traffic:
    """Counts the elementwise work of one micro batch.

    Args:
        job: the job.
        device: whose second-level cache may hold what a kernel touches.
        tokens: of the micro batch on one rank.
        kept: rows of it that reach the vocabulary projection.
        span: tokens of a row that attention sees.
        again: forwards of the layers that checkpointing repeats, 0 or 1.
        layers: decoder layers of one rank.
    """
    layer, full, held = _layer(job), job.candidate.tuner == "full", _held(job, tokens, device)
    forward, backward = _measure(job, layer.forward, held), _measure(job, layer.backward, held)
    operations = float(layer.operations) + _ATTENTION_OPERATIONS.get(job.effective.attention, 0)
    if full:
        backward += _measure(job, _NORM_GRADIENTS, held)
    else:
        more, less, launched = _adapters(job, held)
        forward, backward, operations = forward + more, backward + less, operations + launched
    more, launched = _quantised(job)
    forward, operations = forward + more, operations + launched
    more, launched = _experts(job)
    forward, backward, operations = forward + more, backward + more, operations + launched
    streamed = 0.0  # tensors that no cache holds: logits, weights, scores
    if job.effective.attention in _SCORES:
        heads = job.facts.model.heads / job.candidate.tp
        there, back = _SCORES[job.effective.attention]
        streamed += layers * tokens * heads * span * (there * (1 + again) + back)
    total = layers * tokens * (forward * (1 + again) + backward)
    streamed += _LOSS[job.effective.loss] * kept * job.shape.vocab / job.candidate.tp
    streamed += _weights(job, again)
    if job.engine.rebuilt:
        rebuilt = job.engine.rebuilt * _REBUILT_BYTES * widths(job.facts.model, job.engine.targets).weights
        streamed += layers * rebuilt * (2 + again)
    forwards = operations * layers + _ENDS_OPERATIONS
    return Traffic(total + streamed, forwards * (1 + again) + _tower(job), forwards * _BACKWARD_KERNELS)


def _adapters(job: Job, held: _Held) -> tuple[float, float, float]:
    """(forward, backward) bytes per token and operations that the adapters of one layer add."""
    if job.engine.bare_adapters:
        return 0.0, 0.0, 0.0
    reached, kind, tp = widths(job.facts.model, job.engine.targets), _adapter(job), job.candidate.tp
    inputs = held.narrow * reached.inputs + held.wide * reached.wide_inputs
    outputs = held.narrow * reached.outputs + held.wide * reached.wide_outputs
    forward = kind.forward[0] * inputs + kind.forward[1] * outputs
    backward = kind.backward[0] * inputs + kind.backward[1] * outputs
    return forward / tp, backward / tp, float(kind.operations * reached.count)


def _quantised(job: Job) -> tuple[float, float]:
    """Bytes per token and operations that quantised products of one layer add to a forward."""
    if job.candidate.quant == "none":
        return 0.0, 0.0
    every = widths(job.facts.model, None)
    if job.candidate.quant == "int8":
        more = _INT8_BYTES[0] * (every.inputs + every.wide_inputs)
        more += _INT8_BYTES[1] * (every.outputs + every.wide_outputs)
        return float(more), float(_INT8_OPERATIONS * every.count)
    return 0.0, float(_NF4_OPERATIONS * every.count)


def _experts(job: Job) -> tuple[float, float]:
    """Bytes per token and operations of MoE routing in one layer, one direction."""
    model = job.facts.model
    if not model.experts:
        return 0.0, 0.0
    operations = _EXPERT_OPERATIONS * model.experts if job.engine.expert_loop else _GROUPED_OPERATIONS
    return float(_ROUTED_BYTES * model.experts_per_token * job.shape.h), float(operations)


def _tower(job: Job) -> float:
    """Operations of the frozen vision tower's forward.

    Its depth is not among the model's facts; ViT-L has 24 layers for 0.3 B parameters, ViT-bigG 48 for 1.9 B.
    """
    if not (job.engine.image_patches or job.facts.data.mean_image_tokens) or not job.shape.tower:
        return 0.0
    return float(_EAGER.operations * 48 * (job.shape.tower / 1.9e9) ** (1 / 3))


def _weights(job: Job, again: float) -> float:
    """Bytes of casting trainable fp32 weights to 16 bits in every pass, and their gradients back."""
    if activations.case_of(job) != "full-32-amp":
        return 0.0
    return 6.0 * job.trainable / (job.candidate.tp * job.candidate.pp) * (2 + again)
