"""Run folders written by version 0.1.0 (`old_runs/`, with what it found) are read, give the same numbers, and go on.

They name modules, classes, fields, arguments and settings as these were called then: `gibbsian.training.renames`.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import gibbsian as gb
from gibbsian.app.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:.*before run folders had checksums")
OLD = Path(__file__).parent / "old_runs"
FOLDERS = sorted(folder.name for folder in OLD.iterdir() if not folder.name.startswith("cli-"))
COMMANDS = sorted(folder.name for folder in OLD.iterdir() if folder.name.startswith("cli-"))


def probe(model, kind: str, inputs: dict[str, Tensor]) -> Tensor:
    """Energies, or what a model without them has, of fixed inputs."""
    x = inputs["x"]
    if kind == "score":
        return model.score(x)
    if kind == "bound":
        return model.log_mass_bound(x, generator=torch.Generator().manual_seed(0)).detach()
    return (model.given(inputs["condition"]) if kind == "given" else model)(x).detach()


def listed(name: str, tensors: dict[str, Tensor]) -> list[Tensor]:
    return [tensors[f"{name}.{i}"] for i in range(sum(key.startswith(f"{name}.") for key in tensors))]


def opened(name: str, tmp_path: Path) -> tuple[Path, dict, dict[str, Tensor]]:
    """A copy of a run folder, what is known of it, and what the old version found."""
    shutil.copytree(OLD / name / "run", tmp_path / "run")
    expected = {key: tensor.clone() for key, tensor in load_file(OLD / name / "expected.safetensors").items()}
    return tmp_path / "run", json.loads((OLD / name / "note.json").read_text()), expected


def check_weights(model: torch.nn.Module, expected: list[Tensor], **tolerance: float) -> None:
    for mine, theirs in zip([*model.parameters(), *model.buffers()], expected, strict=True):
        torch.testing.assert_close(mine.detach(), theirs, **tolerance)


@pytest.mark.parametrize("name", FOLDERS)
def test_old_runs_load_and_go_on(name, tmp_path):
    """Loaded weights to the bit; what is computed from them to the rounding of another processor."""
    folder, note, expected = opened(name, tmp_path)
    inputs = {key: tensor.clone() for key, tensor in load_file(OLD / name / "input.safetensors").items()}
    model = gb.load(folder)
    check_weights(model, listed("weights", expected), rtol=0, atol=0)
    torch.testing.assert_close(probe(model, note["probe"], inputs), expected["energy"])
    if "ema" in expected:
        torch.testing.assert_close(probe(gb.load(folder, ema=True), note["probe"], inputs), expected["ema"])
    parts = tuple(inputs[key] for key in sorted(inputs) if key.startswith("data"))
    run = gb.resume(folder, parts[0] if len(parts) == 1 else parts, steps=note["resumed_steps"], progress=False)
    assert run.step == note["resumed_steps"]
    check_weights(run.energy, listed("resumed", expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", COMMANDS)
def test_old_runs_of_the_command_line_are_sampled_evaluated_and_resumed(name, tmp_path, capsys):
    folder, note, expected = opened(name, tmp_path)
    check_weights(gb.load(folder), listed("weights", expected), rtol=0, atol=0)
    drawn = tmp_path / "drawn.npy"
    assert main(["sample", str(folder), "-n", "4", "--steps", "5", "--out", str(drawn), "--quiet"]) == 0
    torch.testing.assert_close(torch.from_numpy(np.load(drawn)), expected["sample"], rtol=1e-4, atol=1e-5)
    if "evaluate" in expected:
        capsys.readouterr()
        assert main(["evaluate", str(folder), "--json", "--betas", "20", "--chains", "5"]) == 0
        found = json.loads(capsys.readouterr().out)["likelihood"]
        interval = torch.tensor([found[key] for key in ("value", "lower", "upper")], dtype=torch.float64)
        torch.testing.assert_close(interval, expected["evaluate"], rtol=1e-4, atol=1e-5)
    assert main(["resume", str(folder), "--steps", str(note["resumed_steps"]), "--no-report", "--quiet"]) == 0
    check_weights(gb.load(folder), listed("resumed", expected), rtol=1e-4, atol=1e-6)
