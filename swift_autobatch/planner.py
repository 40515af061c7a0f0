"""Chooses deterministically; keeps the runners-up and why each lost.

Order of choice: pins; the asked batch; no dropped rows; 16-bit before 4-bit before weights streamed from the host;
then the fastest. Never from lora to full or back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import log
from pathlib import Path
from typing import Any

from swift_autobatch import arguments, schedule, shortfall
from swift_autobatch.candidates import Space, decided_space, enumerate_space, length_for
from swift_autobatch.effective import effective
from swift_autobatch.pins import pinned_fields
from swift_autobatch.predict import predict
from swift_autobatch.records import (
    Candidate,
    Facts,
    Plan,
    Prediction,
    Request,
    RunnerUp,
    Sourced,
    Strategy,
)
from swift_autobatch.units import show_gib, show_seconds

Scored = tuple[Candidate, Prediction]
_RUNNERS_UP = 8
_UNANSWERED = ("no-assistant-turn", "empty-answer", "masked")
_SAME_SPEED = 1.02  # within 2 % is the same speed: then the one with more memory to spare wins


def make_plan(request: Request, facts: Facts, table: tuple[Strategy, ...], root: str, home: str) -> Plan:
    """The fastest legal plan that fits, with its reasons.

    Args:
        table: the strategy table.
        root: the project folder; rendered paths below it start with ``$ROOT``.
        home: the user's home; other paths below it start with ``$HOME``.

    Raises:
        UsageError: the pins allow no legal combination.
        NothingFitsError: legal plans exist and none fits; the hints are edits that were tried and fit.
    """
    pins = pinned_fields(request, Path(root))
    space, scored = _search(request, facts, table, pins)
    fitting = [pair for pair in scored if pair[1].fits]
    if not fitting:
        raise shortfall.explain(request, facts, table, pins, scored)
    chosen, prediction = min(fitting, key=lambda pair: _preference(pair, request))
    steps = schedule.count_steps(chosen, facts, request)
    args = arguments.engine_args(chosen, facts, request, steps, root, home)
    env = arguments.environment(chosen, facts)
    strategy = next((row for row in table if row.name == chosen.strategy), None)
    return Plan(
        facts=facts,
        candidate=chosen,
        prediction=prediction,
        effective=effective(chosen, facts.model, facts.machine),
        engine_args=args,
        env=env,
        steps_per_epoch=steps.per_epoch,
        total_steps=steps.total,
        notes=_notes(chosen, prediction, facts, request),
        proposals=_proposals(chosen, facts, request, steps),
        runners_up=_runners_up(chosen, prediction, scored, space, request),
        illegal=space.illegal,
        machine_class=facts.machine.machine_class,
        digest=_digest(chosen, args, env, facts),
        because=strategy.because if strategy else "every choice was pinned",
        strategy=strategy,
    )


def _search(
    request: Request, facts: Facts, table: tuple[Strategy, ...], pins: Mapping[str, Sourced[Any]]
) -> tuple[Space, list[Scored]]:
    """Costs every legal candidate; where no row length fits whole, tries shorter cuts, longest first."""
    if request.decided is not None:
        space = decided_space(facts, request, pins)
        return space, [(candidate, predict(facts, candidate)) for candidate in space.legal]
    space, scored = _cost(request, facts, table, pins, None)
    if any(prediction.fits for _, prediction in scored) or "max_length" in pins:
        return space, scored
    for cut in _cuts(facts):
        shorter, costed = _cost(request, facts, table, pins, cut)
        if any(prediction.fits for _, prediction in costed):
            return shorter, costed
    return space, scored


def _cost(
    request: Request,
    facts: Facts,
    table: tuple[Strategy, ...],
    pins: Mapping[str, Sourced[Any]],
    max_length: int | None,
) -> tuple[Space, list[Scored]]:
    space = enumerate_space(facts, request, table, pins, max_length)
    return space, [(candidate, predict(facts, candidate)) for candidate in space.legal]


def _cuts(facts: Facts) -> tuple[int, ...]:
    """Shorter max_lengths worth trying: those that still keep 95 % of the rows, longest first."""
    lengths = facts.data.lengths
    kept = {length_for(facts, lengths[int((len(lengths) - 1) * share)]) for share in (0.99, 0.98, 0.97, 0.96, 0.95)}
    return tuple(sorted((cut for cut in kept if cut < facts.data.max_tokens), reverse=True))


def _preference(pair: Scored, request: Request) -> tuple[Any, ...]:
    """Smaller is better, in the order of choice; the last entries only make ties deterministic."""
    candidate, prediction = pair
    return (
        _batch_excess(candidate, request),
        candidate.weights_rank,
        round(log(max(prediction.epoch_s, 1e-9)) / log(_SAME_SPEED)),
        candidate.offload,  # at the same speed, the plan with fewer moving parts
        prediction.demand_bytes,
        prediction.host_p99_bytes,
        candidate.strategy,
        -candidate.micro_batch,
    )


def _batch_excess(candidate: Candidate, request: Request) -> int:
    return abs(candidate.effective_batch - request.global_batch.value)


def _runners_up(
    chosen: Candidate, best: Prediction, scored: Sequence[Scored], space: Space, request: Request
) -> tuple[RunnerUp, ...]:
    """The best of every other strategy and the chosen one's next micro batches, each with why it lost."""
    picked: dict[tuple[str, int], Scored] = {}
    for pair in sorted(scored, key=lambda item: _interest(item, request)):
        candidate = pair[0]
        if candidate == chosen:
            continue
        same = candidate.strategy == chosen.strategy
        key = (candidate.strategy, candidate.micro_batch if same else 0)
        if same and candidate.micro_batch == chosen.micro_batch:
            continue
        picked.setdefault(key, pair)
    lost = [
        RunnerUp(candidate=pair[0], prediction=pair[1], why=_why_not(pair, chosen, best, request))
        for pair in picked.values()
    ]
    named = {candidate.strategy for candidate, _ in scored}
    for item in space.illegal:
        if item.candidate.strategy not in named:
            named.add(item.candidate.strategy)
            lost.append(RunnerUp(candidate=item.candidate, prediction=None, why=f"not legal: {item.why}"))
    return tuple(lost[:_RUNNERS_UP])


