"""A fitted table as a tree of plain values and tensors, and back: what a folder keeps of it."""

from typing import Any

import numpy as np

from gibbsian.errors import CheckpointError
from gibbsian.tables.codec import Codec
from gibbsian.tables.gaps import Gaps
from gibbsian.tables.laws import Law, MixtureLaw, TiltedLaw
from gibbsian.tables.model import TableModel
from gibbsian.tables.schema import Schema
from gibbsian.tables.stacked import StackedLaw


def tree_of(model: TableModel) -> dict[str, Any]:
    """All that the model is: schema, coders, law, what calibrates it."""
    return {
        "columns": list(model.schema.columns), "coders": list(model.codec.coders),
        "law": _law_parts(model.law), "judge": _law_parts(model.judge), "calibration": model.calibration,
        "per_gap": model.per_gap,
        "family": model.family, "scores": model.scores, "seed": model.seed,
        "gaps": None if model.gaps is None else {"log_odds": model.gaps.log_odds, "scores": model.gaps.scores},
    }  # fmt: skip


def model_of(tree: dict[str, Any]) -> TableModel:
    """The model that `tree_of` took apart."""
    codec = Codec(Schema(tree["columns"]), tree["coders"])

    def law(parts: dict[str, Any]) -> Law:
        if "mixture" in parts:
            return MixtureLaw(parts["mixture"], codec)
        if "stacked" in parts:
            return StackedLaw(tuple(law(part) for part in parts["stacked"]), parts["log_weight"], codec)
        parts["tilted"].net.eval().requires_grad_(False)
        return TiltedLaw(parts["tilted"], codec, parts["seed"])

    found = tree.get("gaps")  # runs before it was there have none
    gaps = None if found is None else Gaps(found["log_odds"], found["scores"])
    per_gap = tree.get("per_gap", np.zeros(len(codec.schema)))  # runs of 0.2.0 before it was there
    return TableModel(
        codec, law(tree["law"]), law(tree["judge"]), tree["calibration"], per_gap, tree["family"], tree["scores"], tree["seed"], "pandas", gaps
    )  # fmt: skip


def _law_parts(law: Law) -> dict[str, Any]:
    if isinstance(law, TiltedLaw):
        return {"tilted": law.law, "seed": law.seed}
    if isinstance(law, MixtureLaw):
        return {"mixture": law.mixture}
    if isinstance(law, StackedLaw):
        return {"stacked": [_law_parts(part) for part in law.laws], "log_weight": law.log_weight}
    raise CheckpointError(f"a {type(law).__name__} cannot be written into a run folder")
