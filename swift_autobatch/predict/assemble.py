"""Puts the terms together: phases, instants, the binding one, bands and budgets. A peak is a maximum, not a sum."""

from __future__ import annotations

from collections.abc import Mapping

from swift_autobatch.effective import effective
from swift_autobatch.predict import activations, buffers, host, logits, speed, states, weights
from swift_autobatch.predict.job import Job, job
from swift_autobatch.records import Candidate, Facts, Machine, Phase, PhaseMemory, Prediction, Term
from swift_autobatch.units import GIB, show_gib

CARD_SHARE = 0.90  # the p99 allowance of the fit rule
CARD_KEEP_FREE_GIB = 0.3
HOST_SHARE = 0.90

Instant = tuple[Term, ...]


def predict(facts: Facts, candidate: Candidate, calibration: Mapping[str, float] | None = None) -> Prediction:
    """Predicts memory by phase and the time of one optimizer step. Pure, well under a millisecond.

    Args:
        facts: machine, model and data.
        candidate: every knob fixed.
        calibration: coefficients of data/coefficients.yaml that this machine has measured, by name.

    Returns:
        per-card reserved bytes at p50 and p99, host bytes over all ranks, and named seconds.

    Raises:
        InputError: ``calibration`` names an unknown coefficient.

    Source: each term's module; the master form is
    ``driver = context + nccl + (1 + reserve) x (static + max over instants)``.
    """
    work = job(facts, candidate, effective(candidate, facts.model, facts.machine), calibration)
    static = _static(work)
    phases: dict[Phase, Instant] = {
        "load": _load(work),
        "first_step": _largest(_instants(work, static, first=True)),
        "steady": _largest(_instants(work, static, first=False)),
        "eval": _evaluation(work, static),
        "save": (*static, *_saving(work)),
        "resume": (*static, *_resuming(work)),
    }
    binding = max(
        (phase for phase in phases if phase != "resume"), key=lambda phase: (_bytes(phases[phase]), phase == "steady")
    )
    terms = phases[binding]
    return _prediction(work, phases, binding, terms)


def _prediction(work: Job, phases: Mapping[Phase, Instant], binding: Phase, terms: Instant) -> Prediction:
    """Bands, budgets and time around the binding phase."""
    candidate, constants = work.candidate, work.constants
    on_cpu = candidate.device == "cpu"
    context = int((constants.cpu_process_gib if on_cpu else constants.context_gib) * GIB)
    nccl = 0 if on_cpu or candidate.world == 1 else int(constants.nccl_gib * GIB)
    host_share = int(HOST_SHARE * work.facts.machine.host.ram_budget_bytes)
    peaks = {phase: _reserved(work, instant, 1.0) for phase, instant in phases.items()}
    hosts = {phase: _host_bytes(work, phase, peaks[phase] + context) for phase in phases}
    judged = [phase for phase in phases if phase != "resume"]  # a run may never resume; its need is shown, not judged
    needs_p99 = max(_reserved(work, phases[phase], constants.reserve_p99) for phase in judged)
    host_bytes = max(hosts[phase] for phase in judged)
    pace = speed.step(work)
    step_s = sum(seconds for _, seconds in pace.terms)
    return Prediction(
        terms=terms,
        allocated_bytes=_bytes(terms),
        needs_p50_bytes=max(peaks[phase] for phase in judged),
        needs_p99_bytes=needs_p99,
        context_bytes=context,
        nccl_bytes=nccl,
        budget_bytes=host_share // candidate.world if on_cpu else card_budget(work.facts.machine),
        host_bytes=host_bytes,
        host_p99_bytes=candidate.world * (needs_p99 + context) if on_cpu else host_bytes,
        host_budget_bytes=host_share,
        phases=tuple(
            PhaseMemory(phase=phase, gpu_bytes=0 if on_cpu else peaks[phase], host_bytes=hosts[phase])
            for phase in phases
        ),
        binding_phase=binding,
        step_s=step_s,
        time_terms=pace.terms,
        tokens_per_s=pace.real_tokens / step_s,
        samples_per_s=pace.rows / step_s,
        epoch_s=work.facts.data.kept / max(pace.rows, 1e-9) * step_s,
        bound_by=pace.bound_by,
        assumptions=_assumptions(work),
    )


