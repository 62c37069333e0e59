"""Recipes: a training run as a few lines of YAML, every class and argument by name.

    data:      {name: digits, steps: [...]}
    model:     {RBM: {visible: 64, hidden: 100}}
    objective: {PersistentContrastiveDivergence: {kernel: Gibbs, steps: 5}}
    fit:       {epochs: 300, lr: 0.05}

`Name: {arguments}` is short for jsonargparse's `{class_path: Name, init_args: {arguments}}`; both are understood.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentError as ParserError
from jsonargparse import ArgumentParser, set_dumper, set_loader, set_parsing_settings
from jsonargparse.typing import register_type

from gibbsian.app import catalog, factories, notation
from gibbsian.app.refusals import explain
from gibbsian.data import Prepared, load, prepare
from gibbsian.domains import Domain
from gibbsian.energy import Energy, ScoreField
from gibbsian.errors import ArgumentError, DataError, GibbsianError, check_count, suggest
from gibbsian.kernels import Kernel
from gibbsian.metrics.evaluate import LIKELIHOODS
from gibbsian.objectives import Objective
from gibbsian.objectives.adversarial import SamplerKind
from gibbsian.objectives.noise import FittedNoise
from gibbsian.objectives.perturbations import Perturbation
from gibbsian.training.fit import fit
from gibbsian.training.guard import Guard
from gibbsian.training.loggers import Logger
from gibbsian.training.trust import exported


@dataclass(frozen=True)
class DataSpec:
    """What to train on.

    Args:
        name: a named set, a toy law (`gibbsian list data`), or the path of a file or folder.
        n: points of a toy law.
        label: for files, the column or array with the labels.
        labels: give the objective pairs (x, y).
        steps: what is done to the data, in order: names, or names with options.
        seed: of random steps and toy laws.
        offline: never fetch anything.
        streaming: for sets of Hugging Face and folders that its `datasets` knows: fetch rows as they are needed.
    """

    name: str
    n: int = 10000
    label: str | None = None
    labels: bool = False
    steps: list[Any] = field(default_factory=list)
    seed: int = 0
    offline: bool = False
    streaming: bool = False

    def prepare(self, fitted: list[dict[str, torch.Tensor]] | None = None, *, whole: bool = True) -> Prepared:
        """The data after its steps; see `gibbsian.data.prepare`."""
        how: dict[str, Any] = {"label": self.label, "offline": self.offline, "streaming": self.streaming}
        raw = load(self.name, n=self.n, seed=self.seed, **how)
        prepared = prepare(raw, self.steps, seed=self.seed, fitted=fitted, whole=whole)
        if self.labels and not prepared.data.train.labeled:
            raise DataError(
                f"labels: true, but {self.name} has no labels; say data.label: COLUMN for a file that has some"
            )
        return prepared


@dataclass(frozen=True)
class SampleSpec:
    """How samples are drawn: for the report, and by `gibbsian sample`.

    Args:
        kernel: by default that of the objective, else one that suits the model.
        steps: of each chain.
        start: "data" begins at training rows, "gaussian" at draws with their moments class by class
            (`hybrid.like_classes`), "reference" anywhere in the domain.
        shape: height and width (or channels, height, width) of pictures, where rows are flat.
        show: how many are drawn through training and shown in the report.
        by_class: draw the classes in turn, for models that know them. Chains that were trained class by class know the way to each;
            those of all classes together end in a few of them.
    """

    kernel: Kernel | None = None
    steps: int = 500
    start: str = "reference"
    shape: list[int] | None = None
    show: int = 64
    by_class: bool = False

    def __post_init__(self) -> None:
        if self.start not in {"data", "gaussian", "reference"}:
            raise ArgumentError(f"sample.start={self.start!r}: expected 'data', 'gaussian' or 'reference'")
        if self.steps < 1 or self.show < 1:
            raise ArgumentError(f"sample.steps={self.steps}, sample.show={self.show}: both must be 1 or more")


@dataclass(frozen=True)
class EvaluateSpec:
    """How the trained model is judged.

    Args:
        likelihood: "auto" (exact where it can be, else quadrature, else AIS; probability flow for scores), "exact",
            "quadrature", "ais", "none".
        chains, betas: of AIS; without betas its ladder grows until climb and descent agree.
        rows: held-out rows used at most.
        outside: other data sets that should get high energies (out-of-distribution detection).
        ema: judge the averaged weights, where there are any.
    """

    likelihood: str = "auto"
    chains: int = 100
    betas: int | None = None
    rows: int = 10000
    outside: list[str] = field(default_factory=list)
    ema: bool = True

    def __post_init__(self) -> None:
        for name in ("chains", "betas", "rows"):
            if getattr(self, name) is not None:
                check_count("evaluate", name, getattr(self, name))
        if self.likelihood not in LIKELIHOODS:
            raise ArgumentError(f"evaluate.likelihood={self.likelihood!r}: expected one of {', '.join(LIKELIHOODS)}")


@dataclass(frozen=True)
class PretrainSpec:
    """Layer-wise training before the main one, for deep machines.

    Args:
        objective: what trains every layer; a list has one for each.
        options: `epochs` or `steps`, `lr`, ... as for `gibbsian.training.pretrain`; a list has one value a layer.
    """

    objective: Objective | list[Objective] | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Recipe:
    """A recipe with its classes built.

    Attributes:
        name: what the run is called.
        text: the whole recipe as YAML, defaults included: it reproduces the run.
    """

    name: str
    about: str
    data: DataSpec
    model: Any
    objective: Objective
    fit: dict[str, Any]
    initialize: bool
    sample: SampleSpec
    evaluate: EvaluateSpec
    pretrain: PretrainSpec
    text: str


_SECTIONS = {"data", "fit", "sample", "evaluate", "pretrain"}
_WITH_CLASSES = ("model", "objective", "fit", "pretrain", "sample")
_KINDS: list[type | str] = [Objective, Kernel, Domain, Guard, FittedNoise, Logger, Perturbation, SamplerKind]
set_parsing_settings(subclasses_enabled=_KINDS, instantiate_subclass_spec_in_any=False)
register_type(torch.Tensor, serializer=lambda t: t.tolist(), deserializer=notation.tensor_of)
set_loader("gibbsian", notation.load, exceptions=(yaml.YAMLError,), json_superset=True)
set_dumper("gibbsian", notation.dump)


def make_parser(model: type = Energy) -> ArgumentParser:
    """The parser of recipes, YAML and flags alike, for a model that is an `Energy` or a `ScoreField`."""
    parser = ArgumentParser(
        prog="gibbsian train RECIPE",
        description="Every key of a recipe is a flag: --model.hidden 200, --objective.steps 10, --fit.lr 0.01, ...",
        exit_on_error=False,
        allow_abbrev=False,
        parser_mode="gibbsian",
    )
    parser.add_argument("--config", action="config", help="a recipe in a YAML file; later flags change it")
    parser.add_argument("--about", type=str, default="", help="one line that says what the recipe does")
    parser.add_class_arguments(DataSpec, "data")
    parser.add_argument("--model", type=model, help="what is trained: see `gibbsian list models energies`")
    parser.add_argument("--objective", type=Objective, help="the principle of learning: see `gibbsian list objectives`")
    parser.add_argument(
        "--initialize", type=bool, default=False, help="set the visible bias to the training data's means first"
    )
    skip: set[str | int] = {"energy", "objective", "data", "run_dir", "transform", "validation", "hooks", "progress"}
    parser.add_function_arguments(fit, "fit", skip=skip)
    parser.add_class_arguments(PretrainSpec, "pretrain")
    parser.add_class_arguments(SampleSpec, "sample")
    parser.add_class_arguments(EvaluateSpec, "evaluate")
    return parser


def recipe_source(given: str) -> tuple[str, str]:
    """Name and YAML of a recipe in the package, or of a file."""
    path = Path(given).expanduser()
    looks_like_a_file = path.suffix in {".yaml", ".yml", ".json"} or "/" in given
    if not looks_like_a_file and given in catalog.recipe_names():
        return given, catalog.recipe_text(given)
    if path.is_file():
        try:
            return path.stem, path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ArgumentError(f"{path} is not a text file in UTF-8; a recipe is YAML") from error
    if path.is_dir():
        if (path / "recipe.yaml").exists():
            raise ArgumentError(f"{given} is a run; go on with it by `gibbsian resume {given}`, or give a recipe")
        raise ArgumentError(
            f"{given} is a folder, not a recipe; to learn its images write a recipe with `data: {{name: {given}}}`, "
            "or name it to a recipe of the package, such as `gibbsian train digits-rbm --data.name ...`"
        )
    if looks_like_a_file:
        raise ArgumentError(f"there is no file {given}; give a recipe from `gibbsian list recipes`, or a YAML file")
    if near := sorted(p.name for p in path.parent.glob(f"{path.name}.*") if p.is_file()):
        raise ArgumentError(f"there is no recipe {given!r}; did you mean the file {near[0]}, which lies here?")
    return given, catalog.recipe_text(given)  # says what there is


def split_comparison(text: str, name: str = "run") -> dict[str, str] | None:
    """The recipes of a comparison by name, or None: `compare:` names what differs, the rest is common to all."""
    loaded = notation.from_yaml(text, name, notation.read_yaml)
    if not isinstance(loaded, dict) or "compare" not in loaded:
        return None
    members = loaded.pop("compare")
    if not isinstance(members, dict) or not members or not all(isinstance(m, dict) for m in members.values()):
        raise ArgumentError(f"{name}: compare: maps names to what differs, such as CD: {{objective: ..., fit: ...}}")
    return {str(key): notation.dump(_merged(loaded, change)) for key, change in members.items()}


def _merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`change` on top of `base`; sections are merged, everything else is replaced."""
    base = _without_other_length(base, change.get("fit"))
    return base | {k: base[k] | v if k in _SECTIONS and isinstance(base.get(k), dict) else v for k, v in change.items()}


