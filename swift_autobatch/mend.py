"""The smallest edits that make a refused request legal: each is planned, so each comes with its GiB and seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from swift_autobatch.candidates import enumerate_space
from swift_autobatch.engine_flags import Value, shown
from swift_autobatch.errors import AutoswiftError, NotLegalError
from swift_autobatch.pins import pinned_fields
from swift_autobatch.records import Candidate, Facts, Prediction, Request, Sourced, Strategy
from swift_autobatch.refusal import refusal
from swift_autobatch.search import Costs, best, order_for
from swift_autobatch.units import show_gib, show_seconds

_MOST_TRIALS = 40  # searches of some 10 ms
_MOST_EDITS = 3
_SHOWN = 4
FIXED = "fixed: "  # begins the note of an edit that was applied

# Flags that say one thing together: given up together.
_UNITS: tuple[tuple[str, ...], ...] = (
    ("quant_method", "quant_bits", "bnb_4bit_compute_dtype", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant"),
    ("packing", "padding_free"),
)
# Other values of a flag that keep most of what it asks for; nearest first.
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "deepspeed": ("zero2", "zero2_offload", "zero1", "zero3"),
    "torch_dtype": ("bfloat16", "float16", "float32"),
    "attn_impl": ("sdpa", "flash_attention_2"),
    "truncation_strategy": ("right",),
    "report_to": ("tensorboard",),
    "tuner_type": ("lora", "full"),
    "sequence_parallel_size": ("8", "4", "2"),
    "deepspeed_autotp_size": ("8", "4", "2"),
    "max_steps": (),
}
# What can be added instead of giving something up, by rule.
_ADDITIONS: Mapping[str, Mapping[str, str]] = {
    "quant-bits-alone": {"quant_method": "bnb"},
    "quant-method-alone": {"quant_bits": "4"},
    "quant-kind": {"quant_method": "bnb", "quant_bits": "4"},
    "padding-free-needs-flash": {"attn_impl": "flash_attention_2"},
    "sp-ring-needs-padding-free": {"padding_free": "true", "attn_impl": "flash_attention_2"},
    "autotp-needs-deepspeed": {"deepspeed": "zero1"},
    "hpz-without-zero3": {"deepspeed": "zero3"},
    "fp16-full-weights": {"deepspeed": "zero2"},
    "target-parameters-dropout": {"lora_dropout": "0"},
    "load-best-unevaluated": {"split_dataset_ratio": "0.01"},
}
_LEARNS = frozenset({"tuner_type"})  # another value trains something else: offered, never applied unasked


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """One way to make the request legal, and the best plan that it leads to."""

    edits: tuple[str, ...]  # in words, each as it would be typed
    request: Request
    candidate: Candidate
    prediction: Prediction
    learns_otherwise: bool

    @property
    def words(self) -> str:
        """The edit, and what it leads to."""
        return (
            f"{' and '.join(self.edits)}: {self.candidate.strategy}, {show_gib(self.prediction.demand_bytes)} a "
            f"{'card' if self.candidate.device == 'gpu' else 'process'}, {show_seconds(self.prediction.step_s)} a step"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A request some edits away from the one that was refused."""

    request: Request
    edits: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()  # that were touched
    given_up: int = 0  # flags among them that are gone
    learns_otherwise: bool = False


def mends(request: Request, facts: Facts, table: tuple[Strategy, ...], root: Path) -> tuple[Mend, ...]:
    """Edits after which a legal plan fits, the best of each set of flags: least given up first, then the fastest.

    Args:
        request: one that was refused because no candidate is legal.
        table: the strategy table.
        root: the project folder, for a config that the request names.
    """
    costs, order = Costs(facts), order_for(request, facts)
    found: list[tuple[_Trial, Mend]] = []
    front, seen, tried = [_Trial(request=request)], {_key(request)}, 0
    for _ in range(_MOST_EDITS + 1):
        following: list[_Trial] = []
        for trial in front:
            tried += 1
            if tried > _MOST_TRIALS:
                break
            try:
                space = enumerate_space(facts, trial.request, table, pinned_fields(trial.request, root))
            except AutoswiftError:
                continue  # an edit that leads to another kind of error is none
            scored = best(space.families, costs, order)
            if scored is not None:
                found.append((trial, _mend(trial, *scored)))
            elif not space.families:
                rules = {item.rule: item.about for item in space.illegal}
                for edited in _edits(trial, next(iter(rules.items()), ("", ()))):
                    if _key(edited.request) not in seen:
                        seen.add(_key(edited.request))
                        following.append(edited)
        front = following
        if found or not front:  # a smaller edit makes larger ones uninteresting
            break
    found.sort(key=lambda pair: (*_size(pair[0]), float(f"{pair[1].prediction.epoch_s:.2g}")))
    nearest = {trial.flags: mend for trial, mend in reversed(found)}  # the first of each set of flags
    kept = sorted(nearest.values(), key=[mend for _, mend in found].index)
    return tuple(kept[:_SHOWN])


