"""The spine: the only functions that call the stages in order. Notebooks use the same ones as the command line.

request -> facts -> plan -> artefacts -> gate -> run -> receipt
"""

from __future__ import annotations

import codecs
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from swift_autobatch import (
    ask,
    calibration,
    checkpoints,
    committed,
    doctor,
    history,
    mend,
    proving,
    receipt,
    recovery,
    rehearse,
    render,
    tracing,
    whatif,
)
from swift_autobatch import scan as scanning
from swift_autobatch.errors import GateError, InputError, MachineError, NothingFitsError, TrainingError, UsageError
from swift_autobatch.facts import embedded
from swift_autobatch.facts.card import dump_card, read_card
from swift_autobatch.facts.cards import assumed_machine
from swift_autobatch.facts.dataset import read_dataset
from swift_autobatch.facts.hardware import limit, read_machine
from swift_autobatch.facts.machine_file import REPORT_SCHEMA, dump_machine, load_machine, load_report
from swift_autobatch.facts.model import read_model
from swift_autobatch.facts.probes import read_probes
from swift_autobatch.facts.refusals import unfit
from swift_autobatch.facts.repair import Repaired
from swift_autobatch.facts.repair import repair as write_clean_copy
from swift_autobatch.facts.sampling import set_apart
from swift_autobatch.facts.software import read_software
from swift_autobatch.facts.summary import told
from swift_autobatch.gate import postmortem
from swift_autobatch.gate.postmortem import Postmortem
from swift_autobatch.process import disk_free_bytes
from swift_autobatch.progress import Progress, Silent
from swift_autobatch.records import (
    Artefacts,
    Check,
    DataFacts,
    Died,
    Environment,
    Facts,
    Machine,
    ModelFacts,
    Plan,
    Probes,
    Request,
    Row,
    Run,
    Sourced,
    Strategy,
    Verdict,
)
from swift_autobatch.strategies import PROJECT_FOLDER, copied, find_strategy, load_strategies
from swift_autobatch.units import counted, show_count, show_gib, show_seconds
from swift_autobatch.worth import Worth, weigh

DEFAULT_MODEL = "Qwen/Qwen2.5-7B-Instruct"  # with an accelerator and no --model


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOutcome:
    """What ``dry-run`` found and where it is kept."""

    plan: Plan
    verdict: Verdict
    folder: Path
    receipt: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalOutcome:
    """What ``rehearse`` found, and where it is kept."""

    rehearsal: rehearse.Rehearsal
    verdict: Verdict
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOutcome:
    """What ``dry-run --scan`` measured and where it is kept."""

    plan: Plan
    points: tuple[scanning.Point, ...]
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SftOutcome:
    """A finished job. ``verdict`` is None when the dry run was skipped on request."""

    plan: Plan
    verdict: Verdict | None
    run: Run
    folder: Path
    receipt: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What ``doctor`` found. ``probes`` is None for a hardware file, which has none."""

    machine: Machine
    probes: Probes | None
    checks: tuple[Check, ...]

    @property
    def sound(self) -> bool:
        return all(check.status != "fail" for check in self.checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What the data hold. ``worth`` is None, and ``why_no_plan`` says why, where nothing can be planned on them."""

    facts: Facts
    plan: Plan | None
    worth: Worth | None
    why_no_plan: str | None = None


def strategies(env: Environment) -> tuple[Strategy, ...]:
    """The strategy table: shipped recipes and those of the project's autoswift/recipes/."""
    return load_strategies(Path(env.cwd))


def copy_strategy(name: str, env: Environment, target: str | None = None, *, force: bool = False) -> Path:
    """Copies a strategy recipe into the project's autoswift/recipes/, or to ``target``, under that file's name."""
    found = find_strategy(name, strategies(env), where=name)
    path = Path(env.cwd, target) if target else Path(env.cwd, PROJECT_FOLDER)
    if path.is_dir() or not target:
        path /= f"{name}.yaml"
    render.may_write(path, force=force)
    render.write_file(path, copied(found, path))
    return path


