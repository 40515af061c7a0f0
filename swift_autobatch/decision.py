"""Whether a project recipe's decision holds on these facts; what no longer does, in words that a person can act on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from swift_autobatch import arguments, machines
from swift_autobatch.candidates import decided_space, length_for
from swift_autobatch.errors import AutoswiftError, NothingFitsError, UsageError
from swift_autobatch.pins import pinned_fields
from swift_autobatch.records import Candidate, Facts, Reason, Recipe, Request
from swift_autobatch.render.engine_config import configs
from swift_autobatch.search import cost
from swift_autobatch.tables import DIALECT
from swift_autobatch.units import show_gib

_EDITED = {
    "request": "its request was edited since it was planned",
    "planned": "its planned section was edited by hand (what you want belongs under request)",
}


def broken(request: Request, facts: Facts, root: str) -> tuple[Reason, ...]:
    """What of the request's project recipe no longer holds; () when its decision can be taken as it stands.

    Args:
        request: with ``recipe`` set; flags and variables that say otherwise are in ``overrides`` and ``pins``.
        root: the project folder, for pinned files.

    Returns:
        Reasons with the codes ``unplanned``, ``machine``, ``engine``, ``edited``, ``override``, ``rule``,
        ``memory``, ``data``, ``version``.
    """
    recipe = request.recipe
    assert recipe is not None
    if recipe.candidate is None:
        return (Reason(code="unplanned", text="it was never planned, it holds a request only"),)
    if request.prefer.value == "fewest-gpus":
        facts = machines.as_decided(facts, recipe)
    found = [*_elsewhere(recipe, facts), *_asked_otherwise(request, recipe)]
    if found:
        return tuple(found)  # the rest compares figures, which mean nothing on another machine or for another job
    decided = replace(request, decided=recipe)
    pins = pinned_fields(request, Path(root))
    try:
        candidate = decided_space(facts, decided, pins).legal[0]
    except UsageError as error:
        return (Reason(code="rule", text=error.what, hints=error.hints),)
    other = {name: pin for name, pin in pins.items() if getattr(candidate, name) != pin.value}
    found += [
        Reason(code="override", text=f"{pin.source} pins {name} {pin.value}, it decided {getattr(candidate, name)}")
        for name, pin in other.items()
    ]
    return (
        *found,
        *_no_room(candidate, facts),
        *_rows_lost(candidate, recipe, request, facts),
        *_version(recipe, candidate, facts),
    )


def _elsewhere(recipe: Recipe, facts: Facts) -> Iterator[Reason]:
    here = facts.machine.machine_class
    if recipe.machine_class != here:
        yield Reason(code="machine", text=f"it was planned for {recipe.machine_class}, not for {here}")
    if recipe.engine is not None and recipe.engine != DIALECT:
        yield Reason(code="engine", text=f"it was planned for {recipe.engine}, not for {DIALECT}")


def _asked_otherwise(request: Request, recipe: Recipe) -> Iterator[Reason]:
    for section in recipe.edited:
        yield Reason(code="edited", text=_EDITED[section])
    for name in request.overrides:
        yield Reason(code="override", text=f"{name.source} asks for another {name.value.replace('_', ' ')} than it")


def _no_room(candidate: Candidate, facts: Facts) -> Iterator[Reason]:
    needs = cost(facts, candidate)
    if needs.demand_bytes > needs.budget_bytes:
        figures = f"{show_gib(needs.demand_bytes)} of {show_gib(needs.budget_bytes)} a device"
        yield Reason(code="memory", text=f"it does not fit into what is free now: it needs {figures}")
    if needs.host_p99_bytes > needs.host_budget_bytes:
        figures = f"{show_gib(needs.host_p99_bytes)} of {show_gib(needs.host_budget_bytes)} host RAM"
        yield Reason(code="memory", text=f"it does not fit into what is free now: it needs {figures}")


def _rows_lost(candidate: Candidate, recipe: Recipe, request: Request, facts: Facts) -> Iterator[Reason]:
    """Rows that are longer than any were when it was planned, and than its max_length: the engine would drop them."""
    data, cut = facts.data, candidate.max_length
    accepted = recipe.data.get("longest_tokens", 0)
    if (
        "max_length" in request.pins
        or data.max_tokens <= max(cut, accepted)
        or length_for(facts, data.max_tokens) <= cut
    ):
        return
    lost = sum(length > cut for length in data.lengths) * data.kept // max(1, len(data.lengths))
    yield Reason(
        code="data",
        text=f"about {lost} of {data.kept} rows are longer than its max_length {cut} and would be dropped "
        f"(the longest has {data.max_tokens} tokens, {accepted or 'unknown'} when it was planned)",
    )


def _version(recipe: Recipe, candidate: Candidate, facts: Facts) -> Iterator[Reason]:
    """What this version renders from the decision in another way than the one that wrote the recipe."""
    env = {name: variable.value for name, variable in arguments.environment(candidate, facts).items()}
    deepspeed, fsdp = configs(candidate, recipe.arguments)
    for name, then, now in (
        ("environment", dict(recipe.environment), env),
        ("DeepSpeed config", recipe.deepspeed, deepspeed),
        ("FSDP config", recipe.fsdp, fsdp),
    ):
        if then != now:
            yield Reason(code="version", text=f"this version of autoswift renders another {name} for it")


def holds(recipe: Recipe, facts: Facts) -> str:
    """One sentence for people: the decision is taken as it stands, and whether the data are still those it was for."""
    words = f"recipe {recipe.path}: planned for {recipe.machine_class}, taken as it stands"
    if recipe.data.get("digest") == facts.data.digest:
        return words
    return f"{words}; the data changed since ({recipe.data.get('rows')} -> {facts.data.rows} rows) and still fit"


def refusal(recipe: Recipe, reasons: tuple[Reason, ...]) -> AutoswiftError:
    """The error that ``--locked`` makes of what no longer holds: exit 3 where only memory is short, else 2."""
    kind = NothingFitsError if all(reason.code == "memory" for reason in reasons) else UsageError
    return kind(
        f"the project recipe does not hold here: {reasons[0].text}",
        where=recipe.path,
        figures=tuple(f"also: {reason.text}" for reason in reasons[1:]),
        hints=(
            "drop --locked to plan again",
            f"autoswift plan --recipe {recipe.path} --save-recipe {recipe.path} --force   writes the new decision",
        ),
    )


def said(recipe: Recipe, reasons: tuple[Reason, ...]) -> str:
    """One sentence for people: what no longer holds, and that the job is planned again."""
    if reasons[0].code == "unplanned":
        return f"recipe {recipe.path}: a request without a decision, planned now"
    return f"recipe {recipe.path} no longer holds: {'; '.join(reason.text for reason in reasons)}. Planned again"
