"""Puts one row right where what it means is no guess, or leaves it out; says what was done and for which problem."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from swift_autobatch.facts.checks import explained
from swift_autobatch.facts.conversation import (
    ASSISTANT_ROLES,
    USER_ROLES,
    Conversation,
    RowError,
    Shape,
    conversation,
    literal,
    shape_of,
    standard,
)
from swift_autobatch.facts.persona import names_for
from swift_autobatch.facts.repeats import Repeats
from swift_autobatch.facts.suspects import in_row, without_control
from swift_autobatch.records import Sourced

_ROOM = 1 << 20  # different rows remembered while copies are taken out: about 130 MB
_ROLES = {"model": "assistant", "ai": "assistant", "chatgpt": "assistant", "me": "user"}
_KNOWN = ("system", *USER_ROLES, *ASSISTANT_ROLES, "tool_call", "tool_response", "tool")
_EXTRA = ("tools", "images", "videos", "audios", "objects")
_MESSAGES = Shape(reading="messages", rename=MappingProxyType({}))
_CJK = re.compile("[\u4e00-\u9fff]")


class Change(NamedTuple):
    """One thing done to a row: ``action`` is mended or deleted."""

    code: str
    action: str
    text: str


@dataclass(frozen=True, slots=True)
class _Deleted(Exception):
    code: str
    text: str


class Tidy:
    """Goes through rows in order; remembers what they say, so that copies are left out."""

    def __init__(self, pins: Mapping[str, Sourced[Any]], *, as_messages: bool) -> None:
        self._names = names_for(pins)
        self._as_messages = as_messages
        self._repeats = Repeats(room=_ROOM)

    def row(self, row: Any, shape: Shape, file: str, line: int) -> tuple[dict[str, Any] | None, list[Change]]:
        """The row as it is to be written, None to leave it out, and what was done to it."""
        done: list[Change] = []
        try:
            return self._tidy(row, shape, file, line, done), done
        except _Deleted as why:
            return None, [*done, Change(why.code, "deleted", why.text)]

    def _tidy(self, row: Any, shape: Shape, file: str, line: int, done: list[Change]) -> dict[str, Any]:
        for fault in in_row(row):
            if fault.code == "control-character":
                row = _mapped(row, without_control)
                done.append(Change(fault.code, "mended", f"{fault.text} was taken out"))
        row, talk, shape = self._readable(row, shape, done)
        if not talk.turns:
            raise _Deleted("no-turns", "the row has a system prompt and nothing else")
        row = self._named(row, talk, done)
        row, shape = _answered(row, talk, shape, done)
        talk = conversation(row, shape)
        _teaches(talk)
        if first := self._repeats.add(file, line, talk):
            first_file, first_line = first
            place = f"line {first_line}" if first_file == file else f"{first_file}:{first_line}"
            raise _Deleted("duplicate", f"says the same as {place}")
        return as_messages(row, shape) if self._as_messages else row

    def _readable(self, row: Any, shape: Shape, done: list[Change]) -> tuple[Any, Conversation, Shape]:
        """The row in a form that the engine reads, and how it reads it. Raises _Deleted."""
        try:
            return row, conversation(row, shape), shape
        except RecursionError:
            raise _Deleted("not-text", "brackets are nested too deeply") from None
        except RowError as error:
            why = explained(error, row, shape)
        other = _other_form(why, row, shape)
        if other is None:
            raise _Deleted(why.code, why.text)
        fixed, own, what = other
        try:
            talk = conversation(fixed, own)
        except RowError:
            raise _Deleted(why.code, why.text) from None
        done.append(Change(why.code, "mended", f"{why.text}: {what}"))
        return fixed, talk, own

    def _named(self, row: Any, talk: Conversation, done: list[Change]) -> Any:
        """The row with the given names in place of ``{{NAME}}`` and ``{{AUTHOR}}``."""
        said = " ".join(turn.content for turn in talk.turns)
        language = 0 if _CJK.search(said) else 1
        for mark, names in self._names.items():
            name = names[language]
            if name and mark in said:
                row = _mapped(row, lambda text, mark=mark, name=name: text.replace(mark, name))
                done.append(Change("placeholder", "mended", f"{mark} became {name}"))
        return row


def _other_form(why: RowError, row: Any, shape: Shape) -> tuple[Any, Shape, str] | None:
    """The row that was meant, how to read it, and in words what was done; None: nobody can tell."""
    if not isinstance(row, dict):
        return None
    if why.code == "mixed-schema":
        own = shape_of(name for name, value in row.items() if value not in (None, "", []))
        return (_textual(row, own), own, "written as messages") if own else None
    if why.code == "not-text":
        return _textual(row, shape), shape, "written as text"
    if why.code == "unknown-role":
        return _mapped_roles(row), shape, "the role was spelled as the engine spells it"
    return None


def _textual(row: dict[str, Any], shape: Shape) -> dict[str, Any]:
    """Numbers, lists and objects in the place of a question or an answer as text; null stays null."""
    if shape.reading == "messages":
        return _over_messages(row, lambda message: {**message, "content": _text(message.get("content"))})
    targets = {"query", "response", "instruction", "input", "output"}
    return {
        name: _text(value) if shape.rename.get(name, name) in targets and not isinstance(value, list) else value
        for name, value in row.items()
    }


def _text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # csv columns of whole numbers come as fractions
    return json.dumps(value, ensure_ascii=False)


def _mapped_roles(row: dict[str, Any]) -> dict[str, Any]:
    def known(message: dict[str, Any]) -> dict[str, Any]:
        role = str(message.get("role")).strip().casefold()
        role = _ROLES.get(role, role)
        return {**message, "role": role} if role in _KNOWN else message

    return _over_messages(row, known)


def _over_messages(row: dict[str, Any], change: Any) -> dict[str, Any]:
    out = dict(row)
    for name, value in row.items():
        if isinstance(value, list) and all(isinstance(message, dict) for message in value):
            out[name] = [change(standard(message)) for message in value]
    return out


def _answered(row: Any, talk: Conversation, shape: Shape, done: list[Change]) -> tuple[Any, Shape]:
    """A conversation without the questions behind its last answer; nothing is learned from them."""
    roles = [turn.role for turn in talk.turns]
    if roles[-1] != "user" or "assistant" not in roles or shape.reading != "messages":
        return row, shape
    short = as_messages(row, shape)
    while short["messages"] and short["messages"][-1]["role"] in USER_ROLES:
        short["messages"].pop()
    done.append(Change("unanswered", "mended", "the question behind the last answer was taken out"))
    return short, _MESSAGES


def _teaches(talk: Conversation) -> None:
    """Raises _Deleted for a row with nothing to learn from."""
    answers = [turn for turn in talk.turns if turn.role == "assistant"]
    if not answers:
        raise _Deleted("no-assistant-turn", "no answer to learn from")
    if not any(turn.content.strip() for turn in answers):
        raise _Deleted("empty-answer", "the answer is empty")
    if not any(turn.weight for turn in answers):
        raise _Deleted("masked", "the row switches its loss off")


def as_messages(row: dict[str, Any], shape: Shape) -> dict[str, Any]:
    """A readable row in the one form that says everything: messages, and what belongs to them."""
    named = {shape.rename.get(name, name): value for name, value in row.items()}
    talk = conversation(row, shape)
    value = named.get("messages")
    said = literal(value, "messages") if isinstance(value, str) else value
    if shape.reading == "messages" and isinstance(said, list) and all("role" in standard(one) for one in said):
        messages = [standard(message) for message in said]
        if messages[0].get("role") != "system" and talk.system is not None:
            messages.insert(0, {"role": "system", "content": talk.system})
    else:
        system = [] if talk.system is None else [{"role": "system", "content": talk.system}]
        messages = [*system, *({"role": turn.role, "content": turn.content} for turn in talk.turns)]
    extra = {name: named.get(name) or named.get(name[:-1]) for name in _EXTRA}
    return {"messages": messages, **{name: value for name, value in extra.items() if value}}


def _mapped(value: Any, change: Any) -> Any:
    """The value with every string in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    return value
