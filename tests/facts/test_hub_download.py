"""A model that is on a hub only: fetched through the hub's own client, from a hub that plays on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import public_command
import pytest
from builders import environment
from hub_server import COMMIT, Hub, playing_hub

from swift_autobatch.errors import InputError
from swift_autobatch.facts import embedded, hub_download
from swift_autobatch.facts.hub_cache import chosen_hub
from swift_autobatch.facts.model import read_model
from swift_autobatch.records import Environment, Sourced

ID = "some-lab/Tiny-Chat-7B"
MODELSCOPE_CACHE = ".cache/modelscope/models/some-lab--Tiny-Chat-7B/snapshots/master"
HUGGING_FACE_CACHE = f".cache/huggingface/hub/models--some-lab--Tiny-Chat-7B/snapshots/{COMMIT}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded.ensure_model(environment(tmp_path_factory.mktemp("served")))


@pytest.fixture
def hub(served: Path) -> Iterator[Hub]:
    with playing_hub({ID: served}) as playing:
        yield playing


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text('{"query": "who are you?", "response": "Ember"}\n' * 20)
    return tmp_path


def asks(monkeypatch: pytest.MonkeyPatch, hub: Hub, **variables: str) -> None:
    """Both hubs of the commands to come are the one that plays here."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for name, value in {"MODELSCOPE_DOMAIN": hub.url, "HF_ENDPOINT": hub.url, **variables}.items():
        monkeypatch.setenv(name, value)


def plan(project: Path, *words: str) -> public_command.Done:
    return public_command.run(project, "plan", "--gpus", "1x4090", "--dataset", "rows.jsonl", "--json", *words)


def online(env: Environment, **variables: str) -> Environment:
    """An environment whose hubs may be asked; they are at a closed port unless ``variables`` say otherwise."""
    closed = "http://127.0.0.1:9"
    return replace(env, variables={"MODELSCOPE_DOMAIN": closed, "HF_ENDPOINT": closed, **variables})


# --------------------------------------------------------------------------------------------------- downloads


@pytest.mark.parametrize(
    ("words", "variables", "name", "place"),
    [
        ((), {}, "ModelScope", MODELSCOPE_CACHE),
        (("--use_hf", "true"), {}, "Hugging Face", HUGGING_FACE_CACHE),
        (("--use_hf", "true", "--model_revision", COMMIT), {}, "Hugging Face", HUGGING_FACE_CACHE),
    ],
)
def test_config_and_tokenizer_are_fetched_once_into_the_clients_cache_and_no_weights(
    monkeypatch: pytest.MonkeyPatch,
    isolated_home: Path,
    hub: Hub,
    project: Path,
    served: Path,
    words: tuple[str, ...],
    variables: dict[str, str],
    name: str,
    place: str,
) -> None:
    asks(monkeypatch, hub, **variables)
    done = plan(project, "--model", ID, *words)
    assert done.exit_code == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if name in line] == [
        f"reading config.json and the tokenizer of {ID} from {name} ({hub.url.removeprefix('http://')}), no weights"
    ]
    assert "%|" not in done.stderr, "the client's progress bars"
    folder = isolated_home / place
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    assert (folder / "tokenizer.json").read_bytes() == (served / "tokenizer.json").read_bytes()
    assert "model.safetensors" not in hub.files_sent()
    assert done.json["facts"]["data"]["exact"] is True
    assert done.json["arguments"]["model"]["value"] == ID

    hub.asked.clear()
    again = plan(project, "--model", ID, *words)
    assert hub.asked == []
    assert name not in again.stderr
    assert again.json["digest"] == done.json["digest"]


@pytest.mark.parametrize("use_hf", ["0", "1"])
def test_a_private_model_needs_the_token(
    monkeypatch: pytest.MonkeyPatch, served: Path, project: Path, use_hf: str
) -> None:
    with playing_hub({ID: served}, token="secret-1234") as hub:
        asks(monkeypatch, hub, USE_HF=use_hf)
        refused = plan(project, "--model", ID)
        assert refused.exit_code == 5
        variable = "HF_TOKEN" if use_hf == "1" else "MODELSCOPE_API_TOKEN"
        assert f"{variable}=" in refused.stderr
        monkeypatch.setenv(variable, "wrong-1234")
        wrong = plan(project, "--model", ID)
        assert (wrong.exit_code, wrong.stderr.count("error:")) == (5, 1)
        assert "wrong-1234" not in wrong.stderr
        monkeypatch.setenv(variable, "secret-1234")
        shown = plan(project, "--model", ID)
        assert shown.exit_code == 0, shown.stderr
        assert "secret-1234" not in shown.stderr + json.dumps(shown.json)


