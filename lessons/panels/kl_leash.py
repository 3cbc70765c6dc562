"""The figures of lesson 6: a policy on a leash, KL(π‖π_ref), and what its length decides.

world = World(vocab=8, length=3)
ref = seldom_repeats(world)
show(*frontier(world, ref, betas=(0.1, 0.3, 1.0), others=random_policy(world, seed=0, runs=(300,))))
runs = train_leashed(world, ref, [Leash("β = 0.3", 0.3), Leash("steered", 0.3, target=1.0, horizon=500)], seeds=20)

Every KL is in nats a response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor

from lessons import rl
from lessons.live.style import (
    BLUE,
    COLOURS,
    END_DOT,
    GREEN,
    MUTED,
    SERIES,
    SMALL,
    VERMILLION,
    EndLabels,
    applied,
    band,
    fit,
    heading,
    ink,
    number,
    over_updates,
    panels,
    text_width,
)
from lessons.tabular import Policy, World, exact

KINDS = {"k1": rl.k1, "k2": rl.k2, "k3": rl.k3}
KIND_COLOURS = {"k1": VERMILLION, "k2": BLUE, "k3": GREEN}


def seldom_repeats(world: World) -> Policy:
    """All tokens are equally likely, but for the one just written: its logit is −1 where the others' are 0."""
    logits = torch.zeros(world.rows, world.vocab, dtype=torch.float64)
    for level in world.levels[1:]:
        rows = torch.arange(level.start, level.stop)
        logits[rows, (rows - 1) % world.vocab] = -1.0  # row V s + 1 + a is the prefix that ends in a
    return Policy(world, logits)


def flawed(world: World, token: int, bonus: float) -> World:
    """The same world with a scorer that has a flaw: `bonus` points more for every `token` in a response."""

    def proxy(y: Tensor) -> Tensor:
        return world.returns(y) + bonus * ((y == token) & world.mask(y)).sum(dim=-1)

    return replace(world, reward=proxy, offset=0.0, pays="last")


def _drawn(artists, numbers) -> tuple[Figure, str]:
    artists.draw(numbers)
    return artists.figure, numbers.alt


# The optimum of each β


@dataclass(frozen=True)
class Frontier:
    """KL and expected return of π* for each β, largest β first, and of other policies."""

    betas: tuple[float, ...]
    kl: Float[np.ndarray, " betas"]
    reward: Float[np.ndarray, " betas"]
    other_kl: Float[np.ndarray, " others"]
    other_reward: Float[np.ndarray, " others"]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        points = [
            f"β = {beta:g}: {number(kl)} nats, {number(reward)} points"
            for beta, kl, reward in zip(self.betas, self.kl, self.reward)
        ]
        return (
            f"Expected return over the KL to the reference. The best policy for each β makes a rising curve that "
            f"flattens: {'; '.join(points)}. {self.above} of {len(self.other_kl):,} other policies do better at any of these β."
        )

    @property
    def above(self) -> int:
        """How many of the others beat π* of some β, at that β's price, by more than rounding."""
        beta = np.array(self.betas)[:, None]
        best = self.reward[:, None] - beta * self.kl[:, None]
        return int(((self.other_reward - beta * self.other_kl) > best + 1e-10).any(axis=0).sum())


def compute_frontier(world: World, ref: Policy, betas: Sequence[float], others: Policy) -> Frontier:
    """π* of every β, and policies to hold against them, as many as `others` has runs."""
    betas = tuple(sorted(betas, reverse=True))
    best = [exact.tilted(world, ref, beta) for beta in betas]
    return Frontier(
        betas=betas,
        kl=np.array([exact.kl(policy, ref).item() for policy in best]),
        reward=np.array([exact.J(world, policy).item() for policy in best]),
        other_kl=exact.kl(others, ref).flatten().numpy(),
        other_reward=exact.values(world, others)[..., 0].flatten().numpy(),  # J, without a list of all responses a run
    )


