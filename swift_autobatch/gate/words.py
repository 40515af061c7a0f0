"""The judge's words and figures: where it happened, what was used, and which edit comes next."""

from __future__ import annotations

from swift_autobatch.gate.evidence import Evidence
from swift_autobatch.records import Plan
from swift_autobatch.schedule import DEFAULT_LR
from swift_autobatch.units import show_gib

READ_LOG = ("autoswift/swift.log in the folder above has the engine's own words",)


def smaller(plan: Plan) -> tuple[str, ...]:
    """Edits that need less memory, least change first."""
    candidate = plan.candidate
    hints = []
    if candidate.micro_batch > 1:
        hints.append(f"--per_device_train_batch_size {candidate.micro_batch // 2}")
    if not candidate.gradient_checkpointing:
        hints.append("--gradient_checkpointing true")
    other = next((r for r in plan.runners_up if _needs_less(r.prediction, plan)), None)
    if other is not None and other.candidate.strategy != candidate.strategy:
        hints.append(f"--strategy {other.candidate.strategy}")
    if plan.facts.data.p95_tokens < candidate.max_tokens:
        hints.append(f"--max_length {plan.facts.data.p95_tokens} keeps 95 % of the rows")
    return tuple(hints)


def _needs_less(other: object, plan: Plan) -> bool:
    demand = getattr(other, "demand_bytes", None)
    return demand is not None and demand < plan.prediction.demand_bytes


def tame(plan: Plan) -> tuple[str, ...]:
    """A lower learning rate: the tuner's default when the plan's is far above it, else a tenth."""
    rate = plan.engine_args.get("learning_rate")
    lower: tuple[str, ...] = ()
    if rate is not None:
        default = DEFAULT_LR.get(plan.candidate.tuner, DEFAULT_LR["lora"])
        now = float(str(rate.value))
        lower = (f"--learning_rate {default if now > 10 * default else now / 10:g}",)
    fp16 = ("--torch_dtype bfloat16 if the card can",) if plan.candidate.torch_dtype == "float16" else ()
    return (*lower, *fp16, "look for broken characters or empty answers in the costliest rows")


def rate_text(plan: Plan) -> str:
    """The learning rate as the command has it."""
    rate = plan.engine_args.get("learning_rate")
    return str(rate.value) if rate is not None else "of the engine"


_PHASE_WORDS = {
    "load": "while loading the model",
    "first_step": "in the first step",
    "steady": "after the first step",
    "eval": "in evaluation",
    "save": "while saving a checkpoint",
    "resume": "while resuming from a checkpoint",
}


def where(evidence: Evidence) -> str:
    """The phase the job was in when it ended, in words."""
    return _PHASE_WORDS[evidence.phase] if evidence.phase else "before the trainer was built"


_DOING = {"load": "loading", "first_step": "in its first step", "steady": "training", "eval": "evaluating"}
_DOING |= {"save": "saving", "resume": "resuming"}


def activity(evidence: Evidence) -> str:
    """What each rank was last seen doing, for a job that did not end; the rank that lags is the one to look at."""
    if not evidence.last:
        return "; no rank got as far as a model"
    latest = max(float(row["t"]) for row in evidence.last)
    seen = []
    for row in evidence.last[:8]:
        doing = _DOING.get(str(row.get("phase")), "loading")
        behind = latest - float(row["t"])
        late = f", silent {behind:.0f} s before the others" if behind >= 1 else ""
        seen.append(f"rank {row['rank']} {doing}, step {row.get('step')}{late}")
    return "; last seen: " + "; ".join(seen)


def rss_text(evidence: Evidence) -> str:
    """The host peak for people."""
    return show_gib(host_peak(evidence))


def host_peak(evidence: Evidence) -> int | None:
    """Resident bytes of all ranks together, in their worst phase; None: not measured."""
    return max((m.rss_sum_bytes for m in evidence.measured if m.rss_sum_bytes is not None), default=None)


def gpu_peak(evidence: Evidence, plan: Plan) -> int | None:
    """Reserved peak of the worst rank plus what the driver holds outside the allocator, as the fit rule counts it."""
    reserved = max((m.gpu_reserved_bytes for m in evidence.measured if m.gpu_reserved_bytes is not None), default=None)
    return None if reserved is None else reserved + plan.prediction.context_bytes + plan.prediction.nccl_bytes
