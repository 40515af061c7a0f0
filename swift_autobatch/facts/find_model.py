"""What a model's name means: a local folder, a hub cache, a row of the catalogue, or an id on a hub."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from swift_autobatch.errors import InputError
from swift_autobatch.facts.engine_type import last_component
from swift_autobatch.facts.hub_cache import Hub, cached_folder
from swift_autobatch.facts.hub_download import Fetched, fetch
from swift_autobatch.progress import Progress
from swift_autobatch.records import Environment
from swift_autobatch.tables import ModelRow, model_ids, models, near

_ALIKE = 0.7  # a letter or two in a model's name; below it 426 names always hold one that is "like" any word


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where a model's shape is to be read: ``folder``'s config.json, or ``row`` where there is no folder."""

    id: str  # what the engine is to be given
    folder: Path | None
    row: ModelRow | None  # of the model's own name, for counts and the engine's type
    source: str
    local: bool = False  # the user's own folder, not a cache
    shadows: bool = False  # a local folder that has the name of a hub id
    tokenizer: Path | None = None  # a folder with tokenizer.json


def find_model(name: str, env: Environment, hub: Hub, progress: Progress) -> Found:
    """Finds a model without reading it: local folder, caches, catalogue, hub, in this order.

    Raises:
        InputError: the name means nothing anywhere, or several things; near ids stand in its hints.
    """
    folder = _local_folder(name, env)
    if folder is not None:
        return _local(name, folder)
    spelled, note = _spelled(name, hub)
    for model_id in dict.fromkeys((name, spelled)):
        cached = cached_folder(model_id, env, hub)
        if cached is not None:
            said = note if model_id == spelled else ""
            _say(said, progress)
            return _in_cache(model_id, cached[0], f"config.json in the {cached[1]}{said}")
    row = models().get(spelled.lower())
    if row is None and spelled.count("/") == 1:  # a copy under another owner: unsloth/..., LLM-Research/...
        row = _row_by_name(Path(spelled))
        note = f"; {name} is taken to be a copy, by its name" if row else ""
    if row is not None:
        _say(note, progress)
        beside = cached_folder(spelled, env, hub, "tokenizer.json")
        engine_id, moved = _on_hub(spelled, row, hub)
        _say(moved, progress)
        return Found(
            id=engine_id,
            folder=None,
            row=row,
            source=f"models.jsonl: {row.id}{note}{moved}",
            tokenizer=beside[0] if beside else None,
        )
    if "/" not in name and not hub.hugging_face:
        raise _unknown(name, hub, Fetched(folder=None, why="a hub id is OWNER/NAME, and this has no owner"))
    fetched = fetch(name, env, hub, progress)
    if fetched.folder is None:
        raise _unknown(name, hub, fetched)
    return _in_cache(name, fetched.folder, f"config.json from {hub.name}")


def _on_hub(model_id: str, row: ModelRow, hub: Hub) -> tuple[str, str]:
    """The id under which the engine's hub has the model, and what to say of it where that is another one."""
    if hub.hugging_face or row.modelscope_id is None or model_id.lower() != row.id.lower():
        return model_id, ""
    return row.modelscope_id, f"; {hub.name} has {model_id} as {row.modelscope_id}"


def _say(note: str, progress: Progress) -> None:
    """An assumption about what the user meant is said at once, not only in the plan's source."""
    if note:
        progress.stage("--model" + note.replace(";", ":", 1))


def _in_cache(model_id: str, folder: Path, source: str) -> Found:
    row = models().get(model_id.lower())
    return Found(id=model_id, folder=folder, row=row, source=source, tokenizer=_with_tokenizer(folder))


def _with_tokenizer(folder: Path) -> Path | None:
    return folder if (folder / "tokenizer.json").is_file() else None


# ------------------------------------------------------------------------------------------------------- folders