class FrontierArtists:
    """The curve of the best policies, a few of its points named, and the others as a cloud."""

    @applied()
    def __init__(self, named: Sequence[float]) -> None:
        self.named = tuple(named)
        self.figure, ((self.axes,),) = panels(1, 1, height=380, right=150)
        heading(self.axes, "What can a leash of this length buy?", "expected return, points")
        self.axes.set_xlabel("KL(π‖π_ref), nats a response")
        (self.cloud,) = self.axes.plot([], [], "o", color=MUTED, ms=3, alpha=0.4, mew=0)
        (self.line,) = self.axes.plot([], [], color=COLOURS["policy"], label="π*, the optimum", **END_DOT)
        (self.dots,) = self.axes.plot([], [], "o", color=COLOURS["policy"], ms=7, clip_on=False)
        self.names = [
            self.axes.annotate(
                "",
                (0, 0),
                xytext=(9, -11),
                textcoords="offset points",
                fontsize=SMALL,
                path_effects=[withStroke(linewidth=3, foreground="white")],
            )
            for _ in self.named
        ]
        self.labels = EndLabels(self.axes, [self.line])

    def draw(self, numbers: Frontier) -> None:
        """Show these numbers. The β to be named must be among them, and not the smallest, where the curve has its label."""
        self.line.set_data(numbers.kl, numbers.reward)
        self.cloud.set_data(numbers.other_kl, numbers.other_reward)
        places = [numbers.betas.index(beta) for beta in self.named]
        self.dots.set_data(numbers.kl[places], numbers.reward[places])
        for text, place in zip(self.names, places):
            text.xy = (numbers.kl[place], numbers.reward[place])
            text.set_text(f"β = {numbers.betas[place]:g}")
        longest = numbers.kl.max()
        self.axes.set_xlim(0, longest)
        shown = numbers.other_kl <= longest
        fit(self.axes, numbers.reward, numbers.other_reward[shown])
        self.labels.place()


def frontier(world: World, ref: Policy, betas: Sequence[float], others: Policy, named: Sequence[float]) -> tuple[Figure, str]:
    """The reward-KL frontier with other policies below it, with alternative text, for `show`."""
    return _drawn(FrontierArtists(named), compute_frontier(world, ref, betas, others))


# k1, k2, k3 as values


@dataclass(frozen=True)
class Spread:
    """Bias and standard deviation of one sample's k1, k2, k3, in units of KL(π‖π_ref), at each distance."""

    kl: Float[np.ndarray, " policies"]
    bias: dict[str, Float[np.ndarray, " policies"]]
    deviation: dict[str, Float[np.ndarray, " policies"]]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        parts = [
            f"{kind}: bias from {number(self.bias[kind][0])} to {number(self.bias[kind][-1])}, standard deviation "
            f"from {number(self.deviation[kind][0])} to {number(self.deviation[kind][-1])}"
            for kind in self.bias
        ]
        return (
            f"Bias and standard deviation of one sample, in units of the KL, which goes from {number(self.kl[0])} to "
            f"{number(self.kl[-1])} nats. {'; '.join(parts)}."
        )


