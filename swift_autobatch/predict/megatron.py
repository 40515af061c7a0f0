"""How Megatron spreads a model: dense parts over tp x pp, experts over ep x pp, optimizer states over the rest.

Source: Megatron-LM theoretical_memory_usage.py and distributed optimizer documentation: 2 bytes of weight and 4 of
gradient on every rank of a model-parallel group, 12 of master and states spread over its data-parallel ranks.
"""

from __future__ import annotations

from swift_autobatch.predict.job import Job


def _parts(job: Job) -> tuple[int, int]:
    """Parameters of one rank: (dense, experts); the stage with the larger end counts."""
    shape, candidate, model = job.shape, job.candidate, job.facts.model
    experts = 0
    if model.experts > model.experts_per_token:
        idle = model.params_total - model.params_active
        experts = idle * model.experts // (model.experts - model.experts_per_token)
    ends = shape.embedding + shape.head
    end = ends if candidate.pp == 1 else max(shape.embedding, shape.head)
    dense = (shape.total - ends - experts) // candidate.pp + end
    return dense // candidate.tp, experts // (candidate.pp * candidate.ep)


def weights(job: Job) -> int:
    """Bytes of weights on one rank."""
    return sum(_parts(job)) * job.weight_bytes_each


def gradients(job: Job) -> int:
    """Bytes of gradients on one rank, fp32 and not spread; adapters are split like what they stand beside."""
    if job.candidate.tuner != "full":
        return job.trainable * job.grad_bytes_each // (job.candidate.tp * job.candidate.pp)
    return sum(_parts(job)) * job.grad_bytes_each


def optimizer(job: Job) -> int:
    """Bytes of fp32 master and Adam states on one rank."""
    candidate = job.candidate
    if job.engine.offloads_states:
        return 0
    dense, experts = _parts(job)
    if candidate.tuner != "full":
        dense, experts = job.trainable // (candidate.tp * candidate.pp), 0
    for_dense = max(1, candidate.world // (candidate.tp * candidate.pp))
    for_experts = max(1, candidate.world // (candidate.ep * candidate.pp))
    return 12 * (dense // for_dense + experts // for_experts)
