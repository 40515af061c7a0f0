"""Every record that crosses a stage boundary; no logic beyond validation and derived properties.

    Request -> Facts -> Candidate* -> Prediction* -> Plan -> Artefacts -> Verdict -> Run -> Receipt

Units stand in the names. What is not known is None plus a reason, never a guess that looks like a fact.
A value that was decided travels with its reason as :class:`Sourced`.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from swift_autobatch.units import gib

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)  # a frozen Sourced[str] may stand where a wider one is wanted


def _slug(name: str) -> str:
    """``'NVIDIA GeForce RTX 4090 D'`` -> ``'rtx-4090-d'``: a card's name inside a machine class."""
    bare = re.sub(r"\b(nvidia|geforce)\b", "", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", bare).strip("-")


Tuner = Literal["lora", "full"]
Quant = Literal["none", "nf4", "int8"]
Parallel = Literal[
    "none",
    "ddp",
    "zero0",  # DeepSpeed's engine, nothing sharded
    "zero1",
    "zero2",
    "zero2_offload",
    "zero3",
    "zero3_offload",
    "fsdp2",
    "fsdp2_offload",
    "megatron",
]
Dtype = Literal["bfloat16", "float16", "float32"]
Phase = Literal["load", "first_step", "steady", "eval", "save", "resume"]
VerdictWord = Literal["pass", "fail", "unknown"]

DTYPE_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced(Generic[T_co]):
    """A decided value with its reason: ``flag --max_length``, ``gpus.jsonl: GeForce RTX 4090``, ``assumed``."""

    value: T_co
    source: str


# ---------------------------------------------------------------------------------------------------- request


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The process environment, read once by ``request.py``; facts receive it instead of ``os.environ``."""

    variables: Mapping[str, str]
    cwd: str
    home: str
    cache_dir: str  # $XDG_CACHE_HOME/autoswift
    state_dir: str  # $XDG_STATE_HOME/autoswift
    interpreter: str  # the Python that runs us, for children


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A project recipe, as read. ``flags`` are the engine flags that the project pins, in the engine's spelling;
    ``candidate``, ``arguments``, ``environment`` and the two configs are what was decided for ``machine_class``."""

    path: str
    name: str
    request: Mapping[str, Any]  # model, dataset, strategy, parallel_method, global_batch, lr_scaling, lr_base, nproc
    flags: Mapping[str, str | tuple[str, ...]]
    machine_class: str | None
    candidate: Mapping[str, Any] | None  # None in a recipe that was never planned
    arguments: Mapping[str, str | tuple[str, ...]]
    digest: str | None
    predicted: Mapping[str, Any]
    measured: Mapping[str, Any]
    engine: str | None = None  # the dialect that the arguments are written in
    environment: Mapping[str, str] = field(default_factory=dict)
    deepspeed: Mapping[str, Any] | None = None
    fsdp: Mapping[str, Any] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)  # rows, longest_tokens and digest it was planned on
    edited: tuple[str, ...] = ()  # sections that are no longer as autoswift wrote them: request, planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user wants, each value with where it came from.

    ``pins`` holds engine flags by their ms-swift name, without the leading dashes, in the engine's own
    spelling of values (strings; a tuple for a flag with several values). A pinned flag is never changed.
    ``recipe`` is the project recipe behind some of the values; ``decided`` is its decision, set by the spine
    when it holds on this machine: then nothing is searched.
    """

    model: Sourced[str | None]  # id or local folder; None: the default for this machine
    datasets: Sourced[tuple[str, ...]]  # as the user spelled them; () means the embedded default
    pins: Mapping[str, Sourced[str | tuple[str, ...]]] = field(default_factory=dict)
    strategy: Sourced[str | None]  # a strategy recipe's name; None: choose
    parallel_method: Sourced[str]  # auto | deepspeed | fsdp | megatron | none
    global_batch: Sourced[int]  # target effective batch
    lr_scaling: Sourced[str]  # sqrt | linear | none
    lr_base: Sourced[tuple[float, int] | None]  # (learning rate, batch it is right at)
    nproc: Sourced[int | None]  # processes to use; None: one per visible device
    gpus: Sourced[str | None]  # --gpus 4x4090[,ram=256]
    hardware_file: Sourced[str | None]  # --hardware machine.json
    output_dir: Sourced[str | None]
    gate_timeout_s: Sourced[float]
    on_failure: Literal["resume", "replan", "stop"] = "resume"  # what follows a training that died
    stall_timeout_s: float = 1800.0  # seconds of silence after which a training counts as hung
    tries: int = 3  # dry runs at most: the plan is made again from what the one before measured
    recipe: Recipe | None = None
    overrides: tuple[Sourced[str], ...] = ()  # names that a flag or variable sets otherwise than the recipe
    prefer: Sourced[str] = field(default_factory=lambda: Sourced(value="auto", source="default"))  # PREFERENCES
    decided: Recipe | None = None
    fix: bool = False  # apply the smallest edit that makes an illegal request legal
    locked: bool = False  # stop when the recipe does not hold here, instead of planning again
    save_recipe: str | None = None  # file for the decision, written after success
    skip_dry_run: bool = False
    trace: bool = False  # trace the model where nothing is known of a plan's variants; before a run always
    ask: bool = True  # after training on self-cognition rows, ask the model who it is
    force: bool = False


# ------------------------------------------------------------------------------------------------------ facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One visible accelerator; bytes are per card. ``card`` is the name of its row in data/gpus.jsonl."""

    index: int
    name: str  # as the driver spells it, or the catalogue's name when the card is assumed
    card: str | None  # row of the catalogue; None: unknown card
    uuid: str | None
    total_bytes: int
    free_bytes: int
    compute_capability: tuple[int, int]
    bf16_native: bool
    flash_attention: bool  # FlashAttention 2 runs on this chip (Ampere or newer)
    tflops_16bit: float | None  # dense tensor rate at fp32 accumulation, per second
    bandwidth_gb_s: float | None  # device memory, 10**9 bytes per second
    pcie_gb_s: float | None  # one direction, host <-> device, 10**9 bytes per second
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine around the cards. ``ram_budget_bytes`` is the least of MemAvailable and the cgroup limits."""

    cpu_cores: int
    ram_total_bytes: int
    ram_budget_bytes: int
    ram_source: str
    shm_bytes: int | None
    disk_free_bytes: int | None
    gflops: float  # whole host, dense fp32, per second; assumed unless measured
    memory_gb_s: float = 20.0  # host memory bandwidth, 10**9 bytes per second; assumed unless measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Versions of installed distributions by name (None: absent), the driver, and what can be compiled."""

    versions: Mapping[str, str | None]
    python: str
    driver: str | None
    cuda_driver: str | None
    compiler: str | None  # path of a C++ compiler, None when there is none
    nvcc: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine has. ``processes`` is how many ranks a plan may use (devices, or CPU processes)."""

    gpus: tuple[Gpu, ...]
    links: Literal["none", "nvlink", "pcie", "nop2p"]
    link_gb_s: float | None  # per card, one direction, 10**9 bytes per second; None without a second card
    host: Host
    software: Software
    visible_devices: str | None  # CUDA_VISIBLE_DEVICES as the user set it; None: unset
    processes: int
    assumed: tuple[str, ...] = ()  # every assumption in words
    source: str = "this machine"

    @property
    def accelerator(self) -> Literal["gpu", "cpu"]:
        return "gpu" if self.gpus else "cpu"

    @property
    def machine_class(self) -> str:
        """``4xrtx-4090-24-nop2p-ram256``: what a project recipe is valid for; rendered bytes depend on nothing finer.

        The number of cards a plan may use, card, GiB of the card to the nearest whole, the link between the
        cards (left out for a single card) and host RAM. RAM is the largest power of two that it holds, 10 %
        forgiven: a machine sold with 64 GiB reports 62. Different cards are joined with ``+``. Without a card
        ``2xcpu-ram16``: ranks and RAM.
        """
        ram = f"ram{2 ** max(0, math.floor(math.log2(max(1.0, gib(self.host.ram_total_bytes) * 1.1))))}"
        if not self.gpus:
            return f"{self.processes}xcpu-{ram}"
        cards = [f"{_slug(gpu.card or gpu.name)}-{round(gib(gpu.total_bytes))}" for gpu in self.gpus]
        counted = "+".join(f"{cards.count(card)}x{card}" for card in sorted(set(cards)))
        return "-".join((counted, *((self.links,) if self.links != "none" else ()), ram))


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """What only trying it out tells about an environment. None: not tried, or it cannot be told."""

    torch_error: str | None  # why torch cannot be imported; None: it can
    torch_cuda: str | None  # CUDA version torch was built with; None: a CPU build
    torch_sees_gpu: bool | None
    torch_archs: tuple[str, ...]  # sm_80, compute_90 ...
    flash_attn_error: str | None  # why flash_attn cannot be imported although it is installed
    nvcc_cuda: str | None  # CUDA version of nvcc
    ninja: bool | None  # the program, on PATH
    wants: tuple[str, ...]  # requirements of the engine that the installed versions do not meet
    free_inodes: int | None  # of the working folder's disk
    memlock_bytes: int | None  # limit of locked memory; None: unlimited, or no such limit
    infiniband: bool
    wsl: bool
    port: bool  # a local port can be opened
    other_accelerator: str | None = None  # a kind that is not planned for: ROCm, Ascend, Gaudi, MPS
    no_interface: str | None = None  # NAME=VALUE of a variable that names a network interface which is not there


CheckStatus = Literal["pass", "warn", "fail", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding of ``doctor``; ``fix`` is a command or an edit, empty where nothing is to be done."""

    id: str
    status: CheckStatus
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A causal language model's shape, read from config.json or the catalogue, never from weights.

    ``params_*`` are counts of parameters; ``linears`` lists (name, in_features, out_features) of the
    nn.Linear modules of one decoder layer, which is what LoRA ``all-linear`` and NF4 reach.
    """

    id: str  # as the user named it
    path: str | None  # local folder; None: the engine will download it
    architecture: str
    hf_model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    max_position: int  # 0: config.json does not say (ALiBi)
    params_total: int
    params_embedding: int  # the input embedding
    params_lm_head: int  # 0 when tied
    params_active: int  # per token; equals params_total on dense models
    params_vision: int = 0
    linears: tuple[tuple[str, int, int], ...]
    experts: int = 0
    experts_per_token: int = 0
    dtype: Dtype | None  # of the checkpoint; None: not said
    swift_model_type: str | None  # what --model_type needs; None: the engine can tell, or nobody can
    swift_template: str | None
    pass_model_type: bool = False  # the engine cannot tell by itself: --model_type and --template are supplied
    quantised: str | None = None  # gptq, awq, bnb ... when the checkpoint already is
    packed_bytes: float | None = None  # a parameter of its linear modules, scales included; None: whole or unknown
    source: str
    tokenizer_path: str | None = None  # folder with tokenizer.json; None: lengths are assumed
    embedded: bool = False  # the built-in demonstration model
    widest_head: int = 0  # the widest of several kinds of heads; 0: head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One costly row of the dataset, kept whole so that the gate can train on it."""

    file: str
    line: int  # 1-based line of the file where the row starts
    tokens: int  # after the template, before any cut
    supervised_tokens: int
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A row (or file) that will not train as the user hopes."""

    code: str  # no-assistant-turn, empty-answer, ...
    file: str
    line: int
    text: str
    drops_row: bool
    stops: bool = False  # the engine's loader fails on the whole file


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFacts:
    """What the datasets hold. Lengths are tokens per row after the chat template."""

    files: tuple[str, ...]  # absolute paths
    rows: int
    kept: int
    problems: tuple[Problem, ...]
    lengths: tuple[int, ...]  # sorted ascending; a quantile sketch of at most 4096 values on large files
    p50_tokens: int
    p90_tokens: int = 0
    p95_tokens: int
    p99_tokens: int = 0
    max_tokens: int  # the longest row: counted, or a widened estimate where there is no tokenizer
    mean_tokens: float
    mean_supervised_tokens: float
    max_supervised_tokens: int
    min_prompt_tokens: int = 0  # fewest tokens before a row's first label; 0: not counted
    costliest: tuple[Row, ...]  # dearest first
    tokenizer: str  # which tokenizer counted, or "assumed"
    exact: bool  # the tokenizer is the model's own
    digest: str  # sha256 over the files' bytes
    self_cognition: bool  # rows that teach the model who it is
    persona: str | None = None  # the name the answers teach, when they agree on one
    questions: tuple[tuple[str, str], ...] = ()  # (question, trained answer): one per language, about identity
    system_prompts: bool = False  # rows carry their own system prompt
    bound_tokens: int = 0  # no row is longer for sure; above max_tokens where lengths are estimates, else 0
    media_rows: int = 0  # rows with images, video or audio, whose tokens are not counted
    mean_image_tokens: float = 0.0  # of all kept rows; among their tokens
    max_image_tokens: int = 0  # of one row
    evaluated_rows: int = 0  # set apart by --split_dataset_ratio: neither kept nor dropped
    problem_rows: tuple[tuple[str, int], ...] = ()  # (code, rows it was found on), also beyond those listed
    counted_rows: int = 0  # rows whose tokens were counted; fewer than kept where a sample stands for a large file
    confidence: str | None = None  # how far the percentiles of a sample may be off, in words; None: all were counted
    estimated_longest: int = 0  # the longest row's estimate, which max_tokens widens; 0: max_tokens was counted
    kept_by_dataset: tuple[int, ...] = ()  # rows of each dataset, repeated ones once; (): one dataset
    card: str | None = None  # the dataset card these facts were read from; its rows are elsewhere

    @property
    def even_lengths(self) -> tuple[int, ...]:
        """``lengths`` in one measure: where they are estimates, the last one too, which is widened there."""
        return (*self.lengths[:-1], self.estimated_longest) if self.estimated_longest else self.lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything a plan may depend on."""

    machine: Machine
    model: ModelFacts
    data: DataFacts
    cuts_rows: bool = False  # --truncation_strategy left or right: long rows are cut instead of dropped
    footprints: Mapping[FootprintKey, Footprint] = field(default_factory=dict)  # what was traced of this model
    calibration: Mapping[str, float] = field(default_factory=dict)  # coefficients that this machine class has measured


