"""Which engine a published figure ran on: tool, group and notes of a case -> discrete facts, each with its source."""

from __future__ import annotations

import re
from typing import Any

from swift_autobatch.predict.profile import Engine

Case = dict[str, Any]

# Groups whose transformers is older than 4.36 (December 2023), the first with sdpa in most models.
_BEFORE_SDPA = frozenset({"hf-blog-4bit", "peft-readme", "llama2-accessory", "deepspeed-blog"})
# Families with a fused kernel in their own code at that time: torch's (chatglm2 and 3, baichuan2-7b), flash where it is
# installed (Qwen-1, DeepSeek, dbrx state it).
_FUSED_CODE = ("chatglm", "baichuan2-7b", "qwen", "deepseek", "dbrx", "telechat", "bluelm")
# Families whose own code, copied from LLaMA's before 4.36, has no sdpa.
_EAGER_CODE = ("xverse", "orion-", "skywork", "internlm-")
_NO_VOCABULARY = frozenset({"seq_cls", "generative_reranker", "reranker", "embedding", "rm"})

# The linears that each way of naming targets means, by family (q, k, v or fused ones; output; up side; down).
_QUERY_KEY_VALUE = ("q_proj", "k_proj", "v_proj", "c_attn", "W_pack", "query_key_value", "qkv_proj", "wqkv")
_OUTPUT = ("o_proj", "wo", "dense")


def profile(case: Case) -> Engine:
    """The engine of a case, as far as memory depends on it."""
    facts: dict[str, Any] = {"logits_rows": "all", **_by_tool(case)}
    facts.setdefault("varied_rows", case["seq_len_effective"] is None and not case["packing"])
    facts["targets"] = targets(case)
    facts["selective"] = case["grad_checkpointing"] == "selective"
    notes = (case["notes"] or "") + (case["actual_seq_note"] or "")
    if "wte and lm_head trainable" in notes or "embedding and output layer" in notes:
        facts["trains_ends"] = True
    kernel = case["attn_impl"] or ""
    if (not kernel and _builds_scores(case)) or "eager" in kernel or kernel in ("no flash_attn", "unfused"):
        facts["attention"] = "eager"
    elif "flash" in kernel:
        facts["attention"] = "flash_attention_2"
    if case["quant_bits"] and case["tool"] != "ms-swift":
        facts["quantised_experts"] = True
    modules = facts.get("quantised_experts") or (case["tool"] == "ms-swift" and _version(case) < (4,))
    facts["adapted_experts"] = bool(modules) and "all-linear" in (case["lora_targets"] or "")
    facts.update(_whole_layers(case))
    facts["trains_tower"] = _trains_tower(case)
    if case["tool"] == "axolotl" and case["quant_bits"] and "/llama-2/" in case["source"]:
        # README of August 2023, with xformers: norms, ends and the hidden state stay in fp32 after
        # prepare_model_for_kbit_training; utils/models.py casts them back for flash attention only.
        facts["kbit_fp32_stream"] = True
    if case["tuner"] == "galore":
        facts["galore_rank"] = int((re.search(r"galore_?(?:rank)?[=_]?(\d+)", case["id"]) or [0, 128])[1])
        facts["galore_ends"] = "emb" in case["id"]
    task = task_of(case)
    if task in ("dpo", "orpo", "simpo", "kto", "rm"):
        facts["pairs"] = task != "kto"
        facts["reference_model"] = task in ("dpo", "kto") and case["tuner"] == "full"
    if case["task"] in _NO_VOCABULARY:  # a few classes or the last token's logits only
        facts["loss"] = "none"
    if "optimizer_in_bwd" in (case["optimizer"] or ""):
        facts["step_in_backward"] = True
    if (
        not case["group"].startswith("litgpt")
        and re.search(r"cut.cross.entropy|chunked CE|CE chunked", notes, re.I)
        and "does not use" not in notes
    ):
        facts["loss"] = "none"
    return Engine(**facts)


