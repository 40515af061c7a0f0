"""The stand-in for FlashAttention's two functions computes attention: beside softmax written out, in a child."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[2] / "swift_autobatch" / "inside" / "cpu_flash.py"
CODE = """
import importlib.util, json, sys, torch
spec = importlib.util.spec_from_file_location("cpu_flash", sys.argv[1])
flash = importlib.util.module_from_spec(spec)
spec.loader.exec_module(flash)
torch.manual_seed(0)

def written_out(q, k, v, causal, window):
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    behind = torch.arange(len(q))[:, None] - torch.arange(len(k))[None]
    hidden = (behind < 0) if causal else torch.zeros_like(behind, dtype=torch.bool)
    if window >= 0:
        hidden = hidden | (behind > window)
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)

worst = {}
ends = [0, 7, 8, 31]
q, k, v = torch.randn(31, 6, 16), torch.randn(31, 2, 16), torch.randn(31, 2, 16)
for name, causal, window in (("causal", True, -1), ("window", True, 3), ("both ways", False, -1)):
    whole = flash.flash_attn_func(q[None], k[None], v[None], causal=causal, window_size=(window, window))[0]
    cut = torch.tensor(ends)
    parts = flash.flash_attn_varlen_func(q, k, v, cut, cut, 23, 23, causal=causal, window_size=(window, window))
    rows = [slice(a, b) for a, b in zip(ends, ends[1:])]
    wanted = torch.cat([written_out(q[at], k[at], v[at], causal, window) for at in rows])
    alone = written_out(q, k, v, causal, window)
    worst[name] = [float((whole - alone).abs().max()), float((parts - wanted).abs().max()),
                   float((wanted - alone).abs().max())]
print(json.dumps(worst))
"""


@pytest.mark.engine
def test_it_is_attention_and_rows_do_not_see_each_other() -> None:
    done = subprocess.run((sys.executable, "-c", CODE, str(PLUGIN)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    worst = json.loads(done.stdout.splitlines()[-1])
    assert set(worst) == {"causal", "window", "both ways"}
    for name, (whole, parts, apart) in worst.items():
        assert whole < 1e-5, name
        assert parts < 1e-5, name
        assert apart > 1e-2, name  # else the rows' borders were not tested