def card_budget(machine: Machine) -> int:
    """Bytes that one card may hold by the fit rule, on the weakest card."""
    keep_free = int(CARD_KEEP_FREE_GIB * GIB)
    return max(0, min(min(int(CARD_SHARE * gpu.total_bytes), gpu.free_bytes - keep_free) for gpu in machine.gpus))


# ------------------------------------------------------------------------------------------------------ phases


def _term(name: str, n_bytes: float, why: str) -> tuple[Term, ...]:
    """One term, or none where it holds nothing."""
    return (Term(name=name, bytes=int(n_bytes), why=why),) if n_bytes >= 1 else ()


def _bytes(instant: Instant) -> int:
    return sum(term.bytes for term in instant)


def _largest(instants: list[Instant]) -> Instant:
    return max(instants, key=_bytes)


def _static(work: Job) -> Instant:
    """What stays for the whole run."""
    trained = f"{work.trainable:,} parameters"
    return (
        *_term("weights", weights.resident(work), weights.why(work)),
        *_term("adapters", states.adapters(work), f"{trained}, {work.trainable_bytes_each} B each"),
        *_term("optimizer", states.optimizer(work), f"{work.effective.optimizer} states of {trained}"),
        *_term("buffers", buffers.permanent(work), "reduce buckets and workspaces"),
    )


def _load(work: Job) -> Instant:
    """Weights, and one whole tensor beside them where it is quantised or spread on the way in."""
    largest = max(work.shape.embedding, work.shape.largest_linear) * work.weight_bytes_each
    passing = largest if work.candidate.quant != "none" or work.candidate.zero_stage == 3 else 0
    return (
        *_term("weights", weights.resident(work), weights.why(work)),
        *_term("adapters", states.adapters(work), "adapters are added after the weights"),
        *_term("tensor in passing", passing, "the largest tensor before it is quantised or spread"),
    )


