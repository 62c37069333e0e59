"""One thread a worker: tests run side by side, and threads that fight over cores are ten times slower."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