def offered(
    error: NotLegalError, request: Request, facts: Facts, table: tuple[Strategy, ...], root: Path
) -> NotLegalError:
    """A refusal with the edits that would end it, each planned; as it was where none was found."""
    found = () if request.decided is not None else mends(request, facts, table, root)
    if not found:
        return error
    last: tuple[str, ...] = ()
    if request.fix:
        last = ("--fix changes nothing that would train something else",)
    elif not found[0].learns_otherwise:
        last = ("--fix applies the first of these",)
    hints = (*(one.words for one in found), *last)
    return NotLegalError(error.what, where=error.where, figures=error.figures, hints=hints)


def fixed(request: Request, facts: Facts, table: tuple[Strategy, ...], root: Path) -> tuple[Request, str]:
    """The request after the smallest edit that makes it legal, and what was done in one sentence.

    Returns:
        the request itself and "" where nobody asked for ``--fix``, where it is legal, or where every edit would train
        something else.
    """
    if not request.fix or request.decided is not None:
        return request, ""
    space = enumerate_space(facts, request, table, pinned_fields(request, root))
    if space.families:
        return request, ""
    for mend in mends(request, facts, table, root):
        if not mend.learns_otherwise:
            why = refusal(request, facts, space).what.removeprefix("no legal plan: ")
            return mend.request, f"{FIXED}{' and '.join(mend.edits)}, because {why}"
    return request, ""


def _size(trial: _Trial) -> tuple[bool, int, int]:
    """How much of what was asked for an edit changes."""
    return trial.learns_otherwise, trial.given_up, len(trial.flags)


def _key(request: Request) -> tuple[object, ...]:
    pins = tuple(sorted((flag, pin.value) for flag, pin in request.pins.items()))
    return (pins, request.strategy.value, request.parallel_method.value)


def _mend(trial: _Trial, candidate: Candidate, prediction: Prediction) -> Mend:
    return Mend(
        edits=trial.edits,
        request=trial.request,
        candidate=candidate,
        prediction=prediction,
        learns_otherwise=trial.learns_otherwise,
    )


def _edits(trial: _Trial, broken: tuple[str, tuple[str, ...]]) -> Iterator[_Trial]:
    """One edit further: a value added, changed or given up that the broken rule is about."""
    rule, about = broken
    pins = trial.request.pins
    if rule in _ADDITIONS:
        yield _with(trial, _ADDITIONS[rule])
    for flag in about:
        if flag not in pins:
            continue
        for value in _OTHERS.get(flag, ()):
            if pins[flag].value != value:
                yield _with(trial, {flag: value})
        yield _without(trial, flag)
    if trial.request.strategy.value:
        freed = replace(trial.request, strategy=Sourced(value=None, source="--fix"))
        words = f"drop --strategy {trial.request.strategy.value}"
        yield _next(trial, freed, (words,), frozenset({"strategy"}), 1)
    if trial.request.parallel_method.value != "auto":
        freed = replace(trial.request, parallel_method=Sourced(value="auto", source="--fix"))
        yield _next(trial, freed, ("--parallel-method auto",), frozenset({"parallel_method"}), 0)


def _with(trial: _Trial, values: Mapping[str, str]) -> _Trial:
    pins = dict(trial.request.pins)
    edits = []
    for flag, value in values.items():
        old: Value | None = pins[flag].value if flag in pins else None
        if old == value:
            continue
        pins[flag] = Sourced(value=value, source="--fix")
        edits.append(f"--{flag} {value}" + (f" instead of {shown(old)}" if old is not None else ""))
    return _next(trial, replace(trial.request, pins=pins), tuple(edits), frozenset(values), 0)


def _without(trial: _Trial, flag: str) -> _Trial:
    unit = next((unit for unit in _UNITS if flag in unit), (flag,))
    gone = [name for name in unit if name in trial.request.pins]
    pins = {name: pin for name, pin in trial.request.pins.items() if name not in gone}
    words = f"drop {' and '.join(f'--{name}' for name in gone)}"
    return _next(trial, replace(trial.request, pins=pins), (words,), frozenset(gone), len(gone))


def _next(trial: _Trial, request: Request, edits: tuple[str, ...], flags: frozenset[str], given_up: int) -> _Trial:
    return _Trial(
        request=request,
        edits=(*trial.edits, *edits),
        flags=trial.flags | flags,
        given_up=trial.given_up + given_up,
        learns_otherwise=trial.learns_otherwise or bool(_LEARNS & flags),
    )
