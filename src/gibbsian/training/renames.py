"""What classes and settings were called when older run folders were written.

A folder names modules, classes, arguments and weights; whoever moves or renames one adds a row here.
"""

import re
from typing import Any

_MOVED = {  # modules that were moved, the longest match first
    "gibbsian.models.dbm_": "gibbsian.models.dbm.",
    "gibbsian.models.dbn_": "gibbsian.models.dbn.",
    "gibbsian.models.rbm_": "gibbsian.models.rbm.",
    "gibbsian.models.dbm:": "gibbsian.models.dbm.machine:",
    "gibbsian.models.dbn:": "gibbsian.models.dbn.machine:",
    "gibbsian.models.rbm:": "gibbsian.models.rbm.machine:",
    "gibbsian.models.conditional.machine:": "gibbsian.models.conditional:",
    "gibbsian.models.directed:": "gibbsian.models.dbn.directed:",
    "gibbsian.models.score_networks:": "gibbsian.nets.score:",
    "gibbsian.energies.banana:": "gibbsian.energies.analytic:",
    "gibbsian.energies.double_well:": "gibbsian.energies.analytic:",
    "gibbsian.energies.funnel:": "gibbsian.energies.analytic:",
    "gibbsian.energies.ring:": "gibbsian.energies.analytic:",
    "gibbsian.energies.gaussian_mixture:": "gibbsian.energies.gaussian:",
    "gibbsian.energies.student:": "gibbsian.energies.gaussian:",
    "gibbsian.energies.chain:": "gibbsian.energies.random_fields:",
    "gibbsian.energies.field:": "gibbsian.energies.field_of_experts:",
    "gibbsian.energies.latent:": "gibbsian.energies.tilted:",
    "gibbsian.energies.label_field:": "gibbsian.energies.random_fields:",
    "gibbsian.energies.neural_conv:": "gibbsian.energies.neural:",
    "gibbsian.energies.neural_graph:": "gibbsian.energies.graph:",
    "gibbsian.energies.neural_sequence:": "gibbsian.energies.neural:",
    "gibbsian.nets.graph:": "gibbsian.nets.mlp:",
    "gibbsian.energies.sequence:": "gibbsian.energies.neural:",
    "gibbsian.objectives.denoising:": "gibbsian.objectives.score:",
    "gibbsian.objectives.dropout:": "gibbsian.objectives.classification:",
    "gibbsian.objectives.energy_margin:": "gibbsian.objectives.noise_contrastive:",
    "gibbsian.objectives.joint:": "gibbsian.objectives.classification:",
    "gibbsian.objectives.latent:": "gibbsian.objectives.variational:",
    "gibbsian.objectives.likelihood:": "gibbsian.objectives.contrastive:",
    "gibbsian.objectives.nonnegative:": "gibbsian.objectives.score:",
    "gibbsian.objectives.probability_flow:": "gibbsian.objectives.neighbors:",
    "gibbsian.objectives.pseudo:": "gibbsian.objectives.neighbors:",
    "gibbsian.objectives.ranking:Around": "gibbsian.objectives.perturbations:Around",
    "gibbsian.objectives.ranking:Flips": "gibbsian.objectives.perturbations:Flips",
    "gibbsian.objectives.ranking:Proposal": "gibbsian.objectives.perturbations:Proposal",
    "gibbsian.objectives.noise_contrastive:Around": "gibbsian.objectives.perturbations:Around",
    "gibbsian.objectives.noise_contrastive:Flips": "gibbsian.objectives.perturbations:Flips",
    "gibbsian.objectives.ranking:": "gibbsian.objectives.noise_contrastive:",
    "gibbsian.objectives.ratio:": "gibbsian.objectives.neighbors:",
    "gibbsian.objectives.samplers:": "gibbsian.objectives.adversarial:",
    "gibbsian.objectives.sliced:": "gibbsian.objectives.score:",
    "gibbsian.objectives.up_down:": "gibbsian.objectives.variational:",
    "gibbsian.objectives.regularisers:": "gibbsian.objectives.regularizers:",
    "gibbsian.kernels.metropolis:WalkState": "gibbsian.kernels.base:WalkState",
    "gibbsian.kernels.integrators:Massive": "gibbsian.kernels.hmc:Massive",
    "gibbsian.factories:": "gibbsian.app.factories:",
    "gibbsian.training.settings:": "gibbsian.training.run:",
    "gibbsian.partition.bases:": "gibbsian.energies.bases:",
}
_RENAMED = {  # single classes
    "gibbsian.tables.codec:FewValues": "gibbsian.tables.coders:FewValues",
    "gibbsian.tables.codec:Names": "gibbsian.tables.coders:Names",
    "gibbsian.tables.codec:Numbers": "gibbsian.tables.coders:Numbers",
    "gibbsian.tables.schema:Column": "gibbsian.tables.columns:Column",
    "gibbsian.energies.conditional:PairMLP": "gibbsian.nets.mlp:PairMLP",
    "gibbsian.energies.neural:LayerNorm": "gibbsian.nets.layers:LayerNorm",
    "gibbsian.energies.neural:MLP": "gibbsian.nets.mlp:MLP",
    "gibbsian.energies.neural_conv:ConvNet": "gibbsian.nets.conv:ConvNet",
    "gibbsian.energies.neural_conv:ResidualNet": "gibbsian.nets.conv:ResidualNet",
    "gibbsian.energies.neural_conv:WideResidualNet": "gibbsian.nets.conv:WideResidualNet",
    "gibbsian.energies.neural_graph:GraphNet": "gibbsian.nets.mlp:GraphNet",
    "gibbsian.energies.neural_sequence:AttentionNet": "gibbsian.nets.sequence:AttentionNet",
    "gibbsian.energies.neural_sequence:RecurrentNet": "gibbsian.nets.sequence:RecurrentNet",
    "gibbsian.models.dbm_side:LayerSide": "gibbsian.models.dbm.marginal:LayerMarginal",
    "gibbsian.models.rbm_path:TemperedRBM": "gibbsian.models.annealing:AnnealedMachine",
    "gibbsian.models.tempered:TemperedMachine": "gibbsian.models.annealing:AnnealedMachine",
}
_GROUPS = {  # settings of `fit` that stood beside the others
    "checkpoints": {"checkpoint_every": "every", "keep_last": "keep_last", "keep_best": "keep_best"},
    "logging": {"log_every": "every", "validate_every": "validate_every", "tensorboard": "tensorboard"},
    "engine": {"precision": "precision", "compile": "compile"},
}
_PARTS = {"watch": "monitor"}  # of a checkpoint
_STEMS = "optim|minim|binar|standard|dequant|initial|normal|random|factor|regular|reparametr|serial"
_SPELLED = [
    (re.compile(rf"((?i:{_STEMS}))is(?=(?:e|ed|er|ers|es|ing|ation)(?![a-z]))"), r"\1iz"),
    (re.compile("entre(?=s?(?![a-z]))"), "enter"),
    (re.compile("entr(?=ed|ing)"), "enter"),
    (re.compile("colour"), "color"),
    (re.compile("eighbour"), "eighbor"),
    (re.compile("abelled"), "abeled"),
    (re.compile("grey"), "gray"),
]