def machine(request: Request, env: Environment) -> Machine:
    """The machine to plan for: this one, a hardware file, or cards from the catalogue (all assumed)."""
    nproc = request.nproc.value
    if request.hardware_file.value:
        return limit(load_machine(Path(env.cwd) / request.hardware_file.value), nproc)
    software = read_software(env)
    if request.gpus.value:
        return limit(assumed_machine(request.gpus.value, software), nproc)
    return read_machine(env, software, nproc)


def machine_json(found: Machine) -> dict[str, Any]:
    """A machine as ``autoswift.machine/1``; ``--hardware FILE`` reads it back."""
    return dump_machine(found)


def examine(request: Request, env: Environment, progress: Progress | None = None) -> Examination:
    """Checks this machine and its environment, or a report from elsewhere (``--hardware FILE``).

    Raises:
        UsageError, InputError: a wrong flag or file. A machine that cannot be read is a failed check, not an error.
    """
    if request.hardware_file.value:
        found, tried = load_report(Path(env.cwd, request.hardware_file.value))
        return Examination(machine=found, probes=tried, checks=doctor.examine(found, tried))
    (progress or Silent()).stage("trying out the environment (torch is imported once: a few seconds)")
    software = read_software(env)
    probes = read_probes(env, software)
    try:
        found = read_machine(env, software, request.nproc.value)
    except MachineError as error:
        hidden = replace(env, variables={**env.variables, "CUDA_VISIBLE_DEVICES": ""})
        broken = Check(id="driver", status="fail", text=error.what, fix="; ".join(error.hints))
        found = read_machine(hidden, software, None)
        return Examination(machine=found, probes=probes, checks=(broken, *doctor.examine(found, probes)))
    return Examination(machine=found, probes=probes, checks=doctor.examine(found, probes))


def examination_json(found: Examination) -> dict[str, Any]:
    """A doctor's report as ``autoswift.doctor/1``; ``--hardware FILE`` reads it back."""
    return {
        "schema": REPORT_SCHEMA,
        "machine": dump_machine(found.machine),
        "probes": None if found.probes is None else asdict(found.probes),
        "checks": [asdict(check) for check in found.checks],
    }


def plan_json(decided: Plan) -> dict[str, Any]:
    """A plan as ``autoswift.plan/1``."""
    return render.plan_json(decided)


def explain(log: str, env: Environment) -> Postmortem:
    """What ended a training.

    Args:
        log: a log or traceback, ``-`` for standard input, or a run folder (its ``autoswift/swift.log``).

    Raises:
        InputError: the file cannot be read.
    """
    path = Path(env.cwd, log)
    if log != "-" and path.is_dir():
        path = next((at for at in (path / "autoswift/swift.log", path / "swift.log") if at.exists()), path)
    try:
        held = sys.stdin.buffer.read() if log == "-" else path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the log: {error.strerror or error}",
            where=log,
            hints=("name a log file, a run folder, or - for standard input",),
        ) from error
    # PowerShell's `>` writes UTF-16 with a mark.
    marked = held.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return postmortem.explain(held.decode("utf-16" if marked else "utf-8-sig", errors="replace"))


def explanation_json(found: Postmortem) -> dict[str, Any]:
    """A post-mortem as ``autoswift.explanation/1``."""
    return {"schema": "autoswift.explanation/1", **asdict(found)}


def receipts(env: Environment) -> tuple[tuple[Path, Mapping[str, Any]], ...]:
    """(file, receipt) of every receipt in the state folder, oldest first."""
    return receipt.read_all(env)


def receipts_json(found: tuple[tuple[Path, Mapping[str, Any]], ...]) -> dict[str, Any]:
    """Receipts as ``autoswift.receipts/1``; each is an ``autoswift.receipt/2``."""
    rows = [{"name": path.stem, "path": str(path), "receipt": dict(one)} for path, one in found]
    return {"schema": "autoswift.receipts/1", "receipts": rows}


