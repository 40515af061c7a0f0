"""Turns a dataset row into the conversation that ms-swift would train on, or says why it would drop the row.

Source: ms-swift 4.6 swift/dataset/preprocessor/core.py. The engine chooses one reading for a whole file by its column
names: ``messages`` or ``conversations`` columns, else ``instruction`` and ``input`` together (alpaca), else any
query and response column.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal

MESSAGE_COLUMNS = ("messages", "conversation", "conversations")
SYSTEM_COLUMNS = ("system", "system_prompt")
QUERY_COLUMNS = ("query", "prompt", "input", "instruction", "question", "problem")
RESPONSE_COLUMNS = (
    *("response", "answer", "output", "targets", "target", "answer_key", "answers", "solution"),
    *("text", "completion", "content"),
)
MEDIA_COLUMNS = ("images", "image", "videos", "video", "audios", "audio")
USER_ROLES = ("user", "human")
ASSISTANT_ROLES = ("assistant", "gpt", "bot")
TOOL_CALL_ROLES = ("function_call", "tool_call")
TOOL_ANSWER_ROLES = ("function_response", "observation", "observations", "tool", "tool_response")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message. ``weight`` is the loss weight of an assistant turn: 0 when the row switches its loss off."""

    role: Literal["user", "assistant", "system"]
    content: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A row as the engine trains it. ``system`` None means the template's default, '' means none at all.

    ``tools`` are the tool descriptions, one JSON text each, that go into the system prompt.
    """

    system: str | None
    tools: tuple[str, ...] = ()
    turns: tuple[Turn, ...]
    plain: bool  # text only; False when tools or media add tokens that are estimated, not counted
    media: bool  # images, video or audio, whose tokens are not counted at all
    images: tuple[str, ...] = ()  # paths or addresses; "" where the row holds the image itself
    doubled: bool = False  # two questions in a row were joined into one
    messages: Sequence[Mapping[str, Any]] = ()  # as read, before tool calls and answers are framed
    given_tools: Any = None  # the row's own ``tools``


class RowError(Exception):
    """The engine would drop this row; ``code`` is a Problem's code, ``text`` one sentence.

    ``late``: only in the template, after the rows to train were drawn.
    """

    def __init__(self, code: str, text: str, *, late: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.late = late


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the engine reads one file: which reading, and which column stands for what."""

    reading: Literal["messages", "alpaca", "pairs"]
    rename: Mapping[str, str]  # column in the file -> messages | system | query | response
    clash: tuple[str, ...] = ()  # columns that mean the same thing, so that the engine uses none of them


def shape_of(columns: Iterable[str]) -> Shape | None:
    """The engine's reading of a file with these columns; None when it finds nothing to train on."""
    names = list(dict.fromkeys(columns))
    systems = dict.fromkeys(SYSTEM_COLUMNS, "system")
    if any(name in names for name in MESSAGE_COLUMNS):
        return _shape("messages", names, {**dict.fromkeys(MESSAGE_COLUMNS, "messages"), **systems})
    wanted = {**systems, **dict.fromkeys(QUERY_COLUMNS, "query"), **dict.fromkeys(RESPONSE_COLUMNS, "response")}
    if "instruction" in names and "input" in names:
        return _shape("alpaca", names, wanted)
    shape = _shape("pairs", names, wanted)
    targets = {shape.rename.get(name, name) for name in names}
    return shape if targets & {"query", "response"} or shape.clash else None


def _shape(reading: Literal["messages", "alpaca", "pairs"], names: list[str], wanted: Mapping[str, str]) -> Shape:
    """Columns to rename. Where two columns mean the same thing the engine renames neither."""
    hits = {name: wanted[name.lower()] for name in names if name.lower() in wanted}
    times = Counter(hits.values())
    found = set(names)
    if reading == "alpaca":  # reads instruction, input and output by these very names
        found |= {"query", "response"} if "output" in names else {"query"}
    return Shape(
        reading=reading,
        rename=MappingProxyType({name: to for name, to in hits.items() if times[to] == 1 and name != to}),
        clash=tuple(name for name, to in hits.items() if times[to] > 1 and to not in found),
    )


