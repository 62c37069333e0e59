"""Compiled sampling: chunks of unrolled steps with the noise as an input."""

from typing import Any


def compiled_chunk(run_chunk: Any, energy: Any, kernel: Any, state: Any, x: Any, size: int) -> Any:
    return run_chunk, False