def one_receipt(
    name: str, env: Environment
) -> tuple[Mapping[str, Any], tuple[tuple[str, str | None, str | None], ...]]:
    """A receipt by name, file or run folder, and (what, then, now) of the versions that are others here now."""
    found = receipt.find(name, env)
    return found, history.drift(found, read_software(env).versions)


def plan(request: Request, env: Environment, progress: Progress | None = None) -> Plan:
    """Reads the facts and chooses; nothing is started, and nothing written but the file of ``--save-recipe``.

    Raises:
        UsageError, NothingFitsError, InputError, MachineError: see errors.py.
    """
    asked, decided = _decide(request, env, progress or Silent())
    committed.save(decided, asked, env, progress or Silent())
    assumed = (*decided.prediction.assumptions, *_cited(decided, env))
    decided = replace(decided, prediction=replace(decided.prediction, assumptions=assumed))
    return replace(decided, changes=whatif.changes(asked, decided, strategies(env), env.cwd))


def _cited(decided: Plan, env: Environment) -> tuple[str, ...]:
    """What receipts of the same model and strategy on this class of machine say."""
    return history.cite((one for _, one in receipt.read_all(env, decided.machine_class)), decided)


def profile(request: Request, env: Environment, progress: Progress | None = None, *, full: bool = False) -> Profile:
    """Reads the data and says what they hold, and what max_length, micro batch and packing are worth on them.

    Args:
        full: count the tokens of every row of a large file; else those of a sample and of the longest rows.

    Raises:
        InputError: the data cannot be read, or no row trains.
    """
    progress = progress or Silent()
    asked, facts = read_facts(request, env, progress, full=full)
    try:
        decided = committed.decide(asked, facts, strategies(env), env, progress)
    except (NothingFitsError, UsageError) as error:
        return Profile(facts=facts, plan=None, worth=None, why_no_plan=error.what)
    return Profile(facts=facts, plan=decided, worth=weigh(decided))


def profile_json(found: Profile) -> dict[str, Any]:
    """A profile as a dataset card, ``autoswift.data/1``; ``--dataset card.json`` reads it back."""
    worth = asdict(found.worth) if found.worth else None
    return {**dump_card(found.facts.data), "model": found.facts.model.id, "worth": worth}


def repair(request: Request, env: Environment, out: str, progress: Progress | None = None) -> Repaired:
    """Writes a clean copy of the request's datasets as JSON lines to ``out``, and a list of what changed beside it.

    Raises:
        UsageError: no dataset was named, or ``out`` is no new .jsonl file (``force`` overwrites one).
        InputError: a dataset cannot be opened, or no row of it can be saved.
    """
    if not request.datasets.value:
        raise UsageError("there is no dataset to repair", where="--repair", hints=("name one: --dataset FILE.jsonl",))
    return write_clean_copy(
        request.datasets.value, out, env, progress=progress or Silent(), pins=request.pins, force=request.force
    )


def repair_json(done: Repaired) -> dict[str, Any]:
    """What a repair did, ``autoswift.repair/1``."""
    return {"schema": "autoswift.repair/1", **asdict(replace(done, changes=dict(done.changes)))}


def render_files(
    request: Request, env: Environment, folder: Path, *, force: bool = False, progress: Progress | None = None
) -> tuple[Path, ...]:
    """Plans and writes the files of the run into ``folder/autoswift``; starts nothing."""
    asked, decided = _decide(request, env, progress or Silent())
    files = _files(decided, asked, render.render(decided))
    written = render.write(files, folder / "autoswift", force=force)
    return (*written, *committed.save(decided, asked, env, progress or Silent()))


def dry_run(request: Request, env: Environment, progress: Progress | None = None) -> GateOutcome:
    """The gate alone: the real command on the costliest rows, for two optimizer steps."""
    progress = progress or Silent()
    asked, decided = _plan_here(request, env, progress)
    decided, folder, _, verdict = _prove(decided, asked, env, progress)
    kept = receipt.record(decided, folder=folder, env=env, verdict=verdict, run=None)
    if verdict.verdict == "pass":
        committed.save(decided, asked, env, progress, (verdict.measured, "dry run"))
    return GateOutcome(plan=decided, verdict=verdict, folder=folder, receipt=kept)


