"""read_model: folders, caches, catalogue; what the engine will make of each; errors whose hints work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import environment

from swift_autobatch.errors import InputError
from swift_autobatch.facts.engine_type import _PLAIN_TYPE, _TEMPLATE_MARKS, engine_type, last_component
from swift_autobatch.facts.model import read_model
from swift_autobatch.progress import Silent
from swift_autobatch.records import Environment, Sourced
from swift_autobatch.tables import engine_models, model_ids, models

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 300,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
NOT_CAUSAL = {
    "bigscience/t0_3b",
    "bigscience/mt0-xxl",
    "google/mt5-xxl",
    "state-spaces/mamba-1.4b-hf",
    "alibaba-nlp/gte-reranker-modernbert-base",
}


def folder(path: Path, config: dict[str, Any] | None = None, **files: str) -> Path:
    """A model folder; ``files`` are contents by name, with ``_`` for the dot before the extension."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(QWEN2 if config is None else config))
    for name, text in files.items():
        stem, _, ending = name.rpartition("_")
        (path / f"{stem}.{ending}").write_text(text)
    return path


# ---------------------------------------------------------------------------------------------------- catalogue


def test_every_id_of_the_catalogue_reads_and_keeps_its_published_count(env: Environment) -> None:
    refused = set()
    for name, row in models().items():
        try:
            model = read_model(name, env)
        except InputError:
            refused.add(name)
            continue
        assert (model.params_total, model.tied) == (row.params_total, row.tied)
        assert model.params_active == (row.params_active or row.params_total)
        assert model.params_lm_head == row.breakdown["lm_head_untied"]
        assert model.path is None
        assert model.linears
        if name.rsplit("/", 1)[-1] in engine_models().ids:
            assert not model.pass_model_type
    assert refused == NOT_CAUSAL


def test_the_default_model(env: Environment) -> None:
    model = read_model("Qwen/Qwen2.5-7B-Instruct", env)
    assert (model.params_total, model.hidden, model.layers, model.kv_heads) == (7_615_616_512, 3584, 28, 4)
    assert (model.swift_model_type, model.swift_template, model.pass_model_type) == ("qwen2", "qwen2_5", False)
    assert (model.id, model.path, model.quantised) == ("Qwen/Qwen2.5-7B-Instruct", None, None)
    assert model.source == "models.jsonl: Qwen/Qwen2.5-7B-Instruct"


def test_an_id_that_the_engine_does_not_know_is_told(env: Environment) -> None:
    model = read_model("meta-llama/Llama-3.1-8B-Instruct", env)
    assert (model.swift_model_type, model.swift_template, model.pass_model_type) == ("llama", "llama3_2", True)
    assert "LlamaForCausalLM fits 4 model types" in model.source
    assert not read_model("meta-llama/Meta-Llama-3.1-8B-Instruct", env).pass_model_type


def test_a_copy_under_another_owner_is_taken_for_what_its_name_says(env: Environment) -> None:
    model = read_model("unsloth/Llama-3.2-1B-Instruct", env)
    assert model.params_total == read_model("meta-llama/Llama-3.2-1B-Instruct", env).params_total
    assert "taken to be a copy, by its name" in model.source
    assert not model.pass_model_type


@pytest.mark.parametrize(
    ("name", "quantised"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "awq"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq"),
        ("Qwen/Qwen-7B-Chat-Int8", "gptq"),
        ("Qwen/Qwen3-14B-FP8", "fp8"),
        ("baichuan-inc/Baichuan2-7B-Chat-4bits", "bnb"),
        ("openai/gpt-oss-20b", "mxfp4"),
        ("axolotl-ai-co/gpt-oss-120b-dequantized", None),
        ("deepseek-ai/DeepSeek-V3", "fp8"),
        ("Qwen/Qwen2.5-7B-Instruct", None),
    ],
)
def test_quantised_ids(env: Environment, name: str, quantised: str | None) -> None:
    assert read_model(name, env).quantised == quantised