def current_spelling(name: str) -> str:
    """A name as the library spells it now.

    >>> current_spelling("optimiser"), current_spelling("Centred"), current_spelling("noise")
    ('optimizer', 'Centered', 'noise')
    """
    for pattern, new in _SPELLED:
        name = pattern.sub(new, name)
    return name


def current_name(name: str) -> str:
    """Where `module:Class` of this library is now; names of other modules stay as they are.

    >>> current_name("gibbsian.models.rbm:RBM"), current_name("mine.models:Centred")
    ('gibbsian.models.rbm.machine:RBM', 'mine.models:Centred')
    """
    if not name.startswith("gibbsian."):
        return name
    if name in _RENAMED:
        return _RENAMED[name]
    for old, new in _MOVED.items():
        if name.startswith(old):
            name = new + name.removeprefix(old)
            break
    return current_spelling(name)


def renamed_keys(values: dict[str, Any], known: Any) -> dict[str, Any]:
    """A dictionary whose keys that are not `known` are spelled as they are now."""
    return {key if key in known else current_spelling(key): value for key, value in values.items()}


def current_parts(tree: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint or configuration, its parts under the names that they have now.

    >>> current_parts({"optimiser": 1, "watch": 2})
    {'optimizer': 1, 'monitor': 2}
    """
    return {_PARTS.get(key, current_spelling(key)): value for key, value in tree.items()}


def current_fields(name: str, fields: dict[str, Any], known: Any) -> dict[str, Any]:
    """The fields of a dataclass as they are now; `name` is that in the folder, `known` are those of the class."""
    fields = renamed_keys(fields, known)
    if current_name(name) != "gibbsian.training.run:Settings" or "logging" in fields:
        return fields
    found = _grouped(fields)
    for group in _GROUPS:
        kind = f"gibbsian.training.run:{group.capitalize()}"
        found[group] = {"$dataclass": kind, "fields": found.get(group, {})}
    return found


def _grouped(flat: dict[str, Any]) -> dict[str, Any]:
    """Settings of `fit` in their groups.

    >>> _grouped({"steps": 9, "log_every": 3, "compile": False})
    {'steps': 9, 'logging': {'every': 3}, 'engine': {'compile': False}}
    """
    places = {old: (group, new) for group, names in _GROUPS.items() for old, new in names.items()}
    grouped: dict[str, Any] = {name: value for name, value in flat.items() if name not in places}
    for name, (group, new) in places.items():
        if name in flat:
            grouped.setdefault(group, {})[new] = flat[name]
    return grouped


def current_recipe(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe as YAML loads it, with keys and class paths as they are now.

    >>> current_recipe({"initialise": True, "model": {"class_path": "gibbsian.models.rbm.RBM"}, "fit": {"log_every": 5}})
    {'initialize': True, 'model': {'class_path': 'gibbsian.models.rbm.machine.RBM'}, 'fit': {'logging': {'every': 5}}}
    >>> current_recipe({"data": {"steps": ["flatten", "standardise", {"take": {"rows": 9}}]}})
    {'data': {'steps': ['flatten', 'standardize', {'take': {'rows': 9}}]}}
    """
    current = _current_values(recipe)
    if "fit" in current:
        current["fit"] = _grouped(current["fit"])
    if "steps" in current.get("data", {}):  # a step without options is a plain word
        steps = current["data"]["steps"]
        current["data"]["steps"] = [current_spelling(step) if isinstance(step, str) else step for step in steps]
    return current


def _current_values(value: Any) -> Any:
    if isinstance(value, list):
        return [_current_values(item) for item in value]
    if not isinstance(value, dict):
        return value
    out = {current_spelling(str(key)): _current_values(item) for key, item in value.items()}
    if isinstance(out.get("class_path"), str):
        home, dot, name = out["class_path"].rpartition(".")
        out["class_path"] = current_name(f"{home}:{name}").replace(":", ".") if dot else current_spelling(name)
    return out
