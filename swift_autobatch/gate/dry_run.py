"""Runs the dry run: the real command on the costliest rows, in a folder of its own, watched and judged."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from swift_autobatch import engine, render
from swift_autobatch.engine_log import row_of_line
from swift_autobatch.errors import InputError
from swift_autobatch.gate import probe
from swift_autobatch.gate.evidence import collect
from swift_autobatch.gate.oom import read_oom
from swift_autobatch.gate.verdict import judge
from swift_autobatch.progress import Progress, Silent
from swift_autobatch.records import Artefacts, Environment, Plan, Reason, Row, Verdict, replace


def run_gate(
    plan: Plan,
    artefacts: Artefacts,
    *,
    root: Path,
    run: Path,
    env: Environment,
    timeout_s: float,
    val_rows: Sequence[Row] = (),
    whole_steps: bool = False,
    progress: Progress | None = None,
) -> Verdict:
    """Trains the job's own command on the costliest rows for two optimizer steps (four in fp16) and judges.

    After the steps it evaluates, saves and reads the checkpoint back, where the job will do so; what it saved is
    deleted.

    Args:
        root: the project folder, in which the engine runs.
        run: the job's run folder; the dry run lives in the next free ``autoswift/gate/<n>/`` below it.
        timeout_s: wall-clock seconds for the whole dry run, imports and loading included.
        val_rows: the dearest rows of the validation set, dearest first; empty: training rows stand for them.
        whole_steps: accumulate as often as the job does, for the time of a step; else twice at most.

    Returns:
        A verdict; a port that was taken meanwhile is tried once more with another one.

    Raises:
        MachineError: the engine cannot be started or the folder cannot be written.
        Interrupted: a signal asked us to stop.
    """
    progress = progress or Silent()

    def once() -> Verdict:
        return _try(plan, artefacts, root, run, env, timeout_s, val_rows, whole_steps, progress)

    verdict = once()
    if verdict.reason.code == "port" and "MASTER_PORT" not in env.variables:
        progress.stage("the port was taken meanwhile: once more with another one")
        verdict = replace(once(), earlier=(verdict,))
    return verdict


def _try(
    plan: Plan,
    artefacts: Artefacts,
    root: Path,
    run: Path,
    env: Environment,
    timeout_s: float,
    val_rows: Sequence[Row],
    whole: bool,
    progress: Progress,
) -> Verdict:
    """One run of the engine, judged."""
    folder = _next(run / "autoswift" / "gate")
    try:
        rows = probe.probe_rows(plan, whole=whole)
    except InputError as error:
        return _untried(folder, Reason(code="rows-dropped", text=error.what, hints=error.hints))
    probing = probe.probe_artefacts(plan, artefacts, whole=whole)
    render.write(probing.files, folder / "autoswift")
    render.write_file(folder / probe.PROBE_FILE, probe.probe_text(rows))
    phases = probe.probe_phases(plan)
    if "eval" in phases:
        render.write_file(folder / probe.EVAL_FILE, probe.probe_text(probe.eval_rows(plan, val_rows)))
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
        planned_steps=probe.probe_steps(plan, whole=whole),
        planned_accumulation=probe.probe_accumulation(plan, whole=whole),
        planned_phases=phases,
    )
    saved = _sweep(folder)
    word, reason = judge(evidence, plan)
    return Verdict(
        verdict=word,
        reason=reason,
        measured=evidence.measured,
        steps=evidence.steps,
        child_exit=child.exit_code,
        seconds=child.seconds,
        folder=str(folder),
        rows=rows[-plan.candidate.micro_batch * plan.candidate.dp :],
        checkpoint_bytes=saved,
        imports_bytes=evidence.imports_bytes,
        oom=_said(evidence.log.oom),
    )


def _next(gate: Path) -> Path:
    """The folder of the next try: ``1``, ``2`` ..."""
    return gate / str(1 + max((int(path.name) for path in gate.glob("*") if path.name.isdigit()), default=0))


def _said(oom: str | None) -> Mapping[str, int]:
    """The allocator's figures out of its last words."""
    if oom is None:
        return {}
    found = read_oom(oom)
    named = {name: getattr(found, name) for name in ("asked_bytes", "card_bytes", "allocated_bytes", "idle_bytes")}
    return {name: size for name, size in named.items() if size is not None}


def _sweep(folder: Path) -> int | None:
    """Deletes the checkpoints of a dry run; returns the bytes of the largest, None where none was written."""
    sizes = []
    for checkpoint in folder.glob("checkpoint-*"):
        sizes.append(sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file()))
        shutil.rmtree(checkpoint, ignore_errors=True)
    (folder / "last-checkpoint").unlink(missing_ok=True)  # the engine's link to the latest
    return max(sizes, default=None)


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
