"""Files and folders of runs: written as a whole, read with a word on what is wrong, named by what is free."""

import json
import os
from pathlib import Path
from typing import Any

from gibbsian.errors import CheckpointError


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file so that it is there as a whole, or stays as it was where that fails (a full disk, a kill)."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)  # in a folder from elsewhere it may be a link to a file of yours
        new.write_bytes(content if isinstance(content, bytes) else content.encode())
        new.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        new.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """What a JSON file of a run folder holds; `CheckpointError` in one sentence."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged ({error}); put back a copy, or remove it") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}); put back a copy") from error


def usual_folder(name: str) -> Path:
    """`runs/name`, taken or not."""
    return Path(os.environ.get("GIBBSIAN_RUNS", "runs")) / name


def free_folder(name: str) -> Path:
    """`runs/name`, or `runs/name-2`, ... where that is taken."""
    base = usual_folder(name)
    folder, i = base, 2
    while folder.exists():
        folder, i = base.with_name(f"{base.name}-{i}"), i + 1
    return folder
