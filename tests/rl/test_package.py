import subprocess
import sys

import jaxtyping
import pytest
import torch

from lessons import rl


def test_importing_rl_imports_no_other_room():
    code = "import sys, lessons.rl; print(*(m for m in sys.modules if m.split('.')[0] == 'lessons'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "lessons.rl" in modules
    assert {m for m in modules if not m.startswith("lessons.rl")} == {"lessons"}


def test_every_exported_name_exists_and_has_a_docstring():
    assert len(rl.__all__) == 17
    assert all(getattr(rl, name).__doc__ for name in rl.__all__)


def test_annotations_are_checked_in_the_tests():
    x, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(jaxtyping.TypeCheckError, match="values"):
        rl.gae(x, x[:, :2], mask)
    with pytest.raises(jaxtyping.TypeCheckError, match="mask"):
        rl.whiten(x, mask.float())
    with pytest.raises(jaxtyping.TypeCheckError, match="scores"):
        rl.per_token_rewards(torch.zeros(3), x, x, mask, 0.1)
    with pytest.raises(jaxtyping.TypeCheckError, match="target"):
        rl.AdaptiveKL(0.1, "6", 10_000)
