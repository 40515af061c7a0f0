"""Every legal combination recipe x knobs, and for each illegal one why."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from swift_autobatch import rules
from swift_autobatch.errors import InputError, UsageError
from swift_autobatch.records import Candidate, DataFacts, Dtype, Facts, Illegal, Request, Sourced, Strategy
from swift_autobatch.strategies import find_strategy
from swift_autobatch.tables import near

METHODS: Mapping[str, tuple[str, ...]] = {
    "none": ("none", "ddp"),
    "deepspeed": ("zero0", "zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"),
    "fsdp": ("fsdp2", "fsdp2_offload"),
    "megatron": ("megatron",),
}
_LENGTH_STEP = 256


Family = tuple[Candidate, ...]  # alike but for the micro batch, ascending, and the accumulation that follows from it


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be chosen from: legal candidates, illegal ones with their rule, strategies that do not apply.

    ``unrendered`` is legal but for the renderer: Megatron, which is predicted and explained but never chosen.
    """

    families: tuple[Family, ...]
    illegal: tuple[Illegal, ...]  # the first of each strategy and rule
    skipped: tuple[tuple[str, str], ...]  # (strategy, why not)
    unrendered: tuple[Family, ...] = ()

    @property
    def legal(self) -> tuple[Candidate, ...]:
        return tuple(itertools.chain.from_iterable(self.families))


def enumerate_space(
    facts: Facts,
    request: Request,
    table: tuple[Strategy, ...],
    pins: Mapping[str, Sourced[Any]],
    max_length: int | None = None,
) -> Space:
    """Expands the strategy table on these facts.

    Args:
        pins: candidate fields that engine flags decide (:func:`pins.pinned_fields`).
        max_length: the cut to plan for; None: no row is cut.

    Returns:
        the space, which may hold nothing legal: :func:`refusal` says why.

    Raises:
        UsageError: a forced strategy does not exist.
    """
    chosen = [find_strategy(request.strategy.value, table)] if request.strategy.value else list(table)
    forced = request.strategy.value is not None
    found = _Found()
    for strategy in chosen:
        why_not = _does_not_apply(strategy, facts, request, pins) or _pinned_otherwise(strategy, pins, request)
        if why_not:
            found.skipped.append((strategy.name, why_not))
        else:
            _expand(strategy, facts, request, pins, max_length, found)
    if not found.families and not found.illegal and not forced and _pinned_otherwise(_PINNED, pins, request) is None:
        # The pins name a combination that no recipe stands for: plan exactly that.
        _expand(_PINNED, facts, request, pins, max_length, found)
    return Space(
        families=tuple(found.families),
        illegal=tuple(found.illegal.values()),
        skipped=tuple(found.skipped),
        unrendered=tuple(found.unrendered),
    )


@dataclass(slots=True)
class _Found:
    """What the expansion has met so far."""

    families: list[Family] = field(default_factory=list)
    unrendered: list[Family] = field(default_factory=list)
    illegal: dict[tuple[str, str], Illegal] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)


_PINNED = Strategy(
    name="pinned",
    summary="as pinned by flags",
    when={},
    use={},
    search={"micro_batch": ("auto",), "gradient_checkpointing": (True, False)},
    because="Every choice that a strategy makes was pinned.",
    limits="",
    example="",
    path="",
)


def decided_space(facts: Facts, request: Request, pins: Mapping[str, Sourced[Any]]) -> Space:
    """The one candidate that the project recipe decided, checked against the rules on these facts.

    Raises:
        UsageError: it is not legal here, or the recipe names a field that no candidate has.
    """
    recipe = request.decided
    assert recipe is not None
    assert recipe.candidate is not None
    fields = {**_base(facts, pins, recipe.candidate.get("max_length")), **recipe.candidate}
    fields["max_tokens"] = _longest_kept(facts, fields["max_length"])
    try:
        candidate = Candidate(**fields)
    except TypeError as error:
        known = list(Candidate.__dataclass_fields__)
        unknown = next((name for name in recipe.candidate if name not in known), "")
        raise UsageError(
            f"unknown key {unknown!r} in planned.candidate",
            where=recipe.path,
            hints=tuple(f"did you mean {name!r}?" for name in near(unknown, known, 1)),
        ) from error
    broken = rules.check(candidate, facts, rules.Flags(request.pins))
    if broken is not None:
        raise UsageError(
            f"the recipe's plan is not legal here: {broken.why} (rule {broken.rule})",
            where=recipe.path,
            hints=(broken.fix,),
        )
    return Space(families=((candidate,),), illegal=(), skipped=())


def length_for(facts: Facts, longest: int) -> int:
    """The max_length that keeps a row of ``longest`` tokens: the next multiple of 256 within the model's limit.

    Rows are padded to the longest of their batch, so an unused max_length costs nothing.
    """
    rounded = max(_LENGTH_STEP, ceil(longest / _LENGTH_STEP) * _LENGTH_STEP)
    return min(rounded, facts.model.max_position) if facts.model.max_position else rounded


