"""The planned optimizer on meta tensors: what its step allocates, by Effective.optimizer's names."""

from __future__ import annotations

from typing import Any

import torch

_BNB_BLOCK = 256  # values that share a scale; bitsandbytes optim/optimizer.py
_BNB_LEAST = 4096  # smaller tensors keep fp32 states
_STATES = {"adamw-8bit": 2, "paged-adamw": 2, "paged-adamw-8bit": 2, "lion": 1, "lion-8bit": 1}


class _Lasting(torch.optim.Optimizer):  # type: ignore[misc]
    """States made in the first step, and a step that allocates nothing: fused kernels."""

    def __init__(self, params: Any, states: int, eight_bit: bool, counter: bool) -> None:
        super().__init__(params, {})
        self._states, self._eight_bit, self._counter = states, eight_bit, counter

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = self._made(parameter)

    def _made(self, parameter: Any) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if self._counter:
            made["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        for index in range(self._states):
            if not self._eight_bit:
                made[f"state{index}"] = torch.zeros_like(parameter)
            elif parameter.numel() < _BNB_LEAST:
                made[f"state{index}"] = torch.zeros_like(parameter, dtype=torch.float32)
            else:
                made[f"state{index}"] = torch.zeros_like(parameter, dtype=torch.uint8)
                blocks = -(-parameter.numel() // _BNB_BLOCK)
                made[f"scale{index}"] = torch.zeros(blocks, dtype=torch.float32, device=parameter.device)
        return made


class _Nothing(torch.optim.Optimizer):  # type: ignore[misc]
    """States and updates on the host."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> None:
        pass


def optimizer(name: str, params: list[Any], device: str, notes: set[str]) -> Any:
    """An optimizer whose step allocates as the named one does on the device.

    Args:
        name: a value of Effective.optimizer; one that is not known is traced as fused AdamW, with a note.
        params: those that train.
        device: ``cuda`` or ``cpu``; PyTorch takes the foreach kernels on its own accord on the former only.
        notes: receives what differs.
    """
    if name == "fused-adamw":
        return _Lasting(params, 2, eight_bit=False, counter=True)
    if name == "foreach-adamw":
        return torch.optim.AdamW(params, foreach=device == "cuda")
    if name == "sgd":
        return torch.optim.SGD(params, lr=1e-3, foreach=device == "cuda")
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(params, lr=1e-3, scale_parameter=False, relative_step=False)
    if name == "deepspeed-cpu-adam" or name.startswith("host-"):
        return _Nothing(params)
    if name.startswith("paged-"):
        notes.add("paged optimizer states live in unified memory, outside PyTorch's pool: they are left out")
        return _Nothing(params)
    if name in _STATES:
        return _Lasting(params, _STATES[name], eight_bit=name.endswith("8bit"), counter=False)
    notes.add(f"optimizer {name} is not modelled: fused AdamW was traced instead")
    return _Lasting(params, 2, eight_bit=False, counter=True)
