"""autoswift: plan, prove and run ms-swift fine-tuning.

From Python, the same road as the command line:

    from swift_autobatch import plan, sft

    decided = plan(dataset="rows.jsonl", model="Qwen/Qwen2.5-7B-Instruct", gpus="1x4090")
    print(decided.candidate, decided.prediction.driver_bytes)
    outcome = sft(dataset="rows.jsonl", max_length=2048)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swift_autobatch.api import GateOutcome, SftOutcome
    from swift_autobatch.progress import Progress
    from swift_autobatch.records import Environment, Plan, Request

__version__ = "0.1.0"
__all__ = ["dry_run", "plan", "sft"]


def plan(
    dataset: str | Sequence[str] | None = None,
    model: str | None = None,
    *,
    progress: Progress | None = None,
    **flags: Any,
) -> Plan:
    """Reads the facts and chooses; nothing is written and nothing is started.

    Args:
        dataset: one or several files; None: the embedded data set.
        model: a hub id or a local folder; None: the default of this machine.
        progress: what long work reports to; None: silent.
        flags: options of autoswift (``gpus``, ``strategy``, ``global_batch`` ...) and any ``swift sft`` flag, by
            its own name; engine flags pin that decision.

    Raises:
        AutoswiftError: see errors.py; each carries what, where, figures and hints.
    """
    from swift_autobatch import api

    return api.plan(*_request(dataset, model, flags), progress)


def dry_run(
    dataset: str | Sequence[str] | None = None,
    model: str | None = None,
    *,
    progress: Progress | None = None,
    **flags: Any,
) -> GateOutcome:
    """Plans and runs the gate alone: real optimizer steps on the costliest rows. Arguments as in :func:`plan`."""
    from swift_autobatch import api

    return api.dry_run(*_request(dataset, model, flags), progress)


def sft(
    dataset: str | Sequence[str] | None = None,
    model: str | None = None,
    *,
    progress: Progress | None = None,
    **flags: Any,
) -> SftOutcome:
    """The whole road: plan, dry run, training. Arguments as in :func:`plan`.

    Raises:
        GateError: the dry run refused the plan or could not decide; nothing was launched.
        TrainingError: the engine failed after the gate passed.
    """
    from swift_autobatch import api

    return api.sft(*_request(dataset, model, flags), progress)


def _request(
    dataset: str | Sequence[str] | None, model: str | None, flags: dict[str, Any]
) -> tuple[Request, Environment]:
    from swift_autobatch.request import build_request, read_environment

    for name, value in (("dataset", dataset), ("model", model), ("gpus", flags.get("gpus"))):
        _check_text(name, value, several=name == "dataset")
    options = dict(flags)
    if dataset is not None:
        options["dataset"] = dataset if isinstance(dataset, str) else tuple(dataset)
    if model is not None:
        options["model"] = model
    env = read_environment()
    return build_request(options, (), env), env


def _check_text(name: str, value: object, *, several: bool) -> None:
    from swift_autobatch.errors import UsageError

    if value is None or isinstance(value, str):
        return
    if several and isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return
    raise UsageError(
        f"{name} is a string{' or a list of strings' if several else ''}, not {value!r}",
        where=name,
        hints=(f"{name}='...'",),
    )