def value_moments(policy: Policy, ref: Policy, sampler: Policy | None = None) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of k1, k2 and k3 of whole responses that the sampler wrote, π itself or another."""
    y, probs = policy.world.sequences, exact.sequence_probs(sampler or policy)
    log_p, log_q = policy.log_probs(y).sum(dim=-1), ref.log_probs(y).sum(dim=-1)
    moments = {}
    for name, kind in KINDS.items():
        values = kind(log_p, log_q)
        mean = probs @ values
        moments[name] = mean.item(), (probs @ (values - mean) ** 2).sqrt().item()
    return moments


def compute_spread(policies: Sequence[Policy], ref: Policy) -> Spread:
    """Exact bias and deviation of the three at each policy, in that order. None may be the reference itself."""
    kl = np.array([exact.kl(policy, ref).item() for policy in policies])
    moments = [value_moments(policy, ref) for policy in policies]
    return Spread(
        kl=kl,
        bias={name: np.array([one[name][0] for one in moments]) / kl - 1 for name in KINDS},
        deviation={name: np.array([one[name][1] for one in moments]) / kl for name in KINDS},
    )


class SpreadArtists:
    """Left the bias, right the standard deviation, a line for each of k1, k2, k3."""

    @applied()
    def __init__(self) -> None:
        self.figure, ((self.bias, self.deviation),) = panels(1, 2, height=340, right=50)
        heading(self.bias, "Right on average?", "bias of one sample, units of the KL")
        heading(self.deviation, "How noisy?", "standard deviation, units of the KL")
        self.lines, self.labels = [], []
        for axes in (self.bias, self.deviation):
            axes.set_xscale("log")
            axes.set_xlabel("KL(π‖π_ref), nats a response")
            lines = [axes.plot([], [], color=colour, label=kind, **END_DOT)[0] for kind, colour in KIND_COLOURS.items()]
            self.lines.append(lines)
            self.labels.append(EndLabels(axes, lines))
        self.deviation.set_yscale("log")

    def draw(self, numbers: Spread) -> None:
        """Show these numbers."""
        for axes, lines, shown in zip((self.bias, self.deviation), self.lines, (numbers.bias, numbers.deviation)):
            for line, values in zip(lines, shown.values()):
                line.set_data(numbers.kl, values)
            axes.set_xlim(numbers.kl.min(), numbers.kl.max())
        fit(self.bias, *numbers.bias.values(), include=[0])
        every = np.concatenate(list(numbers.deviation.values()))
        self.deviation.set_ylim(every.min() / 1.3, every.max() * 1.3)
        for labels in self.labels:
            labels.place()


def spread_of_values(policies: Sequence[Policy], ref: Policy) -> tuple[Figure, str]:
    """Bias and deviation of k1, k2, k3 over the distance, with alternative text, for `show`."""
    return _drawn(SpreadArtists(), compute_spread(policies, ref))


# k1, k2, k3 as losses


def kl_gradient(policy: Policy, ref: Policy) -> Float[Tensor, " params"]:
    """∇KL(π‖π_ref) = Σ_y π(y) ℓ(y) ∇ log π(y), with ℓ = log π − log π_ref of the response."""
    y = policy.world.sequences
    log_ratio = (policy.log_probs(y) - ref.log_probs(y)).sum(dim=-1)
    return (exact.sequence_probs(policy) * log_ratio) @ policy.score(y)


def loss_gradients(policy: Policy, ref: Policy, sampler: Policy | None = None) -> dict[str, Float[Tensor, " params"]]:
    """The expected gradients of k1, k2, k3 of whole responses as losses, on samples of the sampler.

    By autograd. The samples are constants: their probabilities are not differentiated.
    """
    y, probs = policy.world.sequences, exact.sequence_probs(sampler or policy).detach()
    gradients = {}
    for name, kind in KINDS.items():
        moving = Policy(policy.world, policy.logits.detach().clone().requires_grad_())
        loss = probs @ kind(moving.log_probs(y).sum(dim=-1), ref.log_probs(y).sum(dim=-1))
        gradients[name] = torch.autograd.grad(loss, moving.logits)[0].flatten()
    return gradients


@dataclass(frozen=True)
class Losses:
    """How far the expected gradient of each loss is from ∇KL(π‖π_ref), in units of its length."""

    drift: Float[np.ndarray, " policies"]  # KL(π_old‖π)
    error: dict[str, Float[np.ndarray, " policies"]]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        parts = [f"{kind} from {number(e[0])} to {number(e[-1])}" for kind, e in self.error.items()]
        return (
            f"Error of the expected gradient, in lengths of the KL's, while the policy moves from the one that sampled "
            f"to {number(self.drift[-1])} nats from it: {', '.join(parts)}."
        )


def compute_losses(sampler: Policy, policies: Sequence[Policy], ref: Policy) -> Losses:
    """Exact errors at policies that have moved away from the sampler, in that order."""
    error: dict[str, list[float]] = {name: [] for name in KINDS}
    for policy in policies:
        g = kl_gradient(policy, ref)
        for name, gradient in loss_gradients(policy, ref, sampler).items():
            error[name].append(((gradient - g).norm() / g.norm()).item())
    drift = np.array([exact.kl(sampler, policy).item() for policy in policies])
    return Losses(drift, {name: np.array(values) for name, values in error.items()})


class LossesArtists:
    """The error of each loss over the distance from the policy that sampled."""

    @applied()
    def __init__(self) -> None:
        self.figure, ((self.axes,),) = panels(1, 1, height=330)
        heading(self.axes, "Does the loss still pull the right way?", "error of the expected gradient, units of |∇KL|")
        self.axes.set_xlabel("KL(π_old‖π), nats a response, from the policy that sampled")
        self.lines = [self.axes.plot([], [], color=colour, label=kind, **END_DOT)[0] for kind, colour in KIND_COLOURS.items()]
        self.labels = EndLabels(self.axes, self.lines)

    def draw(self, numbers: Losses) -> None:
        """Show these numbers."""
        for line, values in zip(self.lines, numbers.error.values()):
            line.set_data(numbers.drift, values)
        self.axes.set_xlim(0, numbers.drift.max())
        fit(self.axes, *numbers.error.values(), include=[0])
        self.labels.place()


def errors_of_losses(sampler: Policy, policies: Sequence[Policy], ref: Policy) -> tuple[Figure, str]:
    """The three losses on old samples, with alternative text, for `show`."""
    return _drawn(LossesArtists(), compute_losses(sampler, policies, ref))


# A policy that learns on the leash


@dataclass(frozen=True)
class Leash:
    """How a run is held: by β, fixed or steered, paid a token or once at the end.

    name: what a figure calls it.
    beta: β, the first one if it is steered.
    target: nats a response that `rl.AdaptiveKL` steers to; None fixes β.
    horizon: of the steering, in episodes.
    at_end: the KL of the whole response is paid with the score, on the last token.
    lam: λ of the GAE, whose values learn beside the policy.
    """

    name: str
    beta: float
    target: float | None = None
    horizon: float = 10_000.0
    at_end: bool = False
    lam: float = 1.0

    @property
    def what(self) -> str:
        """How β is set: fixed, or steered over a horizon."""
        return "fixed" if self.target is None else f"horizon {self.horizon:,.0f}"

    def controller(self) -> rl.FixedKL | rl.AdaptiveKL:
        """A new controller of this leash's β."""
        return rl.FixedKL(self.beta) if self.target is None else rl.AdaptiveKL(self.beta, self.target, self.horizon)


