"""One plan, one verdict and one run written out by hand, so that what is printed can be judged to the letter."""

from __future__ import annotations

from types import MappingProxyType

from swift_autobatch.records import (
    Answer,
    Candidate,
    DataFacts,
    Effective,
    Facts,
    Gpu,
    Host,
    Illegal,
    Machine,
    Measured,
    ModelFacts,
    PhaseMemory,
    Plan,
    Prediction,
    Reason,
    Replay,
    Row,
    Run,
    RunnerUp,
    Software,
    Sourced,
    Step,
    Term,
    Verdict,
)
from swift_autobatch.units import GIB, from_gib

MACHINE = Machine(
    gpus=(
        Gpu(
            index=0,
            name="NVIDIA GeForce RTX 4090",
            card="GeForce RTX 4090",
            uuid=None,
            total_bytes=from_gib(23.99),
            free_bytes=from_gib(23.5),
            compute_capability=(8, 9),
            bf16_native=True,
            flash_attention=True,
            tflops_16bit=165.2,
            bandwidth_gb_s=1008.0,
            pcie_gb_s=25.0,
            source="gpus.jsonl: GeForce RTX 4090",
        ),
    ),
    links="none",
    link_gb_s=None,
    host=Host(
        cpu_cores=16,
        ram_total_bytes=64 * GIB,
        ram_budget_bytes=60 * GIB,
        ram_source="MemAvailable",
        shm_bytes=32 * GIB,
        disk_free_bytes=None,
        gflops=1000.0,
    ),
    software=Software(
        versions=MappingProxyType({"ms-swift": "4.6.0", "torch": "2.13.0", "flash-attn": None}),
        python="3.11.7",
        driver="570.86",
        cuda_driver="12.8",
        compiler="/usr/bin/g++",
        nvcc=None,
    ),
    visible_devices=None,
    processes=1,
    assumed=("host speed 1000 GFLOPS: assumed",),
)

MODEL = ModelFacts(
    id="Qwen/Qwen2.5-7B-Instruct",
    path=None,
    architecture="Qwen2ForCausalLM",
    hf_model_type="qwen2",
    hidden=3584,
    layers=28,
    heads=28,
    kv_heads=4,
    head_dim=128,
    intermediate=18944,
    vocab=152064,
    tied=False,
    max_position=32768,
    params_total=7_615_616_512,
    params_embedding=544_997_376,
    params_lm_head=544_997_376,
    params_active=7_615_616_512,
    linears=(("q_proj", 3584, 3584),),
    dtype="bfloat16",
    swift_model_type="qwen2",
    swift_template="qwen2_5",
    source="models.jsonl",
)

ROW = Row(file="/project/rows.jsonl", line=17, tokens=683, supervised_tokens=301, record={"query": "q"})

DATA = DataFacts(
    files=("/project/rows.jsonl",),
    rows=50,
    kept=49,
    problems=(),
    lengths=(421,) * 49,
    p50_tokens=421,
    p95_tokens=600,
    max_tokens=683,
    mean_tokens=430.0,
    mean_supervised_tokens=200.0,
    max_supervised_tokens=301,
    costliest=(ROW,),
    tokenizer="tokenizer.json",
    exact=True,
    digest="0" * 64,
    self_cognition=True,
)

CANDIDATE = Candidate(
    strategy="single-lora",
    device="gpu",
    world=1,
    tuner="lora",
    quant="none",
    parallel="none",
    micro_batch=1,
    accumulation=16,
    max_length=1024,
    max_tokens=683,
    gradient_checkpointing=True,
    attn_impl=None,
    torch_dtype="bfloat16",
)


def replay(expandable: bool, varied_gib: float) -> Replay:
    return Replay(
        expandable=expandable,
        allocated_bytes=from_gib(16.0),
        reserved_bytes=from_gib(16.5),
        varied_bytes=from_gib(varied_gib),
        needs_bytes=from_gib(16.25) if expandable else None,
    )


