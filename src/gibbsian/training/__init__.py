"""Training runs: the loop, run folders, the guard, averages, data feeding and several processes."""

from gibbsian.distributed.world import World
from gibbsian.training.feeds.base import Loading
from gibbsian.training.guard import Guard
from gibbsian.training.loggers import Logger
from gibbsian.training.run import Checkpoints, Engine, Logging, Run
from gibbsian.training.stopping import EarlyStopping

__all__ = ["Checkpoints", "EarlyStopping", "Engine", "Guard", "Loading", "Logger", "Logging", "Run", "World"]
