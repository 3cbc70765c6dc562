import json
import warnings
from dataclasses import replace

import pytest
import torch

from lessons.gpt import materials
from lessons.gpt.cache import cache_folder
from lessons.gpt.corpus import review_corpus
from lessons.gpt.critic import ReviewCritic, VaderCritic
from lessons.gpt.materials import prepare
from lessons.gpt.models import PRESETS
from lessons.gpt.preferences import RewardReport


def entries(kind=""):
    return sorted(path.name for path in cache_folder().glob(f"{kind}*") if path.name != "locks")


def same_weights(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def made(monkeypatch):
    """What is trained, in order."""
    made = []
    for name in ("_train_base", "_train_reward"):
        original = getattr(materials, name)

        def noted(*args, name=name, original=original):
            made.append(name.removeprefix("_train_"))
            return original(*args)

        monkeypatch.setattr(materials, name, noted)
    return made


@pytest.fixture
def ready(text_file, made):
    """Materials of the text file with some settings changed."""
    return lambda **changes: prepare(**{"corpus": text_file, "limit": 6, "progress": False, **changes})


class TestPrepare:
    def test_trains_once_and_reads_the_same_from_the_cache(self, ready, made):
        first, second = ready(), ready()
        assert made == ["base", "reward"]
        assert same_weights(first.base, second.base)
        assert same_weights(first.reward, second.reward)
        assert first.reward.config.score_std == second.reward.config.score_std != 1
        assert first.report == second.report
        assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
        assert first.corpus == second.corpus

    def test_makes_the_same_again_from_nothing(self, ready, made, monkeypatch, tmp_path):
        first = ready()
        monkeypatch.setenv("LESSONS_CACHE", str(tmp_path / "another"))
        second = ready()
        assert made == ["base", "reward"] * 2
        assert same_weights(first.base, second.base)
        assert same_weights(first.reward, second.reward)
        assert first.report == second.report

    def test_gives_frozen_models_without_dropout(self, ready):
        things = ready()
        for model in (things.base, things.reward):
            assert not model.training
            assert not any(p.requires_grad for p in model.parameters())
            assert not any(m.p for m in model.modules() if isinstance(m, torch.nn.Dropout))
        assert isinstance(things.corpus.critic, VaderCritic)
        assert isinstance(things.report, RewardReport)

    def test_normalises_the_scores_over_the_samples_of_the_supervised_model(self, ready):
        config = ready().reward.config
        assert config.score_mean != 0
        assert config.score_std > 0

    @pytest.mark.parametrize(
        "changes, again",
        [
            ({"base_seed": 1}, ["base", "reward"]),
            ({"reward_seed": 1}, ["reward"]),
            ({"limit": 7}, ["reward"]),
        ],
    )
    def test_makes_again_what_a_changed_setting_touches(self, ready, made, changes, again):
        first = ready()
        made.clear()
        second = ready(**changes)
        assert made == again
        assert same_weights(first.base, second.base) == (again == ["reward"])
        assert not same_weights(first.reward, second.reward)

    def test_makes_all_again_for_another_text_or_size(self, ready, made, text_file, tmp_path, monkeypatch):
        ready()
        other = tmp_path / "other.txt"
        other.write_text(text_file.read_text() + "one more document\n")
        ready(corpus=other)
        monkeypatch.setitem(PRESETS, "pocket", replace(PRESETS["pocket"], epochs=1))
        ready()
        assert made == ["base", "reward"] * 3
        assert len(entries()) == 6

    def test_the_same_texts_in_another_file_are_the_same_corpus(self, ready, made, text_file, tmp_path):
        ready()
        copy = tmp_path / "copy.txt"
        copy.write_bytes(text_file.read_bytes())
        ready(corpus=copy)
        assert made == ["base", "reward"]

    @pytest.mark.parametrize("kind", ["base", "reward"])
    def test_detects_reports_and_makes_again_a_damaged_model(self, ready, made, kind):
        first = ready()
        weights = cache_folder() / entries(kind)[0] / "model.safetensors"
        damaged = bytearray(weights.read_bytes())
        damaged[-5] ^= 1
        weights.unlink()  # the loaded model is a map of this file: what is written into it, it would read
        weights.write_bytes(damaged)
        made.clear()
        with pytest.warns(UserWarning, match=rf"the cached {kind}-pocket is damaged \(model.safetensors ch"):
            second = ready()
        assert made == [kind]
        assert same_weights(first.base, second.base)
        assert same_weights(first.reward, second.reward)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            ready()

    def test_ctrl_c_while_it_trains_leaves_no_entry(self, ready, monkeypatch):
        def stopped(*args):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(materials, "_train_reward", stopped)
            with pytest.raises(KeyboardInterrupt):
                ready()
        assert len(entries("base")) == 1
        assert entries() == entries("base")
        ready()
        assert len(entries()) == 2

    def test_uses_the_reviews_and_their_exact_critic_without_a_file(self, ready, monkeypatch):
        small = replace(PRESETS["pocket"], epochs=1, pairs=16, reward_epochs=1)
        monkeypatch.setitem(PRESETS, "pocket", small)
        monkeypatch.setattr(materials, "load_corpus", lambda path: review_corpus(120))
        things = ready(corpus=None, limit=12)
        assert isinstance(things.corpus.critic, ReviewCritic)
        assert 0.5 <= things.report.ceiling <= 1
        assert things.report.gold_std > 0

    def test_refuses_an_unknown_preset_in_one_line(self, ready):
        with pytest.raises(ValueError, match="preset must be one of pocket, gpt2-small, not 'huge'"):
            ready(preset="huge")


class TestBase:
    """`--base` with a checkpoint in GPT-2's own format."""

    def test_is_fine_tuned_and_keeps_its_tokenizer(self, ready, made, checkpoint, bpe):
        things = ready(base=str(checkpoint))
        assert made == ["base", "reward"]
        assert things.tokenizer.get_vocab() == bpe.get_vocab()
        assert things.tokenizer.eos_token == "<|endoftext|>"
        assert things.base.config.n_layer == 2
        assert things.base.config.n_positions == 48
        assert not any(m.p for m in things.base.modules() if isinstance(m, torch.nn.Dropout))
        ready(base=str(checkpoint))
        assert made == ["base", "reward"]

    def test_of_the_same_content_is_the_same_wherever_it_lies(self, ready, made, checkpoint):
        ready(base=str(checkpoint))
        moved = checkpoint.rename(checkpoint.with_name("moved"))
        ready(base=str(moved))
        assert made == ["base", "reward"]

    @pytest.mark.parametrize("name", ["model.safetensors", "config.json", "merges.txt"])
    def test_whose_content_changes_is_another_one(self, checkpoint, name):
        before = materials._name_of(str(checkpoint))
        content = bytearray((checkpoint / name).read_bytes())
        content[-2] ^= 1
        (checkpoint / name).write_bytes(content)
        assert materials._name_of(str(checkpoint)) != before

    def test_of_a_hub_is_named_by_its_name(self):
        assert materials._name_of("openai-community/gpt2") == "openai-community/gpt2"
        assert materials._name_of(None) is None

    def test_that_cannot_be_used_is_refused_in_one_line_and_leaves_no_entry(self, ready, checkpoint):
        config = json.loads((checkpoint / "config.json").read_text())
        (checkpoint / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
        missing = checkpoint / "missing"
        for base, message in [(checkpoint, "it is a bert model"), (missing, "no GPT-2 checkpoint can be")]:
            with pytest.raises(ValueError, match=message) as refusal:
                ready(base=str(base))
            assert "\n" not in str(refusal.value)
        assert entries() == []
