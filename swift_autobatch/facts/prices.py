"""Reads the user's price list: a YAML mapping from a card's name to the price of one card for an hour."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from swift_autobatch.errors import InputError, UsageError
from swift_autobatch.facts.cards import find_card

_EXAMPLE = "write lines like 'A100-80G: 1.6' (the price of one card for an hour)"


def read_prices(path: Path, shown: str) -> Mapping[str, float]:
    """Prices of one card an hour, by the catalogue's name.

    Args:
        shown: the path as the user spelled it, for messages.

    Raises:
        InputError: the file is missing or not YAML.
        UsageError: it is no mapping of known cards to positive numbers; the line is named.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the price list cannot be read: {shown}", where="--prices", hints=(_EXAMPLE,)) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(
            "the price list is not YAML", where=f"{shown}:{mark.line + 1 if mark else 1}", hints=(_EXAMPLE,)
        ) from error
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise UsageError("a price list maps cards to prices, and this one does not", where=shown, hints=(_EXAMPLE,))
    found: dict[str, float] = {}
    for key, value in node.value:
        where = f"{shown}:{key.start_mark.line + 1}"
        try:
            card = find_card(str(key.value)).name
        except UsageError as error:
            raise UsageError(error.what, where=where, hints=error.hints) from error
        if card in found:
            raise UsageError(
                f"{key.value!r} is {card}, which has a price already: {found[card]:g}",
                where=where,
                hints=("keep one price a card",),
            )
        found[card] = _price(str(value.value), where)
    return found


def _price(text: str, where: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 < price < float("inf"):
        raise UsageError(f"{text!r} is no price of a card for an hour", where=where, hints=(_EXAMPLE,))
    return price
