"""The judge: evidence of a dry run -> verdict. A pure function; an exit code alone never decides.

Codes of a reason: pass; fail: gpu-oom, host-kill, over-budget, nan-loss, diverged, zero-loss, no-step, rows-dropped,
silently-off, environment, data, engine-arguments, engine-error, timeout, port, disk-full; unknown: unknown.
(``interrupted`` is an exception, see errors.py; a receipt may carry it.)
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import replace

from swift_autobatch.gate.causes import in_argument_check, known_cause
from swift_autobatch.gate.evidence import Evidence
from swift_autobatch.gate.words import (
    READ_LOG,
    activity,
    gpu_peak,
    host_peak,
    rate_text,
    rss_text,
    smaller,
    tame,
    where,
)
from swift_autobatch.records import Plan, Reason, VerdictWord
from swift_autobatch.units import show_gib, show_seconds

# A uniform guess over the vocabulary costs ln V; five times that after two steps is a broken run, not a bad start
# (AutoTP logs twice the loss, so 2 must stay inside).
_DIVERGED = 5.0
_AFTER_STEPS = ("eval", "save", "resume")
_TO_DO = {"eval": "evaluate", "save": "save a checkpoint", "resume": "read its checkpoint back"}
_DONE = {"eval": "evaluated", "save": "saved", "resume": "read the checkpoint back"}


def judge(evidence: Evidence, plan: Plan) -> tuple[VerdictWord, Reason]:
    """The first rule that can decide, decides: what stopped it, on what it trained, how it trained, what it used."""
    for rule in _RULES:
        reason = rule(evidence, plan)
        if reason is not None:
            return ("unknown" if reason.code == "unknown" else "fail"), reason
    return "pass", _passed(evidence, plan)


# ---------------------------------------------------------------------------------------------- what stopped it


def _gpu_oom(evidence: Evidence, plan: Plan) -> Reason | None:
    if evidence.log.oom is None:
        return None
    asked = f", asking for {evidence.log.oom_asked} more" if evidence.log.oom_asked else ""
    return Reason(
        code="gpu-oom",
        text=f"the GPU ran out of memory {where(evidence)}{asked}; "
        f"predicted {show_gib(plan.prediction.driver_bytes)} of a budget of {show_gib(plan.prediction.budget_bytes)}",
        hints=smaller(plan),
    )


def _host_kill(evidence: Evidence, plan: Plan) -> Reason | None:
    killed = not evidence.timed_out and signal.SIGKILL in (evidence.signal, evidence.log.killed_by)
    if not killed and evidence.log.host_oom is None:
        return None
    how = (
        "the kernel killed the engine (signal 9)" if killed else f"the host ran out of memory ({evidence.log.host_oom})"
    )
    return Reason(
        code="host-kill",
        text=f"{how} {where(evidence)}, most likely for lack of RAM: last seen {rss_text(evidence)}, "
        f"budget {show_gib(plan.prediction.host_budget_bytes)}",
        hints=("close what else uses RAM, or raise the container's memory limit", *smaller(plan)),
    )


def _recognised(evidence: Evidence, plan: Plan) -> Reason | None:
    crashed = evidence.exit_code != 0 and not evidence.timed_out
    found = known_cause(evidence.log) if crashed else None
    if found is None or evidence.phase not in _AFTER_STEPS:
        return found
    return replace(found, text=f"{found.text}, {where(evidence)}")


def _timeout(evidence: Evidence, plan: Plan) -> Reason | None:
    if not evidence.timed_out:
        return None
    predicted = plan.prediction.step_s * evidence.planned_steps
    return Reason(
        code="timeout",
        text=f"no end after {show_seconds(evidence.seconds)} {where(evidence)}; "
        f"its steps were predicted to take {show_seconds(predicted)}{activity(evidence)}",
        hints=("--gate-timeout SECONDS, larger (a first download or compilation takes long)", *smaller(plan)),
    )


def _crashed(evidence: Evidence, plan: Plan) -> Reason | None:
    made_all = len(evidence.steps) >= evidence.planned_steps
    if evidence.exit_code == 0 or (made_all and evidence.phase not in _AFTER_STEPS):
        return None
    said = evidence.log.exceptions[-1] if evidence.log.exceptions else ""
    if said and in_argument_check(evidence.log) and evidence.phase is None:
        return Reason(
            code="engine-arguments",
            text=f"the engine refuses these flags together: {said}",
            hints=("drop or change the pinned flag that the message names",),
        )
    if said:
        return Reason(code="engine-error", text=f"the engine stopped {where(evidence)}: {said}", hints=READ_LOG)
    return Reason(
        code="unknown",
        text=f"the engine stopped {where(evidence)} with exit code {evidence.exit_code} and said nothing of why",
        hints=READ_LOG,
    )


# ------------------------------------------------------------------------------------------ what it trained on


def _rows_dropped(evidence: Evidence, plan: Plan) -> Reason | None:
    if evidence.log.filtered is None or evidence.log.filtered[0] <= evidence.log.filtered[1]:
        return None
    before, after = evidence.log.filtered
    return Reason(
        code="rows-dropped",
        text=f"the engine dropped {before - after} of the {before} costliest rows: longer than max_length "
        f"{plan.candidate.max_length} by its own count, or broken",
        hints=("a larger --max_length", "--truncation_strategy left keeps long rows, cut"),
    )


def _rows_missing(evidence: Evidence, plan: Plan) -> Reason | None:
    """The engine's own count of what it trains on; packs and streams have no count of rows."""
    held = (evidence.effective or {}).get("rows")
    if plan.candidate.packing or not isinstance(held, int) or held >= evidence.rows:
        return None
    return Reason(
        code="rows-dropped",
        text=f"the engine trained on {held} of the {evidence.rows} costliest rows and did not say why",
        hints=("autoswift profile DATASET names rows that do not train", *READ_LOG),
    )


