"""Puts the terms together: the binding phase, bands and budgets. A peak is a maximum over instants, not a sum."""

from __future__ import annotations

from collections.abc import Mapping

from swift_autobatch.effective import effective
from swift_autobatch.predict import cpu_offload, footprints, host, logits, rates, speed, states
from swift_autobatch.predict.instants import GATHERED, LASTING, LAYERS, ROWS, Instant, phases, size
from swift_autobatch.predict.job import Job, job
from swift_autobatch.predict.profile import SWIFT, Engine
from swift_autobatch.records import Candidate, Facts, Footprint, Machine, ModelFacts, Phase, PhaseMemory, Prediction
from swift_autobatch.units import GIB, show_gib

CARD_SHARE = 0.90  # the p99 allowance of the fit rule
CARD_KEEP_FREE_GIB = 0.3
HOST_SHARE = 0.90
TRAINING = frozenset({"first_step", "steady"})


def predict(
    facts: Facts,
    candidate: Candidate,
    calibration: Mapping[str, float] | None = None,
    engine: Engine = SWIFT,
) -> Prediction:
    """Predicts memory by phase and the time of one optimizer step. Pure, well under a millisecond.

    Args:
        facts: machine, model and data; where ``facts.footprints`` has the candidate's variant (one device a model,
            or its states sharded), what passes in a step is the trace's, else the closed form's.
        candidate: every knob fixed.
        calibration: coefficients of data/coefficients.yaml and speed.yaml that this machine has measured, by name;
            None: those of ``facts``.
        engine: facts on another engine than the one that autoswift runs, for published figures.

    Returns:
        per-card reserved bytes at p50 and p99, host bytes over all ranks, and named seconds.

    Raises:
        InputError: ``calibration`` names an unknown coefficient.

    Source: each term's module; the master form is
    ``driver = context + nccl + (1 + reserve) x (static + max over instants)``.
    """
    work = job(facts, candidate, effective(candidate, facts.model, facts.machine), calibration, engine)
    footprint = footprints.find(work)
    found: Mapping[Phase, list[Instant]]
    if footprint is not None:
        found = footprints.phases(work, footprint)
    else:
        found = cpu_offload.phases(work) if cpu_offload.applies(work) else phases(work)
    # A run may never resume: what that needs is shown, not judged.
    judged: list[Phase] = [phase for phase in found if phase != "resume"]
    largest = {phase: max(found[phase], key=size) for phase in found}
    binding = max(judged, key=lambda phase: (size(largest[phase]), phase == "steady"))
    return _prediction(work, found, judged, binding, largest[binding], footprint)


def _prediction(
    work: Job,
    found: Mapping[Phase, list[Instant]],
    judged: list[Phase],
    binding: Phase,
    terms: Instant,
    footprint: Footprint | None,
) -> Prediction:
    """Bands, budgets and time around the binding phase."""
    candidate, constants = work.candidate, work.constants
    on_cpu = candidate.device == "cpu"
    context = int((constants.cpu_process_gib if on_cpu else constants.context_gib) * GIB)
    nccl = 0 if on_cpu or candidate.world == 1 else int(constants.nccl_gib * GIB)
    host_share = int(HOST_SHARE * work.facts.machine.host.ram_budget_bytes)
    traced = footprint is not None
    peaks = {phase: _reserved(work, phase, found[phase], 1.0, traced=traced) for phase in found}
    # The band was measured around the closed form's reserve: a traced plan is judged by the same one.
    needs_p99 = max(_reserved(work, phase, found[phase], work.band.p99) for phase in judged)
    hosts = {phase: _host_bytes(work, phase, peaks[phase] + context) for phase in found}
    host_bytes = max(hosts[phase] for phase in judged)
    pace = speed.step(work)
    step_s = sum(seconds for _, seconds in pace.terms)
    return Prediction(
        terms=terms,
        allocated_bytes=size(terms),
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
            for phase in found
        ),
        binding_phase=binding,
        step_s=step_s,
        time_terms=pace.terms,
        tokens_per_s=pace.real_tokens / step_s,
        samples_per_s=pace.rows / step_s,
        epoch_s=max(1.0, work.facts.data.kept / max(pace.rows, 1e-9)) * step_s,
        bound_by=pace.bound_by,
        mfu=pace.mfu,
        assumptions=(*_answered(footprint, work.facts.model), *_assumptions(work)),
        traced=traced,
        reserved_bytes=_held(work, found["steady"], max(peaks[phase] for phase in judged), context + nccl),
    )


