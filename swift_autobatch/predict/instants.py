"""The phases of a run as lists of instants: what is alive on the device at each candidate for a peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from swift_autobatch.predict import activations, buffers, logits, states, weights
from swift_autobatch.predict.job import Job
from swift_autobatch.records import Phase, Term

Instant = tuple[Term, ...]

# Whose blocks keep their sizes from step to step, whatever the rows: what lasts, and what the optimizer takes.
LASTING = frozenset(
    {"weights", "adapters", "optimizer", "buffers", "gradients", "step temporaries", "gathered update"}
    | {"buckets", "gathered weights", "copies", "heap"}
)
LAYERS = frozenset({"boundaries", "activations"})
# As long as the rows of the micro batch, or taken between blocks that are.
ROWS = frozenset({"logits", "kept logits", "layer in flight", "backward", "mask", "layer weights", "gathered ends"})
GATHERED = frozenset({"layer weights", "gathered ends"})


def size(instant: Instant) -> int:
    """Bytes alive at one instant."""
    return sum(term.bytes for term in instant)


def phases(job: Job) -> Mapping[Phase, list[Instant]]:
    """Every phase with its candidates for the peak."""
    static = lasting(job)
    without_states = tuple(term for term in static if term.name != "optimizer" or job.candidate.uses_deepspeed)
    return {
        "load": [_load(job)],
        "first_step": _step(job, without_states, static),
        "steady": _step(job, static, static),
        "eval": _evaluation(job, static),
        "save": [(*static, *_saving(job))],
        "resume": [(*static, *_resuming(job))],
    }


def term(name: str, n_bytes: float, why: str) -> Instant:
    """One term, or none where it holds nothing."""
    return (Term(name=name, bytes=int(n_bytes), why=why),) if n_bytes >= 1 else ()


def lasting(job: Job) -> Instant:
    """What stays for the whole run."""
    trained = f"{job.trainable:,} parameters"
    return (
        *term("weights", weights.resident(job), weights.why(job)),
        *term("adapters", states.adapters(job), f"{trained}, {job.trainable_bytes_each} B each"),
        *term("optimizer", states.optimizer(job), f"{job.effective.optimizer} states of {trained}"),
        *term("buffers", buffers.permanent(job), "reduce buckets and workspaces"),
    )


def _load(job: Job) -> Instant:
    """Weights, and one whole tensor beside them where it is quantised or spread on the way in."""
    passing = _largest_tensor(job) if job.candidate.quant != "none" or job.candidate.zero_stage == 3 else 0
    return (
        *term("weights", weights.resident(job), weights.why(job)),
        *term("adapters", states.adapters(job), "adapters are added after the weights"),
        *term("tensor in passing", passing, "the largest tensor before it is quantised or spread"),
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    """The terms that the instants of a training step are made of."""

    gradients: Instant  # all of them
    early: Instant  # those alive before this micro batch's own: with accumulation, and DeepSpeed's shards
    late: Instant  # at the first layer's backward, the embedding's still to come
    casts: Instant
    mask: Instant
    layer_weights: Instant
    root: Instant


def _parts(job: Job) -> _Parts:
    gradients = term("gradients", states.gradients(job), f"{job.grad_bytes_each} B a trainable parameter")
    accumulates = job.candidate.accumulation > 1 or job.candidate.uses_deepspeed
    so_far = term("gradients", states.gradients_of_layers(job), "of all layers, the embedding's still to come")
    return _Parts(
        gradients=gradients,
        early=gradients if accumulates else (),
        late=gradients if accumulates else so_far,
        casts=term("autocast copies", activations.autocast_casts(job), "16-bit copies of trainable weights"),
        mask=term("mask", activations.attention_mask(job), "boolean mask of the padded batch"),
        layer_weights=term("layer weights", buffers.layer(job), "gathered or dequantised for the layer in flight"),
        root=term("gathered ends", buffers.root(job), "root group stays gathered"),
    )


def _step(job: Job, grown: Instant, static: Instant) -> list[Instant]:
    """The candidates for the peak of a training step.

    Args:
        grown: what stays, before the optimizer's step (in the first step without the states it makes).
        static: what stays, from the optimizer's step on.
    """
    parts = _parts(job)
    rows = f"{job.kept_rows:,} rows x {job.shape.vocab:,} entries"
    ends = (
        *term("gathered ends", buffers.loss(job), "head and embedding made whole"),
        *term("head's copy", buffers.head_cast(job), "16-bit copy of the fp32 head, kept for its backward"),
    )
    forward_loss = (*term("logits", logits.forward(job), rows), *ends)
    loss = (*term("logits", logits.loss(job), rows), *ends)
    head = (*term("logits", logits.head_backward(job), f"16-bit gradient of {rows}"), *ends, *_whole(job, "head"))
    if job.candidate.gradient_checkpointing:
        kept = term("boundaries", activations.boundaries(job), f"one hidden state x {job.shape.layers} layers")
        first = term("boundaries", activations.boundaries(job) // job.shape.layers, "the first layer's input")
        layer = term("layer in flight", activations.in_flight(job), "recompute and backward of one layer")
        backward_casts: Instant = ()  # autocast's cache ends with forward; recompute casts a layer at a time
    else:
        kept = term("activations", activations.saved(job), f"all {job.shape.layers} layers, no checkpointing")
        first = ()
        layer = term("backward", activations.backward(job), "temporaries of one layer's backward")
        backward_casts = parts.casts
    loop = term("kept logits", logits.held(job), "the training loop keeps its outputs")
    early = (*grown, *parts.early, *parts.mask, *kept)
    at_layer = (*parts.layer_weights, *parts.root, *_whole(job, "layer"))
    return [
        (*early, *parts.casts, *forward_loss),
        (*early, *backward_casts, *loss),
        (*early, *backward_casts, *head),
        (*early, *backward_casts, *loop, *layer, *at_layer),
        (*grown, *parts.late, *parts.mask, *loop, *first, *layer, *at_layer),
        (*grown, *parts.gradients, *_reduction(job)),
        (
            *static,
            *parts.gradients,
            *term("step temporaries", states.step_temporaries(job), "inside the optimizer's step"),
            *term("gathered update", buffers.step(job), "all-gather of updated parameters"),
        ),
    ]


def _whole(job: Job, where: Literal["head", "layer", "end"]) -> Instant:
    return term("whole gradients", buffers.whole_gradients(job, where), "not yet spread over the ranks")


def _reduction(job: Job) -> Instant:
    """The last gradients of backward: embedding and head."""
    return (
        *term("root reduction", buffers.root_reduction(job), "of embedding and head"),
        *term("tied gradients", states.tied_gradients(job), "the head's and the embedding's, before they are added"),
        *_whole(job, "end"),
    )


def _evaluation(job: Job, static: Instant) -> list[Instant]:
    """One row of the longest length without gradients: a layer, then the loss."""
    share = min(1.0, job.row_tokens / max(1, job.tokens))
    return [
        (
            *static,
            *term("one layer", activations.in_flight(job) * share / 2, "forward of one layer"),
            *term("layer weights", buffers.layer(job), "gathered or dequantised for the layer in flight"),
        ),
        (
            *static,
            *term("logits", logits.evaluation(job), "one row, no gradient"),
            *term("gathered ends", buffers.loss(job), "head and embedding made whole"),
        ),
    ]


def _saving(job: Job) -> Instant:
    """What a checkpoint needs on the device: the largest tensor made whole where weights are spread."""
    if job.candidate.zero_stage == 3 or job.candidate.uses_fsdp:
        return term("gathered tensor", _largest_tensor(job), "16-bit weights are gathered one by one")
    return ()


def _resuming(job: Job) -> Instant:
    """Plain data parallel maps the saved optimizer states onto the device before copying them in."""
    if job.candidate.parallel == "ddp":
        return term("states read back", states.state_bytes(job), "optimizer.pt is mapped onto the card")
    return ()


def _largest_tensor(job: Job) -> int:
    return max(job.shape.embedding, job.shape.largest_linear) * job.weight_bytes_each
