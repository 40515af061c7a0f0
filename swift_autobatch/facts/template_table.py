"""The chat templates that are counted here exactly, as data: the strings around system prompt, question and answer.

Each row is what ms-swift 4.6 registers under that name, which an engine test compares row by row. Templates whose class
rewrites the conversation in code (GLM, Gemma 3, GPT-OSS, Qwen 3.5 ...) are not here: ``encoder.py`` lets the engine
count those.

Source: ms-swift 4.6 swift/template/templates/*.py, agent templates aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

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

_PHI3 = Template(
    system_prefix=("<|system|>\n{{SYSTEM}}<|end|>\n",),
    prompt=("<|user|>\n{{QUERY}}<|end|>\n<|assistant|>\n",),
    chat_sep=("<|end|>\n",),
    suffix=("<|end|>",),
    auto_bos=True,
    stop_words=("<|end|>",),
)
# System prompts of rows that bring none, where the engine registers one.
_INTERNLM = (
    "You are an AI assistant whose name is InternLM (书生·浦语).\n- InternLM (书生·浦语) "
    "is a conversational language model that is developed by Shanghai AI Laboratory "
    "(上海人工智能实验室). It is designed to be helpful, honest, and harmless.\n- InternLM "
    "(书生·浦语) can understand and communicate fluently in the language chosen by the user "
    "such as English and 中文."
)
_LLAMA = (
    "You are a helpful, respectful and honest assistant. Always answer as helpfully as possible, "
    "while being safe. Your answers should not include any harmful, unethical, racist, sexist, "
    "toxic, dangerous, or illegal content. Please ensure that your responses are socially unbiased "
    "and positive in nature.\n\nIf a question does not make any sense, or is not factually coherent, "
    "explain why instead of answering something not correct. If you don't know the answer to a "
    "question, please don't share false information."
)
_MISTRAL_2501 = (
    "You are Mistral Small 3, a Large Language Model (LLM) created by Mistral AI, a French startup "
    "headquartered in Paris.\nYour knowledge base was last updated on 2023-10-01. The current date "
    "is {{ISO_DATE}}.\n\nWhen you're not sure about some information, you say that you don't have the "
    "information and don't make up anything.\nIf the user's question is not clear, ambiguous, or "
    "does not provide enough context for you to accurately answer the question, you do not try to "
    'answer it right away and you rather ask the user to clarify their request (e.g. "What are some '
    'good restaurants around me?" => "Where are you?" or "When is the next flight to Tokyo" => '
    '"Where do you travel from?")'
)
_INTERNVL2 = (
    "你是由上海人工智能实验室联合商汤科技开发的书生多模态大模型，英文名叫InternVL, 是一个有用无害的人工智能助手。"
)
_INTERNVL2_5 = (
    "你是书生·万象，英文名是InternVL，是由上海人工智能实验室、清华大学及多家合作单位联合开发的多模态大语言模型。"
)
_COMMAND_R = (
    "You are Command-R, a brilliant, sophisticated, AI-assistant trained to assist human users by "
    "providing thorough responses.You are trained by Cohere."
)
_WIZARD = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. "
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
        "phi3": _PHI3,
        "phi4": Template(
            system_prefix=("<|im_start|>system<|im_sep|>{{SYSTEM}}<|im_end|>",),
            prompt=("<|im_start|>user<|im_sep|>{{QUERY}}<|im_end|><|im_start|>assistant<|im_sep|>",),
            chat_sep=("<|im_end|>",),
            suffix=("<|im_end|>",),
            auto_bos=True,
            stop_words=("<|im_end|>",),
        ),
        "internlm": Template(
            prefix=("<s>",),
            system_prefix=("<s><|System|>:{{SYSTEM}}\n",),
            prompt=("<|User|>:{{QUERY}}\n<|Bot|>:",),
            chat_sep=("<eoa>\n",),
            suffix=("<eoa>",),
            stop_words=("<eoa>",),
            default_system=_INTERNLM,
        ),
        "internlm2": replace(_CHATML, default_system=_INTERNLM),
        "internvl": replace(_CHATML, default_system=_INTERNLM.partition("\n")[0]),
        "internvl2": replace(_CHATML, default_system=_INTERNVL2),
        "internvl2_5": replace(_CHATML, default_system=_INTERNVL2_5),
        "internvl3_5": _CHATML,
        "internvl_hf": _CHATML,
        "qwen2_vl": replace(_QWEN, default_system=_HELPFUL),
        "qwen2_5_vl": replace(_QWEN, default_system=_HELPFUL),
        "qwen3_vl": _QWEN,
        "llama": Template(
            prefix=("<s>[INST] ",),
            system_prefix=("<s>[INST] <<SYS>>\n{{SYSTEM}}\n<</SYS>>\n\n",),
            prompt=("{{QUERY}} [/INST]",),
            chat_sep=("</s><s>[INST] ",),
            suffix=("</s>",),
            stop_words=("</s>",),
            default_system=_LLAMA,
        ),
        "llama4": Template(
            prefix=("<|begin_of_text|>",),
            system_prefix=("<|begin_of_text|><|header_start|>system<|header_end|>\n\n{{SYSTEM}}<|eot|>",),
            prompt=(
                "<|header_start|>user<|header_end|>\n\n{{QUERY}}<|eot|><|header_start|>assistant<|header_end|>\n\n",
            ),
            chat_sep=("<|eot|>",),
            suffix=("<|eot|>",),
            stop_words=("<|end_of_text|>", "<|eom|>", "<|eot|>"),
        ),
        "atom": Template(
            system_prefix=("{{SYSTEM}}",),
            prompt=("<s>Human: {{QUERY}}\n</s><s>Assistant: ",),
            chat_sep=("</s>",),
            suffix=("</s>",),
            stop_words=("</s>",),
        ),
        "wizardlm2_moe": Template(
            system_prefix=("{{SYSTEM}}",),
            prompt=("USER: {{QUERY}} ASSISTANT:",),
            chat_sep=("</s>",),
            suffix=("</s>",),
            stop_words=("</s>",),
            default_system=_WIZARD,
        ),
        "minicpm": Template(
            prefix=("<s>",),
            system_prefix=("<s>{{SYSTEM}}",),
            prompt=("<用户>{{QUERY}}<AI>",),
            chat_sep=(),
            suffix=("</s>",),
            stop_words=("</s>",),
        ),
        "mistral_2501": Template(
            prefix=("<s>",),
            system_prefix=("<s>[SYSTEM_PROMPT]{{SYSTEM}}[/SYSTEM_PROMPT]",),
            prompt=("[INST]{{QUERY}}[/INST]",),
            chat_sep=("</s>",),
            suffix=("</s>",),
            stop_words=("</s>",),
            default_system=_MISTRAL_2501,
        ),
        "c4ai": Template(
            prefix=("<BOS_TOKEN>",),
            # the engine's own table leaves the last ">" away
            system_prefix=("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{SYSTEM}}<|END_OF_TURN_TOKEN|",),
            prompt=(
                "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{QUERY}}<|END_OF_TURN_TOKEN|>"
                "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            ),
            chat_sep=("<|END_OF_TURN_TOKEN|>",),
            suffix=("<|END_OF_TURN_TOKEN|>",),
            stop_words=("<|END_OF_TURN_TOKEN|>",),
            default_system=_COMMAND_R,
        ),
        "moonlight": Template(
            system_prefix=("<|im_system|>system<|im_middle|>{{SYSTEM}}<|im_end|>",),
            prompt=("<|im_user|>user<|im_middle|>{{QUERY}}<|im_end|><|im_assistant|>assistant<|im_middle|>",),
            chat_sep=("<|im_end|>",),
            suffix=("<|im_end|>",),
            stop_words=("<|im_end|>",),
            default_system=_HELPFUL.rstrip("."),
        ),
        "phi3_vision": replace(_PHI3, chat_sep=("<|end|>\n",)),
    }
)
