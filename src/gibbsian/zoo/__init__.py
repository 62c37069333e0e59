"""Trained models at hand."""

from gibbsian.zoo.packing import chains_of, pack, save

__all__ = ["chains_of", "pack", "save"]
