"""Checks every shape and type annotation of `lessons` while the tests run, before any test imports it."""

from hypothesis import settings
from jaxtyping import install_import_hook

# The tower lets an int stand where a float is asked for, as in all of Python's typing.
install_import_hook("lessons", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

# The first example pays for torch's start, and a busy machine is no failure.
settings.register_profile("lessons", deadline=None)
settings.load_profile("lessons")