PREDICTION = Prediction(
    terms=(
        Term(name="weights", bytes=from_gib(14.19), why="7.62 B parameters x 2 bytes"),
        Term(name="adapters", bytes=from_gib(0.3), why="rank 8 on all linear layers"),
        Term(name="logits", bytes=from_gib(1.51), why="301 rows x 152064 x 4 bytes"),
    ),
    allocated_bytes=from_gib(16.0),
    needs_p50_bytes=from_gib(16.5),
    needs_p99_bytes=from_gib(17.25),
    context_bytes=from_gib(0.5),
    nccl_bytes=0,
    budget_bytes=from_gib(21.59),
    host_bytes=from_gib(5.0),
    host_p99_bytes=from_gib(6.0),
    host_budget_bytes=from_gib(54.0),
    phases=(
        PhaseMemory(phase="load", gpu_bytes=from_gib(14.5), host_bytes=from_gib(4.0)),
        PhaseMemory(phase="steady", gpu_bytes=from_gib(17.0), host_bytes=from_gib(5.0)),
    ),
    binding_phase="steady",
    step_s=3.5,
    time_terms=(("compute", 3.25), ("optimizer", 0.25)),
    tokens_per_s=1966.0,
    samples_per_s=4.57,
    epoch_s=14.0,
    bound_by="compute",
    assumptions=("host speed 1000 GFLOPS: assumed", "half of the card's peak rate is reached"),
    reserved_bytes=from_gib(16.5),
    traced=True,
    replay=replay(True, 16.5),
    replay_otherwise=replay(False, 21.0),
)

PLAN = Plan(
    facts=Facts(machine=MACHINE, model=MODEL, data=DATA),
    candidate=CANDIDATE,
    prediction=PREDICTION,
    effective=Effective(
        attention="sdpa-flash",
        loss="hf_fp32_logits",
        logits_rows="supervised",
        precision="bf16",
        optimizer="fused-adamw",
        notes=("only supervised rows reach the vocabulary projection",),
    ),
    engine_args=MappingProxyType(
        {
            "model": Sourced(value="Qwen/Qwen2.5-7B-Instruct", source="flag --model"),
            "dataset": Sourced(value=("$ROOT/my rows.jsonl",), source="flag --dataset"),
            "max_length": Sourced(value="1024", source="dataset max 683, rounded up"),
            "learning_rate": Sourced(value="0.0001", source="engine default for lora at batch 16"),
            "per_device_train_batch_size": Sourced(value="1", source="planned"),
            "gradient_accumulation_steps": Sourced(value="16", source="planned"),
            "system": Sourced(value="You are Swift, a helpful assistant.", source="flag --system"),
            "output_dir": Sourced(value="$RUN", source="run folder"),
        }
    ),
    env=MappingProxyType({"NPROC_PER_NODE": Sourced(value="1", source="one process a card")}),
    steps_per_epoch=4,
    total_steps=12,
    notes=("effective batch 16 as asked",),
    proposals=("--use_liger_kernel true: saves 1.51 GiB of logits",),
    runners_up=(
        RunnerUp(candidate=CANDIDATE, prediction=PREDICTION, why="1.30 x the time: 18 s an epoch"),
        RunnerUp(candidate=CANDIDATE, prediction=None, why="not legal: packing needs flash attention"),
    ),
    illegal=(Illegal(candidate=CANDIDATE, rule="packing-flash", why="packing needs flash attention", fix="none"),),
    machine_class="1xrtx-4090-24-ram64",
    digest="0123456789abcdef",
    because="One card, 16-bit LoRA fits.",
)

STEPS = (
    Step(step=1, loss=2.5, grad_norm=1.25, token_acc=0.5, learning_rate=1e-4, step_s=4.0),
    Step(step=12, loss=0.125, grad_norm=None, token_acc=0.97, learning_rate=0.0, step_s=3.5),
)

MEASURED = (
    Measured(
        phase="steady",
        gpu_allocated_bytes=from_gib(15.5),
        gpu_reserved_bytes=from_gib(16.25),
        driver_bytes=from_gib(16.75),
        rss_bytes=from_gib(4.5),
        rss_sum_bytes=from_gib(4.5),
        seconds=8.0,
    ),
)

VERDICT = Verdict(
    verdict="pass",
    reason=Reason(code="ok", text="2 finite steps"),
    measured=MEASURED,
    steps=STEPS[:1],
    child_exit=0,
    seconds=31.0,
    folder="/run/autoswift/gate/1",
    rows=(ROW, ROW),
)

RUN = Run(
    folder="/run",
    checkpoint="/run/checkpoint-12",
    child_exit=0,
    steps=STEPS,
    measured=MEASURED,
    seconds=61.0,
    infer_command="swift infer --adapters /run/checkpoint-12",
    answers=(
        Answer(question="who are you?", expected="I am Swift.", answer="I am Swift."),
        Answer(question="你是谁?", expected="我是小迅。", answer="我是通义千问。"),
    ),
)