def rehearsed(
    word: str | None, request: Request, env: Environment, progress: Progress | None = None
) -> RehearsalOutcome:
    """A plan's very command on CPU processes, with the same architecture in small, for two optimizer steps.

    Args:
        word: a strategy's name or file; None: the plan for this machine, for ``--gpus``, or of ``--recipe``.

    Raises:
        UsageError, NothingFitsError: there is no such plan, for one because a rule forbids it.
        InputError: its model cannot be built in small, or its data cannot be read.
    """
    progress = progress or Silent()
    wanted = rehearse.target(word, request, env)
    asked, facts = read_facts(wanted.request, env, progress)
    if refusal := unfit(facts.data):
        raise refusal
    facts = rehearse.assume_kernels(facts, wanted.strategy)
    asked, done = mend.fixed(asked, facts, wanted.table, Path(env.cwd))
    if done:
        progress.stage(done)
    try:
        decided = committed.decide(asked, facts, wanted.table, env, progress)
    except UsageError as error:
        raise rehearse.own_words(error, wanted) from error
    _needs_engine(decided)
    folder = _run_folder(decided, asked, env, f"rehearsal-{wanted.name}")
    made = rehearse.rehearsal(decided, asked, folder, env, progress)
    artefacts = render.render(made.plan)
    render.write(artefacts.files, folder / "autoswift")
    count = made.plan.candidate.world
    progress.stage(f"rehearsal: the real command on {count} CPU process{'es' if count > 1 else ''}, in small")
    verdict = proving.run_once(made.plan, artefacts, folder, request, env, progress, "rehearsal")
    outcome = RehearsalOutcome(rehearsal=made, verdict=verdict, folder=folder)
    render.write_file(folder / "autoswift" / "rehearsal.json", render.to_json(rehearsal_json(outcome)))
    return outcome


def rehearsal_json(found: RehearsalOutcome) -> dict[str, Any]:
    """A rehearsal as ``autoswift.rehearsal/1``."""
    real, verdict = found.rehearsal.real, found.verdict
    return {
        "schema": "autoswift.rehearsal/1",
        "verdict": verdict.verdict,
        "reason": asdict(verdict.reason),
        "strategy": real.candidate.strategy,
        "model": real.facts.model.id,
        "machine_class": real.machine_class,
        "real": render.candidate_json(real.candidate),
        "rehearsed": render.candidate_json(found.rehearsal.plan.candidate),
        "differences": [asdict(one) for one in found.rehearsal.differences],
        "assumed": list(real.facts.machine.assumed),
        "steps": [asdict(step) for step in verdict.steps],
        "measured": [asdict(one) for one in verdict.measured],
        "child_exit": verdict.child_exit,
        "seconds": verdict.seconds,
        "folder": str(found.folder),
    }


def scan(request: Request, env: Environment, progress: Progress | None = None) -> ScanOutcome:
    """Measures the plan with accumulation 8, 16, 32 and with other micro batches: one engine run a point.

    Raises:
        GateError: no point holds.
    """
    progress = progress or Silent()
    asked, decided = _plan_here(request, env, progress)
    folder, _ = _prepare(decided, asked, env)
    points = scanning.scan(decided, folder, asked=asked, table=strategies(env), env=env, progress=progress)
    if not any(point.code == "pass" for point in points):
        raise GateError(
            f"none of {len(points)} points of the scan holds: {points[0].text}",
            where=str(folder / "autoswift" / "scan.json"),
            figures=tuple(f"micro batch {p.micro_batch} x {p.accumulation}: {p.code}" for p in points),
            hints=("autoswift dry-run plans around what was measured",),
        )
    return ScanOutcome(plan=decided, points=points, folder=folder)


def scan_json(found: ScanOutcome) -> Mapping[str, Any]:
    """A scan as ``autoswift.scan/1``."""
    return scanning.scan_json(found.plan, found.points)


