"""Fetches a model's config.json and tokenizer from the hub that the engine will use; never weights.

The hubs' own clients write the files, so the engine finds them in the same cache. ``modelscope_hub`` is what the
``modelscope`` package downloads with (that package itself imports torch). Before either client is imported one plain
request asks for config.json: a name that the hub does not know, or a hub that cannot be reached, costs no import and
leaves no empty folder in a cache.
"""

from __future__ import annotations

import io
import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from swift_autobatch.facts.hub_cache import Hub, hugging_face_cache, modelscope_cache
from swift_autobatch.progress import Progress
from swift_autobatch.records import Environment

REACH_S = 5.0  # seconds until a hub that does not answer counts as out of reach; the resolver's wait is in it
# config.json first: without it the rest is of no use. args.json tells the engine's type of what it trained itself.
FILES = (
    "config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "chat_template.json",
    "args.json",
)
# Source: modelscope_hub/constants.py DEFAULT_ENDPOINT, DEFAULT_INTL_ENDPOINT; huggingface_hub/constants.py.
_MODELSCOPE = ("https://modelscope.cn", "https://www.modelscope.ai")
_HUGGING_FACE = "https://huggingface.co"
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # said of one hub; whoever sets it wants no network at all
_TRUE = ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What came of it: ``folder`` holds at least config.json, or is None and ``why`` says what the hub answered.

    ``absent``: the hub was reached and has no such model that it would show.
    """

    folder: Path | None
    why: str
    hints: tuple[str, ...] = ()
    absent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """``status`` is None when there was no HTTP answer; ``text`` says why, or is the hub's own error code."""

    status: int | None
    text: str = ""


def fetch(model_id: str, env: Environment, hub: Hub, progress: Progress) -> Fetched:
    """Downloads ``FILES`` of a model into the client's own cache, one line of progress.

    Never raises for what a network or a hub does: the answer says it.

    Args:
        model_id: ``owner/name``; Hugging Face has some without an owner.
        env: endpoints (MODELSCOPE_ENDPOINT, MODELSCOPE_DOMAIN, HF_ENDPOINT), caches, and HF_HUB_OFFLINE.
        hub: which hub, revision and token.
    """
    offline = next((name for name in _OFFLINE if env.variables.get(name, "").strip().lower() in _TRUE), None)
    if offline:
        return Fetched(folder=None, why=f"{hub.name} was not asked: {offline} is set", hints=(f"unset {offline}",))
    endpoints = _endpoints(env, hub)
    progress.update(f"looking for {model_id} on {hub.name} ({urlsplit(endpoints[0]).netloc})")
    endpoint, answer = _find(model_id, hub, endpoints)
    progress.clear()
    refused = _refusal(model_id, hub, endpoint, answer)
    if refused is not None and not (refused.absent and _has_token(env, hub)):
        return refused
    progress.stage(
        f"reading config.json and the tokenizer of {model_id} from {hub.name} ({urlsplit(endpoint).netloc}), no weights"
    )
    client = _from_hugging_face if hub.hugging_face else _from_modelscope
    try:
        with redirect_stderr(io.StringIO()):  # the clients' progress bars, a dozen lines where ours is one
            return Fetched(folder=client(model_id, env, hub, endpoint), why="")
    except ImportError as error:
        return Fetched(
            folder=None,
            why=f"{hub.name}'s client is not installed: {error.name or error}",
            hints=("pip install 'ms-swift>=4.6,<4.7'",),
        )
    except _Failed as error:
        return refused or Fetched(folder=None, why=f"the download from {hub.name} failed: {error}")


# ------------------------------------------------------------------------------------------------- one request


def _endpoints(env: Environment, hub: Hub) -> tuple[str, ...]:
    """Where the hub is, most likely first. Source: modelscope_hub/config.py and api.py resolve_endpoint_for_read."""
    variables = env.variables
    if hub.hugging_face:
        return ((variables.get("HF_ENDPOINT") or _HUGGING_FACE).rstrip("/"),)
    chosen = (variables.get("MODELSCOPE_ENDPOINT") or variables.get("MODELSCOPE_DOMAIN") or "").strip()
    if chosen:
        schemed = chosen if chosen.lower().startswith(("http://", "https://")) else f"https://{chosen}"
        return (schemed.rstrip("/"),)
    prefers_ai = variables.get("MODELSCOPE_PREFER_AI_SITE", "").strip().lower() in _TRUE
    return _MODELSCOPE[::-1] if prefers_ai else _MODELSCOPE


def _find(model_id: str, hub: Hub, endpoints: Sequence[str]) -> tuple[str, _Answer]:
    """The first endpoint that has config.json, else what the first one answered; REACH_S for all together."""
    answers: list[tuple[str, _Answer]] = []

    def ask() -> None:
        for endpoint in endpoints:
            answers.append((endpoint, _get(_config_url(model_id, hub, endpoint))))
            if answers[-1][1].status != 404:
                return

    # In a thread of its own, because nothing bounds the time that the system's resolver takes.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(REACH_S)
    found = list(answers) or [(endpoints[0], _Answer(status=None, text=f"no answer within {REACH_S:g} s"))]
    return next((one for one in found if one[1].status == 200), found[0])