def batch_target(request: Request, data: DataFacts, ranks: int) -> int:
    """Rows of an optimizer step that is aimed at: the asked ones, at most every row that ``ranks`` share equally.

    An epoch ends with a step of whatever rows are left, so that no step holds more than an epoch's rows.
    """
    return min(request.global_batch.value, _shared_rows(data, ranks))


def rows_a_step(candidate: Candidate, data: DataFacts) -> int:
    """Rows that an optimizer step really learns from: the effective batch, at most an epoch's rows."""
    return min(candidate.effective_batch, _shared_rows(data, candidate.dp))


def _shared_rows(data: DataFacts, ranks: int) -> int:
    """Rows of an epoch; the engine gives every rank as many. Source: swift/dataloader/shard.py."""
    return max(ranks, data.kept // ranks * ranks)


def as_run(candidate: Candidate, data: DataFacts) -> Candidate:
    """The candidate with no more accumulation than an epoch has micro batches: the engine ends the step there."""
    batches = max(1, ceil(data.kept / candidate.dp / candidate.micro_batch))
    return candidate if candidate.accumulation <= batches else replace(candidate, accumulation=batches)


def default_dtype(facts: Facts) -> Sourced[Dtype]:
    """bf16 where every card has it natively, else fp16; on a CPU the checkpoint's own, fp16 becoming fp32."""
    if facts.machine.gpus:
        if all(gpu.bf16_native for gpu in facts.machine.gpus):
            return Sourced(value="bfloat16", source="compute capability 8.0 or newer: native bf16")
        old = next(gpu for gpu in facts.machine.gpus if not gpu.bf16_native)
        capability = ".".join(map(str, old.compute_capability))
        return Sourced(value="float16", source=f"compute capability {capability} has no native bf16")
    if facts.model.dtype == "bfloat16":
        return Sourced(value="bfloat16", source="checkpoint dtype, on CPU")
    return Sourced(value="float32", source="CPU: fp16 does not train there")


def _does_not_apply(strategy: Strategy, facts: Facts, request: Request, pins: Mapping[str, Sourced[Any]]) -> str | None:
    """Why a strategy's ``when`` excludes it. A forced one may be rehearsed on a CPU and on short rows."""
    when, machine = strategy.when, facts.machine
    tuner = pins["tuner"].value if "tuner" in pins else "lora"
    if "tuner" in when and tuner not in when["tuner"]:
        return f"it is for --tuner_type {' or '.join(when['tuner'])}, not {tuner}"
    devices = when.get("devices", {})
    if machine.processes < devices.get("min", 1):
        return f"it needs {devices['min']} devices, there is {machine.processes}"
    if machine.processes > devices.get("max", machine.processes):
        return f"it is for {devices['max']} device, there are {machine.processes}"
    if when.get("accelerator") == "cpu" and machine.gpus:
        return "it is for machines without an accelerator"
    if request.strategy.value is not None:
        return None
    if "accelerator" in when and when["accelerator"] != machine.accelerator:
        return f"it needs a {when['accelerator'].upper()}"
    if when.get("on_request"):
        return f"only on request: --strategy {strategy.name}"
    if request.prefer.value not in when.get("prefer", (request.prefer.value,)):
        return f"only on request: --strategy {strategy.name}, or --prefer {' or '.join(when['prefer'])}"
    tokens = when.get("tokens", {})
    if facts.data.max_tokens < tokens.get("min", 0):
        return f"the longest row has {facts.data.max_tokens} tokens, it is for {tokens['min']} or more"
    if facts.data.max_tokens > tokens.get("max", facts.data.max_tokens):
        return f"the longest row has {facts.data.max_tokens} tokens, it is for at most {tokens['max']}"
    return None


def _pinned_otherwise(strategy: Strategy, pins: Mapping[str, Sourced[Any]], request: Request) -> str | None:
    """Why the user's pins exclude this strategy."""
    for name, value in strategy.use.items():
        if name in pins and pins[name].value != value:
            return f"{name} {value} is not what {pins[name].source} pins ({pins[name].value})"
    for name, values in strategy.search.items():
        if name in pins and name in ("parallel", "quant", "sp", "tp") and pins[name].value not in values:
            return f"{name} {pins[name].value}, pinned by {pins[name].source}, is not in its range"
    method = request.parallel_method.value
    if method != "auto":
        allowed = METHODS[method]
        options = _options(strategy, "parallel", pins) or ("none",)
        if not set(options) & set(allowed):
            return f"--parallel-method {method} excludes it"
    return None


def _options(strategy: Strategy, knob: str, pins: Mapping[str, Sourced[Any]]) -> tuple[Any, ...]:
    if knob in pins:
        return (pins[knob].value,)
    if knob in strategy.use:
        return (strategy.use[knob],)
    return strategy.search.get(knob, ())


def _expand(
    strategy: Strategy,
    facts: Facts,
    request: Request,
    pins: Mapping[str, Sourced[Any]],
    max_length: int | None,
    found: _Found,
) -> None:
    """Adds a strategy's families to ``found``. No rule reads the micro batch, so one member answers for its family."""
    flags = rules.Flags(request.pins)
    for members in _families(strategy, facts, request, pins, max_length):
        first = next(members)
        broken = rules.check(first, facts, flags)
        if broken is None:
            found.families.append((first, *members))
            continue
        found.illegal.setdefault((strategy.name, broken.rule), broken)
        if broken.rule == rules.UNRENDERED:
            found.unrendered.append((first, *members))


def _families(
    strategy: Strategy, facts: Facts, request: Request, pins: Mapping[str, Sourced[Any]], max_length: int | None
) -> Iterator[Iterator[Candidate]]:
    base = _base(facts, pins, max_length)
    knobs = [name for name in strategy.search if name != "micro_batch" and name not in pins]
    allowed = METHODS.get(request.parallel_method.value)
    world = facts.machine.processes
    for values in itertools.product(*(strategy.search[name] for name in knobs)):
        fields = {**base, **strategy.use, **dict(zip(knobs, values, strict=True)), **_values(pins)}
        if "parallel" not in fields:
            fields["parallel"] = "ddp" if world > 1 else "none"
        if allowed and fields["parallel"] not in allowed:
            continue
        if "parallel" not in pins and fields["parallel"] == ("ddp" if world == 1 else "none"):
            continue  # data parallel over one process, or several processes that know nothing of each other
        split = fields.get("sp", 1) * fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)
        if split > world and not _SPLITS & set(pins):
            continue  # more parts than cards: no rule needs to say so
        yield _batches(strategy, fields, max(1, world // split), request, facts)


_SPLITS = frozenset({"sp", "tp", "pp", "cp"})


def _batches(
    strategy: Strategy, fields: dict[str, Any], ranks: int, request: Request, facts: Facts
) -> Iterator[Candidate]:
    """One candidate per micro batch, with the least accumulation that reaches the target batch."""
    target = batch_target(request, facts.data, ranks)
    if "micro_batch" in fields:
        sizes: tuple[int, ...] = (fields.pop("micro_batch"),)
    else:
        sizes = _micro_batches(strategy, target, ranks, facts)
    accumulation = fields.pop("accumulation", None)
    for size in sizes:
        steps = accumulation or max(1, ceil(target / (size * ranks)))
        yield Candidate(strategy=strategy.name, micro_batch=size, accumulation=steps, **fields)


def _micro_batches(strategy: Strategy, target: int, ranks: int, facts: Facts) -> tuple[int, ...]:
    wanted = strategy.search.get("micro_batch", ("auto",))
    if wanted != ("auto",):
        return tuple(int(size) for size in wanted)
    share = ceil(target / ranks)
    limit = max(1, min(share, ceil(max(1, facts.data.kept) / ranks)))
    powers = {2**power for power in range(limit.bit_length())}
    divisors = {size for size in range(1, limit + 1) if share % size == 0}  # these reach the asked batch exactly
    return tuple(sorted(size for size in powers | divisors if size <= limit))


def _base(facts: Facts, pins: Mapping[str, Sourced[Any]], max_length: int | None) -> dict[str, Any]:
    longest = max(facts.data.max_tokens, facts.data.bound_tokens)  # an unused max_length is free, a dropped row is not
    limit = pins["max_length"].value if "max_length" in pins else max_length or length_for(facts, longest)
    _some_row_trains(facts, limit, pins)
    return {
        "device": facts.machine.accelerator,
        "world": facts.machine.processes,
        "tuner": "lora",
        "quant": "none",
        "attn_impl": None,
        "torch_dtype": default_dtype(facts).value,
        "max_length": limit,
        "max_tokens": max(1, min(limit, _longest_kept(facts, limit))),
        "gradient_checkpointing": True,
    }


def _some_row_trains(facts: Facts, limit: int, pins: Mapping[str, Sourced[Any]]) -> None:
    """The engine deletes rows above max_length; where that is all of them there is nothing to plan for."""
    shortest = facts.data.lengths[0] if facts.data.lengths else 0
    if shortest <= limit or facts.cuts_rows:
        return
    pinned = "max_length" in pins
    longer = () if pinned is False else (f"--max_length {length_for(facts, facts.data.max_tokens)} keeps every row",)
    raise InputError(
        f"every row is longer than {'max_length' if pinned else 'the model can take'}: {limit} tokens, "
        f"the shortest row has {shortest}",
        where="--max_length" if pinned else "--dataset",
        hints=(*longer, "--truncation_strategy right cuts rows instead of dropping them", "split the rows"),
    )


def _longest_kept(facts: Facts, limit: int) -> int:
    """The longest row that trains: the engine deletes longer ones."""
    if facts.cuts_rows:
        return min(limit, facts.data.max_tokens)
    return max((length for length in facts.data.lengths if length <= limit), default=limit)


def _values(pins: Mapping[str, Sourced[Any]]) -> dict[str, Any]:
    return {name: pin.value for name, pin in pins.items() if name != "max_length"}
