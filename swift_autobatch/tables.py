"""Loads GPUs, model shapes, engine dialects, coefficients and strategies into immutable mappings.

Unknown keys are refused with file:line. Nothing is read before it is asked for, and each file once.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

from swift_autobatch.errors import InputError
from swift_autobatch.footprint_file import load
from swift_autobatch.records import Footprint, FootprintKey

DATA = Path(__file__).parent / "data"
DIALECT = "ms-swift-4.6"  # the spelling that autoswift reads and plans in; others are translated when rendered
DIALECTS: Mapping[str, str] = {"4.6": DIALECT, "3.12": "ms-swift-3.12"}  # by minor version of the engine

_GPU_KEYS = frozenset(
    "name vendor smi_names compute_capability memory_gib_marketing memory_mib_reported memory_source "
    "mem_bandwidth_gbs tflops bf16_native flash_attn2 nvlink_gbs pcie_gen pcie_lanes p2p_supported source "
    "confidence memory_mib_alternates note flash_attn2_note aliases".split()
)
_MODEL_KEYS = frozenset(
    "id modelscope_id swift_model_type swift_template architecture native_transformers config params_total "
    "params_source published_params_b published_exact published_exact_source count_check params_breakdown tied "
    "implied source checked same_shape modelscope_same note params_active expert_tensors_transformers5 "
    "params_formula swift_model_type_candidates swift_note".split()
)
_ALIAS_KEYS = frozenset({"id", "same_shape_as", "note"})


def read_jsonl(path: Path, known: frozenset[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, row) of a table of ours.

    Raises:
        InputError: a line that is not a JSON object, or has a key outside ``known``.
    """
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"not JSON: {error}", where=f"{path}:{number}") from error
            unknown = sorted(set(row) - known)
            if unknown:
                raise InputError(f"unknown key {unknown[0]!r}", where=f"{path}:{number}")
            yield number, row


# ------------------------------------------------------------------------------------------------------- GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One accelerator of data/gpus.jsonl. ``nvlink_gb_s`` is both directions together, 0 without NVLink."""

    name: str
    vendor: str
    smi_names: tuple[str, ...]
    aliases: tuple[str, ...]
    compute_capability: tuple[int, int] | None
    memory_mib: int
    memory_mib_alternates: tuple[int, ...]
    bandwidth_gb_s: float
    tflops_16bit: float | None  # fp16 rate before Ampere, else bf16; dense, fp32 accumulate
    bf16_native: bool
    flash_attention: bool
    nvlink_gb_s: float
    pcie_gen: int | None
    pcie_lanes: int | None
    p2p: str
    confidence: str
    source: str
    line: int


def _gpu(line: int, row: Mapping[str, Any]) -> GpuRow:
    flops = row["tflops"]
    capability = str(row["compute_capability"] or "").split(".")
    return GpuRow(
        name=row["name"],
        vendor=row["vendor"],
        smi_names=tuple(row["smi_names"]),
        aliases=tuple(row.get("aliases", ())),
        compute_capability=(int(capability[0]), int(capability[1])) if len(capability) == 2 else None,
        memory_mib=row["memory_mib_reported"],
        memory_mib_alternates=tuple(row.get("memory_mib_alternates", ())),
        bandwidth_gb_s=row["mem_bandwidth_gbs"],
        tflops_16bit=flops.get("bf16_fp32acc_dense") or flops.get("fp16_fp32acc_dense"),
        bf16_native=bool(row["bf16_native"]),
        flash_attention=bool(row["flash_attn2"]),
        nvlink_gb_s=float(row["nvlink_gbs"] or 0),
        pcie_gen=row["pcie_gen"],
        pcie_lanes=row["pcie_lanes"],
        p2p=str(row["p2p_supported"]),
        confidence=row["confidence"],
        source=f"gpus.jsonl: {row['name']}",
        line=line,
    )


@cache
def gpus() -> Mapping[str, GpuRow]:
    """Every accelerator with a known memory size, by catalogue name."""
    rows = (_gpu(line, row) for line, row in read_jsonl(DATA / "gpus.jsonl", _GPU_KEYS) if row["memory_mib_reported"])
    return MappingProxyType({row.name: row for row in rows})


