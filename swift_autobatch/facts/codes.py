"""Every problem that a dataset can have: its code, what it does to the training, and what helps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Literal

Severity = Literal["stops", "drops", "warns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One kind of problem. ``severity``: the engine cannot load the file | drops the row | trains it all the same.

    ``fix`` may hold ``{file}`` and ``{line}``. ``repairs``: ``profile --repair`` mends it.
    """

    severity: Severity
    means: str
    fix: str
    repairs: bool = False


def _stops(means: str, fix: str, *, repairs: bool = True) -> Code:
    return Code(severity="stops", means=means, fix=fix, repairs=repairs)


def _drops(means: str, fix: str, *, repairs: bool = True) -> Code:
    return Code(severity="drops", means=means, fix=fix, repairs=repairs)


def _warns(means: str, fix: str, *, repairs: bool = False) -> Code:
    return Code(severity="warns", means=means, fix=fix, repairs=repairs)


_LINE = "fix line {line} of {file}, or delete it: sed -i '{line}d' {file}"
_ICONV = "convert it: iconv -f {0} -t utf-8 {{file}} > {{stem}}.utf8{{suffix}}"
_TEXT = "write text there: json.dumps(value, ensure_ascii=False) makes text of anything"

CODES: Mapping[str, Code] = MappingProxyType(
    {
        # ------------------------------------------------------------------ the engine's loader stops at the file
        "utf-16": _stops("the file is UTF-16, not UTF-8", _ICONV.format("utf-16")),
        "gb18030": _stops("the file is GB18030 (GBK), not UTF-8", _ICONV.format("gb18030")),
        "windows-1252": _stops("the file is Windows-1252 (Latin-1), not UTF-8", _ICONV.format("windows-1252")),
        "not-utf-8": _stops("the line is in no encoding that is known here", _LINE),
        "not-json": _stops("the line is not JSON", _LINE),
        "trailing-comma": _stops("a comma stands before a closing bracket or at the end of a row", _LINE),
        "missing-comma": _stops("two rows of a list stand side by side without a comma", _LINE),
        "cut-line": _stops("the row was cut off while it was written", _LINE),
        "single-quotes": _stops("a Python dict was printed where JSON is wanted", _LINE),
        "raw-control": _stops("a raw line break or control character stands inside a string", _LINE),
        "duplicate-name": _stops("a name stands twice in one object", _LINE),
        "surrogate": _stops("a string holds half of a surrogate pair", _LINE),
        "not-an-object": _stops("a row is no object", 'write line {line} as {{"query": "...", "response": "..."}}'),
        "space-before-list": _stops(
            "the list does not start at the file's first byte", "delete what stands before the '[' in {file}"
        ),
        "indented-large-file": _stops("objects over several lines are cut apart in a file above 10 MiB", _LINE),
        "late-column": _stops(
            "a column appears after the first 10 MiB, which fixed the columns of the file",
            "give every row every column",
        ),
        "late-type": _stops(
            "a column changes its kind after the first 10 MiB, which fixed it", "write one kind in the whole column"
        ),
        "csv-cells": _stops(
            "a row has more cells than the header", "put double quotes around cells that hold a comma", repairs=True
        ),
        "csv-quote": _stops("a quoted cell is never closed", "close the quote in line {line} of {file}"),
        # ------------------------------------------------------------------------------ the engine drops the row
        "not-a-row": _drops("the row is no object", 'write line {line} as {{"query": "...", "response": "..."}}'),
        "no-turns": _drops("the row holds neither a question nor an answer", "fill the row or delete it"),
        "mixed-schema": _drops(
            "the row is written in another form than the file is read in", "write all rows in one form"
        ),
        "not-text": _drops("a question or an answer is no text", _TEXT),
        "history": _drops("'history' is no list of [question, answer] pairs", 'write "history": [["q", "a"], ...]'),
        "not-messages": _drops(
            "the messages cannot be read", 'write "messages": [{{"role": "user", "content": "..."}}, ...]'
        ),
        "unknown-role": _drops(
            "a message has a role that the engine does not know",
            "use system, user, assistant, tool_call or tool_response",
        ),
        "engine-drops": _drops(
            "the engine's own encoder refuses the row", "see the engine's reason, or delete the row", repairs=False
        ),
        "unpaired-turns": _drops("the turns do not alternate", "let user and assistant take turns, system first"),
        # ------------------------------------------------------------------- the engine trains it without a word
        "several-on-a-line": _warns("more than one object stands on a line", "write one a line", repairs=True),
        "list-in-jsonl": _warns("a .jsonl file holds one JSON list", "name it .json", repairs=True),
        "nan": _warns(
            "NaN or Infinity, which JSON does not have, is read as null", "write null or a number", repairs=True
        ),
        "ambiguous-columns": _warns("several columns mean the same thing, so that the engine uses none", "rename one"),
        "own-code": _warns("the engine reads this set with code of its own, not read here", "watch the dry run"),
        "sampled": _warns("only some rows are trained", "leave '#N' away to train all"),
        "no-assistant-turn": _warns(
            "no answer to learn from: every label is masked", "add one, or delete the row", repairs=True
        ),
        "unanswered": _warns(
            "the last question has no answer", "add the answer, or delete the last turn", repairs=True
        ),
        "user-twice": _warns("two questions in a row are joined into one", "merge them, or put the answer between"),
        "assistant-first": _warns("the conversation starts with an answer", "put the question first"),
        "empty-answer": _warns(
            "the answer is empty: the row teaches the model to say nothing", "write the answer", repairs=True
        ),
        "masked": _warns("the row switches its loss off: every label is masked", 'delete "loss": false', repairs=True),
        "placeholder": _warns(
            "{{NAME}} or {{AUTHOR}} is trained as it stands",
            "put the name in; the engine fills --model_name and --model_author in for its own self-cognition set only",
        ),
        "over-context": _warns("the row is longer than the model's context", "shorten or split it"),
        "cut-answer": _warns("--max_length cuts the whole answer off", "raise --max_length"),
        "empty-field": _warns("a question is empty", "fill it or delete the row"),
        "type-drift": _warns("a column holds values of different kinds", "write one kind in the whole column"),
        "control-character": _warns("the text holds control characters", "delete them", repairs=True),
        "replacement-character": _warns("the text holds U+FFFD: a conversion lost characters", "export it again"),
        "duplicate": _warns("the row stands in the data more than once", "delete its copies", repairs=True),
        "broken-image": _warns("an image cannot be opened: another row is trained instead", "correct the path"),
        "image-count": _warns(
            "the text asks for more images than the row names", "write one <image> for every entry of images"
        ),
        "long-image": _warns("its images make the row too long", "MAX_PIXELS=N or --max_pixels N makes them smaller"),
    }
)


def stops(code: str) -> bool:
    """Whether the engine's loader fails on a file with this problem, so that not one row of it is trained."""
    return CODES[code].severity == "stops"


def fix_for(code: str, file: str, line: int) -> str:
    """What helps, with the place filled in."""
    path = PurePath(file)
    return CODES[code].fix.format(file=file, line=line, stem=path.stem, suffix=path.suffix)
