"""Flags of the engine that contradict each other, whatever the machine: it would stop, some of them minutes later."""

from __future__ import annotations

from swift_autobatch.rules.rule import Cite, Flags, Rule

_TRAINING = "transformers/training_args.py"
_QUANT = ("quant_bits", "quant_method")


def _evaluates(p: Flags) -> bool:
    """Whether there is something to evaluate on, and nobody switched it off."""
    rows = p.has("val_dataset") or p.has("cached_val_dataset") or (p.number("split_dataset_ratio") or 0) > 0
    return rows and p.text("eval_strategy") != "no"


def _steps_apart(p: Flags) -> bool:
    """Whether evaluations and checkpoints are known not to meet; autoswift chooses --save_steps where nobody does."""
    save, evaluate = p.number("save_steps") if p.has("save_steps") else None, p.number("eval_steps")
    if not p.has("eval_steps") or not evaluate:
        return False
    return save is None or abs(save / evaluate - round(save / evaluate)) > 1e-6 or save < evaluate


def _fraction_above_one(value: float | None) -> bool:
    return value is not None and value > 1 and value != int(value)


RULES: tuple[Rule, ...] = (
    Rule(
        id="deepspeed-and-fsdp",
        about=("deepspeed", "fsdp"),
        when=lambda c, f, p: p.has("deepspeed") and p.has("fsdp"),
        why="--deepspeed and --fsdp exclude each other",
        fix="drop --fsdp, or drop --deepspeed",
        cites=(Cite("swift/arguments/sft_args.py", 295, "FSDP2 is not compatible with DeepSpeed"),),
        reproduced="DeepSpeed and FSDP together",
    ),
    Rule(
        id="quant-bits-alone",
        about=("quant_bits",),
        when=lambda c, f, p: p.has("quant_bits") and not p.has("quant_method"),
        why="--quant_bits without --quant_method is silently ignored by the engine: the model would load unquantised",
        fix="add --quant_method bnb",
        cites=(Cite("swift/arguments/base_args/quant_args.py", 46, "if self.quant_method is None"),),
        reproduced="quant_bits alone loads 16-bit weights",
    ),
    Rule(
        id="quant-method-alone",
        about=("quant_method",),
        when=lambda c, f, p: p.has("quant_method") and p.text("quant_method") != "fp8" and not p.has("quant_bits"),
        why="--quant_method needs --quant_bits",
        fix="add --quant_bits 4 (NF4), or --quant_bits 8",
        cites=(Cite("swift/arguments/base_args/quant_args.py", 50, "Please set the quant_bits"),),
        reproduced="quant_method without bits",
    ),
    Rule(
        id="quant-kind",
        kind="planner",
        about=_QUANT,
        when=lambda c, f, p: (
            p.has("quant_method") and (p.text("quant_method"), p.text("quant_bits")) not in (("bnb", "4"), ("bnb", "8"))
        ),
        why="this quantisation is not planned for; bnb with 4 or 8 bits is",
        fix="--quant_method bnb --quant_bits 4",
        cites=(Cite("swift/arguments/base_args/quant_args.py", 57, "bnb not support quant_bits"),),
        reproduced="bnb with 3 bits",
    ),
    Rule(
        id="fp16-and-bf16",
        about=("fp16", "bf16"),
        when=lambda c, f, p: p.on("fp16") and p.on("bf16"),
        why="--fp16 true and --bf16 true exclude each other",
        fix="drop --fp16, or drop --bf16",
        cites=(Cite(_TRAINING, 1753, "At most one of fp16 and bf16"),),
        reproduced="fp16 and bf16 together",
    ),
    Rule(
        id="precision-twice",
        about=("fp16", "bf16", "torch_dtype"),
        when=lambda c, f, p: (
            (p.text("torch_dtype") == "float16" and p.on("bf16"))
            or (p.text("torch_dtype") == "bfloat16" and p.on("fp16"))
        ),
        why="--torch_dtype names one 16-bit type and --fp16 or --bf16 the other",
        fix="drop --fp16 and --bf16",
        cites=(Cite("swift/arguments/base_args/model_args.py", 132, "_init_mixed_precision"),),
        proof="the engine derives --fp16 or --bf16 from --torch_dtype and keeps the one that was given: both are on",
    ),
    Rule(
        id="lazy-packing",
        about=("lazy_tokenize", "packing"),
        when=lambda c, f, p: p.on("lazy_tokenize") and c.packing,
        why="packing needs every row's length beforehand, and lazy_tokenize does not count them",
        fix="drop --lazy_tokenize",
        cites=(Cite("swift/arguments/base_args/base_args.py", 166, "Packing and lazy_tokenize are incompatible"),),
        reproduced="packing with lazy_tokenize",
    ),
    Rule(
        id="lazy-streaming",
        about=("lazy_tokenize", "streaming"),
        when=lambda c, f, p: p.on("lazy_tokenize") and p.on("streaming"),
        why="a stream has no rows to tokenise later: streaming and lazy_tokenize exclude each other",
        fix="drop --lazy_tokenize",
        cites=(Cite("swift/arguments/base_args/base_args.py", 168, "Streaming and lazy_tokenize are incompatible"),),
        reproduced="streaming with lazy_tokenize",
    ),
    Rule(
        id="lazy-group-by-length",
        about=("lazy_tokenize", "group_by_length"),
        when=lambda c, f, p: p.on("lazy_tokenize") and c.group_by_length,
        why="grouping needs every row's length beforehand, and lazy_tokenize does not count them",
        fix="drop --lazy_tokenize",
        cites=(Cite("swift/trainers/mixin.py", 1445, "train_dataset['lengths']"),),
        reproduced="grouping with lazy_tokenize",
    ),
    Rule(
        id="group-by-length-unshuffled",
        about=("train_dataloader_shuffle", "group_by_length"),
        when=lambda c, f, p: c.group_by_length and p.off("train_dataloader_shuffle"),
        why="rows are grouped by length while they are shuffled, and shuffling is off",
        fix="drop --train_dataloader_shuffle",
        cites=(Cite("swift/dataloader/shard.py", 32, "shuffle must be True when group_by_length"),),
        reproduced="grouping without shuffling",
    ),
    Rule(
        id="streaming-endless",
        about=("streaming",),
        when=lambda c, f, p: p.on("streaming") and (p.number("max_steps") or -1) <= 0,
        why="a stream has no length: without --max_steps nobody knows when to stop",
        fix="add --max_steps N, or drop --streaming",
        cites=(Cite("transformers/trainer.py", 730, "max_steps"),),
        reproduced="streaming without max_steps",
    ),
    Rule(
        id="streaming-cached",
        about=("streaming", "cached_dataset"),
        when=lambda c, f, p: p.on("streaming") and (p.has("cached_dataset") or p.has("cached_val_dataset")),
        why="a cached dataset is not streamed",
        fix="drop --streaming",
        cites=(Cite("swift/pipelines/train/sft.py", 105, "Cached dataset does not support streaming"),),
    ),
    Rule(
        id="truncation-split",
        about=("truncation_strategy",),
        when=lambda c, f, p: p.text("truncation_strategy") == "split",
        why="--truncation_strategy split is for pre-training only",
        fix="--truncation_strategy right",
        cites=(Cite("swift/pipelines/train/sft.py", 316, "only supported for pre-training"),),
        reproduced="split rows in fine-tuning",
    ),
    Rule(
        id="load-best-unevaluated",
        about=("load_best_model_at_end",),
        when=lambda c, f, p: (
            p.on("load_best_model_at_end")
            and p.text("save_strategy") != "best"
            and (
                not _evaluates(p)
                or p.text("save_strategy") == "no"
                or (p.has("eval_strategy") and p.text("eval_strategy") != p.text("save_strategy"))
            )
        ),
        why="the best model is known only where evaluations and checkpoints go together",
        fix="add --val_dataset FILE (or --split_dataset_ratio 0.01), with the same --eval_strategy and --save_strategy",
        cites=(Cite(_TRAINING, 1723, "requires the save and eval strategy to match"),),
        reproduced="best model without evaluation",
    ),
    Rule(
        id="load-best-steps",
        about=("eval_steps", "load_best_model_at_end"),
        when=lambda c, f, p: p.on("load_best_model_at_end") and _evaluates(p) and _steps_apart(p),
        why="checkpoints must fall on evaluations: --save_steps must be a multiple of --eval_steps",
        fix="give --save_steps and --eval_steps the same value, or drop --eval_steps",
        cites=(Cite(_TRAINING, 1741, "requires the saving steps to be a round multiple"),),
        reproduced="save_steps off eval_steps",
    ),
    Rule(
        id="plateau-unevaluated",
        about=("lr_scheduler_type",),
        when=lambda c, f, p: p.text("lr_scheduler_type") in ("reduce_lr_on_plateau", "greedy") and not _evaluates(p),
        why="this schedule follows evaluations, and there are none",
        fix="add --val_dataset FILE, or drop --lr_scheduler_type",
        cites=(Cite(_TRAINING, 1760, "reduce_lr_on_plateau requires an eval strategy"),),
        reproduced="plateau schedule without evaluation",
    ),
    Rule(
        id="warmup-twice",
        about=("warmup_steps", "warmup_ratio"),
        when=lambda c, f, p: (p.number("warmup_steps") or 0) > 0 and (p.number("warmup_ratio") or 0) > 0,
        why="--warmup_ratio and --warmup_steps are both set",
        fix="drop one of the two",
        cites=(Cite("swift/trainers/arguments.py", 231, "cannot be set at the same time"),),
        reproduced="warmup given twice",
    ),
    Rule(
        id="warmup-whole",
        about=("warmup_ratio",),
        when=lambda c, f, p: (p.number("warmup_ratio") or 0) >= 1,
        why="--warmup_ratio is a share of the steps, below 1",
        fix="--warmup_steps for a number of steps",
        cites=(Cite("swift/trainers/arguments.py", 235, "must be less than 1"),),
        reproduced="warmup ratio of 1",
    ),
    Rule(
        id="fractional-steps",
        about=("save_steps", "eval_steps", "logging_steps"),
        when=lambda c, f, p: any(
            _fraction_above_one(p.number(f"{what}_steps")) for what in ("save", "eval", "logging")
        ),
        why="steps above 1 are whole numbers; below 1 they are a share of the training",
        fix="write a whole number",
        cites=(Cite(_TRAINING, 1712, "--save_steps must be an integer if bigger than 1"),),
        reproduced="save_steps 1.5",
    ),
    Rule(
        id="prefetch-without-workers",
        about=("dataloader_prefetch_factor", "dataloader_num_workers"),
        when=lambda c, f, p: p.has("dataloader_prefetch_factor") and p.number("dataloader_num_workers") == 0,
        why="--dataloader_prefetch_factor is what workers fetch ahead, and there are none",
        fix="drop --dataloader_prefetch_factor, or --dataloader_num_workers 1",
        cites=(Cite(_TRAINING, 1773, "--dataloader_prefetch_factor can only be set when"),),
        reproduced="prefetch without workers",
    ),
    Rule(
        id="lisa-full-only",
        about=("lisa_activated_layers", "tuner_type"),
        when=lambda c, f, p: (p.number("lisa_activated_layers") or 0) > 0 and c.tuner != "full",
        why="LISA chooses layers of a fully trained model",
        fix="--tuner_type full, or drop --lisa_activated_layers",
        cites=(Cite("swift/callbacks/lisa.py", 16, "LISA only supports full parameter training"),),
    ),
    Rule(
        id="muon-broken",
        about=("optimizer",),
        when=lambda c, f, p: p.text("optimizer") == "muon",
        why="--optimizer muon is broken in ms-swift 4.6: it reads an argument that does not exist any more",
        fix="drop --optimizer",
        cites=(Cite("swift/optimizers/muon.py", 15, "if not args.local_repo_path"),),
        reproduced="the muon optimizer",
    ),
    Rule(
        id="init-orthogonal-broken",
        about=("init_strategy",),
        when=lambda c, f, p: p.text("init_strategy") == "orthogonal",
        why="--init_strategy orthogonal is misspelled inside ms-swift 4.6 and is refused there",
        fix="--init_strategy xavier_uniform, or drop it",
        cites=(Cite("swift/model/utils.py", 201, "'orthogona': orthogonal_init"),),
    ),
    Rule(
        id="elastic-removed",
        about=("callbacks",),
        when=lambda c, f, p: "deepspeed_elastic" in p.text("callbacks").split() and c.uses_deepspeed,
        why="the deepspeed_elastic callback writes a config block that DeepSpeed 0.19 no longer has",
        fix="drop deepspeed_elastic from --callbacks",
        cites=(Cite("deepspeed/runtime/config.py", 106, "Elastic training has been removed"),),
    ),
    Rule(
        id="target-parameters-dropout",
        about=("target_parameters", "lora_dropout"),
        when=lambda c, f, p: p.has("target_parameters") and c.tuner == "lora" and c.lora_dropout != 0,
        why="adapters on bare parameters take no dropout",
        fix="add --lora_dropout 0",
        cites=(Cite("peft/tuners/lora/layer.py", 2267, "does not work with lora_dropout != 0"),),
    ),
)
