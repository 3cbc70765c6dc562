"""The language-model world: reviews, their critic, a reward model, and PPO with four GPT-2 models."""

from transformers.utils import logging

# Every load and save of a model would draw a bar of its own, between the bars of the training it belongs to.
logging.disable_progress_bar()
