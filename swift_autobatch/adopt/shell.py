"""Reads calls of ``swift`` out of shell scripts: bash, Windows cmd and PowerShell, as people post them.

A script is never run. Variables that it sets itself, or that the environment holds, are filled in; `$(expr a / b)` and
`$((a / b))` are worked out; everything else that a shell would compute stays as written and is told. A command that
its own continuations cut short is read as it was meant, and told.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from swift_autobatch.adopt.found import Call, Finding, Setting

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_CONTINUED = re.compile(r"(?<!\\)([\\^`])$")  # bash, cmd, PowerShell
_BLANK_AFTER = re.compile(r"[\\^`][ \t]+$")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*)|:?\?[^}]*)?\}|(\w+))|%(\w+)%")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*)\)\)|\$\(\s*expr\s+([^()]*)\)|`\s*expr\s+([^`]*)`")
_COMPUTED = re.compile(r"\s*(?:export\s+)?\w+=[^ ]*\$\((?!\(|\s*expr)")
_WORD = re.compile(
    r"""(?:\$\{[^{}]*\}|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+|['"].*""",
    re.DOTALL,
)
_SCRIPTS = re.compile(r"(?:^|/)swift/cli/(\w+)\.py$")
_MODULES = re.compile(r"swift\.cli\.(\w+)$")
_SEPARATORS = ("&&", "||", ";", "|", "&")
_KEYWORDS = frozenset({"then", "do", "else", "if", "while", "!", "{", "(", "function"})
_FUNCTION = re.compile(r"\w+\(\)")
_LOOP = re.compile(r"\s*for\s+(\w+)\s+in\s+(.*)", re.DOTALL)
_ARRAY = re.compile(r"\s*(?:declare\s+-a\s+)?(\w+)(\+?)=\((.*)\)\s*", re.DOTALL)
_OPEN_ARRAY = re.compile(r"\b\w+=\([^)]*$")
_ALL_OF = re.compile(r"""["']?\$\{(\w+)\[[@*]\]\}["']?""")
_SETTERS = ("export", "set", "setx", "env")
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW", re.IGNORECASE)  # never copied from an environment into a file
_WHICH = re.compile(r"""^["']?(?:\$\(|`)\s*(?:which|command -v|type -p)\s+(\w+)\s*[)`]["']?$""")
_LAUNCHERS = ("nohup", "time", "sudo", "exec", "python", "python3", "torchrun", "accelerate", "deepspeed", "srun")
_OWN = {"RUN": "$RUN", "ROOT": ".", "PWD": "."}  # of the run.sh that autoswift writes: the run and the project folder
# What launchers say, in the engine's own words. Source: torchrun, accelerate launch and deepspeed --help.
_LAUNCHER_FLAGS: Mapping[str, str] = {
    "nproc_per_node": "NPROC_PER_NODE",
    "num_processes": "NPROC_PER_NODE",
    "num_gpus": "NPROC_PER_NODE",
    "nnodes": "NNODES",
    "num_nodes": "NNODES",
    "num_machines": "NNODES",
    "node_rank": "NODE_RANK",
    "machine_rank": "NODE_RANK",
    "master_addr": "MASTER_ADDR",
    "main_process_ip": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
    "main_process_port": "MASTER_PORT",
}


@dataclass(frozen=True, slots=True)
class _Line:
    """A command with its continuations joined; ``numbers`` are the lines that its words stand on."""

    text: str
    number: int
    breaks: tuple[int, ...]  # offsets in text at which a further physical line starts
    findings: tuple[Finding, ...]

    def line_at(self, offset: int) -> int:
        return self.number + sum(offset >= start for start in self.breaks)


def read_calls(text: str, outside: Mapping[str, str] | None = None) -> list[Call]:
    """Every call of ``swift VERB`` (or ``megatron VERB``) in a script, in order.

    Args:
        outside: the environment that the script would run in; fills in what the script itself does not set.
    """
    variables = {name: Setting(words=(value,), line=0) for name, value in _OWN.items()}
    calls: list[Call] = []
    before: tuple[Finding, ...] = ()  # of lines that were meant to be part of the call below them
    loops: list[Finding] = []
    for line in _logical_lines(text):
        found = [call for part in _commands(line) if (call := _read_line(part, variables, outside or {}, loops))]
        for call in found:
            broken = bool(before or line.findings)
            calls.append(replace(call, findings=(*before, *loops, *call.findings), as_meant=broken))
            loops.clear()
        before = () if found else line.findings
    return calls


def _commands(line: _Line) -> Iterator[_Line]:
    """The commands of a line: what `&&`, `;` and the like part. The offsets of words stay what they are."""
    start = 0
    for match in _WORD.finditer(line.text):
        word = match[0]
        if word.startswith("#"):
            break
        if word in _SEPARATORS or (word.endswith(";") and not word.endswith("\\;")):
            end = match.end() if word not in _SEPARATORS else match.start()
            yield replace(line, text=" " * start + _unbracketed(line.text[start:end].rstrip(";")))
            start = match.end()
    yield replace(line, text=" " * start + _unbracketed(line.text[start:]))


def _unbracketed(text: str) -> str:
    """A command without the bracket of a subshell that it opens or closes alone."""
    if text.count("(") > text.count(")") and text.lstrip().startswith("("):
        return text.replace("(", " ", 1)
    if text.count(")") > text.count("(") and text.rstrip().endswith(")"):
        return text.rstrip()[:-1]
    return text


def _logical_lines(text: str) -> Iterator[_Line]:
    """Commands with their continuations joined; a break that leaves flags behind is a finding, and joined too."""
    physical = text.replace("\r\n", "\n").split("\n")
    joined, start, told = "", 0, False  # told: of the break that the flags below were lost by
    breaks: list[int] = []
    findings: list[Finding] = []
    for number, raw in enumerate(physical, 1):
        if not joined:
            start, breaks, findings = number, [], []
        if _is_comment(raw) or (joined and not raw.strip()):
            if not joined:
                continue
            if not told:
                findings.append(_broken("comment" if raw.strip() else "empty", number))
            told = True
            if _flags_follow(physical[number:]):
                continue
        else:
            if joined:
                breaks.append(len(joined))
            told = False
            if _BLANK_AFTER.search(raw):
                findings.append(_broken("blank", number))
            if _CONTINUED.search(raw.rstrip()):
                joined += _CONTINUED.sub(" ", raw.rstrip())
                continue
            joined += raw
            if _OPEN_ARRAY.search(joined):
                joined += " "
                continue
            if "swift" in joined and _flags_follow(physical[number:]):
                findings.append(_broken("lost", number))
                told = True
                joined += " "
                continue
        if joined.strip():
            yield _Line(joined, start, tuple(breaks), tuple(findings))
        joined, told = "", False
    if joined.strip():
        yield _Line(joined, start, tuple(breaks), tuple(findings))


def _is_comment(raw: str) -> bool:
    return raw.strip().startswith(("#", "REM ", "rem ", "::"))


def _flags_follow(below: Sequence[str]) -> bool:
    """Whether the next line with a word on it is flags, which no command starts with."""
    following = (line.strip() for line in below if line.strip() and not _is_comment(line))
    return next(following, "").startswith("--")


_BROKEN: Mapping[str, tuple[str, str]] = {
    "blank": (
        "a blank after the line continuation ends the command here: the flags below it are not passed",
        "remove the blanks at the end of this line",
    ),
    "empty": ("an empty line ends the command although the line above continues it", "remove this line"),
    "comment": (
        "a comment between continued lines ends the command: the flags below it are not passed",
        "move the comment above the command",
    ),
    "lost": (
        "the command ends here, without a continuation: the flags below it are not passed",
        "end this line with a backslash (cmd: ^, PowerShell: `)",
    ),
}


def _broken(kind: str, number: int) -> Finding:
    """What ends a command before its author meant it to."""
    text, fix = _BROKEN[kind]
    return Finding(level="error", line=number, text=text, fix=fix)


def _read_line(
    line: _Line, variables: dict[str, Setting], outside: Mapping[str, str], loops: list[Finding]
) -> Call | None:
    if _remembered(line, variables, outside, loops):
        return None
    if _COMPUTED.match(line.text):
        return None  # what a program prints cannot be known here
    findings = list(line.findings)
    try:
        words = list(_words(line, _Values(variables, outside), findings))
    except ValueError as error:
        if "swift" not in line.text:
            return None
        problem = Finding(level="error", line=line.number, text=f"the shell could not read this: {error}", fix="")
        return Call(verb="sft", line=line.number, flags={}, findings=(*findings, problem))
    own: dict[str, Setting] = {}
    while words:
        word, number = words[0]
        if match := _ASSIGNMENT.fullmatch(word):
            own[match[1]] = Setting(words=(match[2],), line=number)
        elif word not in _SETTERS and word not in _KEYWORDS and not _FUNCTION.fullmatch(word):
            break
        words.pop(0)
    if not words:
        variables.update(own)
        return None
    verb, rest, launcher = _verb(words)
    if verb is None:
        return None
    visible = {name: setting for name, setting in variables.items() if name.isupper() and name not in _OWN}
    flags = dict(_flags(rest, findings))
    return Call(verb=verb, line=line.number, flags=flags, env={**visible, **own, **launcher}, findings=tuple(findings))


def _remembered(line: _Line, variables: dict[str, Setting], outside: Mapping[str, str], loops: list[Finding]) -> bool:
    """Takes note of an array, or of the first value that a loop runs with; False where the line is neither."""
    values = _Values(variables, outside)
    if (array := _ARRAY.fullmatch(line.text)) is not None:
        inner = replace(line, text=" " * array.start(3) + array[3])
        words = tuple(word for word, _ in _words(inner, values, loops))
        before = variables[array[1]].words if array[2] and array[1] in variables else ()
        variables[array[1]] = Setting(words=(*before, *words), line=line.number)
        return True
    if (loop := _LOOP.fullmatch(line.text)) is not None:
        words = tuple(word for word, _ in _words(replace(line, text=loop[2]), values, loops))
        if words:
            variables[loop[1]] = Setting(words=words[:1], line=line.number)
            text = f"a loop over ${loop[1]} runs {len(words)} jobs: the first one, with {words[0]}, is looked at"
            loops.append(Finding(level="note", line=line.number, text=text))
        return True
    return False


@dataclass(frozen=True, slots=True)
class _Values:
    """Variables as the script sets them, below them the environment that it runs in."""

    inside: Mapping[str, Setting]
    outside: Mapping[str, str]


def _words(line: _Line, values: _Values, findings: list[Finding]) -> Iterator[tuple[str, int]]:
    """The words of a line, variables filled in, each with its physical line; a comment at the end is left out."""
    for match in _WORD.finditer(line.text):
        raw, number = match[0], line.line_at(match.start())
        if raw.startswith("#"):
            return
        if raw in ("|", ">", ">>", "2>&1", "&", "&&", ";", "||", "&>") or raw.startswith((">", "2>", "&>")):
            return
        if (every := _ALL_OF.fullmatch(raw)) and every[1] in values.inside:
            for word in values.inside[every[1]].words:
                yield word, number
            continue
        if which := _WHICH.match(raw):
            yield which[1], number
            continue
        filled = raw if raw.startswith("'") else _fill(raw, values, number, findings)
        parts = [filled] if "$(" in filled or filled.startswith("`") else shlex.split(filled)
        for part in parts or [""]:
            yield part, number


def _fill(word: str, values: _Values, number: int, findings: list[Finding]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3] or match[4]
        if name in values.inside:
            return " ".join(values.inside[name].words)
        if name in values.outside and not _SECRET.search(name):
            text = f"${name} is {values.outside[name]!r} here, from the environment"
            findings.append(Finding(level="note", line=number, text=text))
            return values.outside[name]
        if match[2] is not None:
            return match[2]
        text = f"${name} is set neither in this script nor in the environment"
        findings.append(Finding(level="warn", line=number, text=text, fix=f"{name}=... above it"))
        return match[0]

    filled = _VARIABLE.sub(value, word)
    return _ARITHMETIC.sub(lambda m: _compute(next(g for g in m.groups() if g is not None), m[0]), filled)


_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _compute(text: str, otherwise: str) -> str:
    """An integer expression of a shell; what is none of that stays as written."""
    try:
        return str(_value(ast.parse(text.replace("\\*", "*").strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, KeyError):
        return otherwise


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(ast.dump(node))


def _verb(words: list[tuple[str, int]]) -> tuple[str | None, list[tuple[str, int]], dict[str, Setting]]:
    """(verb, the words after it, what the launcher says) of a call of the engine; None: it is none."""
    launcher: dict[str, Setting] = {}
    for index, (word, number) in enumerate(words):
        after = words[index + 1 :]
        name = word.rsplit("/", 1)[-1].removesuffix(".exe")
        if name in ("swift", "megatron") and after and not after[0][0].startswith("-"):
            verb = after[0][0] if name == "swift" else f"megatron {after[0][0]}"
            return verb, after[1:], launcher
        for pattern in (_SCRIPTS, _MODULES):
            if match := pattern.search(word):
                verb = match[1]
                if verb == "main" and after:
                    return after[0][0], after[1:], launcher
                return verb, after, launcher
        if word.startswith("--"):
            flag, _, value = word[2:].replace("-", "_").partition("=")
            if flag in _LAUNCHER_FLAGS:
                launcher[_LAUNCHER_FLAGS[flag]] = Setting(words=(value or (after[0][0] if after else ""),), line=number)
        elif index == 0 and name not in _LAUNCHERS:
            return None, [], {}
    return None, [], {}


def _flags(words: list[tuple[str, int]], findings: list[Finding]) -> Iterator[tuple[str, Setting]]:
    """Flags of a call, ``--flag value``, ``--flag=value`` and many values; a config file of its own is ``config``."""
    seen: dict[str, int] = {}
    index = 0
    while index < len(words):
        word, number = words[index]
        index += 1
        if not word.startswith("--"):
            if not seen and word.endswith((".yaml", ".yml", ".json")):
                yield "config", Setting(words=(word,), line=number)
            else:
                findings.append(Finding(level="error", line=number, text=f"{word!r} belongs to no flag"))
            continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        values = [value] if equals else []
        while not equals and index < len(words) and not words[index][0].startswith("--"):
            values.append(words[index][0])
            index += 1
        if name in seen:
            text = f"--{name} is given twice (line {seen[name]} too): the last one wins"
            findings.append(Finding(level="warn", line=number, text=text, fix="keep one of them"))
        seen[name] = number
        yield name, Setting(words=tuple(values), line=number)
