"""What would change the answer: each line is a plan that was really searched, on facts that differ in one thing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swift_autobatch import machines
from swift_autobatch.candidates import enumerate_space
from swift_autobatch.errors import AutoswiftError
from swift_autobatch.interconnect import MOST_CARDS
from swift_autobatch.pins import pinned_fields
from swift_autobatch.planner import choose
from swift_autobatch.reasons import given
from swift_autobatch.records import Facts, Plan, Request, Sourced, Strategy, replace
from swift_autobatch.refusal import megatron_words
from swift_autobatch.search import Costs, Scored, best, gives, order_for
from swift_autobatch.units import GIB

_WORTH = 1.05  # a change of less than 5 % is not worth a line
_KERNELS = (("flash-attn", "2.8"), ("liger-kernel", "0.6"))  # any version will do: rules ask whether it is there


def changes(request: Request, decided: Plan, table: tuple[Strategy, ...], root: str) -> tuple[str, ...]:
    """Sentences on what one more card, a package, more RAM, another preference or Megatron would make of the plan.

    Args:
        request: what was asked, defaults filled in.
        root: the project folder, for pinned files.
    """
    if request.decided is not None:
        return ()
    pins = pinned_fields(request, Path(root))
    now = (decided.candidate, decided.prediction)
    lines = []
    for words, facts, asked in _trials(request, decided.facts, now):
        try:
            found = choose(asked, facts, table, pins, replays=0).best
        except AutoswiftError:  # not legal there
            continue
        if found is not None and _worth(found, now):
            lines.append(f"{words}: {_words(found, now)}")
    return (*lines, *_megatron(request, decided, table, pins))


def _trials(request: Request, facts: Facts, now: Scored) -> Iterator[tuple[str, Facts, Request]]:
    machine = facts.machine
    cards = len(machine.gpus)
    if 0 < cards < MOST_CARDS and machine.processes == cards and request.prefer.value != "fewest-gpus":
        yield "one more GPU", machines.with_cards(facts, cards + 1), request
        if 1 < cards <= MOST_CARDS // 2:
            yield "twice the GPUs", machines.with_cards(facts, 2 * cards), request
    if machine.gpus:
        for package, version in _KERNELS:
            if machine.software.versions.get(package) is None:
                yield f"pip install {package}", machines.with_software(facts, package, version), request
    if machine.gpus and now[0].weights_rank:
        ram = 2 * machine.host.ram_total_bytes
        yield f"{ram // GIB} GiB of host RAM", machines.with_ram(facts, ram), request
    if request.prefer.value == "auto":
        yield "--prefer speed", facts, replace(request, prefer=Sourced(value="speed", source="tried"))


def _worth(found: Scored, now: Scored) -> bool:
    """Whether it is faster by more than a hair, or lets something of what had to give stay."""
    lighter = found[0].weights_rank < now[0].weights_rank
    return lighter or found[1].epoch_s * _WORTH < now[1].epoch_s


def _words(found: Scored, now: Scored) -> str:
    """The other plan: strategy, batch, what no longer has to give, and the factor in time over the same rows.

    Where it learns from another number of rows a step, that is said: fewer and larger steps are a part of the factor.
    """
    candidate = found[0]
    parts = [f"{candidate.strategy}, batch {candidate.micro_batch} x {candidate.dp} x {candidate.accumulation}"]
    if now[0].quant != "none" and candidate.quant == "none":
        parts.append("in 16-bit")
    if candidate.quant != "none" and now[0].quant == "none":
        parts.append("in 4-bit")
    if gives(candidate) > gives(now[0]):
        parts.append(given(candidate))
    if now[0].offload and not candidate.offload:
        parts.append("without offload")
    if candidate.effective_batch != now[0].effective_batch:
        parts.append(f"effective batch {candidate.effective_batch} instead of {now[0].effective_batch}")
    parts.append(f"{now[1].epoch_s / found[1].epoch_s:.2g} x the speed")
    return ", ".join(parts)


def _megatron(
    request: Request, decided: Plan, table: tuple[Strategy, ...], pins: Mapping[str, Sourced[Any]]
) -> Iterator[str]:
    """Megatron where it would be faster; it is predicted, and never chosen before it can be rendered."""
    space = enumerate_space(decided.facts, request, table, pins, decided.candidate.max_length)
    found = best(space.unrendered, Costs(decided.facts), order_for(request, decided.facts))
    if found is not None and found[1].epoch_s * _WORTH < decided.prediction.epoch_s:
        ratio = decided.prediction.epoch_s / found[1].epoch_s
        yield (
            f"Megatron ({megatron_words(found[0])}) would be faster: {ratio:.2g} x the speed by a rough prediction; "
            "rendering megatron sft comes with a later version"
        )
