"""ModelFacts -> what the tracer builds: the model's own config.json, or the catalogue's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift_autobatch.errors import InputError
from swift_autobatch.facts.find_model import find_model
from swift_autobatch.facts.hub_cache import chosen_hub
from swift_autobatch.progress import Silent
from swift_autobatch.records import Environment, ModelFacts, Sourced
from swift_autobatch.trace.shelf import Traceable


def traceable(model: ModelFacts, env: Environment, pins: Mapping[str, Sourced[Any]] | None = None) -> Traceable | None:
    """What can be traced of a model; None where nothing describes it any more.

    Args:
        model: as read by facts/model.py.
        env: working folder and hub caches, where its config.json is looked for again.
        pins: engine flags; use_hf and model_revision say which cache.
    """
    try:
        found = find_model(model.path or model.id, env, chosen_hub(env, pins), Silent())
        if found.folder is None:
            row = found.row
            return None if row is None else Traceable(config=row.config, params_total=row.params_total)
        config = json.loads((Path(found.folder) / "config.json").read_text(encoding="utf-8"))
    except (InputError, OSError, ValueError):
        return None
    own_code = isinstance(config.get("auto_map"), Mapping) and any(Path(found.folder).glob("*.py"))
    return Traceable(config=config, folder=str(Path(found.folder).resolve()) if own_code else None)
