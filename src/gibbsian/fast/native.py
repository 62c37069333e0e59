"""C functions for the CPU, where an element-wise pass of PyTorch costs more in memory and calls than in arithmetic.

They are compiled once by the C compiler of the machine and kept in the user's cache, under the digest of all that they
depend on. Where there is no compiler, or GIBBSIAN_NATIVE=0 says so, callers take their plain twin, with the same result.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["cache_folder", "library", "processor"]

_FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")


@functools.cache
def library(source: str) -> ctypes.CDLL | None:
    """The functions of a C source, or None where it cannot be compiled."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None or os.environ.get("GIBBSIAN_NATIVE") == "0":
        return None
    try:
        return ctypes.CDLL(str(_built(source, compiler)))
    except (OSError, subprocess.SubprocessError):  # no room, no right to write, an odd compiler
        return None


def _built(source: str, compiler: str) -> Path:
    """The compiled library on disk; it appears whole."""
    folder = cache_folder()
    named = "\0".join([source, compiler, *_FLAGS, processor()])
    path = folder / f"{hashlib.sha256(named.encode()).hexdigest()[:32]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as made:
            code, built = Path(made) / "source.c", Path(made) / "built.so"
            code.write_text(source)
            command = [compiler, *_FLAGS, "-o", str(built), str(code), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            built.replace(path)
    return path


def cache_folder() -> Path:
    """Where compiled code is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gibbsian"


@functools.cache
def processor() -> str:
    """What the processor can do: a home may be shared by different ones."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    able = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.system()} {platform.machine()} {platform.processor()} {able}"
