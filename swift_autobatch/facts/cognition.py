"""Recognises rows that teach a model who it is, the name they teach, and the questions to ask afterwards."""

from __future__ import annotations

import re
from collections import Counter

from swift_autobatch.facts.conversation import Conversation

PLACEHOLDERS = ("{{NAME}}", "{{AUTHOR}}")
SHARE = 0.3  # of the rows must ask about identity; a general chat dataset has well under 1 %
LEAST = 2
KEPT = 4096  # identity rows remembered, however long the file
LONGEST = 200  # characters: an identity question is short
PREFERRED = {"zh": "你是谁", "en": "who are you"}

_MODELS = "chatgpt|gpt|openai|qwen|claude|gemini|llama|deepseek|通义|文心|豆包|kimi|siri"
_IDENTITY = re.compile(
    r"\bwho\s+(?:are|r)\s+(?:you|u)\b"
    r"|\bwhat(?:'s|\s+is|\s+are)\s+your\s+name"
    r"|\byour\s+(?:name|creator|developer|maker|author|identity)\b"
    r"|\b(?:call|named|created|made|built|developed|trained|designed|owns)\s+you\b"
    r"|\bintroduce\s+yourself|\babout\s+yourself"
    rf"|\bare\s+you\s+(?:an?\s+)?(?:{_MODELS}|ai\b|human|robot|bot\b|person|chatbot)"
    r"|你是谁|你叫什么|你的名字|称呼你|你的(?:开发者|作者|创造者|身份)"
    r"|谁(?:在)?(?:创造|开发|训练|制造|设计|研发|做|维护)了?(?:的)?你"
    r"|自我介绍|介绍(?:一下|下)?你?自己|你是(?:哪|什么|人类|机器人|人吗|真人|AI)"
    rf"|你是\s*(?:{_MODELS})",
    re.IGNORECASE,
)
_NAMES = (
    re.compile(r"\b(?:I am|I'm|I’m|[Mm]y name is|[Cc]all me|call(?:ed|s)? me)\s+([A-Z][\w-]*(?:[. ][A-Z0-9][\w-]*)*)"),
    re.compile(
        r"(?:我是|我叫|我的名字是|我名叫|叫我|称我为)\s*[「“\"]?"
        r"([A-Za-z][\w-]*|[\u4e00-\u9fff]{1,8}?)(?=[」”\"\s，。,.！!、；;]|$)",
        re.ASCII,
    ),
)
_CJK = re.compile(r"[\u4e00-\u9fff]")


class Cognition:
    """Collects identity rows as conversations stream by."""

    def __init__(self) -> None:
        self.rows = 0
        self.identity_rows = 0
        self._pairs: list[tuple[str, str]] = []

    def add(self, talk: Conversation) -> bool:
        """Looks at one row. Returns whether it holds an unfilled ``{{NAME}}`` or ``{{AUTHOR}}``."""
        self.rows += 1
        turns = talk.turns
        question = turns[0].content if turns and turns[0].role == "user" else ""
        if question and len(question) <= LONGEST and _identity(question):
            self.identity_rows += 1
            alone = len(turns) == 2 and turns[1].role == "assistant" and not talk.system
            if alone and turns[1].content.strip() and len(self._pairs) < KEPT:
                self._pairs.append((question, turns[1].content))
        return any(mark in turn.content for turn in turns for mark in PLACEHOLDERS)

    def merge(self, other: Cognition) -> None:
        """Adds the rows of a later part."""
        self.rows += other.rows
        self.identity_rows += other.identity_rows
        self._pairs += other._pairs[: KEPT - len(self._pairs)]

    def taught(self) -> bool:
        """Whether the dataset is about who the model is."""
        return self.identity_rows >= max(LEAST, SHARE * self.rows)

    def persona(self) -> str | None:
        """The name that more than half of the answers which give a name agree on."""
        names: Counter[str] = Counter()
        naming = 0
        for _, answer in self._pairs:
            found = {match.group(1).strip() for pattern in _NAMES for match in pattern.finditer(answer)}
            naming += bool(found)
            names.update(sorted(found))
        if not names:
            return None
        name, times = max(names.items(), key=lambda item: (item[1], item[0]))
        return name if times > naming / 2 else None

    def questions(self) -> tuple[tuple[str, str], ...]:
        """One question a language with its trained answer, as it stands in the data: "who are you" when it is there."""
        chosen = []
        for language in ("en", "zh"):
            pairs = [pair for pair in self._pairs if bool(_CJK.search(pair[0])) == (language == "zh")]
            exact = [pair for pair in pairs if _bare(pair[0]) == PREFERRED[language]]
            chosen += (exact or pairs)[:1]
        return tuple(chosen)


def _identity(question: str) -> bool:
    """Whether it asks who the model is; no alternative of the pattern does without one of these."""
    lower = question.lower()
    asks = "you" in lower or "who" in lower or "你" in lower or "介绍" in lower
    return asks and _IDENTITY.search(question) is not None


def _bare(question: str) -> str:
    return re.sub(r"[\s?？!！.。]+$", "", question.strip().lower())
