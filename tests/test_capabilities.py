"""Capabilities are seen by every Python, and by the models that say they have them."""

import importlib
import inspect
import pkgutil
from typing import get_type_hints

import pytest
import torch

import gibbsian as gb
from gibbsian import capabilities, errors
from gibbsian.capabilities import ConditionedModel


def test_no_capability_asks_for_a_tensor_or_module_by_attribute():
    """isinstance looks attributes up statically from Python 3.12 on, past `nn.Module.__getattr__`."""
    protocols = [c for _, c in inspect.getmembers(capabilities, inspect.isclass) if getattr(c, "_is_protocol", False)]
    assert ConditionedModel in protocols
    for protocol in protocols:
        if protocol is capabilities.Estimate:  # of results, which are no modules
            continue
        for name, kind in get_type_hints(protocol).items():
            assert kind not in (torch.Tensor, torch.nn.Module), f"{protocol.__name__}.{name}: make it a method"


def test_every_capability_has_its_place_in_the_reference():
    own = {
        name for name, c in inspect.getmembers(capabilities, inspect.isclass) if c.__module__ == capabilities.__name__
    }
    assert set(capabilities.__all__) == own | {"require"}


def test_a_machine_under_inputs_is_known_for_one():
    machine = gb.models.TemporalRBM(4, 3, order=1)
    assert isinstance(machine.given(torch.zeros(2, 1, 4)), ConditionedModel)
    assert not isinstance(machine, ConditionedModel)


def models_of_the_library():
    found, open_ = set(), [gb.Energy, gb.ScoreField]
    while open_:
        below = [kind for kind in open_.pop().__subclasses__() if kind.__module__.startswith("gibbsian.")]
        open_ += below
        found |= set(below)
    return sorted(found, key=lambda kind: kind.__qualname__)


def test_no_model_has_a_capability_by_the_name_alone():
    """`isinstance` looks at names: a class that has all those of a capability must take its arguments too."""
    for module in pkgutil.walk_packages(gb.__path__, "gibbsian."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    seen = set()
    for name, protocol in inspect.getmembers(capabilities, inspect.isclass):
        if not getattr(protocol, "_is_protocol", False):
            continue
        methods = {m: f for m, f in inspect.getmembers(protocol, inspect.isfunction) if not m.startswith("_")}
        for kind in models_of_the_library():
            if not methods or not all(hasattr(kind, m) for m in methods):
                continue
            seen.add(name)
            for method, asked in methods.items():
                own = inspect.getattr_static(kind, method)
                where = f"{kind.__name__}.{method} is not that of capabilities.{name}"
                assert inspect.isfunction(own), where
                takes = [p for p in inspect.signature(asked).parameters.values() if p.default is p.empty]
                named = {p.name: None for p in takes if p.kind is p.KEYWORD_ONLY}
                try:
                    inspect.signature(own).bind(*[None for p in takes if p.kind is not p.KEYWORD_ONLY], **named)
                except TypeError as error:
                    raise AssertionError(f"{where}: {error}") from None
    assert {"SummableModel", "Multiple", "Sampleable", "GibbsModel"} <= seen


def test_a_field_of_labels_and_a_mixture_are_asked_for_what_they_know():
    with pytest.raises(errors.GibbsianError, match="given"):
        gb.partition.exact(gb.energies.LabelField(torch.nn.Identity(), 3))
    mixture = gb.energies.GaussianMixture(torch.zeros(2, 1))
    assert not isinstance(mixture, capabilities.Multiple)
    assert isinstance(mixture.tempered(0.5), capabilities.Multiple)
