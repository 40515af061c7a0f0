"""What every term of the predictor reads: one candidate on one model, with the invariants counted once.

Letters: s tokens of a row, b micro batch, T = b s tokens of a micro batch on one rank, h hidden, q = heads x
head_dim, k = kv_heads x head_dim, i intermediate (active experts together), L layers, V vocabulary, r LoRA rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache

from swift_autobatch import tables
from swift_autobatch.errors import InputError
from swift_autobatch.predict.band import CALIBRATED, Band, band
from swift_autobatch.predict.profile import SWIFT, Engine
from swift_autobatch.predict.rates import Rates, rates
from swift_autobatch.predict.shape import Reach, Shape, reach, shape
from swift_autobatch.records import DTYPE_BYTES, Candidate, DataFacts, Effective, Facts, ModelFacts, replace
from swift_autobatch.tables import near


@dataclass(frozen=True, slots=True)
class Constants:
    """data/coefficients.yaml as attributes; see there for units and sources."""

    context_gib: float
    nccl_gib: float
    reserve_lasting: float
    reserve_layers: float
    reserve_passing: float
    reserve_varied: float
    cpu_process_gib: float
    cpu_heap_layers: float
    cpu_heap_passing: float
    gpu_process_gib: float
    worker_gib: float


@cache
def _defaults() -> Constants:
    return Constants(**{field.name: tables.coefficients()[field.name].value for field in fields(Constants)})


def constants(calibration: Mapping[str, float] | None) -> Constants:
    """The coefficients of memory, those that this machine has measured replaced by name."""
    if not calibration:
        return _defaults()
    own = {field.name: calibration.get(field.name, getattr(_defaults(), field.name)) for field in fields(Constants)}
    return Constants(**own)


def check_calibration(calibration: Mapping[str, float] | None) -> None:
    """Refuses measured coefficients that the predictor does not have.

    Raises:
        InputError: ``calibration`` names a coefficient of neither data/coefficients.yaml nor data/speed.yaml,
            and not the width of the band either.
    """
    known = {*tables.coefficients(), *tables.coefficients("speed"), CALIBRATED}
    unknown = sorted(name for name in calibration or () if name.partition(":")[0] not in known)
    if unknown:
        hints = tuple(f"did you mean {name}?" for name in near(unknown[0], sorted(known)))
        raise InputError(f"unknown coefficient {unknown[0]!r}", where="calibration", hints=hints)


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate on one model and machine: the argument of every term."""

    facts: Facts
    candidate: Candidate
    effective: Effective
    shape: Shape
    constants: Constants
    rates: Rates
    band: Band
    row_tokens: int  # of the longest row (a packed row is full)
    tokens: int  # T: of the costliest micro batch, on one rank
    kept_rows: int  # rows of that micro batch which reach the vocabulary projection
    shards: int  # ranks over which ZeRO and FSDP spread states
    trainable: int  # parameters, whole model
    beside: int  # those of them that stand beside the model's own: adapters, copies
    as_weights: int  # those of them kept in the weights' type where adapters are wider: the model's own, copies
    whole_layers: bool  # layers train as in full tuning, no adapters: full, or some layers among frozen ones
    weight_bytes_each: int  # of an unquantised weight on the device
    trainable_bytes_each: int  # of a trainable parameter on the device
    grad_bytes_each: int
    engine: Engine
    reach: Reach

    def of_trainable(self, each: int) -> int:
        """Bytes of what has ``each`` bytes a trainable parameter; what is kept in the weights' type is no wider."""
        return each * self.trainable - max(0, each - self.weight_bytes_each) * self.as_weights


