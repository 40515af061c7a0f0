"""Runs inside ``swift`` (``--external_plugins``): lets FSDP2 shard over CPU processes.

accelerate honours an FSDP plugin only where its list of accelerators has the device; on CPU processes it drops the
plugin without a word and trains with plain DDP (accelerate/state.py, ``AcceleratorState.__init__``). PyTorch's
``fully_shard`` itself runs over gloo, and with its CPU offload too where it does not pin memory for a card. Imports
nothing of autoswift.
"""

from __future__ import annotations

from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import CPUOffloadPolicy

_init = AcceleratorState.__init__


def _init_with_fsdp(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
    first = not AcceleratorState._shared_state
    _init(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if first and fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        # What __init__ does for the accelerators of its list.
        if self._mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(self._mixed_precision)
        if isinstance(fsdp_plugin.cpu_offload, CPUOffloadPolicy):
            fsdp_plugin.cpu_offload = CPUOffloadPolicy(pin_memory=False)
        self.fsdp_plugin = fsdp_plugin
        self.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


AcceleratorState.__init__ = _init_with_fsdp