# ----------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One model of data/models.jsonl as published; ``facts/model.py`` turns it into ModelFacts."""

    id: str
    modelscope_id: str | None  # where ModelScope has it under another id
    architecture: str
    config: Mapping[str, Any]
    params_total: int
    params_active: int | None
    breakdown: Mapping[str, int]
    tied: bool
    implied: Mapping[str, Any]
    swift_model_type: str | None
    swift_template: str | None
    same_shape: Mapping[str, Mapping[str, str | None]]
    line: int


def _model(line: int, row: Mapping[str, Any]) -> ModelRow:
    return ModelRow(
        id=row["id"],
        modelscope_id=row["modelscope_id"],
        architecture=row["architecture"],
        config=row["config"],
        params_total=row["params_total"],
        params_active=row.get("params_active"),
        breakdown=row["params_breakdown"],
        tied=row["tied"],
        implied=row["implied"],
        swift_model_type=row["swift_model_type"],
        swift_template=row["swift_template"],
        same_shape=row["same_shape"],
        line=line,
    )


@cache
def models() -> Mapping[str, ModelRow]:
    """The catalogue by lower-case id: rows, ids of the same shape, and aliases."""
    found: dict[str, ModelRow] = {}
    for line, raw in read_jsonl(DATA / "models.jsonl", _MODEL_KEYS):
        row = _model(line, raw)
        found[row.id.lower()] = row
        for twin in row.same_shape:
            found.setdefault(twin.lower(), row)
    for line, raw in read_jsonl(DATA / "aliases.jsonl", _ALIAS_KEYS):
        target = found.get(raw["same_shape_as"].lower())
        if target is None:
            raise InputError(f"alias of an unknown model {raw['same_shape_as']!r}", where=f"aliases.jsonl:{line}")
        found.setdefault(raw["id"].lower(), target)
    return MappingProxyType(found)


@cache
def model_ids() -> Mapping[str, str]:
    """Every id of the catalogue as it is spelled, by lower-case id."""
    ids = [name for row in {row.id: row for row in models().values()}.values() for name in (row.id, *row.same_shape)]
    ids += [raw["id"] for _, raw in read_jsonl(DATA / "aliases.jsonl", _ALIAS_KEYS)]
    return MappingProxyType({name.lower(): name for name in reversed(ids)})


def near(name: str, names: Iterator[str] | list[str], count: int = 3, cutoff: float = 0.62) -> tuple[str, ...]:
    """The names most like ``name``, best first; for 'did you mean' hints. ``cutoff`` is difflib's, 1 for equal."""
    by_lower = {other.lower(): other for other in names}
    return tuple(by_lower[hit] for hit in difflib.get_close_matches(name.lower(), by_lower, n=count, cutoff=cutoff))


# -------------------------------------------------------------------------------------------------- dialects


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One engine flag. ``kind`` is bool | int | float | str | json; ``many`` takes several values."""

    name: str
    kind: str
    many: bool
    optional: bool
    default: Any
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The command line of one engine version: its flags, and names that older versions used."""

    name: str
    version: str
    flags: Mapping[str, Flag]
    renamed: Mapping[str, str]  # old name -> what to write now, in words ("--tuner_type")
    names: Mapping[str, str] = field(default_factory=dict)  # our flag -> how this version spells it, where that differs
    absent: frozenset[str] = frozenset()  # our flags that this version does not have


@cache
def dialect(name: str = DIALECT) -> Dialect:
    """Loads data/dialects/<name>.json, written by scripts/make_dialect.py from the installed engine."""
    raw = json.loads((DATA / "dialects" / f"{name}.json").read_text(encoding="utf-8"))
    flags = {
        key: Flag(
            name=key,
            kind=value["kind"],
            many=value.get("many", False),
            optional=value.get("optional", False),
            default=value.get("default"),
            choices=tuple(value.get("choices", ())),
        )
        for key, value in raw["flags"].items()
    }
    return Dialect(
        name=name,
        version=raw["version"],
        flags=MappingProxyType(flags),
        renamed=MappingProxyType(raw["renamed"]),
        names=MappingProxyType(raw.get("names", {})),
        absent=frozenset(raw.get("absent", ())),
    )