def conversation(row: Any, shape: Shape) -> Conversation:
    """Reads one row as the engine does.

    Raises:
        RowError: the engine drops the row, and why.
    """
    if not isinstance(row, dict):
        raise RowError("not-a-row", f"a row must be an object, not {_kind(row)}")
    row = {shape.rename.get(name, name): value for name, value in row.items()}
    reader = {"messages": _from_messages, "alpaca": _from_alpaca, "pairs": _from_pair}[shape.reading]
    messages, plain = reader(row)
    if not messages:
        raise RowError("no-turns", "the row has neither a question nor an answer")
    media = any(bool(row.get(name)) for name in MEDIA_COLUMNS)
    plain = plain and not row.get("tools") and not media
    turns = [_turn(message) for message in messages]
    system = turns.pop(0).content if turns[0].role == "system" else None
    return Conversation(
        system=system,
        tools=_tools(row.get("tools")),
        turns=_merged(turns),
        plain=plain,
        media=media,
        images=image_paths(row.get("images") or row.get("image")),
        doubled=any(first.role == second.role == "user" for first, second in pairwise(turns)),
        messages=messages,
        given_tools=row.get("tools"),
    )


def image_paths(value: Any) -> tuple[str, ...]:
    """The images of a row: one path or a list of them, or objects with ``path`` and ``bytes``."""
    if not value:
        return ()
    images = value if isinstance(value, list) else [value]
    return tuple(_image_path(image) for image in images if image is not None)


def _image_path(image: Any) -> str:
    if isinstance(image, dict):
        return image["path"] if isinstance(image.get("path"), str) and not image.get("bytes") else ""
    return image if isinstance(image, str) else ""


# ----------------------------------------------------------------------------------------------- three readings

Messages = list[dict[str, Any]]


def _from_alpaca(row: dict[str, Any]) -> tuple[Messages, bool]:
    instruction, given = row.get("instruction"), row.get("input")
    query = f"{instruction}\n{given}" if instruction and given else instruction or given
    if not isinstance(query, str):
        raise RowError("not-text", f"'instruction' must be text, not {_kind(query)}")
    answer = row.get("output")
    return _from_pair({**row, "query": query, "response": row.get("response") if answer is None else answer})


def _from_pair(row: dict[str, Any]) -> tuple[Messages, bool]:
    answer = row.get("response")
    if isinstance(answer, list):  # several answers: the engine takes the first
        if not answer:
            raise RowError("no-turns", "the list of answers is empty")
        answer = answer[0]
    messages: Messages = []
    if row.get("system") is not None:
        messages.append({"role": "system", "content": row["system"]})
    for pair in [*_history(row.get("history")), [row.get("query"), answer]]:
        if not isinstance(pair, list | tuple) or len(pair) < 2:
            raise RowError("history", "each entry of 'history' must be a [question, answer] pair")
        for role, content in zip(("user", "assistant"), pair, strict=False):
            if content is not None:
                messages.append({"role": role, "content": content})
    return messages, True


def _history(value: Any) -> list[Any]:
    if not value:
        return []
    if isinstance(value, str):
        value = literal(value, "history")
    if not isinstance(value, list):
        raise RowError("history", f"'history' must be a list of pairs, not {_kind(value)}")
    return value


def _from_messages(row: dict[str, Any]) -> tuple[Messages, bool]:
    value = row.get("messages")
    if isinstance(value, str):
        value = literal(value, "messages")
    if not value:
        raise RowError("no-turns", "the row has no messages")
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise RowError("not-messages", "messages must be a list of {role, content} objects")
    messages = [standard(message) for message in value]
    plain = not any(message.get("tool_calls") or _is_tool(message) for message in messages)
    system = row.get("system")
    if "role" not in messages[0] and "content" not in messages[0]:
        return _from_named(messages, system), plain
    if messages[0].get("role") != "system" and system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return [part for message in messages for part in _calls(message)], plain


def standard(message: dict[str, Any]) -> dict[str, Any]:
    """from -> role, value -> content."""
    message = dict(message)
    for name, alias in (("role", "from"), ("content", "value")):
        if alias in message:
            message[name] = message.pop(alias)
    return message


