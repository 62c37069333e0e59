"""What users do with tensors and generators of another device, on a machine that has none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

devices = pytest.mark.skipif(
    "_setup_privateuseone_for_python_backend" not in vars(backend_registration),
    reason="this torch knows no devices in Python",
)


@devices
def test_nothing_is_left_on_the_host():
    """In a process of its own: a device is there for good."""
    here = Path(__file__).parent
    told = subprocess.run(
        [sys.executable, "second_device_cases.py"], cwd=here, capture_output=True, text=True, check=False
    )
    assert not told.returncode, told.stderr
    *wrong, (tried) = [json.loads(line) for line in told.stdout.splitlines() if line.startswith("{")]
    assert not wrong, "\n\n".join(f"{one['case']}: {one['error']}\n{one['where']}" for one in wrong)
    assert tried["tried"] > 80