def _instants(work: Job, static: Instant, *, first: bool) -> list[Instant]:
    """The candidates for the peak of a training step.

    In the first step the optimizer states do not exist before its end.
    """
    if first:
        grown = tuple(term for term in static if term.name != "optimizer" or work.candidate.uses_deepspeed)
    else:
        grown = static
    gradients = _term("gradients", states.gradients(work), f"{work.grad_bytes_each} B a trainable parameter")
    early = gradients if work.candidate.accumulation > 1 or work.candidate.uses_deepspeed else ()
    late = _term("gradients", states.gradients_of_layers(work), "of all layers, the embedding's still to come")
    casts = _term("autocast copies", activations.autocast_casts(work), "16-bit copies of trainable weights")
    mask = _term("mask", activations.attention_mask(work), "boolean mask of the padded batch")
    loss = (
        *_term("logits", logits.loss(work), f"{work.kept_rows:,} rows x {work.shape.vocab:,} entries"),
        *_term("gathered ends", buffers.loss(work), "head and embedding made whole"),
    )
    gathered = _term("layer weights", buffers.layer(work), "gathered or dequantised for the layer in flight")
    root = _term("gathered ends", buffers.root(work), "root group stays gathered")
    ends = (*grown, *gradients, *_term("root reduction", buffers.root_reduction(work), "embedding and head gradients"))
    step = (
        *static,
        *gradients,
        *_term("step temporaries", states.step_temporaries(work), "inside the optimizer's step"),
        *_term("gathered update", buffers.step(work), "all-gather of updated parameters"),
    )
    if work.candidate.gradient_checkpointing or work.candidate.uses_fsdp:
        kept = _term("boundaries", activations.boundaries(work), f"one hidden state x {work.shape.layers} layers")
        layer = _term("layer in flight", activations.in_flight(work), "recompute and backward of one layer")
        one = _term("boundaries", activations.boundaries(work) // work.shape.layers, "the first layer's input")
        return [
            (*grown, *early, *casts, *mask, *kept, *loss),
            (*grown, *early, *mask, *kept, *layer, *gathered, *root),
            (*grown, *(early or late), *mask, *one, *layer, *gathered, *root),
            ends,
            step,
        ]
    held = _term("activations", activations.saved(work), f"all {work.shape.layers} layers, no checkpointing")
    more = _term("backward", activations.backward(work), "temporaries of one layer's backward")
    return [
        (*grown, *early, *casts, *mask, *held, *loss),
        (*grown, *early, *mask, *held, *more, *gathered, *root),
        (*grown, *(early or late), *mask, *more, *gathered, *root),
        ends,
        step,
    ]


def _evaluation(work: Job, static: Instant) -> Instant:
    """One row of the longest length without gradients: a layer, then the loss."""
    share = min(1.0, work.row_tokens / max(1, work.tokens))
    layer = (
        *static,
        *_term("one layer", activations.in_flight(work) * share / 2, "forward of one layer"),
        *_term("layer weights", buffers.layer(work), "gathered or dequantised for the layer in flight"),
    )
    loss = (
        *static,
        *_term("logits", logits.evaluation(work), "one row, no gradient"),
        *_term("gathered ends", buffers.loss(work), "head and embedding made whole"),
    )
    return _largest([layer, loss])


def _saving(work: Job) -> Instant:
    """What a checkpoint needs on the device: the largest tensor made whole where weights are spread."""
    if work.candidate.zero_stage == 3 or work.candidate.uses_fsdp:
        whole = max(work.shape.embedding, work.shape.largest_linear) * work.weight_bytes_each
        return _term("gathered tensor", whole, "16-bit weights are gathered one by one")
    return ()


def _resuming(work: Job) -> Instant:
    """Plain data parallel maps the saved optimizer states onto the device before copying them in."""
    if work.candidate.parallel == "ddp":
        return _term("states read back", states.state_bytes(work), "optimizer.pt is mapped onto the card")
    return ()


# -------------------------------------------------------------------------------------------------- figures

_LASTING = frozenset({"weights", "adapters", "optimizer", "buffers", "gradients"})
_LAYERS = frozenset({"boundaries", "activations"})


def _reserved(work: Job, instant: Instant, factor: float) -> int:
    """Reserved bytes of one instant.

    Lasting blocks pack well, so do the equal blocks that layers keep; what passes (logits, the layer in flight)
    leaves holes of other sizes. ``factor`` widens what is not lasting: 1 at p50.
    """
    constants = work.constants
    lasting = sum(term.bytes for term in instant if term.name in _LASTING)
    layers = sum(term.bytes for term in instant if term.name in _LAYERS)
    passing = _bytes(instant) - lasting - layers
    if work.candidate.device == "cpu":
        return int(lasting + (layers * constants.cpu_heap_layers + passing * constants.cpu_heap_passing) * factor)
    moving = layers * constants.reserve_layers + passing * constants.reserve_passing
    return int(lasting * constants.reserve_lasting + moving * factor)


def _host_bytes(work: Job, phase: Phase, resident: int) -> int:
    """Host bytes of one phase over all ranks."""
    if work.candidate.device == "cpu":
        return work.candidate.world * resident
    parts = {"load": host.load, "save": host.save, "resume": host.resume}
    return host.processes(work) + parts.get(phase, host.states)(work)


def _assumptions(work: Job) -> tuple[str, ...]:
    """Everything the figures rest on that nobody measured."""
    candidate, machine = work.candidate, work.facts.machine
    notes = [*work.effective.notes]
    if candidate.device == "gpu":
        if any(gpu.tflops_16bit is None for gpu in machine.gpus):
            notes.append(f"compute rate of the card is unknown: {speed.UNKNOWN_TFLOPS:g} TFLOP/s assumed")
        if any(gpu.bandwidth_gb_s is None for gpu in machine.gpus):
            notes.append(f"memory bandwidth of the card is unknown: {speed.UNKNOWN_GB_S:g} GB/s assumed")
        if candidate.world > 1 and machine.link_gb_s is None:
            notes.append(f"link between the cards is unknown: {speed.UNKNOWN_LINK_GB_S:g} GB/s assumed")
    if not work.facts.data.exact:
        notes.append("token lengths are estimated, not counted by the model's tokenizer")
    if candidate.parallel == "megatron" or candidate.pp > 1 or candidate.cp > 1 or candidate.ep > 1:
        notes.append("Megatron is predicted roughly: states over all ranks, no pipeline bubble")
    resume = host.resume(work) + host.processes(work)
    if candidate.device == "gpu" and resume > HOST_SHARE * machine.host.ram_budget_bytes:
        notes.append(f"resuming from a checkpoint would need {show_gib(resume, 0)} of host RAM, more than there is")
    if work.facts.model.experts and candidate.quant != "none":
        notes.append("quantisation does not reach the fused experts: they stay 16-bit")
    return tuple(notes)
