"""Puts questions to the trained model through the real ``swift infer``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from swift_autobatch import engine, engine_log, render
from swift_autobatch.errors import TrainingError
from swift_autobatch.process import engine_command, run_child
from swift_autobatch.progress import Progress, Silent
from swift_autobatch.records import DTYPE_BYTES, Answer, Environment, Plan, Run
from swift_autobatch.run import infer_argv

MAX_NEW_TOKENS = 96  # an answer about who one is; longer ones are cut
TIMEOUT_S = 1800.0
_ONE_CARD = 0.8  # weights above this share of a card are spread over all of them


def ask(
    run: Run,
    plan: Plan,
    questions: Sequence[tuple[str, str]],
    env: Environment,
    *,
    progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
) -> tuple[Answer, ...]:
    """Asks the model of the run's last checkpoint, greedily; the files stay in ``<run>/autoswift/ask/``.

    Args:
        questions: (question, expected answer) pairs.

    Returns:
        One answer a question, in their order; () when there is no checkpoint or no question.

    Raises:
        TrainingError: the engine gave no answers.
        Interrupted: a signal asked us to stop.
    """
    if run.checkpoint is None or not questions:
        return ()
    folder = _fresh(Path(run.folder) / "autoswift" / "ask")
    asked, answered = folder / "questions.jsonl", folder / "answers.jsonl"
    rows = ({"messages": [{"role": "user", "content": question}]} for question, _ in questions)
    render.write_file(asked, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    command = (
        *engine_command(env.interpreter),
        *infer_argv(plan, Path(run.checkpoint))[1:],
        *_options(plan, asked, answered),
    )
    (progress or Silent()).update("asking: the model is loading")
    child = run_child(
        command,
        env=engine.child_env(env, _variables(plan)),
        cwd=Path(env.cwd),
        log=folder / "swift.log",
        timeout_s=timeout_s,
    )
    (progress or Silent()).clear()
    replies = [str(row.get("response", "")) for row in engine_log.read_rows(answered)]
    if len(replies) < len(questions):
        log = engine_log.scan(engine_log.read_log(folder / "swift.log"))
        said = f": {log.exceptions[-1]}" if log.exceptions else ""
        raise TrainingError(
            f"the trained model gave {len(replies)} of {len(questions)} answers{said}",
            child_exit=child.exit_code,
            where=str(folder / "swift.log"),
            hints=("the training itself is complete", *((run.infer_command,) if run.infer_command else ())),
        )
    return tuple(
        Answer(question=question, expected=expected, answer=reply)
        for (question, expected), reply in zip(questions, replies, strict=False)
    )


def _fresh(base: Path) -> Path:
    """``base``, or ``base-2`` ... where an earlier answer is: the engine appends to its result file."""
    return next(
        path for path in (base, *(base.with_name(f"{base.name}-{n}") for n in range(2, 1000))) if not path.exists()
    )


def _options(plan: Plan, asked: Path, answered: Path) -> tuple[str, ...]:
    options = (
        ("--val_dataset", str(asked)),
        ("--result_path", str(answered)),
        ("--infer_backend", "transformers"),
        ("--max_batch_size", "1"),
        ("--max_new_tokens", str(MAX_NEW_TOKENS)),
        ("--temperature", "0"),
    )
    return tuple(word for option in options for word in option)


def _variables(plan: Plan) -> dict[str, str]:
    """One process; one card unless the weights need more (the engine then spreads them by itself)."""
    if plan.candidate.device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    visible = engine.devices(plan) or ",".join(str(index) for index in range(plan.candidate.world))
    weights = plan.facts.model.params_total * DTYPE_BYTES[plan.candidate.torch_dtype]
    smallest = min(gpu.total_bytes for gpu in plan.facts.machine.gpus)
    return {"CUDA_VISIBLE_DEVICES": visible if weights > _ONE_CARD * smallest else visible.split(",")[0]}