# -------------------------------------------------------------------------------------------------- candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One strategy recipe: a row of the table in recipes/."""

    name: str
    summary: str
    when: Mapping[str, Any]
    use: Mapping[str, Any]
    search: Mapping[str, tuple[Any, ...]]
    because: str
    limits: str
    example: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run the job: a strategy recipe with every knob fixed.

    ``dp`` is the number of data-parallel ranks, world / (tp sp pp cp). ``max_tokens`` is the longest row
    that will really train (rows are padded to the longest of their batch, not to ``max_length``).
    """

    strategy: str
    device: Literal["gpu", "cpu"]
    world: int
    tuner: str  # lora | full; others pass through pinned
    quant: Quant
    parallel: Parallel
    tp: int = 1
    sp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    micro_batch: int
    accumulation: int
    max_length: int
    max_tokens: int
    gradient_checkpointing: bool
    attn_impl: str | None  # None: the engine's own choice (sdpa)
    torch_dtype: Dtype
    packing: bool = False
    padding_free: bool = False
    liger: bool = False
    lora_rank: int = 8
    lora_dropout: float = 0.05
    optim: str = "adamw_torch_fused"
    use_logits_to_keep: bool | None = None  # None: the engine decides
    group_by_length: bool = False
    bucket_elements: int | None = None  # of ZeRO-1/2's reduce and gather buckets; None: the engine's preset

    @property
    def dp(self) -> int:
        return self.world // (self.tp * self.sp * self.pp * self.cp)

    @property
    def effective_batch(self) -> int:
        return self.micro_batch * self.dp * self.accumulation

    @property
    def zero_stage(self) -> int:
        """0 without DeepSpeed or where it shards nothing, else 1, 2 or 3."""
        return int(self.parallel[4]) if self.parallel.startswith("zero") else 0

    @property
    def offload(self) -> bool:
        return self.parallel.endswith("_offload")

    @property
    def weights_rank(self) -> int:
        """0: 16-bit weights on the device; 1: quantised ones; 2: weights streamed from the host for every pass."""
        if self.parallel in ("zero3_offload", "fsdp2_offload"):
            return 2
        return 1 if self.quant != "none" else 0

    @property
    def uses_deepspeed(self) -> bool:
        return self.parallel.startswith("zero")

    @property
    def uses_fsdp(self) -> bool:
        return self.parallel.startswith("fsdp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Illegal:
    """A candidate that no rule allows, and which rule says so."""

    candidate: Candidate
    rule: str
    why: str
    fix: str
    about: tuple[str, ...] = ()  # flags that can break the rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """Which code paths will really run under a candidate's flags."""

    attention: str  # flash_attention_2 | sdpa-flash | sdpa-efficient | sdpa-math | eager
    loss: str  # hf_fp32_logits | bf16_logits | liger_fused
    logits_rows: Literal["supervised", "all"]  # which rows reach the vocabulary projection
    precision: str  # bf16 | fp16-amp | fp32
    optimizer: str  # fused-adamw | deepspeed-cpu-adam | ...
    notes: tuple[str, ...] = ()


