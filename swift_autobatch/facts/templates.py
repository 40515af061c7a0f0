"""Writes a conversation out as ms-swift 4.6 does for training, by a chat template of ``template_table.py``.

The engine joins neighbouring pieces that share their loss before it tokenizes, and labels the end marker of every
round; both change the counts, so both are reproduced.

Source: ms-swift 4.6 swift/template/base.py ``_swift_encode``, ``_simplify_context_list`` and ``_add_dynamic_eos``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from swift_autobatch.facts.conversation import Conversation, RowError, Turn
from swift_autobatch.facts.template_table import AUTO_BOS, MARKERS, Template

# Qwen's way to announce tools (swift/agent_template/hermes.py); other models' ways are of similar length.
_TOOLS = """{{SYSTEM}}

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{{TOOLS}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Text, or a marker, with the loss weight of its tokens."""

    text: str
    weight: float = 0.0


def dated(template: Template) -> Template:
    """The template with today's date where the engine writes it."""
    today, iso = time.strftime("%d %b %Y"), time.strftime("%Y-%m-%d")
    return replace(
        template,
        prefix=tuple(part.replace("{{DATE}}", today) for part in template.prefix),
        system_prefix=tuple(part.replace("{{DATE}}", today) for part in template.system_prefix),
        default_system=template.default_system and template.default_system.replace("{{ISO_DATE}}", iso),
    )


def render(talk: Conversation, template: Template, system: str | None, eos_text: str = "") -> tuple[Piece, ...]:
    """A conversation as the pieces that the engine tokenizes one by one.

    Args:
        talk: the row.
        template: its chat template.
        system: ``--system``; None keeps the template's default. A row's own system prompt wins over both.
        eos_text: the tokenizer's end marker as text; an answer that ends in it gets no second one.

    Raises:
        RowError: the turns do not alternate, so the engine drops the row.
    """
    said = talk.system if talk.system is not None else system if system is not None else template.default_system
    if talk.tools:
        said = _TOOLS.replace("{{SYSTEM}}", said or "").replace("{{TOOLS}}", "\n".join(talk.tools))
    pieces = [Piece(text=AUTO_BOS)] if template.auto_bos else []
    pieces += _filled(template.system_prefix if said else template.prefix, said or "", "")
    rounds = _rounds(talk.turns)
    for index, (question, answers) in enumerate(rounds):
        pieces += _filled(template.prompt, said or "", question)
        last = index == len(rounds) - 1
        pieces += _answered(answers, template, last=last, eos_text=eos_text)
    return _joined(pieces)


def no_turns() -> RowError:
    """A row that holds nothing to render."""
    return RowError("no-turns", "the row has a system prompt and nothing else")


def _rounds(turns: tuple[Turn, ...]) -> list[tuple[str, list[Turn]]]:
    """(question, answers) pairs; an answer without a question gets an empty one, as in the engine."""
    rounds: list[tuple[str, list[Turn]]] = []
    for turn in turns:
        if turn.role == "user":
            rounds.append((turn.content, []))
        elif rounds:
            rounds[-1][1].append(turn)
        else:
            rounds.append(("", [turn]))
    if not rounds:
        raise no_turns()
    return rounds


def _answered(answers: list[Turn], template: Template, *, last: bool, eos_text: str) -> list[Piece]:
    if not answers:  # an unanswered last question: nothing to learn from
        return [Piece(text=template.non_thinking_prefix or template.thinking_prefix)]
    pieces = [Piece(text=turn.content, weight=turn.weight) for turn in answers]
    silent = template.non_thinking_prefix
    if silent and not answers[0].content.startswith(("<think>", silent)):
        pieces[0] = Piece(text=silent + answers[0].content, weight=answers[0].weight)
    if not last:
        return pieces + [Piece(text=text) for text in template.chat_sep]
    stops = (*template.stop_words, eos_text) if eos_text else template.stop_words
    if stops and pieces[-1].text.endswith(stops):
        return pieces
    return pieces + [Piece(text=text, weight=1.0) for text in template.suffix]


def _filled(parts: tuple[str, ...], system: str, query: str) -> list[Piece]:
    filled = (part.replace("{{SYSTEM}}", system).replace("{{QUERY}}", query) for part in parts)
    return [Piece(text=text) for text in filled if text]


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Neighbours of equal weight become one text before they are tokenized; markers stay alone."""
    out: list[Piece] = []
    for piece in pieces:
        if not piece.text:
            continue
        mergeable = out and out[-1].weight == piece.weight and MARKERS.isdisjoint((piece.text, out[-1].text))
        if mergeable:
            out[-1] = Piece(text=out[-1].text + piece.text, weight=piece.weight)
        else:
            out.append(piece)
    return tuple(out)
