"""Classes that stand in run folders of older versions are found under their present names."""

import importlib
from pathlib import Path

import pytest

from gibbsian.training.renames import current_name

OLD = (Path(__file__).parent / "old_names.txt").read_text(encoding="utf-8").split()  # as of 0.1.0


@pytest.mark.parametrize("room", sorted({name.split(":")[0].split(".")[1] for name in OLD}))
def test_every_class_that_a_run_folder_may_name_is_still_found(room):
    lost = {}
    for name in OLD:
        if name.split(":")[0].split(".")[1] == room:
            module, _, cls = current_name(name).partition(":")
            try:
                getattr(importlib.import_module(module), cls)
            except (ImportError, AttributeError) as error:
                lost[name] = error
    assert not lost