def _builds_scores(case: Case) -> bool:
    """Whether attention builds its matrix of scores where a case names no kernel.

    Source: ms-swift 1.3 requirements/framework.txt (transformers 4.33 on; sdpa came with 4.36) and llm/utils/model.py
    (flash only where asked); ms-swift 1.5 to 2.6 leave it to transformers, or to the model's own code.
    """
    if case["group"] in _BEFORE_SDPA:
        return True
    if case["tool"] != "ms-swift" or _version(case) >= (3,):
        return False
    name = case["model"].lower()
    old = _version(case) < (1, 5) and not any(family in name for family in _FUSED_CODE)
    return old or any(family in name for family in _EAGER_CODE)


def task_of(case: Case) -> str | None:
    """What is trained; a script that is called dpo is one, whatever the table says."""
    if case["task"] == "sft" and re.search(r"[-_/]dpo[-_/.]", case["id"]):
        return "dpo"
    return case["task"]


def _trains_tower(case: Case) -> bool:
    """Whether full tuning reaches the tower.

    Source: ms-swift 2.6 llm/utils/argument.py (freeze_vit False; before, no such flag) and 3.0 tuner_args.py (True);
    its script on checkpointing the tower passes --freeze_vit false; MiniCPM-V finetune_ds.sh: --tune_vision true.
    """
    if case["tool"] == "ms-swift" and _version(case) < (3,):
        return True
    return "vit_gradient_checkpointing=" in (case["notes"] or "") or case["id"].startswith("minicpmv-full")


NEW_BLOCKS = 4  # ms-swift argument.py: llamapro_num_new_blocks; its table's own rows say 4


def _whole_layers(case: Case) -> dict[str, Any]:
    """Tuners that train some of the model's own layers or ends, in the weights' type.

    Source: ms-swift tuners/llamapro.py (new blocks among frozen ones), trainers/callback.py for LISA (layers are
    frozen but for a few, the ends never; its example activates 2), tuners/longlora (embedder_and_normalizer).
    """
    if case["tuner"] == "llamapro":
        return {"trained_layers": NEW_BLOCKS, "targets": ()}
    if case["tuner"] == "lisa":
        return {"trained_layers": 2, "trained_in_place": ("embedding", "head"), "targets": ()}
    if case["tuner"] == "longlora":
        return {"trained_in_place": ("embedding",)}
    return {}


def _by_tool(case: Case) -> dict[str, Any]:
    tool, group = case["tool"], case["group"]
    if tool in ("ms-swift", "megatron-swift"):
        return _swift(case)
    if tool == "qwen" or group in ("qwen-readme", "qwen-readme-2023-10", "qwen-vl-readme"):
        if case["tuner"] == "qlora":
            return {
                "loss": "bf16_logits",
                "source": "finetune_qlora_single_gpu.sh: fp16 under DeepSpeed ZeRO-2, no autocast to fp32",
            }
        return {
            "loss": "shifted_16bit",
            "trainable_bytes": 2 if case["tuner"] == "full" and not _deepspeed(case) else None,
            "two_buckets": True,  # finetune/ds_config_zero2.json and zero3: overlap_comm
            # Measured in October 2023: PEFT 0.5 moves adapters to the weights' device, not to their type
            # (tuners/lora.py update_layer; 0.6 does both), and finetune.py --bf16 autocasts.
            "source": "modeling_qwen.py (16-bit logits, contiguous shift); PEFT 0.5: adapters in fp32",
        }
    if group.startswith("fms"):
        return _fms(case)
    if group.startswith("litgpt"):
        return {
            "loss": "bf16_logits",
            "trainable_bytes": 2,
            "adapters_autocast": False,
            "masters": False,
            "never_resharded": case["tuner"] != "full",
            "source": "litgpt finetune/lora.py: precision bf16-true, chunked_cross_entropy on 16-bit logits",
        }
    if group == "torchtune":
        return {
            "loss": "bf16_logits" if "chunk" not in (case["notes"] or "").lower() else "none",
            "trainable_bytes": 2,
            "adapters_autocast": False,
            "source": "torchtune recipes: dtype bf16 throughout, fp32 masters nowhere",
        }
    if group == "torchtitan":
        return {
            "loss": "hf_fp32_logits",
            "trainable_bytes": 4,
            "rows_over_tp": True,
            "source": "torchtitan: fp32 parameters, FSDP2 in bf16, sequence parallel with tp",
        }
    if group == "fsdp-qlora":
        return {
            "loss": "shifted_fp32_held",
            "trainable_bytes": 2,
            "adapters_autocast": False,
            "source": "AnswerDotAI train.py: bf16 throughout, FSDP1, `output` lives until the next one is there; "
            "transformers 4.38 shifts fp32 logits",
        }
    if tool in ("llamafactory", "deepspeed"):
        return {
            "loss": "shifted_fp32",
            "bucket": 5 * 10**8,
            "two_buckets": True,
            "source": "LLaMA-Factory examples/deepspeed/ds_z2_config.json: buckets of 5e8, overlap_comm",
        }
    return {"loss": "shifted_fp32", "source": "transformers before 4.46: fp32 logits and their contiguous shift"}