def test_neither_the_clients_nor_torch_are_imported_where_nothing_is_fetched(project: Path) -> None:
    code = (
        "import sys\nfrom swift_autobatch.cli import main\n"
        "sys.argv = ['autoswift', 'plan', '--gpus', '1x4090', '--dataset', 'rows.jsonl', '--model', sys.argv[1]]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *sys.modules, file=sys.stderr)\n"
    )
    for name in ("Qwen/Qwen2.5-7B-Instruct", "some/Nothing"):
        done = subprocess.run([sys.executable, "-c", code, name], cwd=project, capture_output=True, text=True)
        loaded = {module.split(".")[0] for module in done.stderr.partition("LOADED")[2].split()}
        assert not loaded & {"torch", "huggingface_hub", "modelscope", "modelscope_hub", "requests", "httpx"}


@pytest.mark.parametrize("use_hf", ["0", "1"])
def test_fetching_loads_no_torch(monkeypatch: pytest.MonkeyPatch, hub: Hub, project: Path, use_hf: str) -> None:
    asks(monkeypatch, hub, USE_HF=use_hf)
    code = (
        "import sys\nfrom swift_autobatch import plan\n"
        f"plan(model={ID!r}, gpus='1x4090', dataset='rows.jsonl')\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True)
    loaded = {module.split(".")[0] for module in done.stdout.split()}
    assert loaded & {"huggingface_hub", "modelscope_hub"}
    assert not loaded & {"torch", "transformers", "swift", "modelscope"}


# -------------------------------------------------------------------------------------------------- no such id


def refusal(name: str, env: Environment, **pins: str) -> InputError:
    with pytest.raises(InputError) as caught:
        read_model(name, env, {key: Sourced(value=value, source=f"flag --{key}") for key, value in pins.items()})
    assert caught.value.exit_code == 5
    return caught.value


def test_an_id_that_the_hub_does_not_have(env: Environment, hub: Hub) -> None:
    asked = online(env, MODELSCOPE_DOMAIN=hub.url, HF_ENDPOINT=hub.url)
    host = hub.url.removeprefix("http://")
    error = refusal("Qwen/Qwen2.5-7B-Instrukt", asked)
    assert "is not on ModelScope, not in the catalogue" in error.what
    assert error.figures == (f"ModelScope ({host}) has no Qwen/Qwen2.5-7B-Instrukt with config.json",)
    assert error.hints[0].startswith("did you mean Qwen/Qwen2.5-7B-Instruct,")
    assert "--use_hf true asks Hugging Face instead" in error.hints
    error = refusal(ID, asked, use_hf="true", model_revision="v9")
    assert error.figures == (f"Hugging Face ({host}) has no revision v9 of {ID}",)
    assert not list(Path(env.home).glob("**/*Instrukt*")), "an empty folder in a cache"


def test_a_repository_without_config_is_told_from_one_that_is_not_there(env: Environment, tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model.gguf").write_text("")
    with playing_hub({"some/Model-GGUF": tmp_path / "gguf"}) as hub:
        error = refusal("some/Model-GGUF", online(env, HF_ENDPOINT=hub.url), use_hf="true")
    assert "has some/Model-GGUF, and no config.json in it" in error.figures[0]


@pytest.mark.parametrize("use_hf", ["false", "true"])
def test_a_hub_that_refuses_connections(env: Environment, use_hf: str) -> None:
    error = refusal("some/Nothing", online(env), use_hf=use_hf)
    assert "(127.0.0.1:9) could not be reached: Connection refused" in error.figures[0]
    assert "not in the catalogue, not in a hub cache and no folder here" in error.what
    assert "--model DIR" in error.hints[-1]


def test_a_hub_that_never_answers_costs_the_limit_and_no_more(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub_download.REACH_S <= 5
    monkeypatch.setattr(hub_download, "REACH_S", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = refusal("some/Nothing", online(env, MODELSCOPE_DOMAIN=f"http://127.0.0.1:{silent.getsockname()[1]}"))
    assert "could not be reached: no answer within 0.4 s" in error.figures[0]


def test_a_resolver_that_hangs_costs_the_limit_and_no_more(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*arguments: Any, **options: Any) -> None:
        time.sleep(3)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(hub_download, "REACH_S", 0.3)
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    error = refusal("some/Nothing", online(env, MODELSCOPE_DOMAIN="hub.example"))
    assert error.figures == ("ModelScope (hub.example) could not be reached: no answer within 0.3 s",)


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_asks_no_hub(env: Environment, hub: Hub, variable: str) -> None:
    asked = online(env, MODELSCOPE_DOMAIN=hub.url, HF_ENDPOINT=hub.url, **{variable: "1"})
    for use_hf in ("false", "true"):
        error = refusal(ID, asked, use_hf=use_hf)
        assert f"was not asked: {variable} is set" in error.figures[0]
    assert hub.asked == []


def test_a_cache_that_cannot_be_written_is_one_error(monkeypatch: pytest.MonkeyPatch, hub: Hub, project: Path) -> None:
    (project / "file").touch()
    for use_hf, variable in (("0", "MODELSCOPE_CACHE"), ("1", "HF_HUB_CACHE")):
        with monkeypatch.context() as patch:
            asks(patch, hub, USE_HF=use_hf, **{variable: str(project / "file" / "cache")})
            done = plan(project, "--model", ID)
        assert done.exit_code == 5, done.stderr
        assert done.stderr.count("error:") == 1
        assert "the download from" in done.stderr
        assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------- which hub


@pytest.mark.parametrize(
    ("variable", "flag", "hugging_face"),
    [
        (None, None, False),
        ("1", None, True),
        ("true", None, True),
        ("0", "true", True),
        ("1", "false", True),  # the engine takes either
        (None, "false", False),
    ],
)
def test_the_hub_is_the_engines(env: Environment, variable: str | None, flag: str | None, hugging_face: bool) -> None:
    given = replace(env, variables={} if variable is None else {"USE_HF": variable})
    pins = {} if flag is None else {"use_hf": Sourced(value=flag, source="flag --use_hf")}
    assert chosen_hub(given, pins).hugging_face is hugging_face


def test_a_token_is_not_shown() -> None:
    hub = chosen_hub(replace(environment(Path()), variables={"MODELSCOPE_API_TOKEN": "secret"}))
    assert hub.token == "secret"
    assert "secret" not in repr(hub)


def test_a_cached_revision_is_the_asked_one_or_none(env: Environment, served: Path) -> None:
    repo = Path(env.home) / ".cache/huggingface/hub/models--some-lab--Tiny-Chat-7B"
    config = json.loads((served / "config.json").read_text())
    for name, layers in (("aaa", 3), ("bbb", 5)):
        (repo / "snapshots" / name).mkdir(parents=True)
        (repo / "snapshots" / name / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("aaa")
    (repo / "refs" / "v2").write_text("bbb")
    for revision, layers in (("main", 3), ("v2", 5), ("bbb", 5)):
        pin = {"model_revision": Sourced(value=revision, source="flag --model_revision")}
        assert read_model(ID, env, pin).layers == layers
    assert "was not asked" in refusal(ID, env, model_revision="v3").figures[0]


# ------------------------------------------------------------------------------------------------- the engine


@pytest.mark.engine
@pytest.mark.parametrize("use_hf", ["0", "1"])
def test_the_engine_takes_what_was_fetched_and_downloads_only_the_rest(
    monkeypatch: pytest.MonkeyPatch, hub: Hub, project: Path, use_hf: str
) -> None:
    asks(monkeypatch, hub, USE_HF=use_hf)
    assert plan(project, "--model", ID).exit_code == 0
    hub.asked.clear()
    code = f"from swift.utils import safe_snapshot_download\nprint('FOLDER', safe_snapshot_download({ID!r}))\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=project, env=dict(os.environ), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.partition("FOLDER ")[2].splitlines()[0])
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= {path.name for path in folder.iterdir()}
    assert sorted(hub.files_sent()) == ["generation_config.json", "model.safetensors"]
