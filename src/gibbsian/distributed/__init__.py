"""Several processes: who is there, and random streams that do not depend on how many there are."""

from gibbsian.distributed.shards import OneStream, Shards, Share, Streams, streams_of
from gibbsian.distributed.world import World, join

__all__ = ["OneStream", "Shards", "Share", "Streams", "World", "join", "streams_of"]