def _interest(pair: Scored, request: Request) -> tuple[Any, ...]:
    """Which of several variants stands for a strategy: the best that fits, else the one nearest to fitting."""
    prediction = pair[1]
    if prediction.fits:
        return (False, *_preference(pair, request))
    return (True, max(prediction.demand_bytes - prediction.budget_bytes, 0), prediction.host_p99_bytes)


def _why_not(pair: Scored, chosen: Candidate, best: Prediction, request: Request) -> str:
    candidate, prediction = pair
    if prediction.demand_bytes > prediction.budget_bytes:
        return f"does not fit: needs {show_gib(prediction.demand_bytes)} of {show_gib(prediction.budget_bytes)} a card"
    if prediction.host_p99_bytes > prediction.host_budget_bytes:
        return (
            f"does not fit: needs {show_gib(prediction.host_p99_bytes)} of {show_gib(prediction.host_budget_bytes)} "
            "host RAM"
        )
    if _batch_excess(candidate, request) > _batch_excess(chosen, request):
        return f"effective batch {candidate.effective_batch}, asked for {request.global_batch.value}"
    ratio = prediction.epoch_s / best.epoch_s
    if candidate.weights_rank > chosen.weights_rank:
        what = "4-bit" if candidate.quant != "none" else "weights streamed from the host"
        return f"{what} only when nothing better fits; {ratio:.2f} x the time"
    if ratio <= _SAME_SPEED:
        return f"no faster (within 2 %), {show_gib(prediction.demand_bytes)} instead of {show_gib(best.demand_bytes)}"
    return f"{ratio:.2f} x the time: {show_seconds(prediction.epoch_s)} an epoch"


