"""Says what is missing when nothing fits, and which small edits would fit: each was tried with the same predictor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from swift_autobatch import machines
from swift_autobatch.candidates import enumerate_space
from swift_autobatch.errors import NothingFitsError
from swift_autobatch.records import Candidate, Facts, Prediction, Request, Sourced, Strategy
from swift_autobatch.search import Costs, Scored, best, order_for
from swift_autobatch.tables import gpus
from swift_autobatch.units import GIB, MIB, show_gib

_MAX_CARDS = 8
_LARGER_CARDS = ("RTX A6000", "A100 SXM4 80GB", "H200 SXM5 141GB")  # what one can rent, smallest first
_RAM_STEPS_GIB = (64, 128, 256, 512, 1024, 2048)


def explain(
    request: Request,
    facts: Facts,
    table: tuple[Strategy, ...],
    pins: Mapping[str, Sourced[Any]],
    found: Scored,
) -> NothingFitsError:
    """The error for a job that no legal plan fits, with the nearest candidate and edits that do fit.

    Args:
        found: the candidate nearest to fitting, with its prediction.
    """
    candidate, prediction = found
    figures = [
        f"nearest: {candidate.strategy}, batch {candidate.micro_batch} x {candidate.accumulation}, "
        f"{candidate.max_tokens} tokens",
        f"a card needs {show_gib(prediction.demand_bytes)} of {show_gib(prediction.budget_bytes)}",
        f"the host needs {show_gib(prediction.host_p99_bytes)} of {show_gib(prediction.host_budget_bytes)} "
        f"({facts.machine.host.ram_source})",
    ]
    largest = sorted(prediction.terms, key=lambda term: -term.bytes)[:3]
    figures.append("largest terms: " + ", ".join(f"{term.name} {show_gib(term.bytes)}" for term in largest))
    if facts.model.experts and candidate.tuner != "full":
        figures.append("4-bit does not help: the routed experts are fused parameters and stay 16-bit (transformers 5)")
    hints = tuple(
        f"{words}: {found.strategy} needs {show_gib(needs.demand_bytes)} a card, {show_gib(needs.host_p99_bytes)} host"
        for words, found, needs in _edits_that_fit(request, facts, table, pins)
    )
    return NothingFitsError(
        f"nothing fits: {facts.model.id} with {candidate.tuner} tuning on {_machine_words(facts)}",
        where=next((pin.source.removeprefix("flag ") for pin in pins.values() if pin.source.startswith("flag ")), ""),
        figures=tuple(figures),
        hints=hints or ("a smaller model, or shorter rows (--max_length)",),
    )


def _machine_words(facts: Facts) -> str:
    machine = facts.machine
    name = machine.gpus[0].card or machine.gpus[0].name if machine.gpus else "CPU"
    return f"{machine.processes} x {name}, {show_gib(machine.host.ram_budget_bytes, 0)} host RAM"


Trial = tuple[str, Facts, dict[str, Sourced[Any]], Request]


def _edits_that_fit(
    request: Request, facts: Facts, table: tuple[Strategy, ...], pins: Mapping[str, Sourced[Any]]
) -> Iterator[tuple[str, Candidate, Prediction]]:
    """Tries each edit alone, least change first; yields at most one per kind."""
    seen: set[str] = set()
    for kind, trial in _trials(request, facts, pins):
        if kind in seen:
            continue
        words, changed, fields, asked = trial
        found = _best(asked, changed, table, fields)
        if found is not None:
            seen.add(kind)
            yield words, *found


def _best(
    request: Request, facts: Facts, table: tuple[Strategy, ...], pins: Mapping[str, Sourced[Any]]
) -> Scored | None:
    """What would be chosen after an edit; None when nothing fits."""
    space = enumerate_space(facts, request, table, pins)
    return best(space.families, Costs(facts), order_for(request, facts))


def _trials(request: Request, facts: Facts, pins: Mapping[str, Sourced[Any]]) -> Iterator[tuple[str, Trial]]:
    fields = dict(pins)
    if request.strategy.value:
        yield "strategy", ("drop --strategy", facts, fields, _free(request))
    for name, flag in (
        ("micro_batch", "per_device_train_batch_size"),
        ("quant", "quant_bits"),
        ("parallel", "deepspeed"),
    ):
        if name in fields:
            rest = {key: value for key, value in fields.items() if key != name}
            yield f"unpin-{name}", (f"drop --{flag}", facts, rest, request)
    if "gradient_checkpointing" in fields and not fields["gradient_checkpointing"].value:
        rest = {key: value for key, value in fields.items() if key != "gradient_checkpointing"}
        yield "checkpointing", ("drop --gradient_checkpointing false", facts, rest, request)
    ram = facts.machine.host.ram_total_bytes
    for size in _RAM_STEPS_GIB:
        if size * GIB > ram:
            yield "ram", (f"{size} GiB of host RAM (ram={size})", machines.with_ram(facts, size * GIB), fields, request)
    if "tuner" in fields and fields["tuner"].value == "full":
        lora = {**fields, "tuner": Sourced(value="lora", source="tried")}
        yield "lora", ("--tuner_type lora", facts, lora, request)
    for length in _shorter(facts, fields):
        shorter = {**fields, "max_length": Sourced(value=length, source="tried")}
        yield "length", (f"--max_length {length} (drops longer rows)", facts, shorter, request)
    for count in range(2, _MAX_CARDS + 1):
        if facts.machine.gpus and count > len(facts.machine.gpus):
            yield "cards", (f"{count} such cards", machines.with_cards(facts, count), fields, request)
    for name in _LARGER_CARDS if facts.machine.gpus else ():
        row = gpus()[name]
        if row.memory_mib * MIB > facts.machine.gpus[0].total_bytes:
            yield "card", (f"{len(facts.machine.gpus)} x {name}", machines.with_card(facts, row), fields, request)


def _free(request: Request) -> Request:
    return replace(request, strategy=Sourced(value=None, source="tried"))


def _shorter(facts: Facts, pins: Mapping[str, Sourced[Any]]) -> tuple[int, ...]:
    longest = pins["max_length"].value if "max_length" in pins else facts.data.max_tokens
    lengths = (32768, 16384, 8192, 4096, 2048, 1024, 512)
    return tuple(length for length in lengths if facts.data.p50_tokens <= length < longest)
