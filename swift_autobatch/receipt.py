"""Planned beside measured, as JSON (``autoswift.receipt/2``): written once, never overwritten, read back later.

Version 1 lacked what a job died of and was gone on from, and the kind of its band; it is read as the newest one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from swift_autobatch import render
from swift_autobatch.errors import AutoswiftError, InputError, Interrupted, MachineError, TrainingError
from swift_autobatch.predict.band import kind_of
from swift_autobatch.records import Died, Environment, Measured, Plan, Run, Step, Verdict

SCHEMA = "autoswift.receipt/2"
NAME = "receipt.json"


def _from_1(old: Mapping[str, Any]) -> dict[str, Any]:
    training = old.get("training")
    return {
        **old,
        "schema": SCHEMA,
        "kind": None,
        "training": None if training is None else {**training, "died": training.get("died", [])},
    }


# Each takes a receipt of an older schema to the next one.
MIGRATIONS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"autoswift.receipt/1": _from_1}


def record(
    plan: Plan,
    *,
    folder: Path,
    env: Environment,
    verdict: Verdict | None,
    run: Run | None,
    failure: BaseException | None = None,
    died: Sequence[Died] = (),
) -> Mapping[str, Any]:
    """Builds the receipt and writes it to ``<folder>/autoswift/receipt.json`` and to the machine's collection.

    Returns:
        The receipt, with ``path`` and ``copy`` saying where it lies.

    Raises:
        MachineError: neither the run folder nor the collection can be written. One that cannot is None in the receipt:
            a job that died of a full disk still leaves the other.
    """
    receipt = build(plan, folder=folder, verdict=verdict, run=run, failure=failure, died=died)
    places = {"path": folder / "autoswift" / NAME, "copy": collection(env, plan.machine_class) / f"{folder.name}.json"}
    kept: dict[str, str | None] = {}
    refused: list[MachineError] = []
    for key, place in places.items():
        try:
            kept[key] = str(_write_new(place, receipt))
        except MachineError as error:
            kept[key] = None
            refused.append(error)
    if len(refused) == len(places):
        raise refused[0]
    return {**receipt, **kept}


def collection(env: Environment, machine_class: str) -> Path:
    """Where receipts of a machine class are kept together."""
    return Path(env.state_dir) / "receipts" / machine_class


def read(path: Path) -> Mapping[str, Any]:
    """A receipt from its file, an older one as the newest schema has it.

    Raises:
        InputError: the file is missing, or is no receipt, or one of a newer version.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the receipt cannot be read: {error.strerror}", where=str(path)) from None
    except ValueError as error:
        raise InputError(f"the receipt is not JSON: {error}", where=str(path)) from None
    receipt = found if isinstance(found, dict) else {}
    while (step := MIGRATIONS.get(str(receipt.get("schema")))) is not None:
        receipt = step(receipt)
    if receipt.get("schema") != SCHEMA:
        raise InputError(
            f"this is not a receipt that this version reads: schema is {receipt.get('schema')!r}, not {SCHEMA!r}",
            where=str(path),
            hints=("autoswift receipts ls lists the receipts of this machine",),
        )
    return dict(receipt)


def read_all(env: Environment, machine_class: str | None = None) -> tuple[tuple[Path, Mapping[str, Any]], ...]:
    """The receipts kept for a machine class (None: for all), oldest first by their time; foreign files are skipped."""
    base = Path(env.state_dir) / "receipts"
    found = []
    for path in sorted(base.glob(f"{machine_class or '*'}/*.json")):
        try:
            found.append((path, read(path)))
        except InputError:
            continue
    return tuple(sorted(found, key=lambda pair: (str(pair[1].get("written", "")), pair[0].stat().st_mtime_ns)))


def find(name: str, env: Environment) -> Mapping[str, Any]:
    """The receipt that a person means.

    Args:
        name: ``last``, a name of ``receipts ls`` or how one begins, a receipt's file, or a run folder.

    Raises:
        InputError: there is none of that name, or more than one.
    """
    path = Path(env.cwd, name)
    if path.is_dir():
        own = path / "autoswift"
        return read(max(own.glob("receipt*.json"), key=lambda one: one.stat().st_mtime_ns, default=own / NAME))
    if path.is_file():
        return read(path)
    kept = read_all(env)
    if name == "last" and kept:
        return kept[-1][1]
    exact = [receipt for path, receipt in kept if path.stem == name]
    alike = exact or [receipt for path, receipt in kept if path.stem.startswith(name)]
    if len(alike) == 1:
        return alike[0]
    raise InputError(
        f"{len(alike)} receipts are called {name!r}" if alike else f"there is no receipt {name!r}",
        where=name,
        hints=("autoswift receipts ls lists them",) if kept else ("autoswift dry-run leaves the first one",),
    )