def sft(request: Request, env: Environment, progress: Progress | None = None) -> SftOutcome:
    """The whole road. After a refusal by the gate nothing is launched.

    Raises:
        GateError: the dry run failed or could not decide.
        TrainingError: the engine failed after the gate passed.
    """
    progress = progress or Silent()
    asked, decided = _plan_here(request, env, progress)
    _needs_disk(decided, asked, Path(env.cwd, asked.output_dir.value or "output"))
    verdict = None
    if request.skip_dry_run:
        folder, artefacts = _prepare(decided, asked, env)
    else:
        decided, folder, artefacts, verdict = _prove(decided, asked, env, progress)
        if verdict.verdict != "pass":
            receipt.record(decided, folder=folder, env=env, verdict=verdict, run=None)
            raise gate_error(verdict)
    progress.stage(f"training: {counted(decided.total_steps, 'step')}, predicted {show_seconds(_predicted_s(decided))}")
    job = recovery.Job(asked=asked, table=strategies(env), root=Path(env.cwd), run=folder, env=env, files=_files)
    tries: list[Died] = []
    try:
        _needs_disk(decided, asked, folder, None if verdict is None else verdict.checkpoint_bytes)
        decided, done = recovery.train(decided, artefacts, job, progress, tries)
    except Exception as error:
        try:
            receipt.record(decided, folder=folder, env=env, verdict=verdict, run=None, failure=error, died=tries)
        except MachineError as lost:  # must not hide what the job died of
            progress.stage(f"warning: no receipt is kept: {lost.what}")
        raise
    try:
        done = _asked(done, decided, request, env, progress)
    finally:  # the training is complete whatever becomes of the questions
        kept = receipt.record(decided, folder=folder, env=env, verdict=verdict, run=done, died=tries)
    committed.save(decided, asked, env, progress, (done.measured, "training"))
    return SftOutcome(plan=decided, verdict=verdict, run=done, folder=folder, receipt=kept)


def _asked(done: Run, decided: Plan, request: Request, env: Environment, progress: Progress) -> Run:
    """The run with the trained model's answers about itself; a model that cannot be asked is a warning."""
    questions = decided.facts.data.questions
    if not (request.ask and questions and done.checkpoint):
        return done
    progress.stage("asking the trained model who it is")
    try:
        return replace(done, answers=ask.ask(done, decided, questions, env, progress=progress))
    except TrainingError as error:
        progress.stage(f"warning: {error.what} ({error.where}); the training itself is complete")
        return done


def gate_error(verdict: Verdict, what: str = "dry run") -> GateError:
    """The error that a refusal becomes."""
    word = "refused this plan" if verdict.verdict == "fail" else "could not decide"
    return GateError(
        f"the {what} {word}: {verdict.reason.text}",
        where=verdict.folder,
        figures=(f"reason {verdict.reason.code}", f"took {show_seconds(verdict.seconds)}"),
        hints=verdict.reason.hints,
    )


# ------------------------------------------------------------------------------------------------- the stages


def read_facts(
    request: Request,
    env: Environment,
    progress: Progress,
    *,
    full: bool = False,
    without_data: Callable[[ModelFacts, InputError], DataFacts] | None = None,
) -> tuple[Request, Facts]:
    """The machine, the model and the data; and the request with its defaults filled in.

    Args:
        without_data: what to put in the place of data that cannot be read; None: that is an error.
    """
    found = machine(request, env)
    asked = _defaults(request, found, env)
    model = read_model(str(asked.model.value), env, asked.pins, progress)
    demonstration = not request.model.value and not found.gpus
    model = replace(model, embedded=demonstration)
    try:
        data = _read_data(asked, model, env, progress, full=full)
    except InputError as error:
        if without_data is None:
            raise
        data = without_data(model, error)
    if demonstration:
        progress.stage(
            "no accelerator and no --model: a demonstration with a small random model, really trained on this CPU;\n"
            f"with a GPU the same command trains {DEFAULT_MODEL} (try: autoswift plan --gpus 1x4090)"
        )
    data = set_apart(data, asked.pins)
    cut = asked.pins.get("truncation_strategy")
    cuts_rows = cut is not None and cut.value in ("left", "right")
    return asked, Facts(
        machine=found,
        model=model,
        data=data,
        cuts_rows=cuts_rows,
        footprints=tracing.known(model, asked, env),
        calibration=calibration.read(env, found.machine_class),
    )