def _no_step(evidence: Evidence, plan: Plan) -> Reason | None:
    made = evidence.steps[-1].step if evidence.steps else 0
    if made >= evidence.planned_steps:
        return None
    if made and evidence.exit_code == 0:
        return Reason(
            code="unknown",
            text=f"the engine ended after {made} of {evidence.planned_steps} steps without an error",
            hints=READ_LOG,
        )
    return Reason(
        code="no-step",
        text=f"the engine ended without an optimizer step ({evidence.rows} rows over {plan.candidate.world} processes)",
        hints=("fewer processes: --nproc 1", "more rows: at least one a process is needed", *READ_LOG),
    )


# --------------------------------------------------------------------------------------------- how it trained


def _nan(evidence: Evidence, plan: Plan) -> Reason | None:
    judged = evidence.steps[-1:] if plan.candidate.torch_dtype == "float16" else evidence.steps
    for step in judged:
        for name, value in (("loss", step.loss), ("gradient norm", step.grad_norm)):
            if value is not None and not math.isfinite(value):
                return Reason(
                    code="nan-loss",
                    text=f"{name} {value} at step {step.step} of {evidence.planned_steps} "
                    f"with learning rate {rate_text(plan)} in {plan.candidate.torch_dtype}",
                    hints=tame(plan),
                )
    return None


def _zero(evidence: Evidence, plan: Plan) -> Reason | None:
    """With the NaN filter off the engine logs the loss of nothing as NaN (0 / 0), with the filter as 0."""
    masked = all((step.loss == 0 or _nan_of(step.loss)) and not step.grad_norm for step in evidence.steps)
    if evidence.supervised_tokens == 0 or (evidence.supervised_tokens is None and masked):
        return Reason(
            code="zero-loss",
            text="no token of these rows is trained on: every label is masked, so there is no loss and no gradient",
            hints=(
                "give every row an assistant turn that is not empty",
                "a --loss_scale that keeps the answers",
                "a larger --max_length, if cutting leaves only the question",
            ),
        )
    if all(step.grad_norm == 0 for step in evidence.steps):
        return Reason(
            code="zero-loss",
            text=f"the gradient is exactly 0 although the loss is {evidence.steps[-1].loss}: nothing trains",
            hints=("a --target_modules that matches this model", "unfreeze parameters: --freeze_parameters_ratio 0"),
        )
    return None


def _nan_of(value: float | None) -> bool:
    return value is not None and math.isnan(value)


def _diverged(evidence: Evidence, plan: Plan) -> Reason | None:
    limit = _DIVERGED * math.log(plan.facts.model.vocab)
    last = evidence.steps[-1].loss
    if last is None or last <= limit:
        return None
    return Reason(
        code="diverged",
        text=f"loss {last:.4g} at step {evidence.steps[-1].step}, while a blind guess over the vocabulary costs "
        f"{math.log(plan.facts.model.vocab):.3g}; learning rate {rate_text(plan)}",
        hints=tame(plan),
    )


def _path_off(evidence: Evidence, plan: Plan) -> Reason | None:
    """A kernel or a saving that the plan counts on and the first forward pass did not show."""
    seen, planned = evidence.observed, plan.effective
    if seen is None:
        return None
    rows, full, needed = seen.get("logits_rows"), seen.get("row_tokens"), seen.get("needed_rows")
    if planned.loss == "liger_fused" and rows is not None:
        return Reason(
            code="silently-off",
            text=f"the fused loss is off: logits of {rows} positions a row came out in {seen.get('logits_dtype')}, "
            "where Liger makes none; --loss_scale, --enable_dft_loss and sequence parallelism switch it off",
            hints=("drop the flag that needs whole logits", "--use_liger_kernel false plans without it"),
        )
    if planned.logits_rows != "supervised" or plan.candidate.sp > 1 or rows is None or full is None or needed is None:
        return None
    if needed < full <= rows:
        return Reason(
            code="silently-off",
            text=f"logits_to_keep is off: all {full} positions of a row reach the vocabulary, {needed} are needed",
            hints=("drop --use_logits_to_keep false", "a model class whose forward takes logits_to_keep"),
        )
    return None


