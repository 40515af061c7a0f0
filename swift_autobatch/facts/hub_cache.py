"""Finds a model that a hub client has already downloaded; touches no network and downloads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from swift_autobatch.records import Environment


def cached_folder(model_id: str, env: Environment) -> tuple[Path, str] | None:
    """The newest cached folder of a model that holds config.json, and which cache it is in.

    Args:
        model_id: ``owner/name``.
        env: MODELSCOPE_CACHE, HF_HOME, HF_HUB_CACHE and USE_HF (the engine's own hub is looked at first).

    Source: modelscope_hub/_download.py (repo layout and its two legacy layouts), modelscope/hub/utils/utils.py,
    huggingface_hub's cache layout.
    """
    if model_id.count("/") != 1:
        return None
    hubs = [("ModelScope", _modelscope(model_id, env)), ("Hugging Face", _hugging_face(model_id, env))]
    if uses_hugging_face(env):
        hubs.reverse()
    for name, folders in hubs:
        for folder in folders:
            if (folder / "config.json").is_file():
                return folder, f"{name} cache"
    return None


def uses_hugging_face(env: Environment) -> bool:
    """Whether the engine downloads from Hugging Face; ModelScope by default. Source: swift/utils/env.py."""
    return env.variables.get("USE_HF", "0").strip().lower() in ("1", "true", "yes", "y", "t", "on")


def _modelscope(model_id: str, env: Environment) -> Iterator[Path]:
    owner, name = model_id.split("/")
    safe = name.replace(".", "___")
    chosen = env.variables.get("MODELSCOPE_CACHE")
    base = Path(_expand(chosen, env)) if chosen else Path(env.home) / ".cache" / "modelscope"
    for root in (base, base / "hub"):
        yield from _snapshots(root / "models" / f"{owner}--{name}")
        for folder in (root / "models" / owner, root / owner):
            yield folder / safe
            yield folder / name


def _hugging_face(model_id: str, env: Environment) -> Iterator[Path]:
    owner, name = model_id.split("/")
    variables = env.variables
    home = variables.get("HF_HOME") or str(
        Path(variables.get("XDG_CACHE_HOME") or Path(env.home) / ".cache") / "huggingface"
    )
    hub = variables.get("HF_HUB_CACHE") or variables.get("HUGGINGFACE_HUB_CACHE")
    yield from _snapshots(Path(_expand(hub or f"{home}/hub", env)) / f"models--{owner}--{name}")


def _snapshots(repo: Path) -> Iterator[Path]:
    """The revision that ``main`` or ``master`` points to, then the others, newest first."""
    snapshots = repo / "snapshots"
    for branch in ("main", "master"):
        try:
            yield snapshots / (repo / "refs" / branch).read_text().strip()
        except OSError:
            yield snapshots / branch
    try:
        yield from sorted(snapshots.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    except OSError:
        return


def _expand(path: str, env: Environment) -> str:
    return env.home + path[1:] if path == "~" or path.startswith("~/") else path
