"""The folder of a run: configuration, environment, metrics, checkpoints.

run/config.json        the energy by its constructor, the objective and the settings
run/environment.json   versions and devices
run/metrics.jsonl      one record a line
run/checkpoints/       see gibbsian.training.checkpoint
"""

import json
import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any

import torch

import gibbsian
from gibbsian.errors import CheckpointError
from gibbsian.training import checkpoint


def create(folder: Path, config: dict[str, Any], tree: dict[str, Any], device: torch.device) -> None:
    """Write configuration, environment and the first checkpoint; the folder appears whole or not at all."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(
            f"{folder} already holds files; go on with gibbsian.resume({str(folder)!r}, data), "
            "or choose another run_dir"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        checkpoint.write_tree(temporary, "config", config, weightless={"energy"})
        (temporary / "environment.json").write_text(json.dumps(_environment(device), indent=1))
        checkpoint.save_checkpoint(temporary, tree["step"], tree)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _environment(device: torch.device) -> dict[str, Any]:
    return {
        "gibbsian": gibbsian.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def read_config(folder: Path, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The configuration of a run, or its parts under `keys`."""
    if not (folder / "config.json").exists():
        raise CheckpointError(
            f"{folder} is not a run folder: it has no config.json; give the run_dir of a gibbsian.fit"
        )
    return checkpoint.read_tree(folder, "config", keys)


def where(folder: Path | None) -> str:
    """Where the last checkpoint is and how to go on from it."""
    if folder is None:
        return "nothing was saved, since there is no run_dir; the energy holds the weights reached so far"
    saved = checkpoint.steps_saved(folder)
    last = f"the last checkpoint is of step {saved[-1]}" if saved else "there is no checkpoint"
    return f"{last} in {folder}; go on with gibbsian.resume({str(folder)!r}, data)"
