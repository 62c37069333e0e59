"""The zoo: packed runs are what they were but for rounding, cards tell the truth, damage is noticed, the command line draws."""

import json
import os
import re
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from scipy import stats

import gibbsian as gb
from gibbsian import errors, zoo
from gibbsian.app.cli import main
from gibbsian.zoo import cards, packing


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def joint_run(tmp_path_factory):
    """A joint energy with a buffer of chains, trained a little."""
    folder = tmp_path_factory.mktemp("zoo") / "run"
    x = torch.rand(60, 2, generator=gen()) * 2 - 1
    joint = gb.models.JointEnergy(gb.nets.MLP(2, (8,), outputs=3), gb.domains.Box(2, -1.0, 1.0))
    chains = gb.objectives.PersistentContrastiveDivergence(
        gb.kernels.ShortRunLangevin(0.1, 0.01), steps=2, chains=20, buffer=60
    )
    objective = gb.objectives.Weighted([gb.objectives.CrossEntropy(), chains], [1.0, 0.5])
    run = gb.fit(
        joint,
        objective,
        (x, (x.sum(1) > 0).long() + (x.sum(1) > 0.7)),
        steps=60,
        lr=0.03,
        ema=0.9,
        run_dir=folder,
        progress=False,
    )
    return run, x


def test_a_packed_run_is_its_average_up_to_rounding(joint_run, tmp_path):
    run, x = joint_run
    small = zoo.pack(run.folder, tmp_path / "small", chains=30)
    loaded = gb.load(small)
    for (name, mine), theirs in zip(loaded.named_parameters(), run.ema.parameters(), strict=True):
        assert mine.dtype == theirs.dtype == torch.float32, name
        assert torch.equal(mine, theirs.detach().half().float())
    assert not torch.equal(loaded(x), run.ema(x))  # rounded, and judged so
    torch.testing.assert_close(loaded(x), run.ema(x), atol=5e-3, rtol=5e-3)
    weights = sum(p.numel() for p in run.energy.parameters())
    size = sum(f.stat().st_size for f in small.rglob("*.safetensors"))
    assert size < 2 * weights + 4000  # two bytes a weight, no optimizer
    with pytest.raises(errors.CheckpointError, match="already holds files"):
        zoo.pack(run.folder, small)
    assert zoo.chains_of(zoo.pack(run.folder, tmp_path / "without", chains=0)) is None


