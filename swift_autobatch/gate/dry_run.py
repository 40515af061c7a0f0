"""Runs the dry run: the real command on the costliest rows, in a folder of its own, watched and judged."""

from __future__ import annotations

from pathlib import Path

from swift_autobatch import engine, render
from swift_autobatch.engine_log import row_of_line
from swift_autobatch.errors import InputError
from swift_autobatch.gate import probe
from swift_autobatch.gate.evidence import collect
from swift_autobatch.gate.verdict import judge
from swift_autobatch.progress import Progress, Silent
from swift_autobatch.records import Artefacts, Environment, Plan, Reason, Verdict


def run_gate(
    plan: Plan,
    artefacts: Artefacts,
    *,
    root: Path,
    run: Path,
    env: Environment,
    timeout_s: float,
    try_number: int = 1,
    progress: Progress | None = None,
) -> Verdict:
    """Trains the job's own command on the costliest rows for two optimizer steps (four in fp16) and judges.

    Args:
        root: the project folder, in which the engine runs.
        run: the job's run folder; the dry run lives in ``autoswift/gate/<try_number>/`` below it.
        timeout_s: wall-clock seconds for the whole dry run, imports and loading included.

    Returns:
        A verdict; a port that was taken meanwhile is tried once more with another one.

    Raises:
        MachineError: the engine cannot be started or the folder cannot be written.
        Interrupted: a signal asked us to stop.
    """
    progress = progress or Silent()
    folder = run / "autoswift" / "gate" / str(try_number)
    try:
        rows = probe.probe_rows(plan)
    except InputError as error:
        return _untried(folder, Reason(code="rows-dropped", text=error.what, hints=error.hints))
    probing = probe.probe_artefacts(plan, artefacts)
    render.write(probing.files, folder / "autoswift")
    render.write_file(folder / probe.PROBE_FILE, probe.probe_text(rows))
    child = engine.train(
        plan,
        probing,
        root=root,
        run=folder,
        env=env,
        timeout_s=timeout_s,
        on_line=lambda line: _show(line, progress),
    )
    progress.clear()
    evidence = collect(
        folder,
        child,
        rows=len(rows),
        planned_steps=probe.probe_steps(plan),
        planned_accumulation=probe.probe_accumulation(plan),
    )
    word, reason = judge(evidence, plan)
    if reason.code == "port" and try_number == 1 and "MASTER_PORT" not in env.variables:
        progress.stage("the port was taken meanwhile: once more with another one")
        return run_gate(
            plan, artefacts, root=root, run=run, env=env, timeout_s=timeout_s, try_number=2, progress=progress
        )
    return Verdict(
        verdict=word,
        reason=reason,
        measured=evidence.measured,
        steps=evidence.steps,
        child_exit=child.exit_code,
        seconds=child.seconds,
        folder=str(folder),
        rows=rows[: plan.candidate.micro_batch * plan.candidate.dp],
    )


def _untried(folder: Path, reason: Reason) -> Verdict:
    return Verdict(
        verdict="fail", reason=reason, measured=(), steps=(), child_exit=None, seconds=0.0, folder=str(folder), rows=()
    )


def _show(line: str, progress: Progress) -> None:
    row = row_of_line(line)
    if row is not None and "loss" in row:
        progress.update(f"dry run: step {row['global_step/max_steps']}, loss {row['loss']}")
    elif "Loading" in line or "Map:" in line:
        progress.update(f"dry run: {line.strip()}")
