"""The dry run, again until it passes: each try measures the machine, the next plan is made from what was measured.

After a pass, where the measured machine leaves room and a larger micro batch of the same plan is predicted to be
faster, that one is tried too; the plan that passed stands when it does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swift_autobatch import calibration, committed, gate
from swift_autobatch.errors import NothingFitsError, UsageError
from swift_autobatch.progress import Progress
from swift_autobatch.records import Artefacts, Environment, Plan, Request, Row, Strategy, Verdict, replace
from swift_autobatch.units import show_gib, show_seconds

_FASTER = 0.98  # of the seconds an epoch takes: what is within 2 % is not worth another dry run


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A plan on disk: the folder of its run and the files and command that belong to it."""

    plan: Plan
    folder: Path
    artefacts: Artefacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """What the last word is about: a plan on disk and the verdict on it, the earlier ones inside."""

    written: Written
    verdict: Verdict


Write = Callable[[Plan, Path | None], Written]  # (plan, folder of the plan before it or None) -> where it is now


def prove(
    first: Written,
    *,
    asked: Request,
    table: tuple[Strategy, ...],
    env: Environment,
    write: Write,
    progress: Progress,
    val_rows: tuple[Row, ...] = (),
) -> Proved:
    """Runs the gate at most ``asked.tries`` times.

    Args:
        first: the plan to begin with.
        asked: the request, its defaults filled in.
        write: puts another plan in the place of the one before it.
        val_rows: the dearest rows of the validation set.

    Returns:
        the plan that passed; else the last one tried, with its refusal.

    Raises:
        MachineError, Interrupted: see ``gate.run_gate``.
    """
    now = first
    passed: Plan | None = None
    tried: tuple[Verdict, ...] = ()
    for left in reversed(range(asked.tries)):
        verdict = _run(now, asked, env, progress, val_rows)
        tried = (*tried, *verdict.earlier, replace(verdict, earlier=()))
        learned = calibration.learn(now.plan, verdict)
        calibration.keep_if_possible(env, now.plan.machine_class, learned, progress)
        if verdict.verdict == "pass":
            passed = now.plan
        elif passed is not None or verdict.reason.code not in calibration.MEMORY_CODES:
            break
        better = _next(now.plan, verdict, learned, asked, table, env, progress) if left else None
        if better is None:
            break
        before = now
        now = write(better, before.folder)
        tried = tuple(_moved(one, before.folder, now.folder) for one in tried)
    return _settled(now, tried, passed, write)


def _settled(now: Written, tried: tuple[Verdict, ...], passed: Plan | None, write: Write) -> Proved:
    """The plan that passed, written back where a bolder one was tried after it; else the last one."""
    last = tried[-1]
    if passed is not None and last.verdict != "pass":
        folder = now.folder
        now = write(passed, folder)
        tried = tuple(_moved(one, folder, now.folder) for one in tried)
        last = next(one for one in reversed(tried) if one.verdict == "pass")
    others = tuple(one for one in tried if one is not last)
    return Proved(written=now, verdict=replace(last, earlier=others))


def _run(now: Written, asked: Request, env: Environment, progress: Progress, val_rows: tuple[Row, ...]) -> Verdict:
    rows = now.plan.facts.data.costliest[:1]
    longest = f", the longest has {rows[0].tokens} tokens ({Path(rows[0].file).name}:{rows[0].line})" if rows else ""
    progress.stage(f"dry run: the real command on the costliest rows{longest}")
    return run_once(now.plan, now.artefacts, now.folder, asked, env, progress, "dry run", val_rows)


def run_once(
    plan: Plan,
    artefacts: Artefacts,
    folder: Path,
    asked: Request,
    env: Environment,
    progress: Progress,
    what: str,
    val_rows: tuple[Row, ...] = (),
) -> Verdict:
    """One run of the gate, its verdict told as ``what``; see ``gate.run_gate``."""
    verdict = gate.run_gate(
        plan,
        artefacts,
        root=Path(env.cwd),
        run=folder,
        env=env,
        timeout_s=asked.gate_timeout_s.value,
        val_rows=val_rows,
        progress=progress,
    )
    progress.stage(f"{what}: {verdict.verdict}: {verdict.reason.text} ({show_seconds(verdict.seconds)})")
    return verdict


def _next(
    plan: Plan,
    verdict: Verdict,
    learned: tuple[calibration.Learned, ...],
    asked: Request,
    table: tuple[Strategy, ...],
    env: Environment,
    progress: Progress,
) -> Plan | None:
    """The plan to try next, or None where there is no better one."""
    facts = calibration.with_learned(plan.facts, learned)
    try:
        found = committed.decide(asked, facts, table, env, progress)
    except (NothingFitsError, UsageError):
        return None
    if verdict.verdict == "pass":
        if not _bolder(found, plan):
            return None
        progress.stage(
            f"the measured machine has room: trying micro batch {found.candidate.micro_batch}, predicted "
            f"{1 - found.prediction.epoch_s / plan.prediction.epoch_s:.0%} faster"
        )
        return found
    if found.candidate == plan.candidate:
        return None
    progress.stage(
        f"planned again from what was measured: {found.candidate.strategy}, micro batch {found.candidate.micro_batch} "
        f"x {found.candidate.accumulation}, predicted {show_gib(found.prediction.driver_bytes)} a device"
    )
    return found


def _bolder(found: Plan, plan: Plan) -> bool:
    """The same plan with a larger micro batch and the same effective batch, worth the time of a dry run."""
    larger, now = found.candidate, plan.candidate
    same = replace(larger, micro_batch=now.micro_batch, accumulation=now.accumulation) == now
    faster = found.prediction.epoch_s < _FASTER * plan.prediction.epoch_s
    return same and larger.micro_batch > now.micro_batch and larger.effective_batch == now.effective_batch and faster


def _moved(verdict: Verdict, before: Path, now: Path) -> Verdict:
    """The run folder is named after its plan: a try's folder moves with it."""
    folder = Path(verdict.folder)
    return replace(verdict, folder=str(now / folder.relative_to(before))) if folder.is_relative_to(before) else verdict
