"""The chat templates whose token lengths are counted here exactly, as ms-swift 4.6 encodes them for training.

A template is data: the strings around system prompt, question and answer, and what a row without a system prompt
gets. The engine joins neighbouring pieces that share their loss before it tokenizes, and labels the end marker of
every round; both change the counts, so both are reproduced.

Source: ms-swift 4.6 swift/template/templates/{qwen,llama,llm,deepseek,gemma,microsoft,internlm,utils}.py for the table,
swift/template/base.py ``_swift_encode``, ``_simplify_context_list`` and ``_add_dynamic_eos`` for the rules.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from swift_autobatch.facts.conversation import Conversation, RowError, Turn

# These stand for the tokenizer's own markers, which are ids, not text. AUTO_BOS: what it adds by itself, if anything.
BOS, EOS, AUTO_BOS = "\0bos", "\0eos", "\0auto"
MARKERS = frozenset({BOS, EOS, AUTO_BOS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One chat template. ``BOS`` and ``EOS`` in a tuple stand for token ids; every other string is text."""

    prefix: tuple[str, ...] = ()
    system_prefix: tuple[str, ...]
    prompt: tuple[str, ...]
    chat_sep: tuple[str, ...]
    suffix: tuple[str, ...]
    default_system: str | None = None
    auto_bos: bool = False  # the tokenizer's own bos, when it adds one
    stop_words: tuple[str, ...] = ()
    non_thinking_prefix: str = ""  # put before answers that do not think
    thinking_prefix: str = ""  # what an unanswered last question ends in


_QWEN = Template(
    system_prefix=("<|im_start|>system\n{{SYSTEM}}<|im_end|>\n",),
    prompt=("<|im_start|>user\n{{QUERY}}<|im_end|>\n<|im_start|>assistant\n",),
    chat_sep=("<|im_end|>\n",),
    suffix=("<|im_end|>\n",),
    stop_words=("<|endoftext|>", "<|im_end|>"),
)
_HELPFUL = "You are a helpful assistant."
_CHATML = replace(_QWEN, stop_words=("<|im_end|>",), auto_bos=True)
_LLAMA3_HEADER = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
_LLAMA3 = Template(
    prefix=("<|begin_of_text|>",),
    system_prefix=(_LLAMA3_HEADER + "{{SYSTEM}}<|eot_id|>",),
    prompt=(
        "<|start_header_id|>user<|end_header_id|>\n\n{{QUERY}}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    chat_sep=("<|eot_id|>",),
    suffix=("<|eot_id|>",),
    stop_words=("<|eot_id|>",),
)
# The engine writes the day of the run here; in Llama's own tokenizer every day has the same number of tokens.
_LLAMA3_DATES = "Cutting Knowledge Date: December 2023\nToday Date: {{DATE}}\n\n"
_DEEPSEEK_V2_5 = Template(
    prefix=("<｜begin▁of▁sentence｜>",),
    system_prefix=("<｜begin▁of▁sentence｜>{{SYSTEM}}",),
    prompt=("<｜User｜>{{QUERY}}<｜Assistant｜>",),
    chat_sep=("<｜end▁of▁sentence｜>",),
    suffix=("<｜end▁of▁sentence｜>",),
    stop_words=("<｜end▁of▁sentence｜>",),
)

TEMPLATES: Mapping[str, Template] = MappingProxyType(
    {
        "qwen": replace(_QWEN, default_system=_HELPFUL),
        "qwen2_5": replace(
            _QWEN, default_system="You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        ),
        "qwen2_5_math": replace(
            _QWEN, default_system="Please reason step by step, and put your final answer within \\boxed{}."
        ),
        "qwq": replace(_QWEN, thinking_prefix="<think>\n"),
        "qwen3": replace(_QWEN, non_thinking_prefix="<think>\n\n</think>\n\n"),
        "qwen3_thinking": replace(_QWEN, thinking_prefix="<think>\n"),
        "qwen3_nothinking": _QWEN,
        "qwen3_coder": _QWEN,
        "chatml": _CHATML,
        "yi_coder": replace(_CHATML, default_system=_HELPFUL),
        "default": Template(
            system_prefix=("{{SYSTEM}}\n\n",),
            prompt=("### Human:\n{{QUERY}}\n\n### Assistant:\n",),
            chat_sep=("\n\n",),
            suffix=(EOS,),
            default_system=_HELPFUL,
            auto_bos=True,
        ),
        "llama3": _LLAMA3,
        "llama3_2": replace(
            _LLAMA3,
            prefix=(_LLAMA3_HEADER + _LLAMA3_DATES + "<|eot_id|>",),
            system_prefix=(_LLAMA3_HEADER + _LLAMA3_DATES + "{{SYSTEM}}<|eot_id|>",),
        ),
        "deepseek": Template(
            prefix=(BOS,),
            system_prefix=(BOS, "{{SYSTEM}}\n\n"),
            prompt=("User: {{QUERY}}\n\nAssistant:",),
            chat_sep=(EOS,),
            suffix=(EOS,),
        ),
        "deepseek_v2_5": _DEEPSEEK_V2_5,
        "deepseek_r1": replace(_DEEPSEEK_V2_5, thinking_prefix="<think>\n"),
        "gemma": Template(
            prefix=("<bos>",),
            system_prefix=("<bos><start_of_turn>system\n{{SYSTEM}}<end_of_turn>\n",),
            prompt=("<start_of_turn>user\n{{QUERY}}<end_of_turn>\n<start_of_turn>model\n",),
            chat_sep=("<end_of_turn>\n",),
            suffix=("<end_of_turn>",),
            stop_words=("<end_of_turn>",),
        ),
        "phi3": Template(
            system_prefix=("<|system|>\n{{SYSTEM}}<|end|>\n",),
            prompt=("<|user|>\n{{QUERY}}<|end|>\n<|assistant|>\n",),
            chat_sep=("<|end|>\n",),
            suffix=("<|end|>",),
            auto_bos=True,
            stop_words=("<|end|>",),
        ),
        "phi4": Template(
            system_prefix=("<|im_start|>system<|im_sep|>{{SYSTEM}}<|im_end|>",),
            prompt=("<|im_start|>user<|im_sep|>{{QUERY}}<|im_end|><|im_start|>assistant<|im_sep|>",),
            chat_sep=("<|im_end|>",),
            suffix=("<|im_end|>",),
            auto_bos=True,
            stop_words=("<|im_end|>",),
        ),
    }
)


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
    today = time.strftime("%d %b %Y")
    return replace(
        template,
        prefix=tuple(part.replace("{{DATE}}", today) for part in template.prefix),
        system_prefix=tuple(part.replace("{{DATE}}", today) for part in template.system_prefix),
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