@dataclass(frozen=True)
class LeashedRuns:
    """What happened to every run, in exact values, none of them from samples; after `update` updates each."""

    leashes: tuple[Leash, ...]
    policy: Policy  # at the end, runs (leash, seed)
    update: Int[np.ndarray, " update"]
    beta: Float[np.ndarray, "leash seed update"]
    kl: Float[np.ndarray, "leash seed update"]  # KL(π‖π_ref)
    reward: Float[np.ndarray, "leash seed update"]  # E[R], of the scorer that trains
    value_error: Float[np.ndarray, "leash seed update"]  # root mean square over the tokens that π writes


def leashed_values(
    world: World, policy: Policy, ref: Policy, beta: float | Float[Tensor, "*runs"], at_end: bool
) -> Float[Tensor, "*runs rows"]:
    """Exact values of R − β KL: what is still to be paid from each state on.

    A token: V(s) = E[R | s] − β KL still to come. At the end the KL of the tokens before s is still to be paid
    too. States that cannot be reached count as others do; nothing weighs them.
    """
    beta = torch.as_tensor(beta, dtype=torch.float64)[..., None]
    log_ratio = policy.log_table - ref.log_table
    table = policy.table
    if world.end is not None:  # nothing comes behind the end token
        table = table.index_fill(-1, torch.tensor(world.end), 0.0)
    here = (policy.table * log_ratio).sum(dim=-1)
    levels = [here[..., world.levels[-1]]]
    for level in world.levels[-2::-1]:
        behind = (table[..., level, :] * levels[0].unflatten(-1, (-1, world.vocab))).sum(dim=-1)
        levels.insert(0, here[..., level] + behind)
    owed = torch.cat(levels, dim=-1)
    if at_end:
        before = [torch.zeros_like(owed[..., :1])]
        for level in world.levels[:-1]:
            before.append((before[-1][..., None] + log_ratio[..., level, :]).flatten(-2))
        owed = owed + torch.cat(before, dim=-1)
    return exact.values(world, policy) - beta * owed