def test_every_alias_noted_as_quantised_is_seen_as_such(env: Environment) -> None:
    path = Path(__file__).parents[2] / "swift_autobatch/data/aliases.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    noted = [row["id"] for row in rows if row["note"].startswith(("quantised", "FP8"))]
    assert len(noted) >= 20
    assert [name for name in noted if read_model(name, env).quantised is None] == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Qwen2.5-7B-Instrukt", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen/Qwen2.5-7B-Instrukt", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen/Qwen2.5-7b-instuct", "Qwen/Qwen2.5-7B-Instruct"),
        ("meta-lama/Lama-3.1-8B-Instruct", "meta-llama/"),
    ],
)
def test_an_unknown_id_is_answered_with_near_ones_that_work(env: Environment, name: str, meant: str) -> None:
    with pytest.raises(InputError) as caught:
        read_model(name, env)
    assert caught.value.exit_code == 5
    assert meant in caught.value.hints[0]
    for other in caught.value.hints[0].removeprefix("did you mean ").removesuffix("?").split(", "):
        read_model(other, env)


def test_a_word_like_no_model_gets_no_far_fetched_guess(env: Environment) -> None:
    for name in ("some-lab/Tinny", "thing", "nope/nothing"):
        with pytest.raises(InputError) as caught:
            read_model(name, env)
        assert not any("did you mean" in hint for hint in caught.value.hints)


