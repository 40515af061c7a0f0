"""Traced instants in place of the closed form's, where the model and variant were traced.

What passes (activations, logits, temporaries) is the trace's, at this batch, length and number of kept labels. What
lasts (weights, adapters, gradients, optimizer, buffers) is the closed form's, because only that knows sharding and
offload; the trace says when it is alive. What sharding adds in passing (gathers, buckets) is the closed form's too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import nlargest

from swift_autobatch.predict import activations, buffers, instants, states
from swift_autobatch.predict.instants import Instant
from swift_autobatch.predict.job import Job
from swift_autobatch.predict.profile import SWIFT
from swift_autobatch.records import MONOMIALS, Footprint, FootprintKey, Phase, Polynomial, Term, bytes_at
from swift_autobatch.records import Instant as Traced

SHIPPED_RANK = 8  # ms-swift's default; other ranks are counted from it
_KEPT = 4  # instants of a phase that become terms: the largest ones
_LOGITS = MONOMIALS.index("k")
_CLOSING = 2  # the closed form's last instants of a step: reduction of the root group, the optimizer's update


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One micro batch: ``b`` rows of ``s`` tokens, ``k`` of them (over all rows) through the projection."""

    b: int
    s: int
    k: int


def point(job: Job) -> Point:
    """The costliest micro batch of a job. Rows without padding are one long row."""
    rows = 1 if job.candidate.padding_free or job.candidate.packing else job.candidate.micro_batch
    return Point(b=rows, s=-(-job.tokens // rows), k=job.kept_rows)


def key_of(job: Job) -> FootprintKey | None:
    """The variant that a candidate runs; None where nothing of the kind is traced."""
    candidate, effective = job.candidate, job.effective
    split = candidate.tp * candidate.sp * candidate.pp * candidate.cp * candidate.ep
    if split > 1 or candidate.device == "cpu" or candidate.parallel == "megatron" or job.engine.source != SWIFT.source:
        return None
    if candidate.tuner not in ("lora", "full"):
        return None
    lora = candidate.tuner == "lora"
    return FootprintKey(
        tuner="lora" if lora else "full",
        quant=candidate.quant,
        checkpointing=candidate.gradient_checkpointing,
        loss=effective.loss,
        # The flash kernels of PyTorch and of the flash-attn package allocate the same.
        attention="sdpa-flash" if effective.attention == "flash_attention_2" else effective.attention,
        dtype="bfloat16" if candidate.torch_dtype == "float16" else candidate.torch_dtype,  # the same sizes
        optimizer=effective.optimizer,
        accumulates=candidate.accumulation > 1,
        lora_rank=candidate.lora_rank if lora else 0,
        dropout=lora and candidate.lora_dropout > 0,
        masked=candidate.micro_batch > 1 and not (candidate.packing or candidate.padding_free),
        deepspeed=candidate.uses_deepspeed and lora,
    )


def find(job: Job) -> Footprint | None:
    """The footprint that answers for a job: its own variant, or one that it can be counted from."""
    shelf = job.facts.footprints
    key = key_of(job) if shelf else None
    if key is None:
        return None
    plain = replace(key, optimizer="fused-adamw", accumulates=False, lora_rank=min(key.lora_rank, SHIPPED_RANK))
    for near in (key, replace(key, accumulates=False), plain):
        if near in shelf:
            return shelf[near]
    return None


def phases(job: Job, footprint: Footprint) -> dict[Phase, list[Instant]]:
    """Every phase with its candidates for the peak, as :func:`instants.phases`."""
    found = dict(instants.phases(job))
    lasting = instants.lasting(job)
    closed_step = closes_itself(job, footprint)
    for phase in ("first_step", "steady"):
        traced = _Traced(job, footprint, lasting, point(job), closed_step)
        found[phase] = [*traced.of(phase), *(found[phase][-_CLOSING:] if closed_step else ())]
    row = Point(b=1, s=job.row_tokens, k=min(job.row_tokens, job.kept_rows))
    evaluated = list(_Traced(job, footprint, lasting, row, closed_step).of("eval"))
    found["eval"] = evaluated or found["eval"]
    return found


def closes_itself(job: Job, footprint: Footprint) -> bool:
    """Whether the end of a step is another than the traced one: what is sharded is reduced and gathered there."""
    sharded = job.candidate.uses_deepspeed or job.candidate.uses_fsdp
    return sharded or footprint.key.optimizer != job.effective.optimizer


def closing(job: Job, footprint: Footprint) -> tuple[tuple[int, ...], ...]:
    """Bytes that the end of a step takes beside the stream, by moment; () where the stream has them."""
    if not closes_itself(job, footprint):
        return ()
    stays = {part.name for part in instants.lasting(job)} | {"gradients"}
    moments = []
    for instant in instants.phases(job)["steady"][-_CLOSING:]:
        blocks = [part.bytes for part in instant if part.name not in stays]
        moments.append(tuple(blocks))
    return tuple(moments)


def keeps_gradients(job: Job, phase: Phase = "steady") -> bool:
    """Whether all gradients are alive at every instant: under DeepSpeed, and while micro batches accumulate."""
    accumulates = job.candidate.accumulation > 1 and phase in ("first_step", "steady")
    return job.candidate.uses_deepspeed or accumulates


def rank_bytes(job: Job, footprint: Footprint) -> int:
    """Bytes that pass with adapters of another rank than the traced one's: their inner products, and the 16-bit
    copies of them that autocast makes."""
    traced = footprint.key.lora_rank
    if job.candidate.tuner == "full" or job.candidate.lora_rank == traced:
        return 0
    more = job.candidate.lora_rank - traced
    reach = job.reach
    layers = 1 if job.candidate.gradient_checkpointing else job.shape.layers
    inner = 2 * (reach.hidden + reach.attention + reach.mlp) * job.tokens * layers * more
    copies = activations.autocast_casts(job) * more // job.candidate.lora_rank
    return inner + (0 if job.candidate.gradient_checkpointing else copies)


class _Traced:
    """The instants of one footprint at one point, with a job's lasting parts."""

    def __init__(self, job: Job, footprint: Footprint, lasting: Instant, at: Point, closed_step: bool) -> None:
        self._job, self._footprint, self._at = job, footprint, at
        self._lasting = lasting
        self._closed_step = closed_step
        self._gradients = states.gradients(job)
        self._all_gradients = max((one.gradients_bytes for one in footprint.instants), default=0)
        self._all_states = max((one.optimizer_bytes for one in footprint.instants), default=0)
        self._rank = rank_bytes(job, footprint)

    def of(self, phase: Phase) -> Iterator[Instant]:
        """The largest instants of a phase, largest first."""
        ours = [one for one in self._footprint.instants if one.phase == phase and self._counts(one)]
        sized = [(self._size(one), index, one) for index, one in enumerate(ours)]
        for _, _, one in nlargest(_KEPT, sized):
            yield self._terms(one)

    def _counts(self, one: Traced) -> bool:
        return not (self._closed_step and one.place == "optimizer")

    def _alive(self, one: Traced) -> tuple[float, float]:
        """Shares of the gradients and of the optimizer's states that are alive."""
        candidate = self._job.candidate
        gradients = (
            1.0
            if keeps_gradients(self._job, one.phase) or not self._all_gradients
            else one.gradients_bytes / self._all_gradients
        )
        states_alive = (
            1.0 if candidate.uses_deepspeed or not self._all_states else one.optimizer_bytes / self._all_states
        )
        return (0.0 if one.phase == "eval" else gradients), states_alive

    def _passing(self, passing: Polynomial) -> int:
        return bytes_at(passing, b=self._at.b, s=self._at.s, k=self._at.k) + self._rank

    def _size(self, one: Traced) -> float:
        gradients, alive = self._alive(one)
        lasting = sum(part.bytes * (alive if part.name == "optimizer" else 1) for part in self._lasting)
        return lasting + gradients * self._gradients + self._passing(one.passing) + sum(self._gathered(one).values())

    def _gathered(self, one: Traced) -> dict[str, int]:
        """What sharding adds in passing, by term."""
        job = self._job
        if not (job.candidate.zero_stage == 3 or job.candidate.uses_fsdp):
            return {}
        if one.place == "loss":
            return {"gathered ends": buffers.loss(job)}
        return {"layer weights": buffers.gathered(job), "gathered ends": buffers.root(job)}

    def _terms(self, one: Traced) -> Instant:
        job = self._job
        gradients, alive = self._alive(one)
        logits = one.passing[_LOGITS] * self._at.k
        passing = self._passing(one.passing) - logits
        if job.candidate.gradient_checkpointing:
            kept, name, rest = activations.boundaries(job), "boundaries", "layer in flight"
        else:
            kept, name, rest = activations.saved(job), "activations", "backward"
        if one.phase == "eval":
            kept, rest = 0, "one layer"
        kept = max(0, min(kept, passing))
        where = f"traced, at its largest in {one.place}"
        return (
            *(part for part in self._lasting if part.name != "optimizer"),
            *(
                replace(part, bytes=int(part.bytes * alive))
                for part in self._lasting
                if part.name == "optimizer" and part.bytes * alive >= 1
            ),
            *_term("gradients", gradients * self._gradients, f"{job.grad_bytes_each} B a trainable parameter"),
            *_term(name, kept, where),
            *_term(rest, passing - kept, where),
            *_term("logits", logits, f"traced, {self._at.k:,} rows x {job.shape.vocab:,} entries"),
            *(
                part
                for name, size in self._gathered(one).items()
                for part in _term(name, size, "made whole in passing")
            ),
        )


def _term(name: str, n_bytes: float, why: str) -> Instant:
    """One term, or none where it holds nothing."""
    return (Term(name=name, bytes=int(n_bytes), why=why),) if n_bytes >= 1 else ()