def _without_other_length(recipe: dict[str, Any], fit: Any) -> dict[str, Any]:
    """A recipe without its epochs where `fit`, which comes on top, says steps, and the other way round."""
    own, given = recipe.get("fit"), {key for key in ("steps", "epochs") if isinstance(fit, dict) and key in fit}
    if not isinstance(own, dict) or len(given) != 1:
        return recipe
    return recipe | {
        "fit": {key: value for key, value in own.items() if key in given or key not in ("steps", "epochs")}
    }


def _fit_by_flags(flags: Sequence[str]) -> dict[str, Any]:
    """What flags say of `fit`, one key or several at once."""
    found: dict[str, Any] = {}
    for config in _configs(flags):
        found |= config.get("fit", {})
    for flag, value in _with_values(flags):
        if flag.startswith("--fit."):
            found[flag.removeprefix("--fit.")] = value
        elif flag == "--fit":
            with suppress(yaml.YAMLError):  # which the parser will report
                given = notation.load(value)
                found |= given if isinstance(given, dict) else {}
    return found


def parse_recipe(text: str, flags: Sequence[str] = (), *, name: str = "run") -> Recipe:
    """A recipe from YAML and flags that change it.

    >>> text = "data: {name: moons}\\nmodel: {MLPEnergy: {domain: 2}}\\nobjective: {SlicedScoreMatching: }\\nfit: {steps: 5}"
    >>> recipe = parse_recipe(text, ["--objective.projections", "3"])
    >>> recipe.objective.projections, recipe.fit["steps"]
    (3, 5)
    """
    loaded = _loaded(text, name)
    _check_foreign(loaded, flags, name)
    parser = make_parser(_kind_of_model(loaded, flags))
    _check_keys(loaded, parser, name)
    loaded = _without_other_length(loaded, _fit_by_flags(flags))
    if not any(flag.startswith("--print_config") or flag == "--help" for flag in flags):
        _check_whole(loaded, flags, name)
    try:
        config = parser.parse_args(["--config", yaml.safe_dump(loaded, sort_keys=False), *flags])
        built = parser.instantiate(config)
    except GibbsianError as error:
        raise ArgumentError(f"{name}: {error}") from error
    except (ParserError, ValueError, TypeError) as error:
        lacks_value = "expected one argument" in str(error) and flags and flags[-1].startswith("--")
        reason = f"{flags[-1]} needs a value" if lacks_value else explain(str(error), _known_keys(parser))
        raise ArgumentError(f"{name}: {reason}") from error
    if built.model is None or built.objective is None:
        raise ArgumentError(f"{name} names no model or no objective; every recipe needs both")
    as_built = ("about", "data", "model", "objective", "initialize", "sample", "evaluate", "pretrain")
    parts = {key: built[key] for key in as_built} | {"fit": built.fit.as_dict()}
    return Recipe(name=name, text=parser.dump(config, format="gibbsian"), **parts)