@torch.no_grad()
def train_leashed(
    world: World, ref: Policy, leashes: Sequence[Leash], seeds: int, updates: int = 200, batch: int = 16,
    lr: float = 0.05, value_lr: float = 0.1, every: int = 10,
) -> LeashedRuns:  # fmt: skip
    """REINFORCE with GAE and learned values, by Adam, from the reference; one step a batch. Leashes share random numbers.

    The reward of each token is `rl.per_token_rewards`, its β the run's own; advantages are not whitened. Measured
    at the start, after every `every` updates, and at the end.
    """
    shape = (len(leashes), seeds)
    logits, values = ref.logits.repeat(*shape, 1, 1), torch.zeros(*shape, world.rows, dtype=torch.float64)
    optimiser = torch.optim.Adam([{"params": [logits], "lr": lr}, {"params": [values], "lr": value_lr}])
    controllers = [[leash.controller() for _ in range(seeds)] for leash in leashes]
    stream, history = torch.Generator().manual_seed(0), []
    for update in range(updates + 1):
        policy = Policy(world, logits.clone())
        beta = torch.tensor([[one.beta for one in row] for row in controllers], dtype=torch.float64)
        if update % every == 0 or update == updates:
            error = _errors(world, policy, ref, beta, leashes, values)
            history.append((torch.tensor(update), beta, exact.kl(policy, ref), exact.J(world, policy), error))
        if update == updates:
            break

        uniforms = torch.rand(seeds, batch, world.length, generator=stream, dtype=torch.float64)
        y, log_probs, _ = policy.sample_from(uniforms.expand(len(leashes), -1, -1, -1))
        mask, states, ref_log_probs = world.mask(y), world.states(y), ref.log_probs(y)
        rewards = rl.per_token_rewards(world.returns(y), log_probs, ref_log_probs, mask, beta)
        v = values.gather(-1, states.flatten(-2)).view(states.shape)
        A_hat = torch.empty_like(v)
        for i, leash in enumerate(leashes):
            if leash.at_end:
                rewards[i] = rl.per_token_rewards(rewards[i].sum(dim=-1), log_probs[i], log_probs[i], mask[i], 0.0)
            A_hat[i] = rl.gae(rewards[i], v[i], mask[i], lam=leash.lam)
        # The regression's target is Â + V(s_t), so V less the target is −Â.
        slopes = torch.where(mask, -A_hat, 0) / mask.sum(dim=(-2, -1), keepdim=True)
        logits.grad = -policy.score_sum(y, A_hat).view(logits.shape) / batch
        values.grad = torch.zeros_like(values).scatter_add_(-1, states.flatten(-2), slopes.flatten(-2))
        optimiser.step()
        kl = rl.k1(log_probs, ref_log_probs).sum(dim=-1).mean(dim=-1).tolist()
        for i, row in enumerate(controllers):
            for j, one in enumerate(row):
                one.update(kl[i][j], batch)
    return LeashedRuns(tuple(leashes), policy, *(torch.stack(x, dim=-1).numpy() for x in zip(*history)))