def _phase_missing(evidence: Evidence, plan: Plan) -> Reason | None:
    """What the job will do after its steps and the dry run, told to do the same, did not."""
    done = {one.phase for one in evidence.measured}
    for phase in evidence.planned_phases:
        if phase not in done and evidence.exit_code == 0 and evidence.measured:
            return Reason(
                code="silently-off",
                text=f"the steps were made, but the engine did not {_TO_DO[phase]}",
                hints=("look for pinned flags and callbacks that undo the plan", *READ_LOG),
            )
    return None


def _silently_off(evidence: Evidence, plan: Plan) -> Reason | None:
    found = evidence.effective
    if found is None:
        return None
    candidate = plan.candidate
    wanted: dict[str, object] = {
        "world_size": candidate.world,
        "micro_batch": candidate.micro_batch,
        "accumulation": evidence.planned_accumulation,
        "quantised": None if candidate.quant == "none" else candidate.quant,
        "zero_stage": candidate.zero_stage if candidate.uses_deepspeed else None,
        "fsdp": candidate.uses_fsdp,
    }
    for name, degree in (("sequence_parallel", candidate.sp), ("tensor_parallel", candidate.tp)):
        if degree > 1:
            wanted[name] = degree
    if plan.facts.model.quantised:
        del wanted["quantised"]  # the checkpoint's own business
    if (candidate.attn_impl or "").startswith("flash"):
        wanted["attention"] = "flash_attention_2" if candidate.attn_impl == "flash_attn" else candidate.attn_impl
    for name, value in wanted.items():
        if found.get(name) != value:
            return Reason(
                code="silently-off",
                text=f"the engine ran, but not as planned: {name.replace('_', ' ')} is {found.get(name)}, "
                f"planned {value}",
                hints=("look for pinned flags and variables that undo the plan", *READ_LOG),
            )
    return None


# ------------------------------------------------------------------------------------------------ what it used


def _unmeasured(evidence: Evidence, plan: Plan) -> Reason | None:
    if evidence.measured:
        return None
    full = f" ({evidence.log_error})" if evidence.log_error else ""
    return Reason(
        code="unknown",
        text=f"the steps were made, but nothing was measured{full}: the memory they took is not known",
        hints=("the run folder must be writable: --output-dir on another disk", *READ_LOG),
    )


def _over_budget(evidence: Evidence, plan: Plan) -> Reason | None:
    prediction = plan.prediction
    checks = [("host RAM of all processes", host_peak(evidence), prediction.host_budget_bytes)]
    gpu = gpu_peak(evidence, plan)
    if gpu is not None:
        checks.insert(0, ("GPU memory", gpu, prediction.budget_bytes))
    for what, peak, budget in checks:
        if peak is not None and peak > budget:
            return Reason(
                code="over-budget",
                text=f"{what} reached {show_gib(peak)}, above the budget of {show_gib(budget)}: "
                f"the steps were made, but nothing is left for longer runs' growth",
                hints=smaller(plan),
            )
    return None


def _bad_end(evidence: Evidence, plan: Plan) -> Reason | None:
    if evidence.exit_code == 0:
        return None
    said = f": {evidence.log.exceptions[-1]}" if evidence.log.exceptions else ""
    return Reason(
        code="unknown",
        text=f"all {evidence.planned_steps} steps were made, yet the engine ended with exit code "
        f"{evidence.exit_code}{said}",
        hints=READ_LOG,
    )


def _passed(evidence: Evidence, plan: Plan) -> Reason:
    losses = " -> ".join("?" if step.loss is None else f"{step.loss:.4g}" for step in evidence.steps)
    gpu = gpu_peak(evidence, plan)
    if gpu is not None:
        used = f"GPU peak {show_gib(gpu)} of {show_gib(plan.prediction.budget_bytes)}"
    else:
        used = f"RAM peak {rss_text(evidence)} of {show_gib(plan.prediction.host_budget_bytes)}"
    after = "".join(f", {_DONE[phase]}" for phase in evidence.planned_phases)
    steps = f"{evidence.planned_steps} steps on the costliest rows, loss {losses}"
    return Reason(code="pass", text=f"{steps}{after}, {used}")


_Rule = Callable[[Evidence, Plan], "Reason | None"]
_RULES: tuple[_Rule, ...] = (
    _gpu_oom,
    _host_kill,
    _recognised,
    _timeout,
    _rows_dropped,
    _crashed,
    _rows_missing,
    _no_step,
    _zero,
    _nan,
    _diverged,
    _silently_off,
    _path_off,
    _phase_missing,
    _unmeasured,
    _over_budget,
    _bad_end,
)
