"""The estimator card: its numbers by hand and against exact moments, and the table it prints."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons import rl
from lessons.panels.estimator_card import Card, Estimator, baseline_estimators, compute_card
from lessons.tabular import exact
from lessons.tabular.policy import random_policy, uniform_policy
from lessons.tabular.world import World

COIN = World(vocab=2, length=1, target=(0,))  # one token of two: R is 1 or 0, and ∇J is (¼, −¼)
WORLDS = [World(vocab=4, length=2), World(vocab=3, length=3, end=2)]
ROWS = ("R + 10", "R", "R − J", "R − batch mean", "R − mean of others", "R − V(s_t)", "R − Q(s_t, a_t)")


def card_of(world, policy, batch=4, batches=500):
    return compute_card(world, policy, baseline_estimators(world, policy), batch, batches)


class TestNumbers:
    def test_of_a_coin_with_two_throws_are_those_found_by_hand(self):
        # R ∇ log π is (½, −½) or 0; less J = ½ both are ∇J itself. In half of the batches the two throws are
        # equal, and their mean leaves nothing; else (¼, −¼) is left, and twice that by leave-one-out.
        card = card_of(COIN, uniform_policy(COIN), batch=2)
        assert card.names == ROWS
        assert card.bias == pytest.approx([0, 0, 0, 0.5, 0, 0, 1], abs=1e-12)
        assert card.along == pytest.approx([1, 1, 1, 0.5, 1, 1, 0], abs=1e-12)
        # With the offset (R + 10) ∇ log π is (5½, −5½) or (−5, 5): 21 times as far from ∇J, either way.
        assert card.variance == pytest.approx([21**2 / 2, 0.5, 0, 0.25, 1, 0, 0], abs=1e-12)

    @pytest.mark.parametrize("world", WORLDS)
    def test_sampled_ones_agree_with_the_exact_ones_within_four_standard_errors(self, world):
        card = card_of(world, random_policy(world, seed=1), batches=2000)
        assert (np.abs(card.sampled - card.along) <= 4 / 1.96 * card.half_width).all()

    @pytest.mark.parametrize("world", WORLDS)
    def test_of_variance_agree_with_sampled_batches(self, world):
        policy = random_policy(world, seed=2)
        estimators = baseline_estimators(world, policy)
        card = compute_card(world, policy, estimators, batch=3, batches=2)
        y, g = policy.sample((20_000, 3), seed=0), exact.gradient(world, policy)
        for one, variance in zip(estimators, card.variance):
            estimates = one.estimates(policy, y)
            distances = ((estimates - estimates.mean(dim=0)) ** 2).sum(dim=-1) / (g @ g)
            error = 4 * distances.std() / len(distances) ** 0.5
            assert abs(distances.mean() - variance) <= error, one.name

    @settings(max_examples=25)
    @given(seed=st.integers(0, 10_000), batch=st.integers(2, 20))
    def test_of_bias_are_the_same_at_every_policy(self, seed, batch):
        world = WORLDS[seed % 2]
        card = card_of(world, random_policy(world, seed), batch, batches=2)
        assert card.bias == pytest.approx([0, 0, 0, 1 / batch, 0, 0, 1], abs=1e-9)
        assert card.along == pytest.approx(1 - card.bias, abs=1e-9)

    def test_of_bias_count_what_lies_beside_the_gradient(self):
        world = WORLDS[0]
        policy = random_policy(world, seed=3)

        def only_the_first_token(y):
            return world.returns(y)[..., None] * torch.tensor([1.0, 0.0], dtype=torch.float64)

        card = compute_card(world, policy, [Estimator("first token", only_the_first_token, "")])
        g = exact.gradient(world, policy)
        kept = ((g[: world.vocab] ** 2).sum() / (g @ g)).item()
        assert card.along == pytest.approx([kept])
        assert card.bias == pytest.approx([(1 - kept) ** 0.5])

    def test_of_the_interval_are_a_direct_computation(self):
        world, policy = WORLDS[1], random_policy(WORLDS[1], seed=4)
        card = card_of(world, policy, batch=3, batches=50)
        y, g = policy.sample((50, 3), seed=0), exact.gradient(world, policy)
        R = world.returns(y)
        # loops and autograd in place of closed forms
        along = []
        for responses, weights in zip(y, R - R.mean(dim=1, keepdim=True)):
            moving = type(policy)(world, policy.logits.clone().requires_grad_())
            mask = world.mask(responses)
            loss = rl.reinforce(moving.log_probs(responses), weights[:, None].expand(mask.shape), mask)
            (gradient,) = torch.autograd.grad(-loss, moving.logits)
            along.append((gradient.flatten() @ g / (g @ g)).item())
        row = ROWS.index("R − batch mean")
        assert card.sampled[row] == pytest.approx(np.mean(along))
        assert card.half_width[row] == pytest.approx(1.96 * np.std(along, ddof=1) / 50**0.5)


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"estimators": ()}, "no estimators"),
            ({"policy": uniform_policy(COIN, runs=(2,))}, r"one policy, not of one with runs \(2,\)"),
            ({"batches": 1}, "at least 2 batches, not 1"),
            ({"batch": 1}, "at least 2 responses here, not 1"),
            ({"world": World(vocab=2, length=1, reward=lambda y: 0.0 * y[..., 0])}, "∇J is 0"),
        ],
    )
    def test_gets_one_clear_line(self, change, message):
        policy = uniform_policy(COIN)
        given = {"world": COIN, "policy": policy, "estimators": baseline_estimators(COIN, policy)}
        with pytest.raises(ValueError, match=message):
            compute_card(**given | change)


class TestTable:
    @pytest.fixture
    def card(self):
        return Card(
            names=("R", "a < b"), costs=("nothing", "a sum"), batch=16, batches=4000,
            bias=np.array([1e-15, 0.0625]), along=np.array([1.0, 0.9375]), sampled=np.array([0.99, -0.1]),
            half_width=np.array([0.02, 0.3]), variance=np.array([1135.83, 2.5]),
        )  # fmt: skip

    def test_as_text_has_a_line_an_estimator(self, card):
        head, first, second, empty, note = repr(card).splitlines()
        assert head.split("  ")[0] == "estimator" and head.endswith("needs beside R")
        assert first.split() == ["R", "0", "1.000", "0.990", "±", "0.020", "1135.83", "nothing"]
        assert second.split()[:4] == ["a", "<", "b", "6.25"] and "−0.100 ± 0.300" in second
        assert first.index("1135.83") + 7 == second.index("2.50") + 4  # numbers end below each other
        assert empty == "" and "16 responses" in note

    def test_as_html_has_the_same_cells(self, card):
        html = card._repr_html_()
        assert html.count("<tr>") == 3 and html.count("<th ") == html.count("</th>") == 6
        assert html.count("<td ") == html.count("</td>") == 12
        for cell in ("a &lt; b", "6.25 %", "0.990 ± 0.020", "in 4,000 batches", "a sum"):
            assert f">{cell}<" in html