def card_budget(machine: Machine) -> int:
    """Bytes that one card may hold by the fit rule, on the weakest card."""
    keep_free = int(CARD_KEEP_FREE_GIB * GIB)
    return max(0, min(min(int(CARD_SHARE * gpu.total_bytes), gpu.free_bytes - keep_free) for gpu in machine.gpus))


def _held(work: Job, instants: list[Instant], needs: int, beside: int) -> int | None:
    """Reserved bytes of steady training where they exceed the need; never more than the card has room for.

    The allocator gives segments back only when the card is full. So where lengths vary the old ones pile up; the one
    flat block that DeepSpeed's step casts gradients into stands beside the smaller segments of forward and backward;
    and what a side stream gathers is in a pool of its own.

    Source: PyTorch CUDACachingAllocator.cpp (pools by stream, best fit in one segment, release on failure only);
    DeepSpeed parameter_offload.py (a stream for gathers under overlap_comm).
    """
    if work.candidate.device == "cpu":
        return None
    passing = [instant for instant in instants if not any(term.name == "step temporaries" for term in instant)]
    flat = states.flat_block(work)
    if flat <= logits.largest_block(work):
        flat = 0
    apart = 0
    if work.candidate.zero_stage == 3 and work.engine.two_buckets:
        apart = max(sum(term.bytes for term in instant if term.name in GATHERED) for instant in passing)
        passing = [tuple(term for term in instant if term.name not in GATHERED) for instant in passing]
    held = _reserved(work, "steady", passing, 1.0, varied=work.engine.varied_rows) + flat + apart
    if held <= needs:
        return None
    room = min(gpu.total_bytes for gpu in work.facts.machine.gpus) - beside
    return max(needs, min(room, held))


def _reserved(
    work: Job, phase: Phase, instants: list[Instant], factor: float, *, varied: bool = False, traced: bool = False
) -> int:
    """Reserved bytes of one phase: what the allocator holds at its worst instant.

    Lasting blocks pack well, so do the equal blocks that layers keep; what passes (logits, the layer in flight)
    leaves holes of other sizes. Gradients do not move into the holes of the loss, so in training they count at
    every instant. ``factor`` widens what is not lasting: 1 at p50. A traced job is rendered with the allocator's
    setting that its replay asks for, under which even what passes survives in a few per cent more (pool.py).
    """
    constants = work.constants
    on_cpu = work.candidate.device == "cpu"
    for_lasting = 1.0 if on_cpu else constants.reserve_lasting
    for_layers = (constants.cpu_heap_layers if on_cpu else constants.reserve_layers) * factor
    for_passing = (constants.cpu_heap_passing if on_cpu else constants.reserve_passing) * factor
    if traced:
        for_passing = for_layers
    for_varied = constants.reserve_varied if varied else for_passing
    kept = states.gradients(work) if phase in TRAINING else 0
    worst = 0.0
    for instant in instants:
        lasting, layers, passing, rows = kept, 0, 0, 0
        for term in instant:
            if term.name in LASTING:
                lasting += term.bytes if term.name != "gradients" else 0
            elif term.name in LAYERS:
                layers += term.bytes
            elif term.name in ROWS:
                rows += term.bytes
            else:
                passing += term.bytes
        worst = max(worst, lasting * for_lasting + layers * for_layers + passing * for_passing + rows * for_varied)
    return int(worst)


