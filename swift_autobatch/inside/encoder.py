"""Runs in a process of its own: encodes rows with the chat template and tokenizer of the installed ms-swift.

``workers.py`` starts it. The setup is a mapping: ``model`` (a folder), ``model_type``, ``template`` and ``system``,
each None where the engine's own default holds. Tasks are mappings too:

- ``{"rows": [...]}``, rows as the engine's preprocessor leaves them: answers ``[tokens, prompt, labels]`` a row, or the
  engine's sentence about a row that it drops;
- ``{"save": path}``: writes the tokenizer as the engine has it, in the form of a tokenizer.json.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

_UNLABELLED = -100
_LONGEST = 1 << 40  # the engine refuses longer rows; whether a row is too long is not asked here


def handler(setup: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any]:
    """What ``workers.py`` asks for. The engine is loaded with the first task, so that a failure is its answer."""

    @cache
    def loaded() -> Any:
        return _template(setup)

    def handle(task: Mapping[str, Any]) -> Any:
        template = loaded()
        if "save" in task:
            return _save(template.tokenizer, task["save"])
        return [_encoded(template, row) for row in task["rows"]]

    return handle


def _template(setup: Mapping[str, Any]) -> Any:
    from swift.model import get_model_processor
    from swift.template import get_template

    logging.disable(logging.WARNING)
    _, processor = get_model_processor(setup["model"], load_model=False, model_type=setup["model_type"])
    template = get_template(processor, setup["system"], max_length=_LONGEST, template_type=setup["template"])
    template.set_mode("train")
    return template


def _save(tokenizer: Any, path: str) -> None:
    """Raises AttributeError where the tokenizer is Python code and has no such form."""
    tokenizer.backend_tokenizer.save(path)


def _encoded(template: Any, row: Mapping[str, Any]) -> list[int] | str:
    try:
        encoded = template.encode(dict(row))
    except Exception as error:  # the engine drops the row, whatever it is (AddLengthPreprocessor, strict false)
        return str(error).partition("\n")[0] or type(error).__name__
    labels = encoded["labels"]
    prompt = next((at for at, label in enumerate(labels) if label != _UNLABELLED), len(labels))
    return [len(encoded["input_ids"]), prompt, sum(label != _UNLABELLED for label in labels)]