def _from_named(messages: Messages, system: Any) -> Messages:
    """Rows of {"human": ..., "assistant": ...} objects, one object a round."""
    out: Messages = [] if system is None else [{"role": "system", "content": system}]
    for message in messages:
        for role, names in (("user", USER_ROLES), ("assistant", ASSISTANT_ROLES)):
            found = [message[name] for name in names if name in message]
            if not found:
                raise RowError("not-messages", "a message has neither 'role' and 'content' nor 'user' and 'assistant'")
            out.append({"role": role, "content": found[-1]})
    return out


def _tools(value: Any) -> tuple[str, ...]:
    if not value:
        return ()
    tools = value if isinstance(value, list) else [value]
    return tuple(tool if isinstance(tool, str) else _dump(tool) for tool in tools)


def _calls(message: dict[str, Any]) -> Messages:
    """OpenAI tool calls become turns of their own."""
    calls = message.get("tool_calls")
    if not calls:
        return [message]
    text = [{**message, "tool_calls": None}] if message.get("content") else []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RowError("not-messages", "'tool_calls' must be a list of objects")
    functions = [call.get("function", call) for call in calls]
    if not all(isinstance(function, dict) and "name" in function for function in functions):
        raise RowError("not-messages", "a tool call names no function")
    said = [{"name": f["name"], "arguments": _arguments(f.get("arguments", {}))} for f in functions]
    return [*text, *({"role": "tool_call", "content": call} for call in said)]


def _arguments(value: Any) -> Any:
    try:
        found = json.loads(value) if isinstance(value, str) else value
        return found if _encodable(found) else value
    except (ValueError, RecursionError):
        return value


# ------------------------------------------------------------------------------------------------------- turns


def _is_tool(message: Mapping[str, Any]) -> bool:
    role = message.get("role")
    return isinstance(role, str) and role.replace("-", "_") in (*TOOL_CALL_ROLES, *TOOL_ANSWER_ROLES)


def _turn(message: Mapping[str, Any]) -> Turn:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise RowError("unknown-role", "a message has no role")
    if content is None:
        raise RowError("not-text", f"the {role} message has no content")
    if _is_tool(message):
        said = role.replace("-", "_") in TOOL_CALL_ROLES
        text = content if isinstance(content, str) else _dump(content)
        tag = "tool_call" if said else "tool_response"  # as the hermes format writes them, Qwen's own
        framed = f"<{tag}>\n{text}\n</{tag}>"
        return Turn(role="assistant" if said else "user", content=framed, weight=_weight(message))
    if role in USER_ROLES:
        return Turn(role="user", content=_text(content, role))
    if role in ASSISTANT_ROLES:
        return Turn(role="assistant", content=_text(content, role), weight=_weight(message))
    if role == "system":
        return Turn(role="system", content=_text(content, role))
    known = "system, user, assistant, tool_call, tool_response"
    raise RowError("unknown-role", f"unknown role {role!r}; the engine knows {known}")


def _text(content: Any, role: str) -> str:
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = [part.get("text") for part in content if part.get("type") == "text"]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "".join(str(text) for text in texts)
    if not isinstance(content, str):
        raise RowError("not-text", f"the {role} message must be text, not {_kind(content)}", late=True)
    return content


def _weight(message: Mapping[str, Any]) -> float:
    loss, scale = message.get("loss"), message.get("loss_scale")
    if loss is not None and not loss:
        return 0.0
    return float(scale) if isinstance(scale, int | float) else 1.0


def _merged(turns: list[Turn]) -> tuple[Turn, ...]:
    """Neighbouring user turns become one, as in the engine; assistant turns stay apart (their losses differ)."""
    out: list[Turn] = []
    for turn in turns:
        if out and turn.role == "user" == out[-1].role:
            out[-1] = Turn(role="user", content=out[-1].content + turn.content)
        else:
            out.append(turn)
    if any(turn.role == "system" for turn in out):
        raise RowError("unpaired-turns", "a system message stands in the middle of the conversation", late=True)
    return tuple(out)


def literal(text: str, column: str) -> Any:
    """JSON or a Python literal in a cell, as csv files carry lists."""
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if _encodable(value):
            return value
    raise RowError("not-messages", f"the text in {column!r} is neither JSON nor a Python list")


def _encodable(value: Any) -> bool:
    """False for text with half of a surrogate pair, which has no UTF-8 form."""
    try:
        _dump(value).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):  # keys that are no text, from a Python literal
        return str(value)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "true/false", type(None): "null", str: "text"}
    return names.get(type(value), "a number")