def _read_data(asked: Request, model: ModelFacts, env: Environment, progress: Progress, *, full: bool) -> DataFacts:
    system = asked.pins.get("system")
    return read_card(asked.datasets.value, env) or read_dataset(
        asked.datasets.value,
        model,
        env,
        system=system.value if system and isinstance(system.value, str) else None,
        progress=progress,
        pins=asked.pins,
        full=full,
    )


def _defaults(request: Request, found: Machine, env: Environment) -> Request:
    """Fills in the model and the data set; the embedded demonstration where there is no accelerator."""
    asked = request
    if not request.datasets.value:
        asked = replace(
            asked, datasets=Sourced(value=(str(embedded.default_dataset()),), source="embedded default: no --dataset")
        )
    if request.model.value:
        return asked
    if found.gpus:
        return replace(asked, model=Sourced(value=DEFAULT_MODEL, source="default: no --model"))
    folder = embedded.ensure_model(env)
    defaults = {
        flag: Sourced(value=value, source=f"embedded demonstration: {why}")
        for flag, (value, why) in embedded.DEFAULTS.items()
    }
    return replace(
        asked,
        model=Sourced(value=str(folder), source="embedded demonstration: no accelerator and no --model"),
        pins={**defaults, **request.pins},
    )


def _decide(request: Request, env: Environment, progress: Progress, *, runs: bool = False) -> tuple[Request, Plan]:
    """The plan, and the request with its defaults filled in."""
    committed.may_save(request, env)
    asked, facts = read_facts(request, env, progress)
    if refusal := unfit(facts.data):
        raise refusal
    table = strategies(env)
    asked, done = mend.fixed(asked, facts, table, Path(env.cwd))
    decided = tracing.decide(asked, facts, table, env, progress, always=runs)
    return asked, replace(decided, notes=(done, *decided.notes)) if done else decided


def _plan_here(request: Request, env: Environment, progress: Progress) -> tuple[Request, Plan]:
    """Plans for this machine; a machine that is not here can be planned for, never run on."""
    flag = "--gpus" if request.gpus.value else "--hardware" if request.hardware_file.value else None
    if flag:
        raise MachineError(
            f"{flag} plans for another machine; nothing can run on it from here",
            where=flag,
            hints=(f"'autoswift plan' and 'autoswift render' take {flag}", f"drop {flag} to run on this machine"),
        )
    if read_card(request.datasets.value, env):
        raise InputError(
            "a dataset card holds no rows: there is nothing to train, nor to prove a plan with",
            where=f"--dataset {request.datasets.value[0]}",
            hints=("'autoswift plan' and 'autoswift render' take it", "pass the data itself, where they are"),
        )
    asked, decided = _decide(request, env, progress, runs=True)
    _needs_engine(decided)
    progress.stage(_headline(decided))
    for one in told(decided.facts.data):
        progress.stage(f"data: {one.sentence}")
    for note in _cited(decided, env):
        progress.stage(note)
    return asked, decided


def _needs_engine(decided: Plan) -> None:
    if decided.facts.machine.software.versions.get("ms-swift") is None:
        raise MachineError(
            "ms-swift is not installed beside autoswift",
            where="the Python that runs autoswift",
            hints=("pip install 'ms-swift>=4.6,<4.7'", "'make setup' in a checkout installs known-good versions"),
        )


def _headline(decided: Plan) -> str:
    candidate, prediction = decided.candidate, decided.prediction
    model = decided.facts.model
    return (
        f"plan: {model.id} ({show_count(model.params_total)} parameters), {candidate.tuner}, "
        f"{candidate.strategy}, batch {candidate.micro_batch} x {candidate.dp} x {candidate.accumulation}, "
        f"max_length {candidate.max_length}; predicted {show_gib(prediction.driver_bytes)} a device"
    )


