"""Training: against a plain loop for one run, against exact gradients, and each run as if it were alone."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons import rl
from lessons.tabular import (
    Learner,
    Policy,
    Runs,
    World,
    exact,
    five_learners,
    random_policy,
    train,
    trust_region_step,
    uniform_policy,
)
from lessons.tabular.runs import clip_slopes

FIXED = World(vocab=8, length=3)
ENDING = World(vocab=4, length=4, end=3)
DENSE = World(vocab=4, length=4, end=1, pays="token")

MANY = [
    *five_learners(0.1),
    *five_learners(0.03),
    Learner("to go", to_go=True),
    Learner("to go, leave-one-out", to_go=True, baseline="leave-one-out", passes=2),
    Learner("leave-one-out", baseline="leave-one-out", offset=10.0, lr=0.05),
    Learner("state", baseline="state", offset=3.0),
    Learner("state, one step", baseline="state", lam=0.0, passes=3, epsilon=0.1),
    Learner("actor-critic", baseline="learned", lam=0.9, offset=1.0, value_lr=0.2, passes=2, epsilon=0.2),
    Learner(
        "actor-critic, another rate",
        baseline="learned",
        lam=0.9,
        offset=1.0,
        value_lr=0.05,
        passes=2,
        epsilon=0.2,
    ),
    Learner("PPO with penalty", baseline="mean", passes=4, penalty=0.5),
    Learner("PPO with adaptive penalty", baseline="mean", passes=4, penalty=0.5, penalty_target=0.01, lr=0.3),
    Learner("penalty a sequence", baseline="mean", passes=2, penalty=0.1, ratio="sequence"),
    Learner("entropy bonus", baseline="mean", entropy=0.5),
    Learner("PPO with entropy bonus", baseline="mean", entropy=0.1, passes=3, epsilon=0.2),
    Learner("leash", baseline="leave-one-out", beta=0.3),
    Learner("leash on an actor-critic", baseline="learned", beta=0.3, lam=0.95),
    Learner("SGD", baseline="mean", optimiser="sgd", lr=1.0),
    Learner("SGD, three passes", baseline="mean", optimiser="sgd", lr=0.5, passes=3),
    Learner("TRPO", baseline="state", delta=0.05),
]


def alone(world, learner, seed, updates, batch=16, start=None):
    """One run, written out: autograd through the whole table, torch's optimiser, one learner, one seed.

    Returns the logits, the values and the mean return of each batch.
    """
    start = uniform_policy(world) if start is None else start
    stream = torch.Generator().manual_seed(seed)
    logits = start.logits.clone().requires_grad_()
    values = torch.zeros(world.rows, dtype=torch.float64, requires_grad=True)
    optimiser = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[learner.optimiser]([logits], lr=learner.lr)
    critic = torch.optim.Adam([values], lr=learner.value_lr)
    penalty, scores = learner.penalty, []

    def log_probs_of(y, logits):
        return logits.log_softmax(dim=-1)[world.states(y), y]

    for _ in range(updates):
        uniforms = torch.rand(batch, world.length, generator=stream, dtype=torch.float64)
        y, _, _ = Policy(world, logits.detach()).sample_from(uniforms)
        mask, states = world.mask(y), world.states(y)
        scores.append(world.returns(y).mean())
        old_log_probs = log_probs_of(y, logits).detach()

        last = mask & ~torch.nn.functional.pad(mask[:, 1:], (0, 1))
        leash = learner.beta * (old_log_probs - log_probs_of(y, start.logits)) * mask
        rewards = world.rewards(y) + learner.offset * last - leash
        old_values = torch.zeros(y.shape, dtype=torch.float64)
        if learner.baseline == "state":
            offset_world = replace(world, offset=world.offset + learner.offset)
            old_values = exact.values(offset_world, Policy(world, logits.detach()))[states]
        if learner.baseline == "learned":
            old_values = values.detach()[states]
        if learner.baseline in ("state", "learned"):
            weights = rl.gae(rewards, old_values, mask, lam=learner.lam)
        else:
            credit = rl.returns(rewards, mask)
            if not learner.to_go:
                credit = credit[:, :1].expand(credit.shape)
            mean, others = credit.mean(dim=0), (credit.sum(dim=0) - credit) / (batch - 1)
            weights = credit - {None: 0.0, "mean": mean, "leave-one-out": others}[learner.baseline]

        for _ in range(learner.passes):
            log_probs = log_probs_of(y, logits)
            own, old, own_weights, own_mask = log_probs, old_log_probs, weights, mask
            if learner.ratio == "sequence":
                own, old = ((mask * x).sum(dim=1, keepdim=True) for x in (log_probs, old_log_probs))
                own_weights, own_mask = weights[:, :1], torch.ones(batch, 1, dtype=torch.bool)
            if learner.epsilon is not None:
                loss, _ = rl.clipped_surrogate(own, old, own_weights, own_mask, learner.epsilon)
            elif learner.penalty is not None:
                loss, _ = rl.kl_penalised(own, old, own_weights, own_mask, penalty)
            else:
                loss = rl.reinforce(log_probs, weights, mask)
            loss = loss - learner.entropy * rl.masked_mean(rl.entropy(logits[states]), mask)
            if learner.delta is not None:
                (gradient,) = torch.autograd.grad(loss, logits)

                def surrogate(policy, y=y, old=old_log_probs, weights=weights, mask=mask):
                    ratio = (log_probs_of(y, policy.logits) - old).exp()
                    return (ratio * weights * mask).sum() / mask.sum()

                policy = Policy(world, logits.detach())
                moved = trust_region_step(policy, -gradient.flatten(), learner.delta, surrogate)
                logits.data.copy_(moved.logits)
            else:
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            if learner.baseline == "learned":
                critic.zero_grad()
                rl.value_loss(values[states], old_values, weights + old_values, mask).backward()
                critic.step()
        if learner.penalty_target is not None:
            kl = rl.masked_mean(rl.k3(old_log_probs, log_probs_of(y, logits.detach())), mask)
            penalty = penalty * (2 if kl > 1.5 * learner.penalty_target else 1)
            penalty = penalty / (2 if kl < learner.penalty_target / 1.5 else 1)
    return logits.detach(), values.detach(), torch.stack(scores)


@pytest.mark.parametrize("world", [FIXED, ENDING, DENSE], ids=["fixed", "ending", "dense"])
def test_every_run_is_what_a_plain_loop_makes_of_it(world):
    seeds, updates = (3, 4), 5
    start = random_policy(world, seed=0, scale=0.5)
    runs = Runs(world, MANY, seeds, batch=16, start=start)
    scores = torch.stack([runs.update()["scores"] for _ in range(updates)], dim=-1)
    for i, learner in enumerate(MANY):
        for j, seed in enumerate(seeds):
            logits, values, own_scores = alone(world, learner, seed, updates, start=start)
            message = f"{learner.name}, seed {seed}: {{}}".format
            torch.testing.assert_close(scores[i, j], own_scores, rtol=0, atol=1e-12, msg=message)
            # Adam divides by √v + 1e-8: where the terms of a gradient cancel, it makes of a rounding error of
            # 1e-17 one of 1e-10 in its first step.
            atol = 1e-8 if learner.optimiser == "adam" else 1e-12
            torch.testing.assert_close(runs.policy.logits[i, j], logits, rtol=0, atol=atol, msg=message)
            torch.testing.assert_close(runs.values[i, j], values, rtol=0, atol=1e-8, msg=message)


def test_a_run_does_not_notice_which_others_are_beside_it():
    # A reward that is different for every response: equal scores are equal tokens.
    numbers = torch.randn(8**3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    world = World(reward=lambda y: numbers[(y * torch.tensor([1, 8, 64])).sum(dim=-1)])
    together = train(world, MANY, seeds=range(5), updates=10)
    for i in range(len(MANY)):
        own = train(world, [MANY[i]], seeds=[2], updates=10)
        torch.testing.assert_close(own.scores[0, 0], together.scores[i, 2], rtol=0, atol=1e-12)
        torch.testing.assert_close(own.policy.logits[0, 0], together.policy.logits[i, 2], rtol=0, atol=1e-10)


def test_what_training_leaves_can_be_differentiated():
    world = World(vocab=3, length=2)
    trained = train(world, [Learner(baseline="state")], seeds=range(2), updates=1)
    logits = trained.policy.logits.requires_grad_()
    J = exact.J(world, Policy(world, logits))
    (gradient,) = torch.autograd.grad(J.sum(), logits)
    torch.testing.assert_close(gradient.flatten(-2), exact.gradient(world, trained.policy))


def test_learners_with_the_same_seed_start_from_the_same_samples():
    trained = train(FIXED, five_learners(), seeds=range(4), updates=1)
    assert (trained.scores == trained.scores[:1]).all()
    assert len(set(trained.scores[0, :, 0].tolist())) > 1


@pytest.mark.parametrize("world", [FIXED, DENSE], ids=["fixed", "dense"])
@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"offset": 3.0}, 1.0),
        ({"to_go": True}, 1.0),
        ({"baseline": "mean", "offset": 10.0}, 15 / 16),
        ({"baseline": "leave-one-out", "offset": 10.0}, 1.0),
        ({"baseline": "leave-one-out", "to_go": True}, 1.0),
        ({"baseline": "state", "offset": 10.0}, 1.0),
        ({"baseline": "state", "lam": 0.0}, 1.0),
        ({"baseline": "learned", "lam": 1.0}, 1.0),
    ],
    ids=str,
)
def test_mean_step_of_many_seeds_is_the_exact_gradient(world, settings, scale):
    start, seeds = random_policy(world, seed=0), 2_000
    runs = Runs(world, [Learner(optimiser="sgd", lr=1.0, **settings)], range(seeds), start=start)
    runs.update()
    steps = (runs.policy.logits[0] - start.logits).flatten(-2)
    error = (steps.mean(dim=0) - scale * exact.gradient(world, start)).square().sum()
    variance = (steps - steps.mean(dim=0)).square().sum(dim=-1).mean() / seeds
    # The squared error has mean `variance` and a standard deviation of at most √2 times that.
    assert error < (1 + 4 * 2**0.5) * variance


def test_leave_one_out_is_the_batch_mean_at_a_learning_rate_sixteen_fifteenths_as_high():
    mean = Learner("mean", baseline="mean", optimiser="sgd", lr=16 / 15)
    leave_one_out = Learner("leave-one-out", baseline="leave-one-out", optimiser="sgd", lr=1.0)
    logits = train(FIXED, [mean, leave_one_out], seeds=range(3), updates=10).policy.logits
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-12)


@given(st.integers(0, 2**31), st.floats(0.01, 0.9))
def test_clip_in_closed_form_is_the_clip_of_rl(seed, epsilon):
    stream = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(2, 5, 4, generator=stream, dtype=torch.float64)

    old_log_probs, advantages = normal() - 2, normal() * (normal() > 0)
    log_probs = (old_log_probs + 0.5 * normal()).requires_grad_()
    mask = torch.arange(4) < torch.randint(1, 5, (2, 5, 1), generator=stream)
    loss, stats = rl.clipped_surrogate(log_probs, old_log_probs, advantages, mask, epsilon)
    (expected,) = torch.autograd.grad(loss.sum(), log_probs)
    slopes, clip_fraction, zero_gradient_fraction = clip_slopes(
        log_probs.detach(), old_log_probs, advantages, mask, epsilon
    )
    torch.testing.assert_close(slopes, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(clip_fraction, stats["clip_fraction"])
    torch.testing.assert_close(zero_gradient_fraction, stats["zero_gradient_fraction"])


def test_clip_fractions_are_reported_for_passes_after_the_first_and_only_where_there_is_a_clip():
    learners = [five_learners()[3], five_learners()[4], replace(five_learners()[4], name="once", passes=1)]
    trained = train(FIXED, learners, seeds=range(5), updates=30)
    unclipped, ppo, once = trained.clip_fraction
    assert unclipped.isnan().all()
    assert once.isnan().all()
    assert ppo.isfinite().all()
    assert 0 < ppo.mean() < 1
    assert (trained.zero_gradient_fraction[1] <= ppo).all()


def test_trust_region_step_meets_its_bound_on_a_thousand_policies_and_gains():
    policy, delta = random_policy(FIXED, seed=0, runs=(1000,), scale=2.0), 0.05

    def J(policy):
        return exact.values(FIXED, policy)[..., 0]

    moved = trust_region_step(policy, exact.gradient(FIXED, policy), delta, J)
    kl = exact.kl(policy, moved)
    assert (kl <= delta).all()
    assert (kl > delta / 10).all()
    assert (J(moved) > J(policy)).all()


def test_trust_region_step_stays_where_nothing_is_to_be_gained():
    policy = random_policy(FIXED, seed=0, runs=(2,))
    gradient = exact.gradient(FIXED, policy)
    gradient[0] = 0
    gradient[1] *= -1
    moved = trust_region_step(policy, gradient, 0.05, lambda p: exact.J(FIXED, p))
    assert moved.logits.equal(policy.logits)


def test_trpo_keeps_to_its_bound_on_every_update():
    runs = Runs(ENDING, [Learner("TRPO", baseline="state", delta=0.02)], range(50))
    for _ in range(20):
        before = runs.policy
        runs.update()
        assert (exact.kl(before, runs.policy) <= 0.02 + 1e-12).all()


def test_a_leash_leads_to_the_tilted_policy():
    start, beta = random_policy(ENDING, seed=0), 1.0
    learner = Learner("leash", baseline="leave-one-out", beta=beta, optimiser="sgd", lr=0.3)
    runs = Runs(ENDING, [learner], range(4), batch=256, start=start)
    for _ in range(400):
        runs.update()
    optimum = exact.tilted(ENDING, start, beta)
    wide = Policy(ENDING, optimum.logits.expand_as(runs.policy.logits))
    assert exact.kl(optimum, start) > 0.2
    assert (exact.kl(runs.policy, wide) < 0.02).all()


def test_an_entropy_bonus_keeps_entropy():
    plain, bonus = Learner("plain", baseline="mean"), Learner("bonus", baseline="mean", entropy=0.5)
    trained = train(FIXED, [plain, bonus], seeds=range(5), updates=100)
    entropies = exact.entropy(trained.policy)
    assert (entropies[1] > entropies[0]).all()


def test_learned_values_come_to_the_exact_ones():
    # A policy that hardly moves, so that its values stand still.
    learner = Learner("critic", lr=1e-9, baseline="learned", value_lr=0.02)
    runs = Runs(ENDING, [learner], range(2), batch=512)
    for _ in range(300):
        runs.update()
    weights = exact.visits(uniform_policy(ENDING))
    error = (runs.values[0] - exact.values(ENDING, uniform_policy(ENDING))).abs()
    assert ((weights * error).sum(dim=-1) / weights.sum() < 0.05).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learners": []}, "at least one learner"),
        ({"seeds": []}, "at least one learner and one seed"),
        ({"batch": 0}, "batches of at least 1"),
        ({"learners": [Learner(baseline="leave-one-out")], "batch": 1}, "batches of at least 2"),
        ({"start": random_policy(FIXED, seed=0, runs=(2,))}, "one policy"),
        ({"start": uniform_policy(ENDING)}, "must agree"),
        ({"updates": 0}, "updates must be at least 1"),
    ],
)
def test_what_cannot_be_trained_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**{"world": FIXED, "learners": [Learner()], "seeds": [0], "updates": 1} | arguments)
