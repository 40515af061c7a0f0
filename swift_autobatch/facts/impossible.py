"""Refuses a config.json that describes a model which transformers could not build, or not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swift_autobatch.errors import InputError

Config = Mapping[str, Any]
Names = tuple[str, ...]


def refuse_impossible(
    text: Config,
    whole: tuple[Names, ...],
    heads: Names,
    kv_heads: Names,
    experts: Names,
    experts_used: Names,
    where: str,
) -> None:
    """Checks the sizes of a decoder against each other.

    Args:
        text: the part of config.json that describes the language model.
        whole: the keys of every size that must be a whole number of at least 1, each under all its names.
        heads, kv_heads, experts, experts_used: the keys of one size, under all its names.
        where: the path of config.json.

    Raises:
        InputError: with the keys and their values.

    Source: transformers modeling files: ``num_attention_heads // num_key_value_heads`` and ``repeat_kv``,
    ``torch.topk`` over the experts, ``range(num_hidden_layers)``.
    """
    for names in whole:
        key, value = _said(text, names)
        if value is not None and (value != int(value) or value < 1):
            raise _error(f"{key} is {value}, and must be a whole number of at least 1", where)
    (key, many), (kv_key, few) = _said(text, heads), _said(text, kv_heads)
    if many and few and many % few and not text.get("kv_lora_rank"):
        raise _error(f"{key} is {many}, no multiple of {kv_key}, which is {few}: keys cannot be shared evenly", where)
    (key, all_of_them), (used_key, used) = _said(text, experts), _said(text, experts_used)
    if all_of_them and used and used > all_of_them:
        raise _error(f"{used_key} is {used}, more than there are experts: {key} is {all_of_them}", where)


def _said(text: Config, names: Names) -> tuple[str, int | float | None]:
    """The first of these keys that holds a number, with it."""
    for name in names:
        value = text.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return name, value
    return names[0], None


def _error(what: str, where: str) -> InputError:
    return InputError(
        f"config.json describes a model that cannot be built: {what}",
        where=where,
        hints=("use the config.json that came with the model, unedited", "or name the model by its id"),
    )