class Said(Silent):
    """Keeps the lasting lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str) -> None:
        self.lines.append(text)


@pytest.mark.parametrize("name", ["qwen2.5-7b-instruct", "Qwen2.5-7B-Instruct"])
def test_a_name_without_its_owner_is_the_only_id_that_ends_so_and_that_is_said(env: Environment, name: str) -> None:
    said = Said()
    model = read_model(name, env, progress=said)
    assert replace(model, source="") == replace(read_model("Qwen/Qwen2.5-7B-Instruct", env), source="")
    assumption = f"{name} is taken to be Qwen/Qwen2.5-7B-Instruct, the only one of that name"
    assert model.source.endswith(f"; {assumption}")
    assert said.lines == [f"--model: {assumption}"]


def test_a_name_that_several_owners_have_is_answered_with_all_of_them(env: Environment) -> None:
    with pytest.raises(InputError, match="has no owner, and 2 models") as caught:
        read_model("llama-2-7b-hf", env)
    assert caught.value.hints == ("--model NousResearch/Llama-2-7b-hf", "--model meta-llama/Llama-2-7b-hf")


def test_an_id_in_another_case_is_given_to_the_engine_as_the_hub_spells_it(env: Environment) -> None:
    said = Said()
    model = read_model("qwen/qwen2.5-7B-INSTRUCT", env, progress=said)
    assert model.id == "Qwen/Qwen2.5-7B-Instruct"
    assert said.lines == ["--model: qwen/qwen2.5-7B-INSTRUCT is spelled Qwen/Qwen2.5-7B-Instruct"]
    said = Said()
    assert read_model("Qwen/Qwen2.5-7B-Instruct", env, progress=said).id == "Qwen/Qwen2.5-7B-Instruct"
    assert said.lines == []


def test_every_id_of_the_catalogue_has_one_spelling() -> None:
    assert set(model_ids()) == set(models())
    assert all(spelled.lower() == key for key, spelled in model_ids().items())


def test_a_catalogued_model_uses_a_tokenizer_that_is_in_a_cache(env: Environment, tmp_path: Path) -> None:
    cached = tmp_path / "home/.cache/huggingface/hub/models--Qwen--Qwen2.5-7B-Instruct/snapshots/abc"
    cached.mkdir(parents=True)
    (cached / "tokenizer.json").write_text("{}")
    for name in ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b-instruct"):
        model = read_model(name, env)
        assert (model.tokenizer_path, model.params_total) == (str(cached), 7_615_616_512)


@pytest.mark.parametrize("name", ["", " ", "nope/nothing", "/no/where", "./no", "~/no", "a/b/c"])
def test_what_is_nothing_is_said(env: Environment, name: str) -> None:
    with pytest.raises(InputError) as caught:
        read_model(name, env)
    assert caught.value.hints


@pytest.mark.parametrize("name", ["bigscience/T0_3B", "state-spaces/mamba-1.4b-hf"])
def test_what_is_no_decoder_is_refused(env: Environment, name: str) -> None:
    with pytest.raises(InputError, match=r"not a causal language model|does not describe a decoder"):
        read_model(name, env)


# ---------------------------------------------------------------------------------------------------- folders


def test_a_local_folder(env: Environment, tmp_path: Path) -> None:
    path = folder(tmp_path / "models/my-model", tokenizer_json="{}")
    for name in (str(path), "models/my-model", "./models/my-model", "models/my-model/", "models:my-model"):
        model = read_model(name, env)
        assert (model.id, model.path, model.tokenizer_path) == (name, str(path), str(path))
    assert (model.hidden, model.layers, model.kv_heads, model.vocab, model.tied) == (64, 2, 2, 300, True)
    attention = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 64 + 2 * 32
    assert model.params_total == 300 * 64 + 2 * (attention + 3 * 64 * 128 + 2 * 64) + 64
    assert (model.params_embedding, model.params_lm_head) == (300 * 64, 0)
    assert model.dtype == "bfloat16"


def test_home_is_expanded(env: Environment) -> None:
    path = folder(Path(env.home) / "m")
    assert read_model("~/m", env).path == str(path)


def test_a_folder_that_shadows_a_hub_id_is_said(env: Environment, tmp_path: Path) -> None:
    folder(tmp_path / "Qwen/Qwen2.5-7B-Instruct")
    model = read_model("Qwen/Qwen2.5-7B-Instruct", env)
    assert (model.hidden, model.path) == (64, str(tmp_path / "Qwen/Qwen2.5-7B-Instruct"))
    assert "this local folder is used, not the hub's" in model.source
    assert (model.swift_template, model.pass_model_type) == ("qwen2_5", False)
    (tmp_path / "Qwen/Qwen2.5-7B-Instruct/config.json").unlink()
    with pytest.raises(InputError) as caught:
        read_model("Qwen/Qwen2.5-7B-Instruct", env)
    assert "rename that folder" in caught.value.hints[-1]


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16", "torch_dtype": None}, "bfloat16"),
        ({"torch_dtype": "torch.float32"}, "float32"),
        ({"torch_dtype": "auto"}, None),
        ({"torch_dtype": None}, None),
    ],
)
def test_dtype(env: Environment, tmp_path: Path, said: dict[str, Any], dtype: str | None) -> None:
    folder(tmp_path / "m", QWEN2 | said)
    assert read_model("./m", env).dtype == dtype


def test_quantised_folders_by_their_config_alone(env: Environment, tmp_path: Path) -> None:
    for method, name in (("gptq", "gptq"), ("bitsandbytes", "bnb"), ("fp8", "fp8")):
        folder(tmp_path / "m", QWEN2 | {"quantization_config": {"quant_method": method}})
        assert read_model("./m", env).quantised == name
    folder(tmp_path / "not-really-awq")
    assert read_model("./not-really-awq", env).quantised is None


def test_a_vision_model_of_a_catalogued_shape_has_its_published_count(env: Environment, tmp_path: Path) -> None:
    row = models()["qwen/qwen2.5-vl-3b-instruct"]
    folder(tmp_path / "vl", {"architectures": [row.architecture], **row.config})
    model = read_model("./vl", env)
    assert (model.params_total, model.params_vision) == (row.params_total, row.breakdown["vision_and_projector"])
    assert (model.swift_model_type, model.swift_template) == ("qwen2_5_vl", "qwen2_5_vl")


def test_a_vision_tower_of_another_size_is_estimated_and_said(env: Environment, tmp_path: Path) -> None:
    for name in ("qwen/qwen2.5-vl-7b-instruct", "qwen/qwen3-vl-8b-instruct", "google/gemma-3-4b-it"):
        row = models()[name]
        text = row.config.get("text_config", row.config)
        smaller = {**text, "num_hidden_layers": text["num_hidden_layers"] - 1}
        config = {**row.config, "text_config": smaller} if "text_config" in row.config else {**row.config, **smaller}
        folder(tmp_path / "vl", {"architectures": [row.architecture], **config})
        model = read_model("./vl", env)
        assert "vision tower estimated" in model.source
        assert model.params_vision == pytest.approx(row.breakdown["vision_and_projector"], rel=0.25)


def test_an_unknown_architecture_is_estimated_and_said(env: Environment, tmp_path: Path) -> None:
    folder(tmp_path / "m", QWEN2 | {"model_type": "brand_new", "architectures": ["BrandNewForCausalLM"]})
    model = read_model("./m", env)
    assert "read as a Llama-like decoder" in model.source
    assert "ms-swift knows no model type" in model.source


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("{", "is not JSON", "config.json:1"),
        ('{\n"a": 1,\n}', "is not JSON", "config.json:"),
        ("[]", "holds a list", "config.json"),
        ("{}", "it lacks hidden_size", "config.json"),
    ],
)
def test_a_broken_config(env: Environment, tmp_path: Path, text: str, message: str, place: str) -> None:
    path = folder(tmp_path / "m")
    (path / "config.json").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_model("./m", env)
    assert place in caught.value.where


def test_a_folder_without_config(env: Environment, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    with pytest.raises(InputError, match=r"has no config\.json"):
        read_model("./m", env)
    below = folder(tmp_path / "m/checkpoint-10")
    with pytest.raises(InputError) as caught:
        read_model("./m", env)
    assert caught.value.hints == (f"--model {below}",)


def test_an_adapter_and_a_file_are_told_apart(env: Environment, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m/adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen2.5-7B-Instruct"}')
    with pytest.raises(InputError, match="an adapter, not a model") as caught:
        read_model("./m", env)
    assert caught.value.hints == (f"--model Qwen/Qwen2.5-7B-Instruct --adapters {tmp_path / 'm'}",)
    with pytest.raises(InputError, match="is a file"):
        read_model("m/adapter_config.json", env)


# ----------------------------------------------------------------------------------------------------- caches


@pytest.mark.parametrize(
    ("variables", "place", "named"),
    [
        ({}, "home/.cache/modelscope/hub/models/Qwen/Qwen2___5-Tiny", "ModelScope"),
        ({}, "home/.cache/modelscope/models/Qwen--Qwen2.5-Tiny/snapshots/master", "ModelScope"),
        ({}, "home/.cache/modelscope/hub/Qwen/Qwen2___5-Tiny", "ModelScope"),
        ({"MODELSCOPE_CACHE": "{}/ms"}, "ms/models/Qwen/Qwen2___5-Tiny", "ModelScope"),
        ({"MODELSCOPE_CACHE": "{}/ms"}, "ms/Qwen/Qwen2.5-Tiny", "ModelScope"),
        ({}, "home/.cache/huggingface/hub/models--Qwen--Qwen2.5-Tiny/snapshots/abc", "Hugging Face"),
        ({"HF_HOME": "{}/hf"}, "hf/hub/models--Qwen--Qwen2.5-Tiny/snapshots/abc", "Hugging Face"),
        ({"HF_HUB_CACHE": "{}/hub"}, "hub/models--Qwen--Qwen2.5-Tiny/snapshots/abc", "Hugging Face"),
    ],
)
def test_caches(env: Environment, tmp_path: Path, variables: dict[str, str], place: str, named: str) -> None:
    found = replace(env, variables={**env.variables, **{key: text.format(tmp_path) for key, text in variables.items()}})
    with pytest.raises(InputError):
        read_model("Qwen/Qwen2.5-Tiny", found)
    path = folder(tmp_path / place, tokenizer_json="{}")
    model = read_model("Qwen/Qwen2.5-Tiny", found)
    assert (model.hidden, model.path, model.tokenizer_path) == (64, None, str(path))
    assert f"{named} cache" in model.source


def test_the_revision_of_main_goes_before_others_and_the_engines_hub_first(env: Environment, tmp_path: Path) -> None:
    hub = tmp_path / "home/.cache/huggingface/hub/models--Qwen--T"
    folder(hub / "snapshots/old", QWEN2 | {"num_hidden_layers": 3})
    folder(hub / "snapshots/new", QWEN2 | {"num_hidden_layers": 5})
    (hub / "refs").mkdir()
    (hub / "refs/main").write_text("old")
    assert read_model("Qwen/T", env).layers == 3
    folder(tmp_path / "home/.cache/modelscope/hub/models/Qwen/T", QWEN2 | {"num_hidden_layers": 7})
    assert read_model("Qwen/T", env).layers == 7
    assert read_model("Qwen/T", replace(env, variables={"USE_HF": "1"})).layers == 3


# ------------------------------------------------------------------------------------------- the engine's view


def test_the_last_component_as_the_engine_reads_it() -> None:
    assert last_component("/x/Qwen2___5-7B/") == "Qwen2.5-7B"
    assert last_component("/c/models--Qwen--Qwen2.5-7B/snapshots/abc") == "Qwen2.5-7B"
    assert last_component("/c/models/Qwen--Qwen2.5-7B/snapshots/master") == "Qwen2.5-7B"


@pytest.mark.parametrize(
    ("template", "engine"),
    [
        ("{{ '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud.' }}", "qwen2_5"),
        ("<|im_start|> enable_thinking", "qwen3"),
        ("<|im_start|>", "chatml"),
        ("<|start_header_id|> Cutting Knowledge Date", "llama3_2"),
        ("<|start_header_id|>", "llama3"),
        ("<start_of_turn>", "gemma"),
        ("[INST]", "llama"),
        ("something else", None),
    ],
)
def test_a_renamed_folder_gets_type_and_template_from_its_files(
    env: Environment, tmp_path: Path, template: str, engine: str | None
) -> None:
    folder(tmp_path / "renamed", tokenizer_config_json=json.dumps({"chat_template": template}))
    model = read_model("./renamed", env)
    assert (model.swift_model_type, model.swift_template, model.pass_model_type) == ("qwen2", engine, True)
    assert "Qwen2ForCausalLM fits 2 model types" in model.source
    assert ("pass --template" in model.source) == (engine is None)
    (tmp_path / "renamed/tokenizer_config.json").unlink()
    (tmp_path / "renamed/chat_template.jinja").write_text(template)
    assert read_model("./renamed", env).swift_template == engine


@pytest.mark.parametrize(
    ("architecture", "template", "told"),
    [
        ("MistralForCausalLM", "[AVAILABLE_TOOLS][INST]", ("mistral_nemo", "mistral_nemo", True)),
        ("Phi3ForCausalLM", "<|im_start|>user<|im_sep|>", ("phi4", "phi4", True)),
        ("LlamaForCausalLM", "<|im_start|>", ("llama", "chatml", True)),
        ("Glm4ForCausalLM", "[gMASK]<|observation|>", ("glm4", "glm4", True)),
        ("Gemma3ForCausalLM", "<start_of_turn>", ("gemma3_text", "gemma3_text", False)),
        ("Qwen2_5_VLForConditionalGeneration", "<|im_start|>", ("qwen2_5_vl", "qwen2_5_vl", True)),
        ("GPTNeoXForCausalLM", "<|im_start|>", (None, "chatml", True)),
        ("GPTNeoXForCausalLM", "", (None, None, False)),
    ],
)
def test_type_and_template_fit_each_other(
    tmp_path: Path, architecture: str, template: str, told: tuple[str | None, str | None, bool]
) -> None:
    path = folder(tmp_path / "renamed", tokenizer_config_json=json.dumps({"chat_template": template}))
    kind = engine_type(str(path), architecture, path)
    assert (kind.model_type, kind.template, kind.tell) == told


def test_a_folder_with_a_registered_name_needs_nothing(env: Environment, tmp_path: Path) -> None:
    folder(tmp_path / "qwen2___5-7b-instruct")
    model = read_model("./qwen2___5-7b-instruct", env)
    assert (model.swift_model_type, model.swift_template, model.pass_model_type) == ("qwen2", "qwen2_5", False)


def test_what_the_engine_saved_beside_its_own_output_is_believed(env: Environment, tmp_path: Path) -> None:
    folder(tmp_path / "out", args_json='{"swift_version": "4.6.0", "model_type": "qwen2", "template": "qwq"}')
    model = read_model("./out", env)
    assert (model.swift_model_type, model.swift_template, model.pass_model_type) == ("qwen2", "qwq", False)
    folder(tmp_path / "out", args_json='{"swift_version": "3.9.0", "model_type": "qwen2", "template": "qwq"}')
    model = read_model("./out", env)
    assert (model.swift_model_type, model.swift_template, model.pass_model_type) == ("qwen2", "qwq", True)


def test_every_type_and_template_we_may_pass_is_registered() -> None:
    known = engine_models()
    templates = {name for names in known.candidates.values() for name in names}
    assert {template for _, template in _TEMPLATE_MARKS} <= templates
    for architecture, model_type in _PLAIN_TYPE.items():
        assert model_type in known.architectures[architecture]


@pytest.mark.engine
def test_the_engine_agrees(env: Environment, tmp_path: Path) -> None:
    """Where we say the engine can tell, it tells the same; where we say it cannot, it refuses."""
    from swift.model import get_model_info_meta
    from swift.template.register import get_template_meta

    cases = {
        "renamed": (QWEN2, {"tokenizer_config_json": '{"chat_template": "<|im_start|>"}'}),
        "Qwen2.5-7B-Instruct": (QWEN2, {}),
        "qwen3___5-4b": (QWEN2, {}),
        "out": (QWEN2, {"args_json": '{"swift_version": "4.6.0", "model_type": "qwen2", "template": "qwq"}'}),
        "old": (QWEN2, {"args_json": '{"swift_version": "3.9.0", "model_type": "qwen2", "template": "qwq"}'}),
        "llama": (QWEN2 | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, {}),
        "moe": (QWEN2 | {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe"}, {}),
        "gemma": (QWEN2 | {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}, {}),
        "neox": (QWEN2 | {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"}, {}),
    }
    told = {}
    for name, (config, files) in cases.items():
        path = folder(tmp_path / name, config, **files)
        model = read_model(f"./{name}", env)
        told[name] = model.pass_model_type
        if model.pass_model_type:
            with pytest.raises(ValueError, match="Multiple possible types found"):
                get_model_info_meta(str(path))
            chosen = model.swift_model_type
            info, meta = get_model_info_meta(str(path), model_type=chosen)
            template = (
                get_template_meta(info, meta, model.swift_template).template_type if model.swift_template else None
            )
            assert (info.model_type, template) == (model.swift_model_type, model.swift_template)
        else:
            info, meta = get_model_info_meta(str(path))
            template = get_template_meta(info, meta).template_type
            assert (info.model_type, template) == (model.swift_model_type, model.swift_template or "dummy"), name
    assert {name for name, tell in told.items() if tell} == {"renamed", "llama", "old"}


def test_modelscope_gets_the_id_under_which_it_has_the_model(tmp_path: Path) -> None:
    env = environment(tmp_path)
    name = "meta-llama/Meta-Llama-3-8B-Instruct"
    assert read_model(name, env).id == "LLM-Research/Meta-Llama-3-8B-Instruct"
    assert "ModelScope has" in read_model(name, env).source
    hugging_face = {"use_hf": Sourced(value="true", source="flag --use_hf")}
    assert read_model(name, env, hugging_face).id == name
