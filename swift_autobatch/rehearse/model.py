"""The small model of a rehearsal: built once per architecture in a child process, with random weights."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift_autobatch import render
from swift_autobatch.errors import InputError, MachineError
from swift_autobatch.facts import embedded
from swift_autobatch.facts.model import read_model
from swift_autobatch.process import run_child
from swift_autobatch.progress import Progress
from swift_autobatch.records import Candidate, Environment, ModelFacts, replace
from swift_autobatch.rehearse.shrink import Shrunk, shrink
from swift_autobatch.trace.source import traceable

SMALL = 20_000_000  # parameters; a model of at most so many is rehearsed as it is
_TIMEOUT_S = 300.0
_BUILDER = Path(__file__).parent.parent / "inside" / "random_model.py"
# What a tokenizer consists of; config.json and weights are the small model's own.
_TOKENIZER_FILES = (
    "tokenizer*.json",
    "tokenizer.model",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)


def small_model(
    model: ModelFacts, candidate: Candidate, env: Environment, progress: Progress
) -> tuple[ModelFacts, tuple[tuple[str, str, str], ...]]:
    """The model of the rehearsal and what is smaller in it: (what, real, here).

    Args:
        model: the real one.
        candidate: of the rehearsal; its parallel degrees still divide the heads they divided.

    Raises:
        InputError: nothing describes the model, or its architecture cannot be built small.
        MachineError: the cache folder cannot be written.
    """
    if model.path is not None and model.params_total <= SMALL and model.quantised is None:
        return model, ()
    source = traceable(model, env)
    if source is None:
        raise InputError(
            f"no config.json describes {model.id}",
            where="--model",
            hints=("pass a local folder: --model DIR", "rehearse the strategy alone: autoswift rehearse STRATEGY"),
        )
    own = Path(model.tokenizer_path) if model.tokenizer_path else None
    vocab = None if own else embedded.VOCAB
    degree = max(candidate.sp, candidate.tp)
    config = dict(source.config)
    config.setdefault("architectures", [model.architecture])
    if not config.get("torch_dtype"):  # the catalogue's rows do not say it
        config.setdefault("dtype", model.dtype or "bfloat16")
    shrunk = shrink(config, degree=degree, vocab=vocab, name=model.id)
    folder = _ensure(shrunk, own or embedded.ensure_model(env), model, env, progress)
    changes = (
        shrunk.changes if own else (*shrunk.changes, ("tokenizer", "the model's own", "a stand-in of 1024 tokens"))
    )
    small = read_model(str(folder), env)
    named = model.swift_model_type is not None
    return replace(
        small,
        id=f"{model.id}, in small",
        swift_model_type=model.swift_model_type if named else small.swift_model_type,
        swift_template=model.swift_template if named else small.swift_template,
        pass_model_type=named or small.pass_model_type,
    ), changes


def _ensure(shrunk: Shrunk, tokenizer: Path, model: ModelFacts, env: Environment, progress: Progress) -> Path:
    """The folder of the small model, built where it is not there yet."""
    text = json.dumps(dict(shrunk.config), sort_keys=True)
    digest = hashlib.sha256(f"{text}\0{tokenizer}\0".encode() + _BUILDER.read_bytes()).hexdigest()[:12]
    target = Path(env.cache_dir) / "rehearsal" / f"small-{model.hf_model_type}-{digest}"
    if (target / "config.json").is_file():
        return target
    progress.stage(f"building {model.id} in small, with random weights (once: about 10 s)")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".small-", dir=target.parent))
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        _build(shrunk.config, scratch, model, env)
        for pattern in _TOKENIZER_FILES:
            for file in tokenizer.glob(pattern):
                shutil.copyfile(file, scratch / file.name)
        scratch.chmod(0o755)
        if not target.exists():
            scratch.rename(target)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _build(config: Mapping[str, Any], folder: Path, model: ModelFacts, env: Environment) -> None:
    wanted = folder / "wanted.json"
    render.write_file(wanted, render.to_json(dict(config)))
    log = folder / "build.log"
    variables = {**env.variables, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    argv = (env.interpreter, str(_BUILDER), str(wanted), str(folder))
    ended = run_child(argv, env=variables, cwd=Path(env.cwd), log=log, timeout_s=_TIMEOUT_S)
    if ended.exit_code != 0:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        why = "it took too long" if ended.timed_out else said[-1][:300] if said else f"exit code {ended.exit_code}"
        raise InputError(
            f"{model.id} cannot be built in small: {why}",
            where="--model",
            hints=("rehearse the strategy alone: autoswift rehearse STRATEGY", "or --model, one of the same family"),
        )
    wanted.unlink()
    log.unlink()


def _unwritable(target: Path, error: OSError) -> MachineError:
    return MachineError(
        f"cannot write the small model: {error.strerror or error}",
        where=str(target),
        hints=("set XDG_CACHE_HOME to a folder you can write to",),
    )
