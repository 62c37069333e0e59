"""Looking at models and chains: every function draws on axes `ax` that you give it and returns them.

>>> import matplotlib.figure
>>> from gibbsian import models, plots
>>> ax = matplotlib.figure.Figure().subplots()
>>> ax = plots.filters(models.RBM(16, 6), ax, shape=(4, 4))
"""

from gibbsian.drawing.history import history
from gibbsian.drawing.images import filters, image_grid, reconstructions, samples, tile
from gibbsian.drawing.landscape import chains, landscape, score_field
from gibbsian.drawing.traces import ranks, traces
from gibbsian.plots.curves import (
    ais_weights,
    energy_histogram,
    free_energies,
    free_energy_gap,
    hidden_activity,
    reliability,
    roc,
)
from gibbsian.plots.sequences import agreement, components, contact_map, identities, information, logo, precision_curve

__all__ = [
    "agreement",
    "ais_weights",
    "chains",
    "components",
    "contact_map",
    "energy_histogram",
    "filters",
    "free_energies",
    "free_energy_gap",
    "hidden_activity",
    "history",
    "identities",
    "image_grid",
    "information",
    "landscape",
    "logo",
    "precision_curve",
    "ranks",
    "reconstructions",
    "reliability",
    "roc",
    "samples",
    "score_field",
    "tile",
    "traces",
]
