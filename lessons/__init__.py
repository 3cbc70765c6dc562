"""Policy gradients and PPO on text: the code behind the notebooks."""
