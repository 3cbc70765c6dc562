"""The memory of four models: predicted from their parameters, and measured on the tensors that are there.

Bytes a parameter, before activations:

    trained in mixed precision   2 weights + 2 gradients + 12 in float32 (a copy of the weights and Adam's two moments)
    trained in float32           4 weights + 4 gradients + 8 (Adam's two moments)
    frozen                       2 in bf16, 4 in float32

The first line is the layout of ZeRO and DeepSpeed. accelerate's own bf16 keeps weights and gradients in float32 and converts
as it computes: 16 bytes again, split as in the second line.

Source for the 16 bytes of mixed-precision Adam: Rajbhandari et al., ZeRO (2020), section 3.1.
"""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

TRAINED = 16  # in both precisions
FROZEN = {"bf16": 2, "float32": 4}


def predicted_bytes(trained: float, frozen: float, precision: str = "bf16") -> float:
    """16 · trained + 2 · frozen bytes in mixed precision, 16 · trained + 4 · frozen in float32; arguments in parameters.

    Raises ValueError for another precision or a negative count.
    """
    if precision not in FROZEN:
        raise ValueError(f"precision must be one of {', '.join(FROZEN)}, not {precision!r}")
    if trained < 0 or frozen < 0:
        raise ValueError("a model cannot have fewer than 0 parameters")
    return TRAINED * trained + FROZEN[precision] * frozen


def parameters(model: nn.Module) -> int:
    """How many numbers a model holds; a tensor that is used twice (GPT-2's tied embedding) counts once."""
    return sum(p.numel() for p in model.parameters())


def measured_bytes(model: nn.Module, optimizer: Optimizer | None = None) -> int:
    """Bytes of a model's weights, their gradients and its optimiser's state, as they are now."""
    tensors = list(model.parameters())
    tensors += [p.grad for p in tensors if p.grad is not None]
    if optimizer is not None:
        tensors += [x for state in optimizer.state.values() for x in state.values() if hasattr(x, "numel") and x.numel() > 1]
    return sum(x.numel() * x.element_size() for x in tensors)
