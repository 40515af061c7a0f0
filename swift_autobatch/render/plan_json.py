"""The plan as JSON, schema ``autoswift.plan/1``: raw bytes and seconds, every decided value with its source."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from swift_autobatch.records import Candidate, Facts, Plan, Prediction, RunnerUp

SCHEMA = "autoswift.plan/1"


def plan_json(plan: Plan) -> dict[str, Any]:
    """A JSON-ready mapping of a plan; keys are frozen by a test."""
    return {
        "schema": SCHEMA,
        "digest": plan.digest,
        "machine_class": plan.machine_class,
        "strategy": plan.candidate.strategy,
        "because": plan.because,
        "notes": list(plan.notes),
        "proposals": list(plan.proposals),
        "candidate": candidate_json(plan.candidate),
        "effective": asdict(plan.effective),
        "prediction": prediction_json(plan.prediction),
        "steps": {"per_epoch": plan.steps_per_epoch, "total": plan.total_steps},
        "arguments": {flag: {"value": arg.value, "source": arg.source} for flag, arg in plan.engine_args.items()},
        "environment": {name: {"value": var.value, "source": var.source} for name, var in plan.env.items()},
        "facts": facts_json(plan.facts),
        "runners_up": [_runner_up(item) for item in plan.runners_up],
        "changes": list(plan.changes),
        "illegal": sorted({(item.candidate.strategy, item.rule, item.why) for item in plan.illegal}),
    }


def candidate_json(candidate: Candidate) -> dict[str, Any]:
    """A candidate with its derived batch figures."""
    return {**asdict(candidate), "dp": candidate.dp, "effective_batch": candidate.effective_batch}


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """A prediction with its derived totals."""
    return {
        **asdict(prediction),
        "time_terms": dict(prediction.time_terms),
        "driver_bytes": prediction.driver_bytes,
        "demand_bytes": prediction.demand_bytes,
        "fits": prediction.fits,
    }


def facts_json(facts: Facts) -> dict[str, Any]:
    """Model and data in short; rows stay in the data set."""
    data = asdict(facts.data)
    for heavy in ("lengths", "costliest"):
        del data[heavy]
    data["costliest"] = [
        {"file": row.file, "line": row.line, "tokens": row.tokens, "supervised_tokens": row.supervised_tokens}
        for row in facts.data.costliest[:8]
    ]
    return {"model": asdict(facts.model), "data": data, "machine_assumed": list(facts.machine.assumed)}


def _runner_up(item: RunnerUp) -> dict[str, Any]:
    return {
        "strategy": item.candidate.strategy,
        "candidate": candidate_json(item.candidate),
        "prediction": None if item.prediction is None else prediction_json(item.prediction),
        "why": item.why,
    }