def _config_url(model_id: str, hub: Hub, endpoint: str) -> str:
    revision = quote(hub.revision or ("main" if hub.hugging_face else "master"), safe="")
    if hub.hugging_face:
        return f"{endpoint}/{quote(model_id)}/resolve/{revision}/config.json"
    return f"{endpoint}/api/v1/models/{quote(model_id)}/repo?Revision={revision}&FilePath=config.json"


def _get(url: str) -> _Answer:
    """Status and nothing else; no token is sent, since a redirect would carry it to another host."""
    import urllib.error  # here, because nearly every plan does without: 20 ms
    import urllib.request
    from http.client import HTTPException

    try:
        request = urllib.request.Request(url, headers={"User-Agent": "autoswift"})
        with urllib.request.urlopen(request, timeout=REACH_S) as answer:
            return _Answer(status=answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return _Answer(status=error.code, text=error.headers.get("X-Error-Code") or "")
    except urllib.error.URLError as error:
        return _Answer(status=None, text=_words(error.reason))
    except (OSError, ValueError, HTTPException) as error:
        return _Answer(status=None, text=_words(error))


def _words(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return f"no answer within {REACH_S:g} s"
    return str(getattr(reason, "strerror", None) or reason).split("\n", 1)[0]


def _refusal(model_id: str, hub: Hub, endpoint: str, answer: _Answer) -> Fetched | None:
    """What an answer other than the file means; None when the file is there."""
    host = f"{hub.name} ({urlsplit(endpoint).netloc or endpoint})"
    variable = "HF_TOKEN" if hub.hugging_face else "MODELSCOPE_API_TOKEN"
    login = f"if it is private or gated: {variable}=... in the environment"
    other = () if hub.hugging_face else ("--use_hf true asks Hugging Face instead",)
    if answer.status is None:
        return Fetched(folder=None, why=f"{host} could not be reached: {answer.text}")
    if answer.status == 200:
        return None
    if answer.text == "EntryNotFound":
        return Fetched(folder=None, why=f"{host} has {model_id}, and no config.json in it", absent=True)
    if answer.text == "RevisionNotFound":
        return Fetched(folder=None, why=f"{host} has no revision {hub.revision} of {model_id}", absent=True)
    if answer.status == 404 or answer.text == "RepoNotFound":
        revision = f" with config.json at revision {hub.revision}" if hub.revision else " with config.json"
        return Fetched(folder=None, why=f"{host} has no {model_id}{revision}", hints=(*other, login), absent=True)
    if answer.status in (401, 403):
        return Fetched(folder=None, why=f"{host} does not show {model_id} without a token", hints=(login,), absent=True)
    return Fetched(folder=None, why=f"{host} answered HTTP {answer.status}", hints=("try again later",))


def _has_token(env: Environment, hub: Hub) -> bool:
    """Whether the client will have a token to show, of its own or given."""
    variables = env.variables
    if hub.token:
        return True
    if hub.hugging_face:
        home = variables.get("HF_HOME") or str(
            Path(variables.get("XDG_CACHE_HOME") or Path(env.home, ".cache"), "huggingface")
        )
        file = Path(variables.get("HF_TOKEN_PATH") or Path(home, "token"))
        return bool(variables.get("HF_TOKEN") or variables.get("HUGGING_FACE_HUB_TOKEN")) or file.is_file()
    folder = Path(variables.get("MODELSCOPE_HOME") or Path(env.home, ".modelscope"))
    return bool(variables.get("MODELSCOPE_API_TOKEN")) or (folder / "credentials" / "cookies").is_file()


# -------------------------------------------------------------------------------------------------- the clients


class _Failed(Exception):
    """A client gave up on config.json; says why in one line."""


def _from_hugging_face(model_id: str, env: Environment, hub: Hub, endpoint: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)

    def get(file: str) -> str:
        try:
            return hf_hub_download(
                model_id,
                file,
                revision=hub.revision or "main",
                cache_dir=hugging_face_cache(env),
                endpoint=endpoint,
                token=hub.token,
                etag_timeout=REACH_S,
            )
        except LocalEntryNotFoundError as error:  # a kind of EntryNotFoundError, and it means that there is no network
            raise ConnectionError(str(error)) from error

    return _each(get, (EntryNotFoundError,), (OSError, ValueError))


def _from_modelscope(model_id: str, env: Environment, hub: Hub, endpoint: str) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # MODELSCOPE_DOMAIN, which the engine's users still set
        from modelscope_hub import HubApi
        from modelscope_hub.errors import HubError, NotExistError

        api = HubApi(token=hub.token, endpoint=endpoint)
    logging.getLogger("modelscope_hub").setLevel(logging.CRITICAL)

    def get(file: str) -> str:
        return str(
            api.download_file(
                model_id,
                repo_type="model",
                file_path=file,
                revision=hub.revision,
                cache_dir=modelscope_cache(env),
            )
        )

    return _each(get, (NotExistError,), (HubError, OSError, ValueError))


def _each(
    get: Callable[[str], str], missing: tuple[type[Exception], ...], failing: tuple[type[Exception], ...]
) -> Path:
    """The folder of config.json, after a try at every other file; a file less only makes the counts less sure."""
    try:
        folder = Path(get(FILES[0])).parent
    except (*missing, *failing) as error:
        raise _Failed(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}") from error
    for file in FILES[1:]:
        try:
            get(file)
        except missing:
            continue
        except failing:
            break  # the hub went away: what is there serves
    return folder
