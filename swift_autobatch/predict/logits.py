"""Bytes of the vocabulary projection and the cross-entropy of one micro batch on one device."""

from __future__ import annotations

from swift_autobatch.predict.job import Job

# Bytes per kept row and vocabulary entry at the worst instant (backward of the loss).
# hf_fp32_logits: fp32 log-softmax, its gradient and the loss gradient, 4 each (10 at the end of forward).
# bf16_logits: the sequence-parallel loss, no upcast. Source: counted on CPU; ms-swift trainers/utils.py.
# The others are engines of published figures only. shifted_fp32: transformers before 4.46 upcasts and makes a
# contiguous shift; shifted_fp32_held: the same in a loop that keeps the outputs through the backward and until the
# next forward has made its own; shifted_16bit: the shift is made in 16 bits (Qwen-1, GPTBigCode), the product is held;
# inplace: a Triton loss that writes the gradient over the fp32 shift, with the 16-bit product held or not;
# vocab_parallel: Megatron's, the 16-bit product, its fp32 copy and the exponentials;
# none: cut cross-entropy, or chunks small enough not to matter.
_PER_ENTRY: dict[str, float] = {
    "hf_fp32_logits": 12,
    "bf16_logits": 8,
    "shifted_fp32": 12,
    "shifted_fp32_held": 16,
    "shifted_16bit": 14,
    "inplace_held": 10,
    "inplace": 8,
    "vocab_parallel": 10,
    "none": 0,
}
# Families that squash their logits: the 16-bit tanh is kept for its backward.
# Source: transformers models/gemma2/modeling_gemma2.py, final_logit_softcapping (30 in every published config).
_SOFT_CAPPED = frozenset({"gemma2"})
_SOFT_CAP_ENTRY = 2
_PER_ENTRY_FORWARD: dict[str, float] = {
    "hf_fp32_logits": 10,
    "shifted_fp32": 14,
    "shifted_fp32_held": 18,
    "shifted_16bit": 12,
}
_HELD = {"shifted_fp32_held": 4}


def loss(job: Job) -> int:
    """Bytes alive at the worst instant of loss and its backward, the final hidden state included.

    Liger's fused loss works on tiles of the vocabulary width over the hidden width and keeps a gradient of the
    hidden state (and of the head where that trains). Source: Liger fused_linear_cross_entropy.py.
    """
    shape, rows = job.shape, job.kept_rows
    hidden = 4 * shape.h * job.tokens  # the final norm's input and output
    if job.effective.loss == "liger_fused":
        chunks = -(-shape.vocab // shape.h)
        tile = 1 << max(0, (-(-rows // chunks) - 1).bit_length())
        head_gradient = 2 * shape.vocab * shape.h if job.candidate.tuner == "full" else 0
        return hidden + min(tile, rows) * shape.vocab * 6 + rows * shape.h * 2 + head_gradient
    return int(hidden + (_PER_ENTRY[job.effective.loss] + _capped(job)) * rows * shape.vocab)


def _capped(job: Job) -> int:
    """Bytes more per entry where logits are squashed."""
    return _SOFT_CAP_ENTRY if job.facts.model.hf_model_type in _SOFT_CAPPED and job.effective.loss != "none" else 0


def head_backward(job: Job) -> int:
    """Bytes while the head's own gradient is made: the 16-bit gradient of the logits is all that is left of them."""
    each = 0 if job.effective.loss in ("none", "liger_fused") else 2
    return min(loss(job), 4 * job.shape.h * job.tokens + each * job.kept_rows * job.shape.vocab + held(job))


def held(job: Job) -> int:
    """Bytes of logits that the training loop itself keeps through the backward."""
    return _HELD.get(job.effective.loss, 0) * job.kept_rows * job.shape.vocab


def largest_block(job: Job) -> int:
    """Bytes of the largest one allocation of the loss: an fp32 copy of the logits."""
    return min(loss(job), 4 * job.kept_rows * job.shape.vocab)


def forward(job: Job) -> int:
    """Bytes at the end of forward: 16-bit logits and two fp32 copies, or the loss's own where it never grows them."""
    entry = _PER_ENTRY_FORWARD.get(job.effective.loss)
    if entry is None:
        return loss(job)
    return int(4 * job.shape.h * job.tokens + (entry + _capped(job)) * job.kept_rows * job.shape.vocab)


def evaluation(job: Job) -> int:
    """Bytes of the loss without gradients, one row of the longest length: 16-bit logits and two fp32 copies."""
    rows = min(job.row_tokens, job.kept_rows)
    entry = 0 if job.effective.loss == "none" else 10
    return 4 * job.shape.h * min(job.row_tokens, job.tokens) + entry * rows * job.shape.vocab
