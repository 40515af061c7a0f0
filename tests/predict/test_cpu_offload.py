"""ZeRO offload between CPU processes: tensors counted by hand from DeepSpeed's code, phase by phase."""

from __future__ import annotations

from pathlib import Path

import builders
import pytest

from swift_autobatch.predict import predict
from swift_autobatch.records import Candidate, Facts, Phase, Prediction
from swift_autobatch.units import GIB

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
WEIGHTS = 494_032_768  # parameters, embedding tied
LARGEST = 136_134_656  # of them the embedding
BLOCKS = 357_826_560  # in tensors below 32 MiB in 16 bits: the linears of 24 layers
BUCKET = 200_000_000


def offload(stage: int, tmp_path: Path, ranks: int = 2, **changes: object) -> tuple[Facts, Candidate]:
    facts = builders.facts(tmp_path, gpus=None, model=MODEL, lengths=(16,) * 8, processes=ranks)
    fields = {
        "device": "cpu",
        "world": ranks,
        "tuner": "full",
        "parallel": f"zero{stage}_offload",
        "accumulation": 1,
        "max_tokens": 16,
        **changes,
    }
    return facts, builders.candidate(**fields)


def per_rank(prediction: Prediction, phase: Phase, ranks: int = 2) -> float:
    """Bytes a parameter that one rank holds in a phase, the process itself left out."""
    (found,) = (item.host_bytes for item in prediction.phases if item.phase == phase)
    return (found / ranks - prediction.context_bytes) / WEIGHTS


def test_zero2_holds_whole_weights_and_one_shard_of_everything_else(tmp_path: Path) -> None:
    prediction = predict(*offload(2, tmp_path))
    early = 2 + (4 + 4 + 2) / 2 + 2 * 2 * LARGEST / WEIGHTS  # weights; masters, gradients, copy; two buffers
    assert per_rank(prediction, "load") == pytest.approx(early, rel=0.001)
    grown = early + 8 / 2
    assert per_rank(prediction, "save") == pytest.approx(grown + 2, rel=0.001)
    assert per_rank(prediction, "resume") == pytest.approx(early + 12 / 2, rel=0.001)
    buckets = 2 * 2 * BUCKET / WEIGHTS
    assert per_rank(prediction, "first_step") == pytest.approx(max(early + buckets, grown + 2), rel=0.02)
    assert per_rank(prediction, "steady") == pytest.approx(grown + max(buckets, 2), rel=0.02)


def test_zero3_holds_one_shard_of_everything_and_the_gathered_weights(tmp_path: Path) -> None:
    prediction = predict(*offload(3, tmp_path))
    heap = 2 * BLOCKS / WEIGHTS
    grown = (2 + 4 + 8 + 4 + 2) / 2 + 1.5 * heap  # weights, masters, states, two kinds of gradients; the heap
    assert per_rank(prediction, "first_step") == pytest.approx(grown, rel=0.01)
    assert per_rank(prediction, "steady") == pytest.approx(grown + 2, rel=0.02)
    assert per_rank(prediction, "save") == pytest.approx(grown + 2, rel=0.01)
    moved = BLOCKS / WEIGHTS
    assert per_rank(prediction, "load") == pytest.approx((2 + 4 + 4 + 4) / 2 + heap + moved, rel=0.01)


def test_tensors_of_32_mib_go_back_to_the_kernel(tmp_path: Path) -> None:
    """The same job in fp32: the three MLP matrices of 4864 x 896 stay below 32 MiB, those of 1.5B do not."""
    facts, candidate = offload(3, tmp_path)
    larger = builders.facts(tmp_path, gpus=None, model="Qwen/Qwen2.5-1.5B-Instruct", lengths=(16,) * 8, processes=2)
    heap = {}
    for name, what in (("0.5B", facts), ("1.5B", larger)):
        wide = Candidate(**{**{f: getattr(candidate, f) for f in candidate.__slots__}, "torch_dtype": "float32"})
        terms = predict(what, wide).terms
        heap[name] = sum(term.bytes for term in terms if term.name == "heap") / what.model.params_total
    assert heap["1.5B"] < 0.4 * heap["0.5B"]


@pytest.mark.parametrize("stage", [2, 3])
def test_more_ranks_hold_less_each_and_adapters_less_than_weights(stage: int, tmp_path: Path) -> None:
    each = [predict(*offload(stage, tmp_path, ranks)).needs_p50_bytes for ranks in (1, 2, 4)]
    assert each[0] > each[1] > each[2]
    lora = predict(*offload(stage, tmp_path, tuner="lora"))
    assert lora.needs_p50_bytes < each[1] - 4 * GIB
