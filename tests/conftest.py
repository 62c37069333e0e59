"""One thread a worker: tests run side by side, and threads that fight over cores are ten times slower. And Ctrl-C as a
terminal has it: a shell starts what runs in its background with that signal ignored, and tests send it."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

collect_ignore = [
    "second_device.py",
    "second_device_cases.py",
]  # for a process of their own, which they change for good
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)