def build(
    plan: Plan,
    *,
    folder: Path,
    verdict: Verdict | None,
    run: Run | None,
    failure: BaseException | None = None,
    died: Sequence[Died] = (),
) -> dict[str, Any]:
    """The receipt as a JSON-ready mapping; keys are frozen by a test. Writes nothing."""
    return {
        "schema": SCHEMA,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "verdict": "unknown" if verdict is None else verdict.verdict,
        "reason": _reason(verdict),
        "plan_digest": plan.digest,
        "machine_class": plan.machine_class,
        "strategy": plan.candidate.strategy,
        "kind": kind_of(plan.candidate),
        "model": plan.facts.model.id,
        "data_digest": plan.facts.data.digest,
        "versions": {name: version for name, version in plan.facts.machine.software.versions.items() if version},
        "folder": str(folder),
        "port": _port(folder),
        "predicted": _predicted(plan),
        "measured": None if verdict is None else _measured(verdict.measured, verdict.steps),
        "tries": _tries(folder, verdict),
        "child_exit": _child_exit(verdict, run, failure),
        "training": _training(run, failure, died),
    }


def _reason(verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return {"code": "skipped", "text": "the dry run was skipped on request", "hints": []}
    return {"code": verdict.reason.code, "text": verdict.reason.text, "hints": list(verdict.reason.hints)}


def _predicted(plan: Plan) -> dict[str, Any]:
    prediction = plan.prediction
    return {
        "phases": {
            phase.phase: {"gpu_bytes": phase.gpu_bytes, "host_bytes": phase.host_bytes} for phase in prediction.phases
        },
        "needs_p50_bytes": prediction.needs_p50_bytes,
        "needs_p99_bytes": prediction.needs_p99_bytes,
        "driver_bytes": prediction.driver_bytes,
        "budget_bytes": prediction.budget_bytes,
        "host_bytes": prediction.host_bytes,
        "host_budget_bytes": prediction.host_budget_bytes,
        "step_s": prediction.step_s,
        "steps": plan.total_steps,
    }


def _measured(phases: Iterable[Measured], steps: tuple[Step, ...]) -> dict[str, Any]:
    return {
        "phases": {
            phase.phase: {
                "gpu_allocated_bytes": phase.gpu_allocated_bytes,
                "gpu_reserved_bytes": phase.gpu_reserved_bytes,
                "driver_bytes": phase.driver_bytes,
                "rss_bytes": phase.rss_bytes,
                "rss_sum_bytes": phase.rss_sum_bytes,
                "pinned_bytes": phase.pinned_bytes,
                "shm_bytes": phase.shm_bytes,
                "cgroup_bytes": phase.cgroup_bytes,
                "step_s": phase.seconds,
            }
            for phase in phases
        },
        "steps": steps[-1].step if steps else 0,
        "loss": [_finite(step.loss) for step in (steps if len(steps) <= 8 else (*steps[:4], *steps[-4:]))],
        "grad_norm": _finite(steps[-1].grad_norm) if steps else None,
        "token_acc": _finite(steps[-1].token_acc) if steps else None,
    }


def _finite(value: float | None) -> float | str | None:
    """JSON has no NaN: it is spelled out."""
    return value if value is None or abs(value) < float("inf") else str(value)


def _tries(folder: Path, verdict: Verdict | None) -> list[dict[str, Any]]:
    if verdict is None:
        return []
    return [
        {
            "folder": _relative(Path(one.folder), folder),
            "code": one.reason.code,
            "seconds": round(one.seconds, 3),
            "child_exit": one.child_exit,
        }
        for one in (*verdict.earlier, verdict)
    ]


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _child_exit(verdict: Verdict | None, run: Run | None, failure: BaseException | None) -> int | None:
    """Of the last engine run that this receipt is about."""
    if run is not None:
        return run.child_exit
    if failure is not None:
        return getattr(failure, "child_exit", None)
    return None if verdict is None else verdict.child_exit


def _training(run: Run | None, failure: BaseException | None, died: Sequence[Died]) -> dict[str, Any] | None:
    tries = [asdict(one) for one in died]
    if failure is not None:
        text = failure.what if isinstance(failure, AutoswiftError) else f"{type(failure).__name__}: {failure}"
        return {"done": False, "reason": {"code": _code(failure), "text": text}, "died": tries}
    if run is None:
        return None
    return {
        "done": True,
        "seconds": round(run.seconds, 3),
        "checkpoint": run.checkpoint,
        "infer_command": run.infer_command,
        **_measured(run.measured, run.steps),
        **({} if run.steps_made is None else {"steps": run.steps_made}),
        "answers": [
            {"question": a.question, "expected": a.expected, "answer": a.answer, "matches": a.matches}
            for a in run.answers
        ],
        "died": tries,
    }


def _code(failure: BaseException) -> str:
    if isinstance(failure, Interrupted):
        return "interrupted"
    return failure.code if isinstance(failure, TrainingError) else "failed"


def _port(folder: Path) -> int | None:
    """The rendezvous port of the last launch from this folder."""
    launches = [folder / "autoswift" / "launch.json", *folder.glob("autoswift/gate/*/autoswift/launch.json")]
    for path in launches:
        try:
            return int(json.loads(path.read_text(encoding="utf-8"))["port"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _write_new(path: Path, receipt: Mapping[str, Any]) -> Path:
    """Writes under the first name that is free: ``receipt.json``, ``receipt-2.json`` ..."""
    names = (path, *(path.with_name(f"{path.stem}-{count}{path.suffix}") for count in range(2, 10_000)))
    free = next(name for name in names if not name.exists())
    render.write_file(free, render.to_json(receipt))
    return free