def _errors(world: World, policy: Policy, ref: Policy, beta: Tensor, leashes: Sequence[Leash], values: Tensor) -> Tensor:
    """√ of the mean of (V − V^π)² over the tokens that the policy writes."""
    ends = torch.tensor([leash.at_end for leash in leashes])[:, None, None]
    token, end = (leashed_values(world, policy, ref, beta, at_end) for at_end in (False, True))
    weight = exact.visits(policy)
    square = (weight * (values - torch.where(ends, end, token)) ** 2).sum(dim=-1)
    return (square / weight.sum(dim=-1)).sqrt()


# KL a token, or once at the end


@dataclass(frozen=True)
class Density:
    """Error of the learned values and E[R] − β KL of several leashes, over the updates: mean, least and most of the seeds."""

    names: tuple[str, ...]
    seeds: int
    update: Int[np.ndarray, " update"]
    error: Float[np.ndarray, "leash seed update"]
    objective: Float[np.ndarray, "leash seed update"]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        parts = [
            f"{name}: values off by {number(error[:, -1].mean())}, objective {number(goal[:, -1].mean())} with a "
            f"standard deviation of {number(goal[:, -1].std(ddof=1), 3)} between seeds"
            for name, error, goal in zip(self.names, self.error, self.objective)
        ]
        return f"After {self.update[-1]} updates, mean of {self.seeds} seeds: {'; '.join(parts)}."


def compute_density(runs: LeashedRuns) -> Density:
    """The two curves of each leash, whose β must be fixed. Raises ValueError for a single seed."""
    seeds = runs.kl.shape[1]
    if seeds < 2:
        raise ValueError("a spread between seeds needs at least 2 of them")
    names = tuple(leash.name for leash in runs.leashes)
    return Density(names, seeds, runs.update, runs.value_error, runs.reward - runs.beta * runs.kl)


class DensityArtists:
    """Left the values' error, right the objective, a line for each leash with the range of its seeds."""

    @applied()
    def __init__(self, names: Sequence[str], updates: int) -> None:
        right = 16 + round(max(text_width(name, SMALL) for name in names))
        self.figure, ((self.error, self.objective),) = panels(1, 2, height=360, right=right)
        heading(self.error, "How wrong are the values?", "root mean square, points; band: seeds")
        heading(self.objective, "What does it reach?", "E[R] − β KL, points; band: seeds")
        self.lines, self.bands, self.labels = [], [], []
        for axes in (self.error, self.objective):
            over_updates(axes, updates)
            axes.set_xlim(0, updates)
            self.bands.append([band(axes, colour) for colour in SERIES[: len(names)]])
            lines = [axes.plot([], [], color=colour, label=name, **END_DOT)[0] for colour, name in zip(SERIES, names)]
            self.lines.append(lines)
            self.labels.append(EndLabels(axes, lines))

    def draw(self, numbers: Density) -> None:
        """Show these numbers."""
        shown = numbers.error, numbers.objective
        for axes, lines, bands, labels, values in zip((self.error, self.objective), self.lines, self.bands, self.labels, shown):
            for line, area, runs in zip(lines, bands, values):
                line.set_data(numbers.update, runs.mean(axis=0))
                area.set_data(numbers.update, runs.min(axis=0), runs.max(axis=0))
            fit(axes, values)
            labels.place()


def density(runs: LeashedRuns) -> tuple[Figure, str]:
    """KL a token against KL at the end, with alternative text, for `show`."""
    numbers = compute_density(runs)
    return _drawn(DensityArtists(numbers.names, int(numbers.update[-1])), numbers)


# A β that steers


