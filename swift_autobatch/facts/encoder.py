"""Counts rows with the engine's own encoder, in processes of its own, where our tables do not know a template.

Exact for every template and tokenizer that ms-swift can load, at one or two milliseconds a row and core and some ten
seconds to start. Used only where a model's tokenizer is at hand, so never for a plan from the catalogue alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from swift_autobatch.errors import MachineError
from swift_autobatch.facts.conversation import (
    ASSISTANT_ROLES,
    TOOL_ANSWER_ROLES,
    TOOL_CALL_ROLES,
    USER_ROLES,
    Conversation,
    RowError,
)
from swift_autobatch.facts.tokens import Count
from swift_autobatch.records import Environment, ModelFacts
from swift_autobatch.workers import Workers, cores

_MOST_WORKERS = 4  # each takes about 0.6 GiB
_TASK_ROWS = 32
_TASKS_A_WORKER = 4
_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "merges.txt")
_KEPT = ("content", "loss", "loss_scale", "name")  # ``name`` of tool messages only: some formats write it
_ROLE_OF = {
    **dict.fromkeys(USER_ROLES, "user"),
    **dict.fromkeys(ASSISTANT_ROLES, "assistant"),
    **dict.fromkeys(TOOL_CALL_ROLES, "tool_call"),
    **dict.fromkeys(TOOL_ANSWER_ROLES, "tool_response"),
    "tool": "tool",
    "system": "system",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """All that the engine's encoder needs to know; goes to worker processes."""

    folder: str
    model_type: str | None
    template: str | None
    interpreter: str
    variables: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.folder}, counted by ms-swift"

    def workers(self, count: int, system: str | None) -> Workers:
        """Starts processes; the engine is loaded with the first task."""
        setup = {"model": self.folder, "model_type": self.model_type, "template": self.template, "system": system}
        variables = {**self.variables, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        module = "swift_autobatch.inside.encoder"
        return Workers(module, setup, count=count, interpreter=self.interpreter, variables=variables)


def engine_spec(model: ModelFacts, env: Environment) -> EngineSpec | None:
    """How the engine would encode for a model; None where it, the tokenizer or the template is not at hand."""
    folder = next((Path(at) for at in (model.tokenizer_path, model.path) if at and _has_tokenizer(Path(at))), None)
    if folder is None or model.swift_template is None or not any("ms-swift" in package for package in versions()):
        return None
    return EngineSpec(
        folder=str(folder),
        model_type=model.swift_model_type,
        template=model.swift_template,
        interpreter=env.interpreter,
        variables=dict(env.variables),  # a read-only view cannot be sent to a process
    )


def versions() -> tuple[str, ...]:
    """Of the packages that decide how the engine encodes."""
    found = []
    for package in ("ms-swift", "transformers", "tokenizers"):
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{package} {metadata.version(package)}")
    return tuple(found)


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any((folder / name).is_file() for name in _FILES)


class NoEngine(Exception):
    """The engine cannot encode for this model, and why in one line."""


Sent = Mapping[str, Any]  # a row as it is sent to the engine


class Engine:
    """Processes that encode. ``system`` is ``--system``. Close it when all is counted."""

    def __init__(self, spec: EngineSpec, system: str | None, *, count: int = 0) -> None:
        """``count``: how many processes at most; 0: one a core, four at most, and one where the rows are few."""
        self.spec = spec
        self._system = system
        self._count = count or min(cores(), _MOST_WORKERS)
        self._workers: Workers | None = None

    def save(self, path: Path) -> None:
        """Writes the tokenizer as the engine has it. Raises NoEngine where that is Python code and has no such form."""
        self._answers([{"save": str(path)}])

    def count(self, rows: Sequence[Sent]) -> list[Count | RowError]:
        """Counts rows; those that the engine drops come back with its reason. Raises NoEngine."""
        tasks = [{"rows": rows[at : at + _TASK_ROWS]} for at in range(0, len(rows), _TASK_ROWS)]
        return [_counted(answer) for answers in self._answers(tasks) for answer in answers]

    def close(self) -> None:
        if self._workers is not None:
            self._workers.__exit__()
            self._workers = None

    def _answers(self, tasks: Sequence[Mapping[str, Any]]) -> list[Any]:
        if self._workers is None:
            useful = max(1, len(tasks) // _TASKS_A_WORKER)  # by the first rows: a process takes long to start
            self._workers = self.spec.workers(min(self._count, useful), self._system)
        found: list[Any] = [None] * len(tasks)
        try:
            for index, answer in self._workers.map(tasks):
                found[index] = answer
        except (RuntimeError, MachineError) as error:  # it cannot load the model's files, or a process died
            self.close()
            said = (str(error), *getattr(error, "figures", ()))
            raise NoEngine("; ".join(text.partition("\n")[0] for text in said)) from None
        return found


def sent(talk: Conversation) -> Sent:
    """A row as the engine's preprocessor would hand it to the template."""
    messages = [_message(message) for message in talk.messages]
    return {"messages": messages, **({"tools": talk.given_tools} if talk.given_tools else {})}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = _ROLE_OF[message["role"].replace("-", "_")]
    kept = {name: message[name] for name in _KEPT if message.get(name) is not None}
    if role not in ("tool", "tool_response"):
        kept.pop("name", None)
    return {"role": role, **kept}


def _counted(answer: list[int] | str) -> Count | RowError:
    if isinstance(answer, str):
        return RowError("engine-drops", f"the engine drops the row: {answer[:200]}", late=True)
    tokens, prompt, labels = answer
    return Count(
        tokens=tokens, prompt=prompt, planned=tokens, bound=tokens, supervised=labels, supervised_planned=labels
    )
