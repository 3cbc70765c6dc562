"""The tree of prefixes, the mask and the rewards of both worlds."""

import pytest
import torch

from lessons.tabular import World

FIXED = World(vocab=8, length=3)
ENDING = World(vocab=8, length=4, end=7)


def test_three_tokens_of_eight_make_512_responses_and_73_states():
    assert len(FIXED.sequences) == len(set(map(tuple, FIXED.sequences.tolist()))) == 512
    assert FIXED.rows == 1 + 8 + 64


def test_responses_with_an_end_token_have_one_to_four_tokens_and_are_padded_with_it():
    lengths = ENDING.mask(ENDING.sequences).sum(dim=-1)
    # 7^(n-1) responses end at token n; of four tokens there are 7^3 with and 7^4 without the end token
    assert torch.bincount(lengths).tolist() == [0, 1, 7, 49, 343 + 2401]
    assert (ENDING.sequences[~ENDING.mask(ENDING.sequences)] == 7).all()


def test_mask_keeps_the_end_token_and_drops_what_is_behind_it():
    y = torch.tensor([[7, 7, 7, 7], [3, 7, 7, 7], [3, 1, 2, 7], [3, 1, 2, 0], [3, 7, 5, 7]])
    assert ENDING.mask(y).sum(dim=-1).tolist() == [1, 2, 4, 4, 2]


def test_states_are_numbered_by_their_prefix():
    states = FIXED.states(torch.tensor([[2, 5, 0], [7, 7, 7]]))
    assert states.tolist() == [[0, 1 + 2, 1 + 8 + 8 * 2 + 5], [0, 8, 72]]


@pytest.mark.parametrize("world", [FIXED, ENDING])
def test_a_state_is_one_prefix_and_lies_in_the_level_of_its_length(world):
    y, mask, states = world.sequences, world.mask(world.sequences), world.states(world.sequences)
    prefixes = {}
    for tokens, rows, counts in zip(y.tolist(), states.tolist(), mask.tolist(), strict=True):
        for t, row in enumerate(rows):
            if counts[t]:
                assert prefixes.setdefault(row, tokens[:t]) == tokens[:t]
                assert world.levels[t].start <= row < world.levels[t].stop
    assert len(set(map(tuple, prefixes.values()))) == len(prefixes)


def test_a_point_for_each_token_that_stands_where_the_target_has_it():
    world = World(vocab=8, length=3, target=(2, 5, 0), offset=10.0)
    y = torch.tensor([[2, 5, 0], [5, 2, 0], [0, 0, 1]])
    assert world.matches(y).tolist() == [3, 1, 0]
    assert world.returns(y).tolist() == [13, 11, 10]


def test_padding_matches_nothing():
    world = World(vocab=4, length=4, end=3, target=(0, 3, 3, 3))
    assert world.matches(torch.tensor([[0, 3, 3, 3]])).item() == 2


@pytest.mark.parametrize("pays", ["last", "token"])
@pytest.mark.parametrize("end", [None, 1])
def test_rewards_are_the_return_told_token_by_token(pays, end):
    world = World(vocab=3, length=4, end=end, offset=10.0, pays=pays)
    y, mask = world.sequences, world.mask(world.sequences)
    rewards = world.rewards(y)
    torch.testing.assert_close(rewards.sum(dim=-1), world.returns(y))
    assert (rewards[~mask] == 0).all()
    torch.testing.assert_close(world.reward_table[world.states(y), y], rewards)


def test_rewards_by_hand():
    y = torch.tensor([[0, 3, 3], [0, 1, 3]])
    last = World(vocab=4, length=3, end=3, target=(0, 1, 3), offset=10.0)
    token = World(vocab=4, length=3, end=3, target=(0, 1, 3), offset=10.0, pays="token")
    assert last.rewards(y).tolist() == [[0, 11, 0], [0, 0, 13]]
    assert token.rewards(y).tolist() == [[1, 10, 0], [1, 1, 11]]


def test_any_function_of_the_response_can_be_the_reward():
    world = World(vocab=3, length=2, reward=lambda y: y.prod(dim=-1), offset=0.5)
    assert world.returns(torch.tensor([[2, 2], [0, 2]])).tolist() == [4.5, 0.5]
    assert world.reward_table.sum() == (world.sequences.prod(dim=-1) + 0.5).sum()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab": 1}, "vocab >= 2"),
        ({"length": 0}, "length >= 1"),
        ({"vocab": 50, "length": 5}, "at most a million"),
        ({"end": 8}, "token from 0 to 7"),
        ({"target": (1, 2)}, "3 tokens below 8"),
        ({"target": (1, 2, 8)}, "3 tokens below 8"),
        ({"pays": "token", "reward": lambda y: y.sum(dim=-1)}, "only be paid on the last token"),
    ],
)
def test_what_makes_no_world_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        World(**settings)


def test_a_reward_that_is_not_one_number_a_response_is_refused():
    with pytest.raises(ValueError, match="one number a response"):
        World(reward=lambda y: y).returns(FIXED.sequences)