def _host_bytes(work: Job, phase: Phase, resident: int) -> int:
    """Host bytes of one phase over all ranks."""
    if work.candidate.device == "cpu":
        return work.candidate.world * resident
    parts = {"load": host.load, "save": host.save, "resume": host.resume}
    return host.processes(work) + parts.get(phase, host.states)(work)


def _width(work: Job) -> str:
    """The band in words."""
    band, more = work.band, f"p99 allows {work.band.p99 - 1:.0%} more of what does not last"
    if not band.runs:
        return f"{more}: measured on this machine"
    return f"{more}: {band.runs} published runs" + (", of other kinds too" if band.kind == "all" else " of this kind")


def _uncounted(work: Job) -> list[str]:
    """What the figures leave out or take for something else."""
    candidate, model, data = work.candidate, work.facts.model, work.facts.data
    notes = []
    if candidate.tuner not in ("full", "lora"):
        notes.append(f"tuner {candidate.tuner} is costed as LoRA of rank {candidate.lora_rank}")
    if model.quantised and candidate.quant == "none" and model.packed_bytes is None:
        notes.append(f"the checkpoint is {model.quantised} already but costed with 16-bit weights: it needs less")
    if model.params_vision and data.media_rows:
        notes.append("activations of the vision tower are not counted: rows with media need more memory")
    return notes


def _answered(footprint: Footprint | None, model: ModelFacts) -> tuple[str, ...]:
    """Which of the two says what passes in a step, and what the trace could not model."""
    if footprint is None:
        return ("memory of a step: closed form",)
    versions = footprint.stream.versions
    said = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers", "peft") if name in versions)
    seen = f"memory of a step: traced on the real model ({said})"
    blind = (f"{seen}, on text alone: images are left out",) if model.params_vision else (seen,)
    return (*blind, *footprint.stream.notes)


def _assumptions(work: Job) -> tuple[str, ...]:
    """Everything the figures rest on that nobody measured."""
    candidate, machine = work.candidate, work.facts.machine
    notes = [*work.effective.notes]
    if candidate.device == "gpu":
        if any(gpu.tflops_16bit is None for gpu in machine.gpus):
            notes.append(f"compute rate of the card is unknown: {rates.UNKNOWN_TFLOPS:g} TFLOP/s assumed")
        if any(gpu.bandwidth_gb_s is None for gpu in machine.gpus):
            notes.append(f"memory bandwidth of the card is unknown: {rates.UNKNOWN_GB_S:g} GB/s assumed")
        if candidate.world > 1 and machine.link_gb_s is None:
            notes.append(f"link between the cards is unknown: {rates.UNKNOWN_LINK_GB_S:g} GB/s assumed")
        resume = host.resume(work) + host.processes(work)
        if resume > HOST_SHARE * machine.host.ram_budget_bytes:
            notes.append(f"resuming from a checkpoint would need {show_gib(resume, 0)} of host RAM, more than there is")
    notes.append(_width(work))
    if constants := sorted(name for name in work.facts.calibration if ":" not in name):
        notes.append(f"measured on this class of machine: {', '.join(constants)}")
    notes.extend(_uncounted(work))
    if work.facts.data.media_rows and not work.facts.data.mean_image_tokens:
        notes.append("rows hold images, video or audio whose tokens are not counted: real steps are slower")
    if not work.facts.data.exact:
        notes.append("token lengths are estimated, not counted by the model's tokenizer")
    if candidate.parallel == "megatron" or candidate.pp > 1 or candidate.cp > 1 or candidate.ep > 1:
        notes.append("Megatron is predicted roughly: states over all ranks")
    if work.facts.model.experts and candidate.quant != "none":
        notes.append("quantisation does not reach the fused experts: they stay 16-bit")
    return tuple(notes)