def job(
    facts: Facts,
    candidate: Candidate,
    effective: Effective,
    calibration: Mapping[str, float] | None,
    engine: Engine = SWIFT,
) -> Job:
    """Derives what every term needs from the records.

    Raises:
        InputError: ``calibration`` names an unknown coefficient.
    """
    calibration = facts.calibration if calibration is None else calibration
    check_calibration(calibration)
    effective = _as_engine_does(effective, engine)
    counts = shape(facts.model)
    row = candidate.max_length if candidate.packing else min(candidate.max_tokens, candidate.max_length)
    spread = candidate.sp * candidate.cp
    if engine.rows_over_tp or candidate.parallel == "megatron":
        spread *= candidate.tp
    tokens = -(-candidate.micro_batch * (2 if engine.pairs and not candidate.packing else 1) * row // spread)
    weight, each, grad = _dtypes(candidate, effective, engine)
    own, copies, adapters = _trainable(candidate, counts, facts.model, engine)
    return Job(
        facts=facts,
        candidate=candidate,
        effective=effective,
        shape=counts,
        constants=constants(calibration),
        rates=rates(calibration),
        band=band(candidate, calibration),
        row_tokens=row,
        tokens=tokens,
        kept_rows=min(tokens, _kept(candidate, effective, facts.data, row, tokens)),
        shards=max(1, candidate.world // (candidate.tp * candidate.pp)),
        trainable=own + copies + adapters,
        beside=copies + adapters,
        as_weights=0 if candidate.tuner == "full" else own + copies,
        whole_layers=candidate.tuner == "full" or engine.trained_layers > 0,
        weight_bytes_each=weight,
        trainable_bytes_each=each,
        grad_bytes_each=grad,
        engine=engine,
        reach=reach(facts.model, engine.targets),
    )


def _as_engine_does(effective: Effective, engine: Engine) -> Effective:
    """The code paths with an engine's own put in."""
    own = {name: getattr(engine, name) for name in ("loss", "logits_rows", "attention", "optimizer")}
    changes = {name: value for name, value in own.items() if value is not None}
    return replace(effective, **changes) if changes else effective


def _trainable(candidate: Candidate, counts: Shape, model: ModelFacts, engine: Engine) -> tuple[int, int, int]:
    """Trainable parameters: (of the model's own, copies of its own, adapters).

    Full tuning trains all but the vision tower (ms-swift freezes it); adapters r (in + out) a linear.
    """
    if candidate.tuner == "full":
        return counts.total - (0 if engine.trains_tower else counts.tower), 0, 0
    ends = {"embedding": counts.embedding, "head": counts.head}
    own = counts.layer * engine.trained_layers + sum(ends[name] for name in engine.trained_in_place)
    copies = counts.embedding + counts.head if engine.trains_ends else 0
    adapters = 0 if engine.trained_layers else candidate.lora_rank * _reached(counts, model, engine)
    return own, copies, adapters


def _reached(counts: Shape, model: ModelFacts, engine: Engine) -> int:
    """Sum of in + out over the adapted linears: gate, up and down of every expert where adapters reach those."""
    if engine.targets is not None:
        return counts.layers * sum(a + b for name, a, b in model.linears if name in engine.targets)
    experts = 0
    if engine.adapted_experts and model.experts > model.experts_per_token:
        idle = (model.params_total - model.params_active) // (model.experts - model.experts_per_token)
        inner = idle // (3 * counts.h * counts.layers)  # width of one expert of one layer
        experts = 3 * (counts.h + inner) * model.experts * counts.layers
    return counts.linear_io + experts


def _dtypes(candidate: Candidate, effective: Effective, engine: Engine) -> tuple[int, int, int]:
    """Bytes of (a frozen weight, a trainable parameter, its gradient) on the device.

    DeepSpeed casts the whole module, adapters included, to the 16-bit type and keeps fp32 masters apart
    (engine.py `_configure_distributed_model`); PEFT keeps adapters in fp32; FSDP2 under accelerate upcasts
    what is trainable to fp32 (fsdp_utils.py `fsdp2_prepare_model`).
    """
    stored = DTYPE_BYTES[candidate.torch_dtype]
    if engine.trainable_bytes is not None:
        return stored, engine.trainable_bytes, engine.trainable_bytes
    if candidate.uses_deepspeed:
        each = 4 if effective.precision == "fp32" else 2
        return each, each, each
    if candidate.parallel == "megatron":
        return stored, stored, 4  # gradients are accumulated in fp32
    if candidate.uses_fsdp or candidate.tuner != "full":
        return stored, 4, 4
    return stored, stored, stored


def _kept(candidate: Candidate, effective: Effective, data: DataFacts, row: int, tokens: int) -> int:
    """Rows that reach the vocabulary projection in the costliest micro batch.

    One row a batch (and a packed row): exactly the supervised ones. Several rows: the suffix that starts at
    the earliest label of any row, so one short prompt makes the long rows keep theirs too; where the shortest
    prompt was not counted, nothing is taken off. Source: ms-swift mixin.py `prepare_logits_to_keep`.
    """
    if effective.logits_rows == "all" or not data.mean_tokens:
        return tokens
    if candidate.packing:
        return round(tokens * min(1.0, data.mean_supervised_tokens / data.mean_tokens)) + 1
    if candidate.micro_batch == 1 or candidate.padding_free:
        return candidate.micro_batch * min(row, data.max_supervised_tokens) + 1
    return candidate.micro_batch * min(row, row - data.min_prompt_tokens + 1)
