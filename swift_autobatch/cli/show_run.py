"""What people read on stdout of a dry run and of a finished job."""

from __future__ import annotations

from collections.abc import Sequence

from swift_autobatch.cli import text
from swift_autobatch.cli.show import device
from swift_autobatch.cli.text import joined, section
from swift_autobatch.gate.postmortem import Postmortem
from swift_autobatch.records import Answer, Measured, Plan, Run, Verdict
from swift_autobatch.scan import Point
from swift_autobatch.units import show_gib, show_seconds


def verdict(decided: Plan, found: Verdict, folder: str, *, columns: int | None = None) -> list[str]:
    """What the dry run found: the verdict, its rows, its steps, predicted beside measured."""
    columns = columns or text.width()
    head = text.wrapped(
        f"dry run: {found.verdict}: {found.reason.text} ({show_seconds(found.seconds)})", columns, "  ", ""
    )
    shown = sorted({(row.file, row.line, row.tokens) for row in found.rows}, key=lambda row: -row[2])[:4]
    trained_on = [f"{file}:{line}, {tokens} tokens" for file, line, tokens in shown]
    steps = [
        [str(step.step), _number(step.loss), _number(step.grad_norm), show_seconds(step.step_s)] for step in found.steps
    ]
    return joined(
        [
            head,
            section("Costliest rows, trained on", text.bullets(trained_on, columns)),
            section("Steps", text.table(["step", "loss", "grad norm", "time"], steps) if steps else []),
            section("Predicted and measured", _phases(decided, found.measured)),
            text.wrapped(f"kept in {folder}", columns, "  ", ""),
        ]
    )


def scan(decided: Plan, points: Sequence[Point], folder: str, *, columns: int | None = None) -> list[str]:
    """The table of a scan, the fastest point that holds named below it."""
    columns = columns or text.width()
    body = [
        [
            str(one.micro_batch),
            str(one.accumulation),
            str(one.effective_batch),
            _size(one.predicted_bytes),
            _size(one.measured_bytes),
            show_seconds(one.step_s) if one.step_s is not None else "-",
            _number(one.rows_per_s),
            one.code,
        ]
        for one in points
    ]
    heads = ["micro batch", "accum.", "batch", f"a {device(decided)}", "measured", "step", "rows/s", ""]
    held = [one for one in points if one.code == "pass" and one.rows_per_s is not None]
    best = max(held, key=lambda one: one.rows_per_s or 0.0, default=None)
    words = "nothing was measured"
    if best is not None:
        words = (
            f"fastest: --per_device_train_batch_size {best.micro_batch} --gradient_accumulation_steps "
            f"{best.accumulation}, on the costliest rows"
        )
    refused = [f"{one.micro_batch} x {one.accumulation}: {one.text}" for one in points if one.code != "pass"]
    return joined(
        [
            section("Measured, two optimizer steps each", text.table(heads, body)),
            section("Not measured, or refused", text.bullets(refused, columns)),
            text.wrapped(words, columns, "  ", ""),
            text.wrapped(f"kept in {folder}", columns, "  ", ""),
        ]
    )


def _size(size: int | None) -> str:
    return "-" if size is None else show_gib(size)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _phases(decided: Plan, measured: Sequence[Measured]) -> list[str]:
    """Peak memory by phase. On CPU the device is the host: resident bytes of the largest process."""
    if not measured:
        return []
    on_gpu = decided.candidate.device == "gpu"
    predicted = {phase.phase: phase for phase in decided.prediction.phases}
    body = []
    for one in measured:
        wanted = predicted.get(one.phase)
        seen = one.gpu_reserved_bytes if on_gpu else one.rss_bytes
        body.append(
            [
                one.phase.replace("_", " "),
                show_gib(wanted.gpu_bytes) if wanted else "-",
                show_gib(seen) if seen is not None else "-",
                show_gib(wanted.host_bytes) if wanted else "-",
                show_gib(one.rss_sum_bytes) if one.rss_sum_bytes is not None else "-",
                show_seconds(one.seconds) if one.seconds is not None else "-",
            ]
        )
    return text.table(["phase", f"a {device(decided)}", "measured", "host RAM", "measured", "time"], body)


def postmortem(found: Postmortem, *, columns: int | None = None) -> list[str]:
    """What ended a training: the cause, the line that says so, the figures, and what to do."""
    columns = columns or text.width()
    at = f"line {found.line}: " if found.line else ""
    said = text.wrapped(f"{at}{found.said[:400]}", columns) if found.said else []
    return joined(
        [
            text.wrapped(f"{found.code}: {found.text}", columns, "  ", ""),
            section("The log says", said),
            section("Figures", text.bullets(found.figures, columns)),
            section("What to do, least change first", text.bullets(found.hints, columns)),
        ]
    )


def finished(decided: Plan, run: Run, folder: str, *, columns: int | None = None) -> list[str]:
    """The last paragraph: what was measured, where the model is, how to ask it, and what it answered."""
    columns = columns or text.width()
    kind = "model" if decided.candidate.tuner == "full" else "adapter"
    pairs = [
        ("trained", _trained(run)),
        ("measured", _peak(decided, run)),
        (kind, run.checkpoint or "none was saved"),
        ("files", folder),
    ]
    ask = [f"  {run.infer_command}"] if run.infer_command else []
    return joined(
        [
            ["Done", *text.rows(pairs, columns)],
            section("Ask it", ask),
            section(_answers_title(run.answers), _answers(run.answers, columns)),
        ]
    )


def _trained(run: Run) -> str:
    losses = [step.loss for step in run.steps if step.loss is not None]
    accuracies = [step.token_acc for step in run.steps if step.token_acc is not None]
    made = run.steps_made if run.steps_made is not None else max((step.step for step in run.steps), default=0)
    words = [f"{made} steps in {show_seconds(run.seconds)}"]
    if losses:
        words.append(f"loss {losses[0]:.4g} -> {losses[-1]:.4g}")
    if accuracies:
        words.append(f"token accuracy {accuracies[-1]:.4g}")
    return ", ".join(words)


def _peak(decided: Plan, run: Run) -> str:
    on_gpu = decided.candidate.device == "gpu"
    sizes = [one.driver_bytes or one.gpu_reserved_bytes if on_gpu else one.rss_bytes for one in run.measured]
    known = [size for size in sizes if size is not None]
    peak = show_gib(max(known)) if known else "unknown"
    return f"peak {peak} a {device(decided)}, predicted {show_gib(decided.prediction.driver_bytes)}"


def _answers_title(answers: Sequence[Answer]) -> str:
    right = sum(answer.matches for answer in answers)
    return f"What it answers ({right} of {len(answers)} as trained)"


def _answers(answers: Sequence[Answer], columns: int) -> list[str]:
    lines: list[str] = []
    for one in answers:
        said = one.answer or "(nothing)"
        lines += text.wrapped(one.question, columns)
        if one.matches:
            lines += text.wrapped(f"as trained: {said}", columns, indent="      ", first="    ")
        else:
            lines += text.wrapped(f"answered: {said}", columns, indent="      ", first="    ")
            lines += text.wrapped(f"trained: {one.expected}", columns, indent="      ", first="    ")
    return lines