def _notes(candidate: Candidate, prediction: Prediction, facts: Facts, request: Request) -> tuple[str, ...]:
    """What had to give comes first."""
    notes = []
    data = facts.data
    effective_batch, target = candidate.effective_batch, request.global_batch.value
    if effective_batch != target:
        ranks = candidate.dp
        notes.append(
            f"effective batch {effective_batch} instead of {target}: the least multiple of "
            f"{candidate.micro_batch} x {ranks} ranks; the learning rate follows"
        )
    dropped = sum(length > candidate.max_length for length in data.lengths) * data.kept // max(1, len(data.lengths))
    if dropped and facts.cuts_rows:
        notes.append(f"about {dropped} of {data.kept} rows are longer than {candidate.max_length} tokens: cut")
    elif dropped:
        notes.append(f"about {dropped} of {data.kept} rows are longer than {candidate.max_length} tokens: dropped")
    if candidate.quant != "none" and "quant_bits" not in request.pins and not request.strategy.value:
        notes.append("4-bit weights: in 16-bit the model does not fit on the card")
    if candidate.weights_rank == 2 and not request.strategy.value:
        notes.append("weights stay in host RAM and cross PCIe for every layer: slow, but nothing else fits")
    if candidate.parallel == "zero2_offload":
        notes.append(_offload_words(candidate, prediction, facts))
    if candidate.accumulation > schedule.COMFORTABLE_ACCUMULATION:
        notes.append(f"accumulation {candidate.accumulation} is above the comfortable 8-16: warmup 0.10, keep clipping")
    if not data.exact:
        notes.append(f"token lengths: {data.tokenizer}; the longest row is planned for at {data.max_tokens} tokens")
    if data.rows > data.kept:
        notes.append(f"{data.rows - data.kept} of {data.rows} rows will not train; see 'problems' in --json")
    unanswered = [problem for problem in data.problems if problem.code in _UNANSWERED and not problem.drops_row]
    if unanswered and data.mean_supervised_tokens > 0:
        first = unanswered[0]
        notes.append(
            f"rows with no answer or an empty one, which teach nothing: {len(unanswered)}, "
            f"first {Path(first.file).name}:{first.line}"
        )
    if data.media_rows:
        blind = "" if facts.model.params_vision else f", and {facts.model.id} is a text model"
        notes.append(
            f"rows with images, video or audio: {data.media_rows}; their tokens are not counted, so memory, time and "
            f"max_length are too low{blind}; the dry run measures them"
        )
    if data.mean_supervised_tokens == 0:
        notes.append("no row has a token to learn from: every label is masked, the dry run will refuse it")
    if facts.model.quantised:
        notes.append(f"the checkpoint is already quantised ({facts.model.quantised})")
    return tuple(notes)


def _offload_words(candidate: Candidate, prediction: Prediction, facts: Facts) -> str:
    """What the optimizer offload gains and costs, beside the same plan without it."""
    without = predict(facts, replace(candidate, parallel="none" if candidate.world == 1 else "zero2"))
    freed = without.demand_bytes - prediction.demand_bytes
    gain = f"frees {show_gib(freed)} a card" if freed > 0 else f"frees nothing on the card ({show_gib(-freed)} more)"
    slower = prediction.step_s - without.step_s
    return f"the optimizer offload {gain} and costs {show_seconds(max(slower, 0.0))} a step"


def _proposals(candidate: Candidate, facts: Facts, request: Request, steps: schedule.Steps) -> tuple[str, ...]:
    """Flags that change what is learned: proposed with their reason, never applied unasked."""
    offers = []
    data = facts.data
    if data.self_cognition and data.persona and not data.system_prompts and "system" not in request.pins:
        offers.append(
            f"--system 'You are {data.persona}.'  anchors the persona that the rows teach; use the same at inference"
        )
    if data.self_cognition and steps.total < 30 and not {"num_train_epochs", "max_steps"} & set(request.pins):
        epochs = max(10, -(-40 // steps.per_epoch))
        offers.append(f"--num_train_epochs {epochs}  {steps.total} steps are few to learn an identity from")
    return tuple(offers)


def _digest(
    candidate: Candidate, args: Mapping[str, Sourced[Any]], env: Mapping[str, Sourced[str]], facts: Facts
) -> str:
    """sha256 over what the run depends on: the command, its environment, the candidate, the data, the class."""
    content = {
        "args": {flag: sourced.value for flag, sourced in args.items()},
        "env": {name: sourced.value for name, sourced in env.items()},
        "candidate": asdict(candidate),
        "data": facts.data.digest,
        "machine_class": facts.machine.machine_class,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
