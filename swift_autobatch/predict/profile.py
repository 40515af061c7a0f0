"""Discrete facts on how an engine does what a candidate names; the default is the engine that autoswift runs.

Only what an engine's code decides stands here: kernels, dtypes, which rows and tensors. No figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine version, as far as memory depends on it. None: as ms-swift 4.6 does it.

    ``targets`` are the linears that adapters reach, by their name in ``ModelFacts.linears`` (None: all);
    ``trainable_bytes`` is the size of a trainable parameter on the device, ``adapters_autocast`` says whether
    adapters run under autocast (the input is cast for each adapter) or in the weights' type.
    """

    loss: str | None = None  # a row of predict/logits.py
    logits_rows: Literal["supervised", "all"] | None = None
    attention: str | None = None
    optimizer: str | None = None
    targets: tuple[str, ...] | None = None
    trains_ends: bool = False  # copies of embedding and head are trained whole beside the adapters
    trained_layers: int = 0  # decoder layers trained whole among frozen ones, in place of adapters (LLaMA-Pro, LISA)
    trained_in_place: tuple[Literal["embedding", "head"], ...] = ()  # of the model's own, beside layers or adapters
    trains_tower: bool = False  # full tuning reaches the vision or audio tower too
    adapted_experts: bool = False  # experts are modules of their own, and adapters on all linears reach them
    trainable_bytes: int | None = None
    adapters_autocast: bool | None = None
    masters: bool | None = None  # fp32 masters in the optimizer; None: DeepSpeed's rule
    step_in_backward: bool = False  # the optimizer runs a parameter at a time, gradients never pile up
    kbit_fp32_stream: bool = False  # prepare_model_for_kbit_training: norms, embedding and the hidden state in fp32
    layer_kernels: bool = False  # fused RMSNorm, RoPE, SwiGLU: their inputs only are kept
    layers_fp32: bool = False  # recompute and backward of a layer run in fp32
    quantised_experts: bool = False  # experts are nn.Linear modules (transformers before 5): quantised as well
    selective: bool = False  # checkpointing keeps attention's output and every second product
    rows_over_tp: bool = False  # tensor-parallel ranks also share out the tokens between layers, as Megatron does
    offloads_states: bool = False
    bucket: int | None = None  # elements of a ZeRO reduce bucket
    two_buckets: bool = False  # overlap_comm: one is filled while the other is reduced
    never_resharded: bool = False  # the whole model stays gathered beside the shards
    galore_rank: int = 0
    lazy_projection: bool = False  # GaLore's projections are kept while they still point the same way
    galore_ends: bool = False  # embedding and head are projected too
    reference_model: bool = False  # frozen copy of the weights (DPO in full tuning)
    pairs: bool = False  # a sample is two rows: chosen and rejected
    adapter_kernels: bool = False  # an adapted linear and its adapters run as one fused operation
    rebuilt: int = 0  # fp32 tensors of an adapted weight's size that each forward makes anew (DoRA, LoHa)
    rotated: bool = False  # each forward multiplies the input width's square by itself in fp32 (BOFT)
    bare_adapters: bool = False  # nothing but that: no product of low rank beside the weight
    virtual_tokens: int = 0  # trained rows in front of each sample, computed and not counted
    expert_loop: bool = False  # MoE experts run one after another from Python instead of as one grouped product
    checkpoints_units: bool = False  # checkpointing wraps the FSDP unit: recompute gathers its weights once more
    expert_modules: bool = False  # each expert is a module with weights of its own
    reference_pass: bool = False  # DPO, KTO: a forward of the frozen model beside each batch
    float8: bool = False  # the layers' products run in 8 bits at twice the rate
    compiled: bool = False  # torch.compile: elementwise work is fused and little is launched
    quant_kernel: str | None = None  # gptq | gptq-fused: 4-bit weights that are not NF4
    image_patches: int = 0  # patches that the vision tower sees per row
    varied_rows: bool = False  # unpadded batches of lengths below the longest: holes of many sizes
    source: str = "ms-swift 4.6"


SWIFT = Engine()
