"""What must be installed: packages, a compiler, the CUDA toolkit."""

from __future__ import annotations

from swift_autobatch.rules.rule import Cite, Rule, lacks, read_here

_FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")

RULES: tuple[Rule, ...] = (
    Rule(
        id="flash-not-installed",
        kind="software",
        about=("attn_impl", "packing", "padding_free"),
        when=lambda c, f, p: (
            c.attn_impl in _FLASH
            and bool(f.machine.gpus)
            and c.parallel != "megatron"
            and lacks(f.machine, "flash-attn")
        ),
        why="the flash-attn package is not installed",
        fix="pip install 'swift-autobatch[flash]', or drop what asks for it (--attn_impl, --packing, --strategy)",
        cites=(Cite("transformers/modeling_utils.py", 1560, "doesn't seem to be installed"),),
        reproduced="flash attention without the package",
    ),
    Rule(
        id="deepspeed-not-installed",
        kind="software",
        about=("deepspeed",),
        when=lambda c, f, p: c.uses_deepspeed and lacks(f.machine, "deepspeed"),
        why="deepspeed is not installed",
        fix="pip install deepspeed, or --parallel-method fsdp",
        cites=(Cite("swift/arguments/sft_args.py", 254, "require_version('deepspeed')"),),
    ),
    Rule(
        id="offload-needs-compiler",
        kind="software",
        about=("deepspeed",),
        when=lambda c, f, p: (
            c.uses_deepspeed and c.offload and read_here(f.machine) and f.machine.software.compiler is None
        ),
        why="DeepSpeed's CPUAdam is compiled on first use and there is no C++ compiler",
        fix="install g++ (apt-get install g++), or a strategy without offload",
        cites=(Cite("deepspeed/ops/op_builder/builder.py", 568, "Unable to JIT load"),),
    ),
    Rule(
        id="offload-needs-nvcc",
        kind="software",
        about=("deepspeed",),
        when=lambda c, f, p: (
            c.uses_deepspeed
            and c.offload
            and read_here(f.machine)
            and c.device == "gpu"
            and f.machine.software.nvcc is None
        ),
        why="with a CUDA torch DeepSpeed compiles CPUAdam with nvcc, and there is none",
        fix="install the CUDA toolkit of torch's version, or a strategy without offload",
        cites=(Cite("deepspeed/ops/op_builder/builder.py", 126, "CUDAMismatchException"),),
        proof="deepspeedai/DeepSpeed#2772",
    ),
    Rule(
        id="bitsandbytes-not-installed",
        kind="software",
        about=("quant_method", "quant_bits"),
        when=lambda c, f, p: c.quant != "none" and lacks(f.machine, "bitsandbytes"),
        why="bitsandbytes is not installed",
        fix="pip install bitsandbytes, or drop the quantisation",
        cites=(Cite("transformers/quantizers/quantizer_bnb_4bit.py", 28, "is_bitsandbytes_available"),),
    ),
    Rule(
        id="8bit-optimizer-not-installed",
        kind="software",
        about=("optim",),
        when=lambda c, f, p: "8bit" in c.optim and lacks(f.machine, "bitsandbytes"),
        why="bitsandbytes, which 8-bit optimizers are made of, is not installed",
        fix="pip install bitsandbytes, or drop --optim",
        cites=(Cite("transformers/trainer_optimizer.py", 287, "optim_bits"),),
    ),
    Rule(
        id="liger-not-installed",
        kind="software",
        about=("use_liger_kernel",),
        when=lambda c, f, p: c.liger and lacks(f.machine, "liger-kernel"),
        why="liger-kernel is not installed",
        fix="pip install 'swift-autobatch[liger]', or drop --use_liger_kernel",
        cites=(Cite("swift/trainers/arguments.py", 259, "use_liger_kernel requires liger_kernels"),),
        reproduced="liger without the package",
    ),
    Rule(
        id="unsloth-not-installed",
        kind="software",
        about=("tuner_backend",),
        when=lambda c, f, p: (
            p.text("tuner_backend") == "unsloth" and read_here(f.machine) and lacks(f.machine, "unsloth")
        ),
        why="the unsloth package is not installed",
        fix="pip install unsloth, or drop --tuner_backend",
        cites=(Cite("swift/model/register.py", 47, "please install unsloth"),),
    ),
    Rule(
        id="apollo-not-installed",
        kind="software",
        about=("optim",),
        when=lambda c, f, p: c.optim.startswith("apollo") and read_here(f.machine) and lacks(f.machine, "apollo-torch"),
        why="the apollo_torch package is not installed",
        fix="pip install apollo-torch, or drop --optim",
        cites=(Cite("transformers/trainer_optimizer.py", 388, "You need to install `apollo_torch`"),),
    ),
    Rule(
        id="flash-checkpoint-not-installed",
        kind="software",
        about=("use_flash_ckpt",),
        when=lambda c, f, p: p.on("use_flash_ckpt") and read_here(f.machine) and lacks(f.machine, "dlrover"),
        why="--use_flash_ckpt needs dlrover, which is not installed",
        fix="pip install 'dlrover[torch]', or drop --use_flash_ckpt",
        cites=(Cite("swift/pipelines/train/sft.py", 40, "Please install DLRover"),),
    ),
    *(
        Rule(
            id=f"{name}-not-installed",
            kind="software",
            about=("report_to",),
            when=lambda c, f, p, name=name: (  # type: ignore[misc]
                name in p.text("report_to").split() and read_here(f.machine) and lacks(f.machine, name)
            ),
            why=f"--report_to {name} needs the package {name}, which is not installed",
            fix=f"pip install {name}, or --report_to tensorboard",
            cites=(Cite("transformers/integrations/integration_utils.py", line, f"requires {name} to be installed"),),
        )
        for name, line in (("wandb", 703), ("swanlab", 2269))
    ),
)