def test_what_cannot_be_packed_leaves_no_folder(joint_run, tmp_path):
    for number in (-3, 2.5):
        with pytest.raises(errors.ArgumentError, match="chains"):
            zoo.pack(joint_run[0].folder, tmp_path / "new", chains=number)
    with pytest.raises(errors.CheckpointError, match=r"table\.json"):
        zoo.pack_table(joint_run[0].folder, tmp_path / "new")
    with pytest.raises(errors.ArgumentError, match="expected an energy"):
        zoo.save(3, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_half_precision_is_read_into_the_default_precision(joint_run, tmp_path):
    small = zoo.pack(joint_run[0].folder, tmp_path / "small")
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert all(p.dtype == torch.float64 for p in gb.load(small).parameters())
        for name in ("mnist-jem", "fashion-jem"):  # whose walls, 1.1, are rounded upwards in single precision
            assert bool(zoo.load(name).domain.contains(zoo.chains(name)).all())
    finally:
        torch.set_default_dtype(before)


def test_packed_chains_are_those_of_the_buffer_of_all_classes(joint_run, tmp_path):
    run, _ = joint_run
    small = zoo.pack(run.folder, tmp_path / "small", chains=30)
    kept = zoo.chains_of(small)
    assert kept is not None
    assert len(kept) <= 30
    step = float(run.chains.max() - run.chains.min()) / 255
    distance = (kept[:, None] - run.chains[None]).abs().amax(2).amin(1)
    assert float(distance.max()) <= 0.51 * step  # bytes
    energy = gb.load(small)
    kinds = energy.class_log_prob(kept).argmax(1).bincount(minlength=3)
    there = energy.class_log_prob(run.chains).argmax(1).bincount(minlength=3).clamp(max=10)
    assert (kinds - there).abs().max() <= 1  # rounding may move a chain over a border
    begun = zoo.begin(energy, kept, torch.tensor([2, 0, 2]))
    log_p = energy.class_log_prob(kept)
    assert torch.equal(begun[1], kept[log_p[:, 0].argmax()])
    assert torch.equal(begun[0], kept[log_p[:, 2].argsort(descending=True)[0]])
    assert torch.equal(begun[2], kept[log_p[:, 2].argsort(descending=True)[1]])


def chained(energy, x, folder):
    """A small copy of a run of persistent chains, and the chains of that."""
    objective = gb.objectives.PersistentContrastiveDivergence(gb.kernels.Gibbs(), chains=30)
    run = gb.fit(energy, objective, x, steps=3, lr=1e-4, run_dir=folder / "run", progress=False)
    return zoo.chains_of(zoo.pack(run.folder, folder / "small", chains=20)), run.chains[:20]


@pytest.mark.parametrize("total", [12, 3000])  # below and beyond what a byte counts
def test_packed_counts_are_whole(total, tmp_path):
    words = torch.multinomial(torch.ones(4), 40 * total, replacement=True, generator=gen()).reshape(40, total)
    x = torch.nn.functional.one_hot(words, 4).sum(1).float()
    kept, chains = chained(gb.models.RBM(gb.units.Count(4, total=total), 3), x, tmp_path)
    assert torch.equal(kept, chains)


def test_packed_chains_keep_the_small_entry_beside_the_large_one(tmp_path):
    sizes = torch.tensor([0.01, 1000.0])
    machine = gb.models.RBM(gb.units.Gaussian(2, sigma=sizes), 3)
    kept, chains = chained(machine, torch.randn(40, 2, generator=gen()) * sizes, tmp_path)
    assert bool(((kept - chains).abs() <= 0.51 / 255 * (chains.amax(0) - chains.amin(0))).all())
    mixed = gb.models.RBM(gb.units.Joined(gb.units.Gaussian(1), gb.units.Bernoulli(2)), 3)
    rows = torch.cat([5 * torch.randn(40, 1, generator=gen()), (torch.rand(40, 2, generator=gen()) < 0.5).float()], 1)
    kept, chains = chained(mixed, rows, tmp_path / "mixed")
    assert torch.equal(kept[:, 1:], chains[:, 1:])
    still = torch.tensor([[0.3, -7.0], [0.3, -7.0]])  # an entry that never moves
    packing._write_chains(tmp_path, still)
    found = load_file(tmp_path / "chains.safetensors")
    assert torch.equal(found["walls"][0] + 0 * found["x"], still)
    assert not found["x"].any()


def test_packed_recipes_ask_for_no_average(joint_run, tmp_path):
    """The weights are the average, and there is no other."""
    run = tmp_path / "run"
    shutil.copytree(joint_run[0].folder, run)
    for evaluate in (None, {"rows": 5, "ema": True}):
        (run / "recipe.yaml").write_text(yaml.safe_dump({"evaluate": evaluate}))
        small = zoo.pack(run, tmp_path / f"small {evaluate}")
        assert yaml.safe_load((small / "recipe.yaml").read_text())["evaluate"] == (evaluate or {}) | {"ema": False}


def test_packed_tables_hold_no_rows_of_the_table(tmp_path):
    member, run = zoo.path("penguins-table"), tmp_path / "run"
    shutil.copytree(member, run)
    law, tree = zoo.load("penguins-table"), packing.checkpoint.read_tree(member, "table")
    rows = law.codec.encode(law.sample(10, generator=gen(5)))  # as if of the table
    packing.checkpoint.write_tree(run, "table", tree | {"kept": rows})
    kept = packing.checkpoint.read_tree(zoo.pack_table(run, tmp_path / "small"), "table")["kept"]
    assert torch.equal(kept.code, tree["kept"].code)


def test_an_energy_alone(tmp_path):
    potts = gb.models.Potts(4, 3)
    potts.set_parameters(field=torch.randn(4, 3, generator=gen()))
    loaded = gb.load(zoo.save(potts, tmp_path / "potts"))
    x = gb.domains.Categorical(4, 3).sample(5, generator=gen())
    torch.testing.assert_close(loaded(x), potts(x), atol=5e-3, rtol=5e-3)


def test_sizes_that_half_precision_does_not_hold_are_kept(tmp_path):
    """Beyond 65504 it has infinity, far below 6e-5 it has 0: seconds since 1970, and rates of a millionth."""
    law = gb.energies.Gaussian(torch.tensor([1.7e9, 1e-6]), torch.diag(torch.tensor([1e12, 1e-12])))
    loaded = gb.load(zoo.save(law, tmp_path / "law"))
    x = law.sample(100, generator=gen())
    torch.testing.assert_close(loaded(x), law(x), atol=0.05, rtol=0.01)


def test_wilson_intervals_cover():
    """The share of 10000 binomial draws whose interval holds the truth is 95 %, within four standard errors and Wilson's own wobble."""
    for p, n in ((0.9, 400), (0.99, 1000), (0.5, 50)):
        draws = torch.binomial(torch.full((10000,), float(n)), torch.full((10000,), p), generator=gen())
        intervals = {int(k): cards.share(int(k), n, "") for k in draws.unique()}
        held = np.mean([intervals[int(k)].low <= p <= intervals[int(k)].high for k in draws])
        assert 0.95 - 0.025 < held < 0.95 + 0.025
    for right, n in ((0, 7), (3, 8), (19, 19), (9933, 10000)):
        theirs = stats.binomtest(right, n).proportion_ci(method="wilson")
        assert cards.share(right, n, "")[1:3] == pytest.approx(tuple(theirs), abs=1e-6)


def test_every_member_has_a_card_that_is_true_of_its_files():
    promised = {
        "digits-rbm", "mnist-rbm", "mnist-dbm", "mnist-dbn", "mnist-jem", "mnist-ncsn", "fashion-jem", "cifar-jem",
        "patches-foe", "riboswitch-potts", "penguins-table",
    }  # fmt: skip
    assert promised <= set(zoo.names())
    size = 0
    for name in zoo.names():
        card, folder = zoo.card(name), zoo.path(name)
        assert card.name == name
        assert card.figures
        assert card.data
        assert card.license
        assert "seed" in card.made
        for figure in card.figures.values():
            assert figure.low <= figure.value <= (figure.value if figure.high is None else figure.high)
        cards.check_files(folder, card)
        assert set(card.files) == set(cards.digests(folder))
        size += sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        for text in folder.rglob("*.json"):
            assert "/work" not in text.read_text(encoding="utf-8")
            assert "/tmp" not in text.read_text(encoding="utf-8")
    assert size < 20e6


def test_cards_say_where_rows_were_drawn_many_times():
    """One draw of the pixels of each digit has `mnist-dbn` read 98.5 % of them, below the interval of the mean over twenty."""
    figures = zoo.card("mnist-dbn").figures
    assert "anew: true" in (zoo.path("mnist-dbn") / "recipe.yaml").read_text(encoding="utf-8")
    for name in ("accuracy", "calibration error"):
        assert "mean over 20 draws" in figures[name].how


def test_a_member_is_not_removed_before_it_is_made_again(tmp_path, monkeypatch):
    folder = tmp_path / "digits-rbm"
    shutil.copytree(zoo.path("digits-rbm"), folder)
    script = str(Path(__file__).parents[1] / "examples" / "make_zoo.py")
    for run in (folder, tmp_path / "nothing"):
        monkeypatch.setattr(sys, "argv", [script, "digits-rbm", str(run), "--out", str(tmp_path)])
        with pytest.raises(SystemExit):
            runpy.run_path(script, run_name="__main__")
        cards.check_files(folder, zoo.read_card(folder))


def test_the_page_of_the_zoo_shows_every_member():
    page = (Path(__file__).parents[1] / "docs" / "zoo.md").read_text(encoding="utf-8")
    for name in zoo.names():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
        figure = next(iter(zoo.card(name).figures.values()))
        assert str(figure).partition("  (")[0] in row, name
        assert f"{zoo.card(name).made.get('updates', '')}" in row, name
        drawn = f"(../src/gibbsian/zoo/members/{name}/samples.png)" in page
        assert drawn == (zoo.path(name) / "samples.png").exists(), name


def named(tree):
    """A recipe with every class by its last name and its arguments beside it, however it was written."""
    if isinstance(tree, list):
        return [named(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    if "class_path" in tree:
        return {tree["class_path"].rpartition(".")[2]: named(tree.get("init_args", {}))}
    return {key: named(value) for key, value in tree.items()}


def missing(recipe, packed, place=""):
    """Where a packed recipe, which has every default too, says something else."""
    if isinstance(recipe, dict) and isinstance(packed, dict):
        return [one for key in recipe for one in missing(recipe[key], packed.get(key), f"{place}/{key}")]
    if isinstance(recipe, list) and isinstance(packed, list) and len(recipe) == len(packed):
        return [
            one for k, (a, b) in enumerate(zip(recipe, packed, strict=True)) for one in missing(a, b, f"{place}/{k}")
        ]
    short = recipe is None or (isinstance(recipe, str) and packed in ({recipe: {}}, {recipe: None}))
    return [] if short or recipe == packed else [place]


def test_members_that_are_called_their_recipes_were_trained_by_them():
    page = (Path(__file__).parents[1] / "docs" / "zoo.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"([^.:]*) were trained by their recipes as they are", page)
    recipes = Path(gb.__file__).parent / "app" / "recipes"
    for name in re.findall(r"`([\w-]+)`", said):
        recipe, packed = (
            named(yaml.safe_load((folder / file).read_text(encoding="utf-8")))
            for folder, file in ((recipes, f"{name}.yaml"), (zoo.path(name), "recipe.yaml"))
        )
        for part in ("data", "model", "objective", "fit"):
            assert not missing(recipe[part], packed[part]), name
        assert "note" not in zoo.card(name).made or "another model" not in zoo.card(name).made["note"]


def test_the_card_of_the_digits_holds_for_the_weights_as_loaded():
    """The likelihood by another estimator on the same rows, an exact sum being too long for a hundred hidden units."""
    from gibbsian.app.runs import open_run

    rbm, figure = zoo.load("digits-rbm"), zoo.card("digits-rbm").figures["test log-likelihood"]
    test = open_run(zoo.path("digits-rbm")).prepared.finished("test", 1000).x
    log_z = gb.partition.ais(rbm, data=test, chains=100, betas=1000, generator=gen(3), progress=False)
    found = float(-rbm(test).detach().mean() - log_z.value)
    assert abs(found - figure.value) < 3 * float(log_z.stderr) + 0.05


@pytest.mark.skipif(
    not (Path(os.environ.get("GIBBSIAN_DATA", "nowhere")) / "mnist").exists(), reason="needs MNIST in GIBBSIAN_DATA"
)
def test_the_card_of_the_score_network_holds_for_the_weights_as_loaded():
    """Thirty-two digits at every third level, by the function that the card was written with: the interval is that of digits, not
    of levels."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "make_zoo.py"))
    found = script["noise_loss"](zoo.path("mnist-ncsn"), rows=32, every=3)["denoising loss"]
    figure = zoo.card("mnist-ncsn").figures["denoising loss"]
    spread = (found.high - found.low) / 4
    assert abs(found.value - figure.value) < 4 * spread
    assert figure.high - figure.low == pytest.approx((found.high - found.low) / 4, rel=0.5)


def test_damage_is_noticed(tmp_path, monkeypatch):
    shutil.copytree(zoo.path("digits-rbm"), tmp_path / "digits-rbm")
    monkeypatch.setattr(zoo, "_MEMBERS", tmp_path)
    assert zoo.names() == ["digits-rbm"]
    picture = tmp_path / "digits-rbm" / "samples.png"
    picture.write_bytes(picture.read_bytes()[:-1])
    with pytest.raises(errors.CheckpointError, match="checksum"):
        zoo.load("digits-rbm")
    with pytest.raises(errors.ArgumentError, match="did you mean 'digits-rbm'"):
        zoo.load("digit-rbm")
    (tmp_path / "digits-rbm" / "card.json").write_text("{}")
    with pytest.raises(errors.CheckpointError, match="damaged"):
        zoo.card("digits-rbm")


@pytest.mark.parametrize("name", ["chains.safetensors", "recipe.yaml", "checkpoints/step-000000999999/state.json"])
def test_every_way_to_a_member_holds_its_files_to_the_card(name, tmp_path, monkeypatch, capsys):
    """Chains and recipe are read without a checksum of their own, and a later checkpoint would be loaded instead of the one."""
    folder = tmp_path / "mnist-jem"
    shutil.copytree(zoo.path("mnist-jem"), folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("of something else")
    monkeypatch.setattr(zoo, "_MEMBERS", tmp_path)
    for way in (zoo.load, zoo.chains):
        with pytest.raises(errors.CheckpointError, match=name):
            way("mnist-jem")
    assert main(["sample", "zoo:mnist-jem", "--out", str(tmp_path / "x.npy")]) == 1
    assert name in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cuda:99", "nonsense", 99])
def test_a_device_that_is_none_is_one_sentence(device):
    with pytest.raises(errors.ArgumentError, match=f"device {device} cannot be used on this machine; say"):
        zoo.load("digits-rbm", device=device)


def test_the_law_of_a_table_is_at_hand_without_its_rows():
    law = zoo.load("penguins-table")
    drawn = law.sample(20, generator=gen())
    assert len(drawn) == 20
    kept = packing.checkpoint.read_tree(zoo.path("penguins-table"), "table")["kept"]
    again = law.codec.encode(law.sample(300, generator=gb.random.stream(law.seed, "kept")))
    assert torch.equal(kept.code, again.code)  # draws, no rows of the table


def test_the_command_line_draws_from_the_zoo(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sample", "zoo:digits-rbm", "-n", "5", "--steps", "20", "-q"]) == 0
    assert np.load("digits-rbm-samples.npz")["x"].shape == (5, 8, 8)
    assert main(["sample", "zoo:penguins-table", "-n", "4", "-q"]) == 0
    assert (tmp_path / "penguins-table-samples.csv").read_text().startswith("species")
    assert main(["list", "zoo", "--json"]) == 0
    assert "digits-rbm" in json.dumps(json.loads(capsys.readouterr().out))
    assert main(["list", "zoo:digits-rbm"]) == 0
    assert "nats a row" in capsys.readouterr().out
    assert main(["list", "zoo:digits-rbm", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["zoo:digits-rbm"]
    assert told["figures"]["test log-likelihood"]["how"].startswith("nats a row")
    for command in ("evaluate", "resume", "report", "watch"):
        assert main([command, "zoo:digits-rbm"]) == 2
        assert "is drawn from" in capsys.readouterr().err
        assert main([command, "zoo:digit-rbm"]) == 2
        assert "did you mean 'digits-rbm'" in capsys.readouterr().err
    assert main(["report", "elsewhere", "zoo:digits-rbm"]) == 2
    assert main(["score", "penguins-table-samples.csv", "--against", "zoo:penguins-table", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drift"]["rows"] >= 0
    assert main(["sample", "zoo:nothing"]) == 2


@pytest.mark.parametrize("name", zoo.names())
def test_members_are_drawn_from_without_their_data(name, tmp_path, monkeypatch, capsys):
    def nothing(*_, **__):
        raise errors.DataError("there are no data here")

    for place in ("gibbsian.data.load", "gibbsian.app.recipe.load", "gibbsian.app.evaluation.load"):
        monkeypatch.setattr(place, nothing)
    form = "csv" if (zoo.path(name) / "table.json").exists() else "npy"
    steps = [] if form == "csv" else ["--steps", "2"]
    assert main(["sample", f"zoo:{name}", "-n", "2", *steps, "-q", "--out", str(tmp_path / f"x.{form}")]) == 0, (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("given", "says"), [("²", "from 0 to 9"), ("10", "from 0 to 9"), ("Bag", "did you mean 'bag'")]
)
def test_a_class_that_is_none_is_one_sentence(given, says, capsys):
    assert main(["sample", "zoo:fashion-jem", "--class", given, "-q"]) == 2
    assert says in capsys.readouterr().err
    joint = gb.models.JointEnergy(gb.nets.MLP(2, (8,), outputs=3), gb.domains.Box(2, -1.0, 1.0))
    with pytest.raises(errors.ArgumentError, match="class 3"):  # where no names say how many there are
        zoo.begin(joint, torch.zeros(5, 2), torch.tensor([3, 3]))
    with pytest.raises(errors.ArgumentError, match="class -1"):
        zoo.begin(joint, torch.zeros(5, 2), torch.tensor([2, -1]))
    with pytest.raises(errors.ArgumentError, match="a whole number a draw"):
        zoo.begin(joint, torch.zeros(5, 2), torch.tensor([0.0, 1.0]))
    with pytest.raises(errors.ShapeError, match=re.escape("torch.as_tensor(labels)")):  # real ones are refused next
        zoo.begin(joint, torch.zeros(5, 2), [2, 1])
    x, y = torch.randn(30, 2, generator=gen()), torch.tensor([2, 0, 2])
    assert torch.equal(zoo.begin(joint, x, y.to(torch.uint8)), zoo.begin(joint, x, y))


def test_an_energy_that_was_learned_without_a_recipe_is_drawn_too(tmp_path, capsys):
    target = tmp_path / "sequences.npy"
    command = ["sample", "zoo:riboswitch-potts", "-n", "3", "--steps", "2", "--out", str(target), "-q"]
    assert main(command) == 0
    drawn = np.load(target)
    assert drawn.shape == (3, 102, 5)
    assert (drawn.sum(2) == 1).all()
    assert main([*command, "--class", "1"]) == 2
    assert "has no recipe" in capsys.readouterr().err
    command[command.index("--out") + 1] = str(target.with_suffix(".fasta"))
    assert main(command) == 0
    family = gb.sequences.read(target.with_suffix(".fasta"), alphabet="rna")
    assert np.array_equal(family.x.numpy(), drawn)


def test_only_sequences_are_written_as_letters(tmp_path, capsys):
    assert main(["sample", "zoo:digits-rbm", "-n", "1", "--out", str(tmp_path / "x.fasta")]) == 2
    assert ".png" in capsys.readouterr().err


def test_packed_joint_energies_are_drawn_by_class_without_their_data(joint_run, tmp_path, monkeypatch):
    """As the command line does it for recipes that begin at data: chains of the folder stand for them."""
    from gibbsian.app.cli import sample

    small = zoo.pack(joint_run[0].folder, tmp_path / "small", chains=30)
    energy = gb.load(small)

    recipe = SimpleNamespace(sample=SimpleNamespace(start="gaussian"))

    def no_data(folder):
        raise AssertionError("the data were asked for")

    monkeypatch.setattr(sample, "open_run", no_data)
    begun = sample._begun(small, recipe, energy, 1, 4, 0)
    assert begun.shape == (4, 2)
    likely = energy.class_log_prob(begun)[:, 1]
    assert (likely >= energy.class_log_prob(zoo.chains_of(small))[:, 1].median()).all()
    recipe.sample.start = "reference"
    assert sample._begun(small, recipe, energy, 1, 4, 0) is None


def test_draws_of_no_class_begin_at_chains_of_all_classes(tmp_path):
    """Packed chains lie class by class: the first eight of the digits are ones and nothing else. Of the 160, about a tenth are, so that
    eight by lot hold fewer than three classes with a chance below 1e-3; the seed is fixed."""
    joint, target = zoo.load("mnist-jem"), tmp_path / "x.npy"
    assert len(joint.class_log_prob(zoo.chains("mnist-jem")[:8]).argmax(1).unique()) == 1
    assert main(["sample", "zoo:mnist-jem", "-n", "8", "--steps", "1", "--out", str(target), "-q"]) == 0
    drawn = torch.from_numpy(np.load(target))[:, None] / 127.5 - 1
    assert len(joint.class_log_prob(drawn).argmax(1).unique()) > 2
