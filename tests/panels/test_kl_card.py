"""The estimator card of the KL: its numbers by hand and against exact values, and the table it prints."""

import math

import pytest
import torch

from lessons import rl
from lessons.panels.estimator_card import KL_ESTIMATORS, compute_kl_card
from lessons.tabular import Policy, World, exact, random_policy, uniform_policy

COIN = World(vocab=2, length=1, target=(0,))
WORLDS = [World(vocab=4, length=2), World(vocab=3, length=3, end=2)]
NAMES = list(KL_ESTIMATORS)
K1, K2, K2_TOKENS, K3, K3_TOKENS, STATES = range(6)


class TestNumbers:
    def test_of_a_coin_are_those_found_by_hand(self):
        # π = (¾, ¼), π_ref = (½, ½): ℓ = log 3/2 and −log 2
        policy = Policy(COIN, torch.tensor([[math.log(3), 0.0]], dtype=torch.float64))
        card = compute_kl_card(policy, uniform_policy(COIN))
        a, b = math.log(1.5), -math.log(2)
        kl = 0.75 * a + 0.25 * b
        assert card.kl == pytest.approx(kl)
        k2, k3 = (a * a / 2, b * b / 2), (2 / 3 - 1 + a, 2 - 1 + b)
        assert card.mean == pytest.approx([kl, *[0.75 * k2[0] + 0.25 * k2[1]] * 2, kl, kl, kl])
        deviations = [math.sqrt(0.75 * 0.25) * abs(x - y) for x, y in ((a, b), k2, k3)]
        assert card.deviation == pytest.approx([deviations[i] for i in (0, 1, 1, 2, 2)] + [0], abs=1e-12)
        assert card.least == pytest.approx([b, *[k2[0]] * 2, *[min(k3)] * 2, kl])
        # with one token a word is a response; ∇KL(π_ref‖π) = π − π_ref, ∇KL(π‖π_ref) = π (ℓ − KL)
        along = 0.25 / (0.75 * (a - kl))
        assert card.along == pytest.approx([0, 1, 1, along, along, 1], abs=1e-12)
        assert card.error == pytest.approx([1, 0, 0, abs(1 - along), abs(1 - along), 0], abs=1e-12)

    @pytest.mark.parametrize("world", WORLDS)
    def test_hold_in_every_world(self, world):
        policy, ref = random_policy(world, seed=0), random_policy(world, seed=1)
        card = compute_kl_card(policy, ref)
        assert card.kl == pytest.approx(exact.kl(policy, ref).item())
        assert card.mean[[K1, K3, K3_TOKENS, STATES]] == pytest.approx([card.kl] * 4)
        assert card.error[K1] == pytest.approx(1)
        assert card.error[K2] < 1e-10
        assert min(card.error[[K2_TOKENS, K3, K3_TOKENS, STATES]]) > 0.01
        assert card.least[K1] < 0 <= card.least[1:].min()
        assert card.deviation[STATES] < card.deviation[K1]

    @pytest.mark.parametrize("world", WORLDS)
    def test_agree_with_samples(self, world):
        policy, ref = random_policy(world, seed=0), random_policy(world, seed=1)
        card = compute_kl_card(policy, ref)
        y = policy.sample((40_000,), seed=0)
        for i, estimate in enumerate(KL_ESTIMATORS.values()):
            values = estimate(policy, ref, y)
            assert abs(values.mean() - card.mean[i]) <= 4 * card.deviation[i] / 200 + 1e-12
        summed = rl.k1(policy.log_probs(y), ref.log_probs(y)).sum(dim=-1)
        torch.testing.assert_close(KL_ESTIMATORS["k1"](policy, ref, y), summed)


class TestBadInput:
    def test_gets_one_clear_line(self):
        policy = random_policy(COIN, seed=0)
        with pytest.raises(ValueError, match="the policy is the reference"):
            compute_kl_card(policy, policy)
        with pytest.raises(ValueError, match=r"one policy, not of one with runs \(2,\)"):
            compute_kl_card(uniform_policy(COIN, runs=(2,)), policy)


def test_the_table_has_a_row_an_estimator_as_text_and_as_html():
    card = compute_kl_card(random_policy(WORLDS[0], seed=0), random_policy(WORLDS[0], seed=1))
    head, *rows, empty, note = repr(card).splitlines()
    assert head.startswith("estimator") and empty == "" and "from one response of π" in note
    assert [row[: len(name)] for row, name in zip(rows, NAMES, strict=True)] == NAMES
    assert "100.0 %" in rows[K1] and rows[K2].split()[-2:] == ["0", "1.000"]
    html = card._repr_html_()
    assert html.count("<tr>") == 7 and html.count("<td ") == 36 and ">k2 of the response<" in html
