"""Which hub the engine asks, and the folders that a hub client has already downloaded; touches no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swift_autobatch.records import Environment, Sourced

_TRUE = ("1", "true", "yes", "y", "t", "on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The hub that the engine will download from, as it decides it itself.

    ``revision`` is None for the default branch, which is ``main`` on one hub and ``master`` on the other.
    """

    hugging_face: bool
    revision: str | None
    token: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return "Hugging Face" if self.hugging_face else "ModelScope"


def chosen_hub(env: Environment, pins: Mapping[str, Sourced[Any]] | None = None) -> Hub:
    """ModelScope, or Hugging Face where USE_HF or ``--use_hf true`` says so; ``--use_hf false`` undoes no USE_HF.

    Args:
        env: USE_HF, and the hub's token: HF_TOKEN or MODELSCOPE_API_TOKEN (as a flag it would end in every file).
        pins: engine flags: use_hf, model_revision.

    Source: swift/arguments/base_args/base_args.py (use_hf or use_hf_hub()), swift/hub/hub.py (main is master).
    """
    given = {name: str(pin.value) for name, pin in (pins or {}).items() if pin.value is not None}
    said = (env.variables.get("USE_HF", "0"), given.get("use_hf", "false"))
    revision = given.get("model_revision")
    hugging_face = any(text.strip().lower() in _TRUE for text in said)
    return Hub(
        hugging_face=hugging_face,
        revision=None if revision in ("", "main", "master") else revision,
        token=env.variables.get("HF_TOKEN" if hugging_face else "MODELSCOPE_API_TOKEN"),
    )


def cached_folder(model_id: str, env: Environment, hub: Hub, file: str = "config.json") -> tuple[Path, str] | None:
    """The newest cached folder of a model that holds ``file``, and which cache it is in.

    Args:
        model_id: ``owner/name``.
        env: MODELSCOPE_CACHE, HF_HOME and HF_HUB_CACHE.
        hub: the engine's own hub is looked at first; a revision that was asked for, and no other.

    Source: modelscope_hub/_download.py (repo layout and its two legacy layouts), modelscope/hub/utils/utils.py,
    huggingface_hub's cache layout.
    """
    if model_id.count("/") != 1 and not (hub.hugging_face and model_id):
        return None
    hubs = [("ModelScope", _modelscope(model_id, env, hub)), ("Hugging Face", _hugging_face(model_id, env, hub))]
    if hub.hugging_face:
        hubs.reverse()
    for name, folders in hubs:
        for folder in folders:
            if (folder / file).is_file():
                return folder, f"{name} cache"
    return None


def cached_dataset(dataset_id: str, env: Environment, hub: Hub) -> Path | None:
    """The newest cached folder of a dataset that holds a file; the engine's own hub is looked at first.

    Source: huggingface_hub's cache layout; modelscope dataset_snapshot_download (datasets/owner/name, and hub/ before).
    """
    owner, _, name = dataset_id.partition("/")
    repo = f"datasets--{owner}--{name}"
    found: list[tuple[bool, Iterator[Path]]] = [(True, _snapshots(hugging_face_cache(env) / repo, hub.revision))]
    for root in (modelscope_cache(env), modelscope_cache(env) / "hub"):
        base = root / "datasets"
        found.append((False, _snapshots(base / f"{owner}--{name}", hub.revision)))
        found.append((False, iter([base / owner / name, base / owner / name / "master" / "raw"])))
    found.sort(key=lambda entry: entry[0] != hub.hugging_face)
    for _, folders in found:
        for folder in folders:
            if folder.is_dir() and any(path.is_file() and path.suffix for path in folder.rglob("*.*")):
                return folder
    return None


def modelscope_cache(env: Environment) -> Path:
    """Where ModelScope's client keeps its repositories, in ``models/``."""
    chosen = env.variables.get("MODELSCOPE_CACHE")
    return Path(_expand(chosen, env)) if chosen else Path(env.home) / ".cache" / "modelscope"


def hugging_face_cache(env: Environment) -> Path:
    """Where Hugging Face's client keeps its repositories."""
    variables = env.variables
    home = variables.get("HF_HOME") or str(
        Path(variables.get("XDG_CACHE_HOME") or Path(env.home) / ".cache") / "huggingface"
    )
    hub = variables.get("HF_HUB_CACHE") or variables.get("HUGGINGFACE_HUB_CACHE")
    return Path(_expand(hub or f"{home}/hub", env))


def _modelscope(model_id: str, env: Environment, hub: Hub) -> Iterator[Path]:
    owner, _, name = model_id.partition("/")
    if not name:
        return
    safe = name.replace(".", "___")
    base = modelscope_cache(env)
    for root in (base, base / "hub"):
        yield from _snapshots(root / "models" / f"{owner}--{name}", hub.revision)
        if hub.revision is None:  # the older layouts do not say which revision they hold
            for folder in (root / "models" / owner, root / owner):
                yield folder / safe
                yield folder / name


def _hugging_face(model_id: str, env: Environment, hub: Hub) -> Iterator[Path]:
    yield from _snapshots(hugging_face_cache(env) / f"models--{model_id.replace('/', '--')}", hub.revision)


def _snapshots(repo: Path, revision: str | None) -> Iterator[Path]:
    """The asked revision; without one that which ``main`` or ``master`` points to, then the others, newest first."""
    snapshots = repo / "snapshots"
    for branch in ("main", "master") if revision is None else (revision,):
        try:
            yield snapshots / (repo / "refs" / branch).read_text().strip()
        except OSError:
            yield snapshots / branch
    if revision is not None:
        return
    try:
        yield from sorted(snapshots.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    except OSError:
        return


def _expand(path: str, env: Environment) -> str:
    return env.home + path[1:] if path == "~" or path.startswith("~/") else path