def dialect_of(version: str | None) -> str | None:
    """The dialect of an installed engine; ours where none is installed, None where its flags are not known."""
    return DIALECT if version is None else DIALECTS.get(".".join(version.split(".")[:2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModels:
    """How one engine version tells a model's type and chat template; all keys as the engine spells them.

    ``ids`` is keyed by the lower-case last path component of a registered id; ``architectures`` holds the
    candidate types of ``architectures[0]`` (one is taken, several are refused); ``templates`` the type's own
    template (None: it depends on the id) and ``candidates`` all its templates.
    ``all_templates`` are those that the engine knows, also such as belong to no type.
    """

    ids: Mapping[str, tuple[str, str | None]]
    architectures: Mapping[str, tuple[str, ...]]
    templates: Mapping[str, str | None]
    candidates: Mapping[str, tuple[str, ...]]
    multimodal: frozenset[str]
    all_templates: tuple[str, ...]
    unpackable: frozenset[str]  # types whose template supports neither packing nor padding_free


@cache
def engine_models(name: str = DIALECT) -> EngineModels:
    """Loads data/dialects/<name>.models.json, written by scripts/make_model_types.py from the installed engine."""
    raw = json.loads((DATA / "dialects" / f"{name}.models.json").read_text(encoding="utf-8"))
    types = raw["types"]
    return EngineModels(
        ids=MappingProxyType({key: (value[0], value[1]) for key, value in raw["ids"].items()}),
        architectures=MappingProxyType({key: tuple(value) for key, value in raw["architectures"].items()}),
        templates=MappingProxyType({key: value["template"] for key, value in types.items()}),
        candidates=MappingProxyType({key: tuple(value["templates"]) for key, value in types.items()}),
        multimodal=frozenset(key for key, value in types.items() if value["multimodal"]),
        all_templates=tuple(raw["templates"]),
        unpackable=frozenset(key for key, value in types.items() if not value["packs"]),
    )


# ------------------------------------------------------------------------------------------------ footprints


@cache
def footprints(digest: str) -> Mapping[FootprintKey, Footprint]:
    """What was traced of models of one shape (:func:`footprint_file.model_digest`); empty where nothing was shipped."""
    for path in sorted((DATA / "footprints").glob(f"*-{digest}.xz")):
        return load(path.read_bytes(), str(path))
    return MappingProxyType({})


# ---------------------------------------------------------------------------------------------- coefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficient:
    """One real-valued constant of the predictor, with its unit and source."""

    value: float
    unit: str
    source: str


@cache
def coefficients(table: Literal["coefficients", "speed"] = "coefficients") -> Mapping[str, Coefficient]:
    """data/<table>.yaml: the only real-valued constants of the memory prediction, or of the step time.

    Raises:
        InputError: a key that the table does not know, or a constant without unit or source.
    """
    path = DATA / f"{table}.yaml"
    raw = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    found: dict[str, Coefficient] = {}
    for name, row in raw["coefficients"].items():
        if set(row) != {"value", "unit", "source"}:
            raise InputError(f"{name} must have value, unit and source, nothing else", where=str(path))
        found[name] = Coefficient(**row)
    return MappingProxyType(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Shares of the dense 16-bit rate that a kind of chip reaches; one of ``cards`` and ``capability`` is given."""

    cards: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    matmul: float
    attention: float
    l2_mib: float
    source: str


@cache
def chips() -> tuple[Chip, ...]:
    """The chips of data/speed.yaml, in the order in which they are looked up.

    Raises:
        InputError: a row names a card that the catalogue does not have, or has neither cards nor a capability.
    """
    path = DATA / "speed.yaml"
    raw = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    found = []
    for row in raw["chips"]:
        cards, capability = tuple(row.pop("cards", ())), row.pop("capability", None)
        unknown = sorted(set(cards) - set(gpus()))
        if unknown or bool(cards) == bool(capability):
            what = f"no card named {unknown[0]!r}" if unknown else "a chip needs either cards or a capability"
            raise InputError(what, where=str(path))
        found.append(Chip(cards=cards, capability=tuple(capability) if capability else None, **row))
    return tuple(found)


@cache
def chip(card: str | None, capability: tuple[int, int]) -> Chip:
    """The chip of a card by its catalogue name, else the newest one that its capability is not below."""
    for row in chips():
        if card in row.cards:
            return row
    known = [row for row in chips() if row.capability is not None and row.capability <= capability]
    return max(known, key=lambda row: row.capability or (0, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Quantiles of measured over predicted, of what does not last, in ``runs`` published runs."""

    runs: int
    p50: float
    p99: float


@cache
def residuals() -> Mapping[str, Residual]:
    """data/residuals.yaml by kind of configuration; ``all`` is always there."""
    raw = yaml.load((DATA / "residuals.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return MappingProxyType({kind: Residual(**row) for kind, row in raw["kinds"].items()})