def _swift(case: Case) -> dict[str, Any]:
    version = _version(case)
    if version < (3,):
        loss = "shifted_16bit" if "qwen/qwen-" in case["model"].lower() else "shifted_fp32"
        return {
            "loss": loss,
            "varied_rows": True,
            "two_buckets": True,
            "source": "ms-swift 1 and 2: whole logits, outputs kept for accuracy; ds_config/zero3.json: overlap_comm",
        }
    facts: dict[str, Any] = {"source": f"ms-swift {'.'.join(map(str, version))}"}
    if case["deepspeed"] == "megatron":
        facts["loss"] = "vocab_parallel"  # Megatron-LM fusions/fused_cross_entropy.py
        facts["offloads_states"] = "optimizer_cpu_offload=true" in (case["notes"] or "")
        return facts
    if version >= (3, 7):
        facts["logits_rows"] = "supervised"
    return facts


def _version(case: Case) -> tuple[int, ...]:
    found = re.search(r"@v(\d+)\.(\d+)", case["source"])
    if found:
        return tuple(map(int, found.groups()))
    if "v1" in case["group"] or "v2" in case["group"]:
        return (2, 0)
    return (4, 0) if "HEAD" in case["source"] else (3, 0)


def _fms(case: Case) -> dict[str, Any]:
    notes = case["notes"] or ""
    framework = notes.split(";")[0]
    pure, spread = "pure bfloat16" in notes, case["deepspeed"] == "fsdp1"
    facts: dict[str, Any] = {
        "loss": "shifted_fp32",
        "trainable_bytes": 2 if pure or (case["tuner"] == "full" and not spread) else 4,
        "adapters_autocast": not pure,
        "layers_fp32": spread and not pure and case["tuner"] != "full",
        "source": "transformers 4.4x Trainer; accelerate upcasts what FSDP1 trains to fp32; fms-acceleration plugins",
    }
    if "bigcode" in case["model"]:  # modeling_gpt_bigcode.py: cross-entropy on 16-bit logits, in fp32 under autocast
        facts["loss"] = "bf16_logits" if pure else "shifted_16bit"
    elif "foak" in framework:
        facts["loss"] = "inplace" if case["group"] == "fms-liger" else "inplace_held"
    if "liger" in framework:
        facts["loss"] = "liger_fused"
    return facts


def _deepspeed(case: Case) -> bool:
    return (case["deepspeed"] or "").startswith("zero")


def targets(case: Case) -> tuple[str, ...] | None:
    """The linears that adapters reach; None: all of them."""
    text = case["lora_targets"] or ""
    lower = text.lower()
    if not text or "all-linear" in text or "mlp" in lower or "w1,w2" in lower or "down_proj" in lower:
        return None
    if "DEFAULT" in text or "AUTO" in text or "peft default" in text:
        return _QUERY_KEY_VALUE
    if lower in ("c_attn attn.c_proj", "self_attn", "linear_qkv linear_proj") or "o_proj" in lower:
        return (*_QUERY_KEY_VALUE, *_OUTPUT)
    if lower in ("query,key,value", "q_proj,k_proj,v_proj", "c_attn", "query_key_value"):
        return _QUERY_KEY_VALUE
    if lower in ("q,v", "q_proj,v_proj", "q_proj v_proj", "query,value"):
        return ("q_proj", "v_proj", "c_attn", "query_key_value", "qkv_proj", "wqkv")
    return _QUERY_KEY_VALUE if "qkv" in lower else ()