def _local_folder(name: str, env: Environment) -> Path | None:
    """The folder that a name means; None when it is an id. ``folder:sub`` is the engine's way to name a subfolder."""
    spelled = env.home + name[1:] if name == "~" or name.startswith("~/") else name
    for candidate in (spelled, spelled.replace(":", "/", 1)):
        path = Path(env.cwd, candidate)
        if candidate and path.is_dir():
            return Path(os.path.normpath(path))  # not resolve(): the engine knows a model by its folder's name
        if candidate and path.exists():
            raise InputError(
                f"{name} is a file, and a model is a folder with config.json",
                where="--model",
                hints=(f"pass the folder: --model {Path(name).parent}",),
            )
    if not name.strip():
        raise InputError("the model's name is empty", where="--model", hints=("--model Qwen/Qwen2.5-7B-Instruct",))
    if spelled.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        raise InputError(
            f"no model folder {name}",
            where="--model",
            figures=(f"looked from {env.cwd}",),
            hints=("check the path", "or name a hub id as owner/name"),
        )
    return None


def _local(name: str, folder: Path) -> Found:
    shadows = bool(re.fullmatch(r"[\w.-]+/[\w.-]+", name)) and not name.startswith(".")
    return Found(
        id=name,
        folder=folder,
        row=_row_by_name(folder),
        source=f"{folder}/config.json" + (f"; this local folder is used, not the hub's {name}" if shadows else ""),
        local=True,
        shadows=shadows,
        tokenizer=_with_tokenizer(folder),
    )


def _row_by_name(folder: Path) -> ModelRow | None:
    """The catalogue row whose id ends so: a folder called Qwen2.5-7B-Instruct is most likely that model."""
    last = last_component(str(folder)).lower()
    return next((row for key, row in models().items() if key.rsplit("/", 1)[-1] == last), None)


# ----------------------------------------------------------------------------------------------------------- ids


def _spelled(name: str, hub: Hub) -> tuple[str, str]:
    """The id as the catalogue spells it, and a note where that is not what was typed; other names as they are.

    A name without its owner is taken for the only id that ends so.

    Raises:
        InputError: several owners have a model of that name.
    """
    known = model_ids()
    exact = known.get(name.lower())
    if exact is not None:
        return exact, "" if exact == name else f"; {name} is spelled {exact}"
    if "/" in name:
        return name, ""
    owners = [model_id for key, model_id in known.items() if key.rsplit("/", 1)[-1] == name.lower()]
    if len(owners) > 1:
        raise InputError(
            f"{name} has no owner, and {len(owners)} models of the catalogue are called so",
            where="--model",
            hints=tuple(f"--model {model_id}" for model_id in sorted(owners)),
        )
    return (owners[0], f"; {name} is taken to be {owners[0]}, the only one of that name") if owners else (name, "")


def _unknown(name: str, hub: Hub, fetched: Fetched) -> InputError:
    names = model_ids()
    by_last = {key.rsplit("/", 1)[-1]: key for key in names}
    alike = [by_last[hit] for hit in near(name.rsplit("/", 1)[-1], list(by_last), cutoff=_ALIKE)]
    alike += near(name, list(names), cutoff=_ALIKE)
    shown = [names[key] for key in dict.fromkeys(alike)][:3]
    download = (
        "hf download OWNER/NAME --local-dir DIR"
        if hub.hugging_face
        else ("modelscope download --model OWNER/NAME --local_dir DIR")
    )
    nowhere = f"not on {hub.name}, not in the catalogue" if fetched.absent else "not in the catalogue"
    return InputError(
        f"the model {name} is {nowhere}, not in a hub cache and no folder here",
        where="--model",
        figures=(fetched.why,),
        hints=(
            *((f"did you mean {', '.join(shown)}?",) if shown else ()),
            *fetched.hints,
            "or pass a local folder: --model DIR"
            if fetched.absent
            else f"download it where there is a network ({download}), then --model DIR",
        ),
    )
