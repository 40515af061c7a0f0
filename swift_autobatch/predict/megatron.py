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


def _trained(job: Job) -> tuple[int, int]:
    """Trainable parameters of one rank: (dense, experts).

    Adapters on all linears reach every expert's two products, up and gate being one. Source: ms-swift 4.6
    megatron/utils/utils.py `find_all_linears` (TEGroupedLinear among them).
    """
    candidate, model, shape = job.candidate, job.facts.model, job.shape
    if candidate.tuner == "full":
        return _parts(job)
    dense = job.trainable // (candidate.tp * candidate.pp)
    if job.engine.targets is not None or model.experts <= model.experts_per_token:
        return dense, 0
    idle = (model.params_total - model.params_active) // (model.experts - model.experts_per_token)
    inner = idle // (3 * shape.h * shape.layers)  # width of one expert of one layer
    each = candidate.lora_rank * (2 * shape.h + 3 * inner) * shape.layers
    return dense, each * model.experts // (candidate.pp * candidate.ep)


def adapters(job: Job) -> int:
    """Bytes of adapters on one rank."""
    return sum(_trained(job)) * job.trainable_bytes_each


def weights(job: Job) -> int:
    """Bytes of weights on one rank."""
    return sum(_parts(job)) * job.weight_bytes_each


def gradients(job: Job) -> int:
    """Bytes of gradients on one rank, fp32 and not spread; adapters are split like what they stand beside."""
    return sum(_trained(job)) * job.grad_bytes_each


def optimizer(job: Job) -> int:
    """Bytes of fp32 master and Adam states on one rank."""
    candidate = job.candidate
    if job.engine.offloads_states:
        return 0
    dense, experts = _trained(job)
    for_dense = max(1, candidate.world // (candidate.tp * candidate.pp))
    for_experts = max(1, candidate.world // (candidate.ep * candidate.pp))
    return 12 * (dense // for_dense + experts // for_experts)
