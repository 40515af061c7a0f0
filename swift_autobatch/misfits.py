"""Pinned engine flags that do not fit the model or each other: refused where the engine would stop, else noted."""

from __future__ import annotations

from collections.abc import Iterator

from swift_autobatch.errors import UsageError
from swift_autobatch.records import Candidate, Facts, ModelFacts, Request
from swift_autobatch.tables import DIALECT, dialect, dialect_of, engine_models, near

# What a user's own code may add to the engine's registries.
_REGISTERING = frozenset({"external_plugins", "custom_register_path"})
# Words of --target_modules that are no module's name. Source: swift/pipelines/train/tuner.py:93-110.
_GROUPS = frozenset({"all-linear", "all-embedding", "all-router"})
_ENDS = frozenset({"lm_head", "embed_tokens"})
# Flags that only adapters read. Source: swift/arguments/tuner_args.py.
_ADAPTER_FLAGS = (
    "lora_rank lora_alpha lora_dropout lora_bias lora_dtype lorap_lr_ratio use_rslora use_dora target_modules "
    "target_regex target_parameters modules_to_save init_weights"
).split()


def refuse(request: Request, facts: Facts) -> None:
    """Stops at pins with which the engine would stop after loading.

    Raises:
        UsageError: a flag that the installed engine does not have, a template or model type that it does not know, or
            adapters on no module of the model.
    """
    _known_here(request, facts)
    _registered(request, "template", engine_models().all_templates)
    _registered(request, "model_type", tuple(engine_models().templates))
    _some_target(request, facts.model)


def notes(candidate: Candidate, facts: Facts, request: Request) -> Iterator[str]:
    """What of the pins has no effect, or another than it seems to have."""
    longest = facts.model.max_position
    if "max_length" in request.pins and 0 < longest < candidate.max_length:
        yield (
            f"--max_length {candidate.max_length} is above the {longest} positions of the model: rows beyond them "
            "train on positions that it never saw (--rope_scaling stretches them)"
        )
    if candidate.tuner == "full":
        idle = [f"--{flag}" for flag in _ADAPTER_FLAGS if flag in request.pins]
        if idle:
            verb = "have" if len(idle) > 1 else "has"
            yield f"{', '.join(idle)} {verb} no effect: full tuning trains the weights themselves, without adapters"
    yield from _costed_otherwise(candidate, request)
    unknown = [] if candidate.tuner == "full" else _unknown_targets(request, facts.model)
    if unknown:
        yield f"--target_modules {' '.join(unknown)}: no linear module of the decoder has that name"


# Pins that the prediction does not follow: what it takes instead, and which way it is off.
_COSTED_OTHERWISE = (
    ("use_dora", "DoRA is costed as LoRA: it needs more memory and time"),
    ("use_galore", "GaLore is costed as whole AdamW states: it needs less memory"),
)


def _costed_otherwise(candidate: Candidate, request: Request) -> Iterator[str]:
    for flag, words in _COSTED_OTHERWISE:
        if _said(request, flag) == "true" and (flag != "use_dora" or candidate.tuner != "full"):
            yield words
    pin = request.pins.get("target_modules")
    asked = () if pin is None else (pin.value,) if isinstance(pin.value, str) else pin.value
    if candidate.tuner != "full" and asked and "all-linear" not in asked:
        yield "adapters are costed on every linear module: those of --target_modules alone need less"


def _known_here(request: Request, facts: Facts) -> None:
    """A flag of today that the engine on the machine is too old for."""
    version = facts.machine.software.versions.get("ms-swift")
    engine = dialect(dialect_of(version) or DIALECT)
    for flag, pin in request.pins.items():
        if flag in engine.absent:
            raise UsageError(
                f"ms-swift {version} has no --{flag}",
                where=pin.source.removeprefix("flag "),
                hints=(f"drop --{flag}", "pip install 'ms-swift>=4.6,<4.7'"),
            )


def _registered(request: Request, flag: str, known: tuple[str, ...]) -> None:
    pin = request.pins.get(flag)
    if pin is None or pin.value in known or _REGISTERING & set(request.pins):
        return
    alike = near(str(pin.value), list(known))
    raise UsageError(
        f"{DIALECT} has no {flag.replace('_', ' ')} called {pin.value!r}",
        where=f"--{flag}",
        hints=(
            f"did you mean {', '.join(alike)}?" if alike else f"drop --{flag}: the model's own is found by itself",
            "--external_plugins FILE.py  if that file registers it",
        ),
    )


def _said(request: Request, flag: str) -> str:
    pin = request.pins.get(flag)
    return pin.value if pin is not None and isinstance(pin.value, str) else ""


def _some_target(request: Request, model: ModelFacts) -> None:
    """Source: peft/tuners/tuners_utils.py 'Target modules ... not found in the base model'."""
    unknown = _unknown_targets(request, model)
    pin = request.pins.get("target_modules")
    if not unknown or pin is None or _said(request, "tuner_type") == "full":
        return
    words = (pin.value,) if isinstance(pin.value, str) else pin.value
    if len(unknown) < len(words) or model.experts or model.params_vision:
        return  # some adapters are made, or modules may be meant that are not listed
    names = tuple(dict.fromkeys(name for name, _, _ in model.linears))
    alike = near(unknown[0], list(names))
    raise UsageError(
        f"{model.id} has no module called {' or '.join(unknown)}: adapters would have nothing to adapt",
        where="--target_modules",
        hints=(
            *((f"did you mean {', '.join(alike)}?",) if alike else ()),
            f"--target_modules {' '.join(names)}",
            "--target_modules all-linear",
        ),
    )


def _unknown_targets(request: Request, model: ModelFacts) -> list[str]:
    """Words of --target_modules that name nothing known; [] where the model's modules are not known."""
    pin = request.pins.get("target_modules")
    if pin is None or not model.linears:
        return []
    words = (pin.value,) if isinstance(pin.value, str) else pin.value
    known = {name for name, _, _ in model.linears} | _GROUPS | _ENDS
    return [word for word in words if word.rsplit(".", 1)[-1] not in known]
