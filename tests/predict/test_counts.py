"""The activation counts against real transformers + PEFT layers: every allocation of a step on CPU is followed.

Red when a new transformers or PEFT keeps more (or less) for backward: then the table in predict/activations.py is
what has to change.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import builders
import pytest

from swift_autobatch.predict import activations
from swift_autobatch.predict.job import job as make_job
from swift_autobatch.predict.profile import Engine
from swift_autobatch.records import Effective

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# case: (tuner, adapters' dtype, weights' dtype, autocast)
CASES = {
    "lora-autocast": ("lora", "float32", "bfloat16", True),
    "lora-16": ("lora", "bfloat16", "bfloat16", False),
    "full-16": ("full", "", "bfloat16", True),
    "full-32-amp": ("full", "", "float32", True),
    "full-32": ("full", "", "float32", False),
}
# The same with adapters elsewhere or without dropout: (case, adapted linears, dropout).
VARIANTS = {
    "no-dropout": ("lora-autocast", LINEARS, 0.0),
    "no-dropout-16": ("lora-16", LINEARS, 0.0),
    "attention-only": ("lora-autocast", LINEARS[:4], 0.05),
    "attention-only-16": ("lora-16", LINEARS[:4], 0.05),
    "query-and-value": ("lora-autocast", ("q_proj", "v_proj"), 0.0),
}
HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 256, 4, 2, 64


class _Follower:
    """Peak bytes of all storages that operations make, by weak references."""

    def __init__(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        follower = self
        self.current = self.peak = 0
        self.alive: dict[int, Any] = {}

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                import torch
                from torch.utils._pytree import tree_flatten

                out = func(*args, **(kwargs or {}))
                for leaf in tree_flatten(out)[0]:
                    if isinstance(leaf, torch.Tensor):
                        follower.add(leaf)
                return out

        self.mode = Mode()

    def add(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key, n_bytes = id(storage), storage.nbytes()
        if key in self.alive:
            return

        def gone(_: Any) -> None:
            self.current -= n_bytes
            self.alive.pop(key, None)

        self.alive[key] = weakref.ref(storage, gone)
        self.current += n_bytes
        self.peak = max(self.peak, self.current)


def _peak(
    case: str,
    tokens: int,
    layers: int,
    intermediate: int,
    checkpointing: bool,
    targets: tuple[str, ...] = LINEARS,
    dropout: float = 0.05,
) -> int:
    """Peak bytes of the second step of a random Qwen2 with few labels, weights and gradients included."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tuner, adapter_dtype, weight_dtype, autocast = CASES[case]
    config = Qwen2Config(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        vocab_size=64,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM(config).to(getattr(torch, weight_dtype))
    if tuner == "lora":
        model = get_peft_model(model, LoraConfig(r=8, lora_dropout=dropout, target_modules=list(targets)))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(getattr(torch, adapter_dtype))
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
        model.enable_input_require_grads()
    ids = torch.randint(0, 64, (1, tokens))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=ids, labels=ids[:, -1:], logits_to_keep=1, use_cache=False).loss
        loss.backward()

    step()
    follower = _Follower()
    for parameter in model.parameters():
        follower.add(parameter)
        if parameter.grad is not None:
            parameter.grad.zero_()
            follower.add(parameter.grad)
    gc.collect()
    with follower.mode:
        step()
    return follower.peak


def _measured(case: str, intermediate: int, checkpointing: bool, **adapters: Any) -> tuple[float, float]:
    """(bytes per token that one more layer adds, bytes per token that do not depend on layers)."""
    slope = {}
    for layers in (2, 3):
        short, long = (_peak(case, tokens, layers, intermediate, checkpointing, **adapters) for tokens in (512, 1024))
        slope[layers] = (long - short) / 512
    return slope[3] - slope[2], 3 * slope[2] - 2 * slope[3]


def _predicted(
    tmp_path: Path, case: str, intermediate: int, targets: tuple[str, ...] | None = None, dropout: float = 0.05
) -> tuple[float, float, float]:
    """(boundary, in flight, saved) bytes per token of one layer, from the table."""
    tuner, _, weight_dtype, _ = CASES[case]
    facts = builders.facts(tmp_path, "1x4090")
    sizes = {"hidden": HIDDEN, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "layers": 1}
    inputs = {"o_proj": HEADS * HEAD_DIM, "down_proj": intermediate}
    linears = tuple((name, inputs.get(name, HIDDEN), HIDDEN) for name in LINEARS)
    linears = tuple((name, a, intermediate if name in ("gate_proj", "up_proj") else b) for name, a, b in linears)
    model = builders.replace(facts.model, **sizes, intermediate=intermediate, linears=linears)
    parallel = "zero2" if case == "lora-16" else "none"
    candidate = builders.candidate(
        tuner=tuner,
        parallel=parallel,
        torch_dtype=weight_dtype,
        max_tokens=1000,
        max_length=1000,
        lora_dropout=dropout,
    )
    precision = {"full-32": "fp32", "full-32-amp": "fp16-amp"}.get(case, "bf16")
    paths = Effective(
        attention="sdpa-flash",
        loss="hf_fp32_logits",
        logits_rows="supervised",
        precision=precision,
        optimizer="fused-adamw",
    )
    work = make_job(builders.replace(facts, model=model), candidate, paths, None, Engine(targets=targets))
    assert activations.case_of(work) == case
    return activations.boundaries(work) / 1000, activations.in_flight(work) / 1000, activations.saved(work) / 1000


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("intermediate", [1024, 1792])
@pytest.mark.parametrize("case", CASES)
def test_counts_agree_with_real_layers(tmp_path: Path, case: str, intermediate: int) -> None:
    boundary, in_flight, saved = _predicted(tmp_path, case, intermediate)
    # Dropout on CPU keeps a mask in the input's type; the fused operation of a GPU keeps one byte an element.
    import torch

    def native(self: Any, x: Any) -> Any:
        return torch.native_dropout(x, self.p, True)[0] if self.training and self.p else x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Dropout, "forward", native)
        kept, once = _measured(case, intermediate, checkpointing=True)
        assert kept == pytest.approx(boundary, rel=0.02)
        assert once == pytest.approx(in_flight, rel=0.04)
        kept, _ = _measured(case, intermediate, checkpointing=False)
        assert kept == pytest.approx(saved, rel=0.02)


@pytest.mark.engine
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("variant", VARIANTS)
def test_counts_follow_the_adapters(tmp_path: Path, variant: str) -> None:
    """What adapters keep depends on which linears they stand beside and on dropout."""
    import torch

    case, targets, dropout = VARIANTS[variant]
    boundary, in_flight, saved = _predicted(tmp_path, case, 1792, targets, dropout)

    def native(self: Any, x: Any) -> Any:
        return torch.native_dropout(x, self.p, True)[0] if self.training and self.p else x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.Dropout, "forward", native)
        kept, once = _measured(case, 1792, True, targets=targets, dropout=dropout)
        kept_all, _ = _measured(case, 1792, False, targets=targets, dropout=dropout)
    assert kept == pytest.approx(boundary, rel=0.02)
    assert kept_all == pytest.approx(saved, rel=0.02)
    assert once == pytest.approx(in_flight, rel=0.02)