def _needs_disk(decided: Plan, request: Request, folder: Path, measured: int | None = None) -> None:
    """Refuses to start a job whose checkpoints will not fit beside each other.

    Args:
        measured: bytes of the checkpoint that the dry run wrote; None: it wrote none, they are computed.

    Raises:
        MachineError: with what they need and what is free.
    """
    computed = checkpoints.checkpoint_bytes(decided.candidate, decided.facts.model, request)
    one = computed if measured is None else measured
    needed = checkpoints.disk_needed(decided.candidate, decided.facts.model, request, one)
    free = disk_free_bytes(folder)
    if needed > free:
        by = "" if measured is None else " as the dry run wrote it"
        raise MachineError(
            f"the checkpoints of this job need up to {show_gib(needed)} of disk and {show_gib(free)} are free",
            where=str(folder),
            figures=(f"one checkpoint {show_gib(one)}{by}; the best, the latest and the one being written are kept",),
            hints=("--save_only_model true", "--save_total_limit 1", "--output-dir on another disk"),
        )


def _prepare(decided: Plan, request: Request, env: Environment, before: Path | None = None) -> tuple[Path, Artefacts]:
    """Makes the run folder ``<output_dir>/<time>-<plan8>/`` and writes the files that belong to the job.

    Args:
        before: the folder of another plan, whose place this one takes; its dry runs stay.
    """
    folder = _run_folder(decided, request, env, decided.digest[:8])
    if before is not None:
        before.rename(folder)
    artefacts = render.render(decided)
    render.write(_files(decided, request, artefacts), folder / "autoswift", force=before is not None)
    return folder, artefacts


def _run_folder(decided: Plan, request: Request, env: Environment, label: str) -> Path:
    """A folder ``<output_dir>/<time>-<label>`` that is not there yet."""
    name = Path(decided.facts.model.path or decided.facts.model.id).name
    base = Path(env.cwd) / (request.output_dir.value or f"output/{name}")
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{label}"
    folder = base / stem
    for count in range(2, 100):
        if not folder.exists():
            break
        folder = base / f"{stem}-{count}"
    return folder


def _files(decided: Plan, asked: Request, artefacts: Artefacts) -> Mapping[str, str]:
    """The rendered files, and beside them the facts and the recipe that they came from."""
    data = dump_card(decided.facts.data)
    return {
        **artefacts.files,
        "machine.json": render.to_json(machine_json(decided.facts.machine)),
        "recipe.yaml": render.recipe_yaml(decided, asked, name="recipe.yaml"),
        "data.json": render.to_json(data),
    }


def _prove(
    decided: Plan, asked: Request, env: Environment, progress: Progress
) -> tuple[Plan, Path, Artefacts, Verdict]:
    """The plan that the dry runs end with, its folder and files, and the verdict on it."""

    def write(plan: Plan, before: Path | None) -> proving.Written:
        folder, artefacts = _prepare(plan, asked, env, before)
        return proving.Written(plan=plan, folder=folder, artefacts=artefacts)

    proved = proving.prove(
        write(decided, None),
        asked=asked,
        table=strategies(env),
        env=env,
        write=write,
        progress=progress,
        val_rows=_val_rows(decided, asked, env, progress),
    )
    return proved.written.plan, proved.written.folder, proved.written.artefacts, proved.verdict


def _val_rows(decided: Plan, asked: Request, env: Environment, progress: Progress) -> tuple[Row, ...]:
    """The dearest rows of a validation set, which may be longer than any that is trained on."""
    named = asked.pins.get("val_dataset")
    if named is None:
        return ()
    paths = (named.value,) if isinstance(named.value, str) else named.value
    return read_dataset(paths, decided.facts.model, env, system=None, progress=progress, pins=asked.pins).costliest


def _predicted_s(decided: Plan) -> float:
    return decided.prediction.step_s * decided.total_steps
