"""One step of many policies at once: Adam with a learning rate for each run, and the step of TRPO."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from lessons.tabular import exact
from lessons.tabular.policy import Policy


class Adam:
    """Adam (β 0.9 and 0.999, ε 1e-8) for many runs in one tensor, which it changes in place.

    Each run has its own learning rate, and its own count of steps, since runs may sit out a step.

    Source: Kingma and Ba, Adam: A Method for Stochastic Optimization (2015), algorithm 1.
    """

    def __init__(self, parameters: Float[Tensor, "run *shape"], lr: Float[Tensor, "run"]):
        per_run = (-1, *[1] * (parameters.ndim - 1))
        self._parameters = parameters
        self._lr = lr.view(per_run)
        self._steps = torch.zeros_like(self._lr)
        self._mean = torch.zeros_like(parameters)
        self._square = torch.zeros_like(parameters)

    def step(self, gradient: Float[Tensor, "active *shape"], runs: slice = slice(None)) -> None:
        """Moves these runs down their gradients, and leaves the others as they are, momentum included."""
        mean, square, steps = self._mean[runs], self._square[runs], self._steps[runs]
        steps += 1
        mean.lerp_(gradient, 1 - 0.9)
        square.mul_(0.999).addcmul_(gradient, gradient, value=1 - 0.999)
        # θ ← θ − lr m̂ / (√v̂ + ε), with m̂ = m / (1 − 0.9ⁿ) and v̂ = v / (1 − 0.999ⁿ) after n steps; the factors that a run
        # has in common are moved into the denominator.
        scale = (1 - 0.9**steps) / self._lr[runs]
        denominator = square.sqrt().mul_(scale / (1 - 0.999**steps).sqrt()).add_(1e-8 * scale)
        self._parameters[runs].addcdiv_(mean, denominator, value=-1)


def trust_region_step(
    policy: Policy,
    gradient: Float[Tensor, "*runs params"],
    delta: float,
    surrogate: Callable[[Policy], Float[Tensor, "*runs"]],
    halvings: int = 20,
) -> Policy:
    """TRPO: the step along x = F⁺ g that quadratic KL allows, halved until the exact KL(π_old‖π) ≤ δ and the surrogate is
    no lower than before; a policy for which no halving does both stays where it is.

    KL(π_old‖π) is nearly ½ s² xᵀFx for the step s x, and xᵀFx = xᵀg, so that the bound allows s = √(2δ / xᵀg).

    gradient: of J, estimated or exact. delta: in nats a response. surrogate: E[ρ Â] over the batch, for any policy.

    Source: Schulman et al., Trust Region Policy Optimization (2015), eq. 14 and appendix C.
    """
    x = exact.natural_gradient(policy, gradient)
    slope = (x * gradient).sum(dim=-1, keepdim=True)
    step = torch.where(slope > 0, (2 * delta / slope).sqrt(), 0) * x
    before = surrogate(policy)
    for _ in range(halvings):
        candidate = policy.moved(step)
        fits = (exact.kl(policy, candidate) <= delta) & (surrogate(candidate) >= before)
        if fits.all():
            return candidate
        step = torch.where(fits[..., None], step, step / 2)
    return policy.moved(torch.where(fits[..., None], step, 0))
