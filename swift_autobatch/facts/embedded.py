"""Builds the demonstration: a small random Qwen2 with its own tokenizer, and a dataset that it learns in seconds.

It exists so that the whole road, from planning to "who are you?", can be walked on a machine without a GPU and
without a download. Nothing here imports torch: the weights are numpy arrays, the tokenizer comes from the
``tokenizers`` library, and both are written in the usual Hugging Face layout.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from swift_autobatch.errors import InputError, MachineError
from swift_autobatch.records import Environment

if TYPE_CHECKING:
    import numpy
    from tokenizers import Tokenizer

MODEL_NAME = "qwen2-tiny"
SWIFT_MODEL_TYPE = "qwen2"
SWIFT_TEMPLATE = "qwen2_5"
VOCAB = 1024
SEED = 20240607
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# The split of Qwen2's own tokenizer, so that every loader, whether it reads tokenizer.json or rebuilds the
# pipeline from vocabulary and merges, gives the same tokens (transformers/models/qwen2/tokenization_qwen2.py).
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\n"
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG: Mapping[str, Any] = MappingProxyType(
    {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.08,
        "use_cache": True,
        "use_sliding_window": False,
        "dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
)

DEFAULTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "tuner_type": ("full", "a random model has nothing to adapt: every weight must learn"),
        "torch_dtype": ("float32", "the embedded weights are float32"),
        "learning_rate": ("1e-3", "a random 3 M-parameter model wants 100 times the rate of a pretrained one"),
        "num_train_epochs": (
            "15",
            "40 steps learn most of the 50 rows, 56 learned every answer exactly; 60 leave a margin",
        ),
    }
)


def default_dataset() -> Path:
    """The embedded dataset: 50 rows, instruction / input / output, that teach one name in English and Chinese.

    Returns:
        The file inside an installed package, else in the source tree's examples folder.

    Raises:
        MachineError: neither exists, so the installation is incomplete.
    """
    package = Path(__file__).resolve().parents[1]
    places = (
        package / "_examples" / "self_cognition.json",
        package.parent / "examples" / "self_cognition.json",
    )
    for place in places:
        if place.is_file():
            return place
    raise MachineError(
        "the embedded dataset is missing from this installation",
        where=str(places[0]),
        hints=("pip install --force-reinstall swift-autobatch", "or pass --dataset FILE"),
    )


def ensure_model(env: Environment) -> Path:
    """Builds the embedded model once per machine; later calls only look whether it is there.

    Args:
        env: ``cache_dir`` receives ``embedded/qwen2-tiny-<digest>/``; the digest covers everything built.

    Returns:
        A folder with config.json, model.safetensors and tokenizer files that any Hugging Face loader reads.

    Raises:
        MachineError: the cache folder cannot be written.
    """
    target = Path(env.cache_dir) / "embedded" / f"{MODEL_NAME}-{version_digest()}"
    if (target / "config.json").is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{MODEL_NAME}-", dir=target.parent))
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        _write_model(scratch)
        _publish(scratch, target)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def version_digest() -> str:
    """Twelve hex digits over everything the built files depend on, the dataset's text included."""
    parts = [json.dumps(dict(CONFIG), sort_keys=True), CHAT_TEMPLATE, SPLIT, *SPECIAL_TOKENS, str(SEED)]
    summary = hashlib.sha256("\0".join(parts).encode())
    summary.update(default_dataset().read_bytes())
    summary.update(Path(__file__).read_bytes())
    return summary.hexdigest()[:12]


def _publish(scratch: Path, target: Path) -> None:
    """Renames the finished folder; another process that was faster wins."""
    scratch.chmod(0o755)
    try:
        scratch.rename(target)
    except OSError:
        if not (target / "config.json").is_file():
            raise


def _unwritable(target: Path, error: OSError) -> MachineError:
    return MachineError(
        f"cannot write the embedded model: {error.strerror or error}",
        where=str(target),
        hints=("set XDG_CACHE_HOME to a folder you can write to", "or pass --model FOLDER"),
    )


def _write_model(folder: Path) -> None:
    from safetensors.numpy import save_file

    tokenizer = _tokenizer(_texts(default_dataset()))
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config())
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False},
    )
    save_file(dict(_weights()), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    _write_json(folder / "config.json", dict(CONFIG))


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + os.linesep, encoding="utf-8")


def _tokenizer_config() -> dict[str, Any]:
    end, start, stop = SPECIAL_TOKENS
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": CONFIG["max_position_embeddings"],
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": stop,
        "pad_token": end,
        "unk_token": None,
        "additional_special_tokens": [start, stop],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def _texts(dataset: Path) -> list[str]:
    """What the tokenizer learns from: the rows and the words of the chat template around them."""
    try:
        rows = json.loads(dataset.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"the embedded dataset is not JSON: {error}", where=str(dataset)) from error
    words = [
        "system\n",
        "user\n",
        "assistant\n",
        "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    ]
    return words + [row[key] for row in rows for key in ("instruction", "input", "output") if row[key]]


def _tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE: every text can be written in it, this dataset in few tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _weights() -> Iterator[tuple[str, numpy.ndarray[Any, Any]]]:
    """Random float32 weights by their Hugging Face names, the same on every machine.

    Normal with ``initializer_range``, four times the usual 0.02: with so few steps the layers must pass the question
    on from the start. Measured over 40 steps at 1e-3: 0 of 50 answers exact at 0.02, 46 at 0.08.
    """
    import numpy

    random = numpy.random.default_rng(SEED)
    hidden, wide, layers = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["num_hidden_layers"]
    keys = hidden // CONFIG["num_attention_heads"] * CONFIG["num_key_value_heads"]

    def normal(rows: int, columns: int) -> numpy.ndarray[Any, Any]:
        spread = float(CONFIG["initializer_range"])
        return (random.standard_normal((rows, columns)) * spread).astype(numpy.float32)

    def ones(length: int) -> numpy.ndarray[Any, Any]:
        return numpy.ones(length, dtype=numpy.float32)

    yield "model.embed_tokens.weight", normal(VOCAB, hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for name, rows in (("q", hidden), ("k", keys), ("v", keys)):
            yield f"{at}.self_attn.{name}_proj.weight", normal(rows, hidden)
            yield f"{at}.self_attn.{name}_proj.bias", numpy.zeros(rows, dtype=numpy.float32)
        yield f"{at}.self_attn.o_proj.weight", normal(hidden, hidden)
        yield f"{at}.mlp.gate_proj.weight", normal(wide, hidden)
        yield f"{at}.mlp.up_proj.weight", normal(wide, hidden)
        yield f"{at}.mlp.down_proj.weight", normal(hidden, wide)
        yield f"{at}.input_layernorm.weight", ones(hidden)
        yield f"{at}.post_attention_layernorm.weight", ones(hidden)
    yield "model.norm.weight", ones(hidden)
    if not CONFIG["tie_word_embeddings"]:
        yield "lm_head.weight", normal(VOCAB, hidden)