@dataclass(frozen=True)
class Steering:
    """The KL that runs end with, over their first β: the mean of each seed's last quarter. A row a horizon."""

    target: float
    names: tuple[str, ...]
    betas: tuple[float, ...]
    kl: Float[np.ndarray, "horizons betas seeds"]

    def missed_by(self, name: str) -> Float[np.ndarray, " betas"]:
        """|KL − target| / target, mean over the seeds, for each first β."""
        return np.abs(self.kl[self.names.index(name)] - self.target).mean(axis=-1) / self.target

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        ends = [f"{name}: " + ", ".join(number(x) for x in kl.mean(axis=-1)) for name, kl in zip(self.names, self.kl)]
        first = ", ".join(f"{beta:g}" for beta in self.betas)
        return (
            f"KL to the reference at the end, where the target is {number(self.target)} nats, for a first β of {first}. "
            f"{'; '.join(ends)}."
        )


def compute_steering(runs: LeashedRuns, target: float) -> Steering:
    """The leashes must be a grid: the same first β, in the same order, for each way to set β."""
    names = tuple(dict.fromkeys(leash.what for leash in runs.leashes))
    betas = tuple(dict.fromkeys(leash.beta for leash in runs.leashes))
    late = runs.kl[..., -max(1, len(runs.update) // 4) :].mean(axis=-1)
    return Steering(target, names, betas, late.reshape(len(names), len(betas), -1))


class SteeringArtists:
    """A line for each horizon, with the range of its seeds, and the target."""

    @applied()
    def __init__(self, names: Sequence[str], betas: Sequence[float]) -> None:
        right = 16 + round(max(text_width(name, SMALL) for name in names))
        self.figure, ((self.axes,),) = panels(1, 1, height=360, right=right)
        heading(self.axes, "Where does it end?", "KL(π‖π_ref) at the end, nats a response; band: seeds")
        self.axes.set_xscale("log")
        self.axes.set_xlim(betas[0], betas[-1])
        self.axes.set_xticks(betas, [f"{beta:g}" for beta in betas])
        self.axes.set_xticks([], minor=True)
        self.axes.set_xlabel("first β")
        self.target = self.axes.axhline(0, color=MUTED, lw=1, ls="--")
        self.note = self.axes.annotate(
            "target", (1, 0), xycoords=("axes fraction", "data"), xytext=(-6, 4), textcoords="offset points",
            ha="right", fontsize=SMALL, color=MUTED,
        )  # fmt: skip
        self.bands = [band(self.axes, colour) for colour in SERIES[: len(names)]]
        self.lines = [self.axes.plot([], [], color=colour, label=name, **END_DOT)[0] for colour, name in zip(SERIES, names)]
        self.labels = EndLabels(self.axes, self.lines)

    def draw(self, numbers: Steering) -> None:
        """Show these numbers."""
        for line, area, kl in zip(self.lines, self.bands, numbers.kl):
            line.set_data(numbers.betas, kl.mean(axis=-1))
            area.set_data(numbers.betas, kl.min(axis=-1), kl.max(axis=-1))
        self.target.set_ydata([numbers.target] * 2)
        self.note.xy = (1, numbers.target)
        fit(self.axes, numbers.kl, include=[0, numbers.target])
        self.labels.place()


def steering(runs: LeashedRuns, target: float) -> tuple[Figure, str]:
    """Final KL over first β and horizon, with alternative text, for `show`."""
    numbers = compute_steering(runs, target)
    return _drawn(SteeringArtists(numbers.names, numbers.betas), numbers)


# A scorer with a flaw


@dataclass(frozen=True)
class Flaw:
    """What the optimum of each β is worth to the scorer that trains (proxy) and to the honest one (gold); and the runs."""

    betas: tuple[float, ...]
    kl: Float[np.ndarray, " betas"]
    proxy: Float[np.ndarray, " betas"]
    gold: Float[np.ndarray, " betas"]
    run_betas: tuple[float, ...]
    run_kl: Float[np.ndarray, "leash seed"]
    run_proxy: Float[np.ndarray, "leash seed"]
    run_gold: Float[np.ndarray, "leash seed"]

    @property
    def best(self) -> float:
        """The β whose optimum has the highest gold reward."""
        return self.betas[self.gold.argmax()]

    @property
    def alt(self) -> str:
        """What the picture shows, in sentences."""
        runs = [
            f"β = {beta:g} at {number(kl.mean())} nats, proxy {number(proxy.mean())}, gold {number(gold.mean())}"
            for beta, kl, proxy, gold in zip(self.run_betas, self.run_kl, self.run_proxy, self.run_gold)
        ]
        return (
            f"Over the KL to the reference, from {number(self.kl.min())} to {number(self.kl.max())} nats, the optimum's "
            f"proxy reward rises from {number(self.proxy[self.kl.argmin()])} to {number(self.proxy.max())}. Its gold reward "
            f"peaks at {number(self.gold.max())}, at β = {self.best:g}, and ends at {number(self.gold[self.kl.argmax()])}. "
            f"Runs: {'; '.join(runs)}."
        )


def compute_flaw(gold: World, proxy: World, ref: Policy, betas: Sequence[float], runs: LeashedRuns) -> Flaw:
    """The optimum of each β under the proxy, and runs that trained on it, by both scorers."""
    best = [exact.tilted(proxy, ref, beta) for beta in betas]
    return Flaw(
        betas=tuple(betas),
        kl=np.array([exact.kl(policy, ref).item() for policy in best]),
        proxy=np.array([exact.J(proxy, policy).item() for policy in best]),
        gold=np.array([exact.J(gold, policy).item() for policy in best]),
        run_betas=tuple(leash.beta for leash in runs.leashes),
        run_kl=runs.kl[..., -1],
        run_proxy=runs.reward[..., -1],
        run_gold=exact.J(gold, runs.policy).numpy(),
    )


class FlawArtists:
    """Proxy and gold reward of the optimum over the KL, and a dot for every run."""

    @applied()
    def __init__(self, runs: int) -> None:
        self.figure, (self.axes,) = panels(1, 2, height=370, right=64)
        for axes, title in zip(self.axes, ("What the scorer sees", "What it is worth")):
            heading(axes, title, "expected reward, points; dots: runs")
            axes.set_xlabel("KL(π‖π_ref), nats a response")
        looks = (("proxy", COLOURS["score"]), ("gold", COLOURS["gold"]))
        self.lines = [axes.plot([], [], color=colour, label=name, **END_DOT)[0] for axes, (name, colour) in zip(self.axes, looks)]
        self.dots = [[axes.plot([], [], "o", color=MUTED, ms=4, alpha=0.5, mew=0)[0] for _ in range(runs)] for axes in self.axes]
        self.names = [
            self.axes[1].annotate(
                "", (0, 0), xytext=(0, 9), textcoords="offset points", fontsize=SMALL, ha="center",
                color=ink(COLOURS["gold"]),
            )
        ]  # fmt: skip
        self.labels = [EndLabels(axes, [line]) for axes, line in zip(self.axes, self.lines)]

    def draw(self, numbers: Flaw) -> None:
        """Show these numbers. There must be as many leashes as the artists were built for."""
        for axes, line, optimum, dots, runs, labels in zip(
            self.axes, self.lines, (numbers.proxy, numbers.gold), self.dots,
            (numbers.run_proxy, numbers.run_gold), self.labels,
        ):  # fmt: skip
            order = numbers.kl.argsort()
            line.set_data(numbers.kl[order], optimum[order])
            for dot, kl, values in zip(dots, numbers.run_kl, runs):
                dot.set_data(kl, values)
            axes.set_xlim(0, max(numbers.kl.max(), numbers.run_kl.max()))
            fit(axes, optimum, runs, include=[0])
            labels.place()
        peak = numbers.gold.argmax()
        self.names[0].xy = (numbers.kl[peak], numbers.gold[peak])
        self.names[0].set_text(f"β = {numbers.best:g}")


def flaw(gold: World, proxy: World, ref: Policy, betas: Sequence[float], runs: LeashedRuns) -> tuple[Figure, str]:
    """A flawed scorer and what it hides, with alternative text, for `show`."""
    return _drawn(FlawArtists(len(runs.leashes)), compute_flaw(gold, proxy, ref, betas, runs))
