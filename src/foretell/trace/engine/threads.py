"""The thread that runs backward passes of the traced device, where checkpointed code is called again.

Autograd carries the modes over to it, but not what ``FakeTensorMode`` sets beside them for the thread that enters it: that
tensors made from Python numbers stay on the CPU until the mode moves them (pytorch ``torch/csrc/utils/tensor_new.cpp``).  Without
it an index by a list, or ``torch.tensor([...])``, asks for memory of a GPU as soon as a layer is computed again.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["prepare_backward"]


def prepare_backward(device: str) -> None:
    """Let the backward thread of a device make tensors from numbers as this thread does; to be called inside the fake mode.

    It stays so until the process ends: only where no device is there does the mode ask for it, and then that thread never runs
    anything but fake tensors.
    """
    if not torch._C._only_lift_cpu_tensors():
        return

    def prepare(_gradient: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(True)

    with torch.enable_grad():
        made = torch.ones((), device=device, requires_grad=True).clone()
        made.register_hook(prepare)
        torch.autograd.backward(made)
