"""The names that ms-swift writes into its own self-cognition set: --model_name and --model_author.

Source: ms-swift 4.6 swift/dataset/dataset/llm.py ``SelfCognitionPreprocessor``, loader.py
``init_self_cognition_preprocessor``, dataset_syntax.py ``_get_matched_dataset_meta`` (a folder counts by its name).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

from swift_autobatch.facts.conversation import RowError
from swift_autobatch.records import Sourced

OWN = "swift/self-cognition"
_FOLDER = "self-cognition"
_EMPTY_THINKING = "<think>\n\n</think>\n\n"
_SUBSETS: Mapping[str, tuple[str, str]] = MappingProxyType(  # what is put behind the question and before the answer
    {"default": ("", ""), "qwen3": (" /no_think", _EMPTY_THINKING), "empty_think": ("", _EMPTY_THINKING)}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Persona:
    """What the rows say: (Chinese, English) names, None where the user gave none and the mark stays."""

    name: tuple[str | None, str | None] | None
    author: tuple[str | None, str | None] | None
    query_suffix: str = ""
    response_prefix: str = ""

    def fill(self, row: Any) -> dict[str, Any]:
        """The row as the engine makes it before it reads it.

        Raises:
            RowError: the row lacks what the engine needs to choose the language, so that it drops it.
        """
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("query", "response")):
            raise RowError("not-text", "a row of the self-cognition set needs the texts 'query' and 'response'")
        query, response = row["query"], row["response"]
        for mark, names in (("{{NAME}}", self.name), ("{{AUTHOR}}", self.author)):
            if names is None:
                continue
            if "tag" not in row:
                raise RowError("not-text", "a row of the self-cognition set needs 'tag', zh or en, to be given a name")
            said = names[0] if row["tag"] == "zh" else names[1]
            if said is not None:
                query, response = query.replace(mark, said), response.replace(mark, said)
        return {**row, "query": query + self.query_suffix, "response": self.response_prefix + response}


def persona_for(name: str, subsets: tuple[str, ...], pins: Mapping[str, Sourced[Any]]) -> Persona | None:
    """What the engine writes into a dataset of this id or folder name; None: it takes the rows as they are."""
    if PurePath(name.rstrip("/")).name != _FOLDER or len(subsets) > 1:
        return None
    affixes = _SUBSETS.get(subsets[0] if subsets else "default")
    if affixes is None:
        return None
    return Persona(
        name=_pair(pins, "model_name"),
        author=_pair(pins, "model_author"),
        query_suffix=affixes[0],
        response_prefix=affixes[1],
    )


def names_for(pins: Mapping[str, Sourced[Any]]) -> Mapping[str, tuple[str | None, str | None]]:
    """The mark of each name that was given -> (Chinese, English)."""
    pairs = {"{{NAME}}": _pair(pins, "model_name"), "{{AUTHOR}}": _pair(pins, "model_author")}
    return {mark: pair for mark, pair in pairs.items() if pair is not None}


def _pair(pins: Mapping[str, Sourced[Any]], flag: str) -> tuple[str | None, str | None] | None:
    pin = pins.get(flag)
    if pin is None or pin.value is None:
        return None
    values = [pin.value] if isinstance(pin.value, str) else list(pin.value)
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])
