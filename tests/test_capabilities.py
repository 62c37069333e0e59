"""Capabilities are seen by every Python, and by the models that say they have them."""

import inspect
from typing import get_type_hints

import torch

import gibbsian as gb
from gibbsian import capabilities
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


def test_a_machine_under_inputs_is_known_for_one():
    machine = gb.models.TemporalRBM(4, 3, order=1)
    assert isinstance(machine.given(torch.zeros(2, 1, 4)), ConditionedModel)
    assert not isinstance(machine, ConditionedModel)