def _loaded(text: str, name: str) -> dict[str, Any]:
    loaded = notation.read_recipe(text, name, notation.load)
    return {key: value for key, value in loaded.items() if key not in _SECTIONS or value is not None}  # `fit:` alone


def _with_values(flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flags and what they are set to: `--key=value`, or `--key value`."""
    for i, flag in enumerate(flags):
        key, equals, value = flag.partition("=")
        yield key, value if equals else "".join(flags[i + 1 : i + 2])


def _check_foreign(loaded: dict[str, Any], flags: Sequence[str], name: str) -> None:
    """Refuse classes and functions that may not be named: the parser would import their modules, which runs their code."""
    given: list[Any] = []
    for config in (loaded, *_configs(flags)):
        for section in _SECTIONS & set(config):
            _check_section(section, config[section], name)
        given += [config.get(section) for section in _WITH_CLASSES]
    for key, value in _with_values(flags):
        root, dot, _ = key.removeprefix("--").rstrip("+").partition(".")
        if root in _SECTIONS or root in _WITH_CLASSES:
            found = None
            with suppress(yaml.YAMLError):  # a plain text, or what the parser will report
                found = notation.load(value)
            if root in _SECTIONS and not dot:
                _check_section(root, found, name)
            given += [found] if root in _WITH_CLASSES else []
    for path in _dotted_names(given):
        home, _, short = path.rpartition(".")
        if home == factories.__name__ and short in catalog.class_names():
            continue
        try:
            exported(path)
        except ArgumentError as error:
            raise ArgumentError(f"{name} names {path}, and {error}") from error


def _configs(flags: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What `--config` brings: recipes in files, or as text."""
    for key, value in _with_values(flags):
        if key == "--config":
            text = Path(value).read_text(encoding="utf-8") if len(value) < 256 and Path(value).is_file() else value
            yield _loaded(text, value)


def _check_section(section: str, given: Any, name: str) -> None:
    """Refuse a section that is no mapping: the parser would take a text for the file to read it from."""
    if given is not None and not isinstance(given, dict):
        raise ArgumentError(
            f"{name}: {section} is {given!r}; give its keys and values, as in {section}: {{key: value}}"
        )


def _dotted_names(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _dotted_names(item)
    elif isinstance(value, str) and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", value):
        yield value


def _check_whole(loaded: dict[str, Any], flags: Sequence[str], name: str) -> None:
    for key in ("data", "model", "objective"):
        if key not in loaded and not any(flag.startswith(f"--{key}") for flag in flags):
            raise ArgumentError(f"{name} has no {key}:, which every recipe needs")


def _kind_of_model(loaded: dict[str, Any], flags: Sequence[str]) -> type:
    """`ScoreField` where that is what the model's name says, so that errors speak of one kind only."""
    given = loaded.get("model")
    names = [given.get("class_path") if isinstance(given, dict) else given]
    names += [value for key, value in _with_values(flags) if key == "--model"]
    return ScoreField if str(names[-1]).rpartition(".")[2] in _below(ScoreField) else Energy


def _below(cls: type) -> set[str]:
    """The names of all classes made from one."""
    made: list[type] = cls.__subclasses__()
    return {sub.__name__ for sub in made}.union(*(_below(sub) for sub in made))


def _check_keys(loaded: dict[str, Any], parser: ArgumentParser, name: str) -> None:
    """Refuse keys that do not exist, with the nearest one that does."""
    known = _known_keys(parser)
    _check_known(loaded, {key.split(".")[0] for key in known}, name, "")
    for section in _SECTIONS & set(loaded):
        if isinstance(loaded[section], dict):
            below = {key.split(".")[1] for key in known if key.startswith(f"{section}.")}
            _check_known(loaded[section], below, name, section)


def _check_known(given: Iterable[Any], known: set[str], name: str, section: str) -> None:
    for key in given:
        if key not in known:
            shown, where = (f"{section}.{key}", f"The keys of {section}") if section else (repr(key), "The keys")
            near = suggest(str(key), known)
            raise ArgumentError(f"{name} has an unknown key {shown}; {near}{where} are {', '.join(sorted(known))}")


def _known_keys(parser: ArgumentParser) -> list[str]:
    return sorted({*parser.get_defaults().keys(), *_SECTIONS} - {"config"})