# -------------------------------------------------------------------------------------------------- footprint

# What a size may grow with: b rows of a micro batch, s tokens of a row (all rows equal), bs = b s and so on,
# k rows that reach the vocabulary projection in one micro batch (of all its rows together).
MONOMIALS = ("1", "b", "s", "bs", "ss", "bss", "k")
Polynomial = tuple[int, ...]  # bytes per monomial, in the order of MONOMIALS
StorageKind = Literal["weights", "adapters", "gradients", "optimizer", "passing", "logits"]
STORAGE_KINDS: tuple[StorageKind, ...] = ("weights", "adapters", "gradients", "optimizer", "passing", "logits")


def bytes_at(size: Polynomial, *, b: int, s: int, k: int) -> int:
    """A size in bytes for ``b`` rows of ``s`` tokens of which ``k``, over all rows, reach the projection."""
    return sum(map(operator.mul, size, (1, b, s, b * s, s * s, b * s * s, k)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FootprintKey:
    """Which variant of a model's training was traced: everything that changes what is allocated but b, s and k.

    ``loss``, ``attention`` and ``optimizer`` have the values of :class:`Effective`.
    """

    tuner: Literal["lora", "full"]
    quant: Quant
    checkpointing: bool
    loss: str
    attention: str
    dtype: Dtype  # of the frozen weights and of the products
    optimizer: str
    accumulates: bool  # more than one micro batch an optimizer step
    lora_rank: int  # 0 in full tuning
    dropout: bool  # adapters drop a part of their input
    masked: bool = False  # rows of unequal length: a padding mask reaches attention
    deepspeed: bool = False  # adapters in 16 bits and no autocast, as DeepSpeed's engine runs them


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What one traced run allocates and frees, in order; the same for every b, s and k but for the sizes.

    ``storages`` are (index into ``sizes``, kind) in order of allocation. An event v >= 0 allocates storage v, v < 0
    frees storage ~v. ``marks`` are (event index, phase, place): from that event on the run is there.
    """

    sizes: tuple[Polynomial, ...]
    storages: Sequence[tuple[int, StorageKind]]
    events: Sequence[int]
    marks: tuple[tuple[int, Phase, str], ...]
    notes: tuple[str, ...] = ()  # what the trace could not model, in sentences
    versions: Mapping[str, str] = field(default_factory=dict)  # of torch, transformers, peft, ms-swift


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """One candidate for the peak of a phase: what is alive beside weights and adapters, on an unsharded device."""

    phase: Phase
    place: str
    gradients_bytes: int
    optimizer_bytes: int
    passing: Polynomial  # activations, logits, temporaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """The memory of one variant of one model. ``instants`` holds, per phase, those that no other one exceeds in
    every part; the allocated peak is the largest of them at (b, s, k), weights and adapters added."""

    key: FootprintKey
    weights_bytes: int
    adapters_bytes: int
    instants: tuple[Instant, ...]
    stream: Stream


# ------------------------------------------------------------------------------------------------- prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One named part of a peak; ``bytes`` is per card (per rank on CPU)."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """The peak of one phase: GPU bytes per card, host bytes over all ranks of this machine."""

    phase: Phase
    gpu_bytes: int
    host_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What PyTorch's caching allocator makes of a traced job; bytes per card, without context and NCCL."""

    expandable: bool  # with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    allocated_bytes: int  # blocks that hold tensors, at the peak
    reserved_bytes: int  # segments, every micro batch the costliest
    varied_bytes: int  # segments, over the data set's rows in one order
    needs_bytes: int | None  # the least pool that the run survives in, cached segments given back; None: not sought


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a candidate will need and how long it takes.

    ``needs_p50_bytes`` and ``needs_p99_bytes`` are reserved bytes per card without context and NCCL that the run
    survives in; ``reserved_bytes`` is what the allocator is expected to hold where it may hold more than that.
    ``driver_bytes`` is reserved + context + NCCL: what nvidia-smi shows. On CPU the device is the host and the
    figures are resident bytes per rank.
    """

    terms: tuple[Term, ...]  # of the binding phase; they sum to allocated_bytes
    allocated_bytes: int
    needs_p50_bytes: int
    needs_p99_bytes: int
    context_bytes: int
    nccl_bytes: int
    budget_bytes: int  # what one card may hold by the fit rule, on the weakest card
    host_bytes: int  # worst phase, all ranks of this machine
    host_p99_bytes: int
    host_budget_bytes: int
    phases: tuple[PhaseMemory, ...]
    binding_phase: Phase
    step_s: float  # one optimizer step
    time_terms: tuple[tuple[str, float], ...]  # named seconds that sum to step_s
    tokens_per_s: float  # real tokens, whole job
    samples_per_s: float
    epoch_s: float
    bound_by: str  # compute | memory | link | host | data
    assumptions: tuple[str, ...]
    reserved_bytes: int | None = None  # None: needs_p50_bytes
    mfu: float | None = None  # the model's own FLOPs over the cards' dense peak; None without a known peak
    traced: bool = False  # what passes in a step is the trace's; else the closed form's
    replay: Replay | None = None  # with the allocator's setting that is rendered; None: not traced, or not replayed
    replay_otherwise: Replay | None = None  # with the other setting

    @property
    def driver_bytes(self) -> int:
        reserved = self.needs_p50_bytes if self.reserved_bytes is None else self.reserved_bytes
        return reserved + self.context_bytes + self.nccl_bytes

    @property
    def demand_bytes(self) -> int:
        """What the fit rule compares with ``budget_bytes``."""
        return self.needs_p99_bytes + self.context_bytes + self.nccl_bytes

    @property
    def fits(self) -> bool:
        return self.demand_bytes <= self.budget_bytes and self.host_p99_bytes <= self.host_budget_bytes


# ------------------------------------------------------------------------------------------- plan, artefacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """A candidate that lost, with the reason in one sentence."""

    candidate: Candidate
    prediction: Prediction | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision. ``engine_args`` is the whole ``swift sft`` argument list in order, without paths
    resolved: values may start with ``$ROOT`` (the project folder), ``$RUN`` (the run folder) or ``$HOME``."""

    facts: Facts
    candidate: Candidate
    prediction: Prediction
    effective: Effective
    engine_args: Mapping[str, Sourced[str | tuple[str, ...]]]
    env: Mapping[str, Sourced[str]]
    steps_per_epoch: int
    total_steps: int
    notes: tuple[str, ...]  # what had to give, first; then warnings
    proposals: tuple[str, ...]  # flags the user may add, with the reason
    runners_up: tuple[RunnerUp, ...]
    illegal: tuple[Illegal, ...]
    machine_class: str
    digest: str  # sha256 over what the run depends on
    because: str
    strategy: Strategy | None = None  # the recipe it stands on; None when pinned by flags alone
    changes: tuple[str, ...] = ()  # what would change the answer, each searched; () where nobody asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefacts:
    """Files to write into ``<run folder>/autoswift/`` and the command they belong to. Placeholders as in Plan."""

    files: Mapping[str, str]
    argv: tuple[str, ...]  # after ``swift sft``
    env: Mapping[str, str]


# ------------------------------------------------------------------------------------------- verdict, receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a verdict is what it is. ``code`` is one of gate/verdict.py's table; ``text`` one sentence."""

    code: str
    text: str
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Peaks of one phase over all ranks; None where the meter does not exist on this device."""

    phase: Phase
    gpu_allocated_bytes: int | None
    gpu_reserved_bytes: int | None
    driver_bytes: int | None
    rss_bytes: int | None  # the largest rank
    rss_sum_bytes: int | None  # all ranks together
    seconds: float | None  # the median optimizer step; else how long the phase took
    pinned_bytes: int | None = None  # host memory pinned for copies to the cards, all ranks together
    shm_bytes: int | None = None  # of /dev/shm that is taken, by anybody
    cgroup_bytes: int | None = None  # charged to the engine's control group, without cached files


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One logged training row."""

    step: int
    loss: float | None
    grad_norm: float | None
    token_acc: float | None
    learning_rate: float | None
    step_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the gate found."""

    verdict: VerdictWord
    reason: Reason
    measured: tuple[Measured, ...]
    steps: tuple[Step, ...]
    child_exit: int | None
    seconds: float
    folder: str
    rows: tuple[Row, ...]  # the rows it trained on
    checkpoint_bytes: int | None = None  # of the one it wrote; None: it wrote none
    imports_bytes: int | None = None  # resident bytes of the largest rank before it loaded a model
    oom: Mapping[str, int] = field(default_factory=dict)  # bytes by name, as the allocator's last words have them
    earlier: tuple[Verdict, ...] = ()  # of the tries before this one, oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A question put to the trained model through ``swift infer``."""

    question: str
    expected: str
    answer: str

    @property
    def matches(self) -> bool:
        return self.answer.strip() == self.expected.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """One training that died and was gone on from."""

    code: str  # one of run.py's
    text: str
    child_exit: int
    folder: str  # where its log and telemetry are kept
    checkpoint: str | None  # that the next one began from; None: from the start
    batch: tuple[int, int, int]  # of the next one: micro batch, data-parallel ranks, accumulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished training run."""

    folder: str
    checkpoint: str | None
    child_exit: int
    steps: tuple[Step, ...]
    measured: tuple[Measured, ...]
    seconds: float
    infer_command: str | None
    answers: tuple[Answer, ...] = ()
    steps_made: int | None = None  # optimizer steps; the last ones may not have been logged. None: not counted


def replace(record: T, **changes: Any) -> T:
    """``dataclasses.replace`` for frozen records."""
    return dataclasses.replace(record, **changes)  # type: ignore[type-var]
