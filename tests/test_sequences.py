"""Families of sequences: files, weights, and Potts machines learned from laws that are known."""

import gzip
import itertools
import math
import tracemalloc

import pytest
import torch

from gibbsian import models, sequences
from gibbsian.errors import ArgumentError, DataError, DataWarning, ShapeError, TrainingWarning
from gibbsian.sequences import Alphabet, Family
from gibbsian.sequences.family import pairs_by_counting, pairs_by_products
from gibbsian.sequences.pseudo_likelihood import PseudoLikelihood

F64 = torch.float64


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def potts(sites=4, states=3, scale=0.5, seed=0):
    j = scale * torch.randn(sites, states, sites, states, generator=gen(seed), dtype=F64)
    j = (j + j.permute(2, 3, 0, 1)) / 2
    j[torch.arange(sites), :, torch.arange(sites)] = 0
    out = models.Potts(sites, states).double().requires_grad_(False)
    out.set_parameters(field=scale * torch.randn(sites, states, generator=gen(seed + 1), dtype=F64), coupling=j)
    return out


def whole(model) -> Family:
    """Every state, weighted by its probability: a family as large as one likes, without noise."""
    states = model.domain.states(dtype=F64)
    p = torch.softmax(-model(states), 0)
    letters = Alphabet("-" + "ABCDEFGH"[: model.states - 1])
    return Family(states.argmax(-1), letters, weights=1e6 * p)


# --- files --------------------------------------------------------------------------------------------------


def test_formats_give_the_same_family(tmp_path):
    fasta = ">one two\nACGU-\nACGUA\n>b\nACGUAAC-UA\n"
    files = {
        "a.fasta": fasta.encode(),
        "a.fasta.gz": gzip.compress(fasta.encode()),
        "mark.fasta": b"\xef\xbb\xbf" + fasta.encode(),
        "a.a3m": b">one two\nACGU-aaACGUA\n>b\nACgg.GUAAC-UA\n",
        "a.sto": b"# STOCKHOLM 1.0\n#=GF ID x\none ACGU.\nb ACGUA\n\none ACGUA\nb AC.UA\n//\nrest of the file\n",
        "low.sto": b"# STOCKHOLM 1.0\none aCGU.acguA\nb ACGUAAC-ua\n//\n",
        "dna.fasta": b">one two\r\nACGT-ACGTA\r\n>b\r\nACGTAAC-TA\r\n",
        "low.fasta": b">one two\nacgu-acgua\n>b\nACguaac-ua\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        family = sequences.read(tmp_path / name, "rna")
        assert [family.text(i) for i in range(2)] == ["ACGU-ACGUA", "ACGUAAC-UA"], name
        assert family.x.shape == (2, 10, 5)
    assert family.names[0] == "one two"
    family.write(tmp_path / "again.fasta.gz")
    again = sequences.read(tmp_path / "again.fasta.gz", "rna")
    assert torch.equal(again.states, family.states)
    assert again.names == family.names


@pytest.mark.parametrize(("content", "match"), [
    (b"", "is empty"),
    (b"\n \n", "is empty"),
    (b"hello\n", "begins with"),
    (b">a\n>b\n", "no sequences"),
    (b"# STOCKHOLM 1.0\n//\n", "no sequences"),
    (b">a\nACGU\n>b\nACG\n", "'b' has 3 sites, 'a' has 4; small letters and dots were taken for insertions"),
    (b">a\nacgu\n>b\nacg\n", "'b' has 3 sites, 'a' has 4; sequences must be aligned"),
    (b">a\nAC1U\n", "'1', which is no letter"),
    (">a\nACéU\n".encode(), "'é', which is no letter"),
    (">a\nACéU\n".encode("latin-1"), "which is no letter"),
    (">a\nACGU\n".encode("utf-16"), "UTF-16"),
    (b"\x1f\x8bdamaged", "gzip"),
    (gzip.compress(b">a\nACGU\n" * 1000, mtime=0)[:-20], "gzip"),
    (b">a\n" + b"A" * ((1 << 24) + 1), "a line of more than"),
    (b"# STOCKHOLM 1.0\na b c\n", "a name and a piece"),
])  # fmt: skip
def test_bad_files_get_a_sentence(tmp_path, content, match):
    (tmp_path / "bad.fasta").write_bytes(content)
    with pytest.raises(DataError, match=match):
        sequences.read(tmp_path / "bad.fasta", "rna")


@pytest.mark.parametrize(("content", "match", "rows"), [
    (b">a\nACGX\n>b\nANNN\n", r"4 letters outside -ACGU were read as gaps \(N 3, X 1\); is alphabet='rna' meant", 2),
    (b">a\nACGU\n>a\nACGG\n>a\nACGA\n", "2 names stand more than once \\('a' 3 times\\)", 3),
    (b">caf\xe9\nACGU\n", "1 names are not UTF-8", 1),
    (b"# STOCKHOLM 1.0\na ACGU\n//\n# STOCKHOLM 1.0\nb ACGUU\n//\n", "more than one alignment; the first", 1),
])  # fmt: skip
def test_odd_files_are_read_with_a_sentence(tmp_path, content, match, rows):
    (tmp_path / "odd.fasta").write_bytes(content)
    with pytest.warns(DataWarning, match=match):
        family = sequences.read(tmp_path / "odd.fasta", "rna")
    assert len(family) == rows
    assert family.sites == 4


def test_small_letters_and_gaps_are_what_one_says(tmp_path):
    (tmp_path / "a.fasta").write_bytes(b">a\nACgu\n>b\nACGU\n>c\nA---\n")
    family = sequences.read(tmp_path / "a.fasta", "rna", insertions=False)
    assert [family.text(i) for i in range(3)] == ["ACGU", "ACGU", "A---"]
    assert sequences.read(tmp_path / "a.fasta", "rna", insertions=False, most_gaps=0.5).names == ("a", "b")
    (tmp_path / "b.fasta").write_bytes(b">c\nA---\n")
    with pytest.raises(DataError, match="raise most_gaps"):
        sequences.read(tmp_path / "b.fasta", "rna", most_gaps=0.5)


def test_dots_that_are_gaps_do_not_shift_sequences_in_silence(tmp_path):
    file = tmp_path / "family.fasta"
    file.write_text(">a\nA.CD\n>b\nAE.D\n")
    with pytest.raises(DataError, match="'a' and 'b' have dots or small letters at other sites"):
        sequences.read(file)
    assert sequences.read(file, insertions=False).text(1) == "AE-D"
    file.write_text(">a\nAc.D\n>b\nA.eD\n>c\n-..D\n")
    assert [sequences.read(file).text(i) for i in range(3)] == ["AD", "AD", "-D"]


def test_nucleotides_that_are_read_as_a_protein_are_spoken_of(tmp_path):
    file = tmp_path / "family.fasta"
    file.write_text(">a\n" + "ACGT" * 20 + "\n>b\n" + "AC-T" * 20 + "\n")
    with pytest.warns(DataWarning, match="is alphabet='dna' meant"):
        sequences.read(file)
    assert sequences.read(file, "dna").sites == 80


def test_large_files_stream(tmp_path):
    """8 MB of lines, of which few sequences are kept, are read in little more memory than these take."""
    row = b">name\n" + b"A" + b"-" * 998 + b"\n"
    with gzip.open(tmp_path / "large.fasta.gz", "wb", compresslevel=1) as out:
        for i in range(8):
            out.write(row * 1000 + b">kept%d\n" % i + b"C" * 999 + b"\n")
    tracemalloc.start()
    family = sequences.read(tmp_path / "large.fasta.gz", most_gaps=0.5, identity=None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(family) == 8
    assert peak < 1e6


def test_missing_files_and_alphabets(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        sequences.read(tmp_path / "none.fasta")
    with pytest.raises(ArgumentError, match="protein"):
        sequences.read(tmp_path / "none.fasta", "protien")
    with pytest.raises(ArgumentError, match="no letter"):
        Alphabet.of("rna").index("T")
    assert Alphabet.of("AB").letters == "-AB"


# --- statistics ---------------------------------------------------------------------------------------------


def test_weights_count_similar_sequences():
    states = torch.randint(0, 3, (60, 8), generator=gen())
    same = (states[:, None] == states[None]).double().mean(-1)
    for identity in (0.5, 0.75, 1.0):
        want = 1 / (same >= identity).sum(1)
        for block in (7, 100):
            assert torch.allclose(sequences.similarity_weights(states, identity, block=block).double(), want.double())


def test_pairs_are_counted_as_the_definition_says():
    g = torch.Generator().manual_seed(5)
    states, shares = torch.randint(0, 4, (300, 6), generator=g), torch.rand(300, generator=g, dtype=torch.float64)
    shares /= shares.sum()
    truth = torch.zeros(6, 4, 6, 4, dtype=torch.float64)
    for row, share in zip(states.tolist(), shares.tolist(), strict=True):
        for (i, a), (j, b) in itertools.permutations(enumerate(row), 2):
            truth[i, a, j, b] += share
    torch.testing.assert_close(pairs_by_counting(states, shares, 4), truth, rtol=1e-12, atol=1e-15)
    products = pairs_by_products(states, shares, 4, block=70)
    products.diagonal(dim1=0, dim2=2).zero_()
    torch.testing.assert_close(products, truth, rtol=1e-6, atol=1e-7)


def test_frequencies_have_matching_margins():
    family = Family(torch.randint(0, 4, (50, 5), generator=gen()), Alphabet.of("ABC")).reweighted(0.6)
    w = family.weights.double() / family.weights.double().sum()
    x = family.x.double()
    single, pairs = family.frequencies()
    assert torch.allclose(single, torch.einsum("n,nia->ia", w, x), atol=1e-6)
    assert torch.allclose(pairs[1, :, 3], torch.einsum("n,na,nb->ab", w, x[:, 1], x[:, 3]), atol=1e-6)
    single, pairs = family.frequencies(0.3)
    assert torch.allclose(pairs.sum(3), single[..., None].expand(5, 4, 5), atol=1e-6)
    assert torch.allclose(pairs[2, :, 2], torch.diag(single[2]))


# --- inference ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["pseudo-likelihood", "asymmetric"])
def test_pseudo_likelihood_of_all_states_finds_the_machine(method):
    truth = potts()
    found = sequences.fit_potts(whole(truth), method, l2=0.0, steps=500, progress=False)
    assert float((found.coupling - truth.zero_sum().coupling).abs().max()) < 0.01
    assert float((found.field - truth.zero_sum().field).abs().max()) < 0.01


@pytest.mark.parametrize("ignored", [None, 0])
@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("looked_up", [False, True])
def test_pseudo_likelihood_and_gradient_equal_the_definition(ignored, asymmetric, looked_up):
    """Value written out site by site, gradient by autograd; by products and by lookups."""
    n, sites, q = 40, 5, 4
    states = torch.randint(0, q, (n, sites), generator=gen())
    w = torch.rand(n, generator=gen(1), dtype=F64)
    l2 = (0.3, 0.2)
    like = torch.zeros(1, dtype=F64)
    loss = PseudoLikelihood(states, w, q, l2=l2, ignored=ignored, asymmetric=asymmetric, looked_up=looked_up, like=like)
    k = q - (ignored is not None)
    theta = torch.randn(len(loss.start(torch.zeros(sites, k, dtype=F64))), generator=gen(2), dtype=F64)
    if asymmetric:  # no site acts on itself
        theta[sites * k :].view(sites, k, sites, k)[torch.arange(sites), :, torch.arange(sites)] = 0
    theta.requires_grad_(True)
    h = theta[: sites * k].view(sites, k)
    if asymmetric:
        j = theta[sites * k :].view(sites, k, sites, k)
        penalty = 0.5 * l2[1] * j.square().sum()
    else:
        pairs = iter(theta[sites * k :].view(-1, k, k))
        j = torch.zeros(sites, k, sites, k, dtype=F64)
        penalty = 0
        for a, b in itertools.combinations(range(sites), 2):
            block = next(pairs)
            j[a, :, b], j[b, :, a] = block, block.T
            penalty = penalty + l2[1] * block.square().sum()
    value = l2[0] * h.square().sum() + penalty
    down = 0 if ignored is None else 1
    for row, weight in zip(states.tolist(), w / w.sum(), strict=True):
        for i in range(sites):
            if row[i] == ignored:
                continue
            g = h[i] + sum(j[m, row[m] - down, i] for m in range(sites) if m != i and row[m] != ignored)
            value = value - weight * torch.log_softmax(g, 0)[row[i] - down]
    (want,) = torch.autograd.grad(value, theta)
    found, gradient = loss(theta.detach())
    assert float(found) == pytest.approx(float(value.detach()), rel=1e-12)
    if asymmetric:
        want = want.clone()
        want[sites * k :].view(sites, k, sites, k)[torch.arange(sites), :, torch.arange(sites)] = 0
    assert torch.allclose(gradient, want, atol=1e-12)


def test_ignored_gaps_leave_a_machine_of_letters():
    truth = potts(4, 3)
    states = truth.domain.states(dtype=F64)
    p = torch.softmax(-truth(states), 0)
    family = Family(states.argmax(-1) + 1, Alphabet("-ABC"), weights=1e6 * p)
    found = sequences.fit_potts(family, gaps="ignored", l2=0.0, steps=500, progress=False)
    assert float((found.coupling - truth.zero_sum().coupling).abs().max()) < 0.01
    assert family.alphabet.without_gap().letters == "ABC"
    with pytest.raises(ArgumentError, match="counts the gap as a letter"):
        sequences.fit_potts(family, "mean-field", gaps="ignored")


def test_settings_of_plmc_are_its_own_over_the_effective_number():
    family = Family(torch.randint(0, 3, (30, 4), generator=gen()), Alphabet("-AB"), weights=torch.full((30,), 0.5))
    for gaps, q in (("letter", 3), ("ignored", 2)):
        plmc = sequences.fit_potts(family, l2="plmc", gaps=gaps, progress=False)
        own = sequences.fit_potts(family, l2=(0.01 / 15, 0.01 * 3 * (q - 1) / 15), gaps=gaps, progress=False)
        assert torch.equal(plmc.coupling, own.coupling)
    with pytest.raises(ArgumentError, match="'plmc'"):
        sequences.fit_potts(family, l2="gremlin")


@pytest.mark.parametrize(("rows", "couplings"), [(30, 3 / (5 * 15)), (3000, 0.01)])
def test_penalties_of_couplings_grow_where_sequences_are_few(rows, couplings):
    states = torch.randint(0, 3, (rows, 4), generator=gen())
    family = Family(states, Alphabet("-AB"), weights=torch.full((rows,), 0.5))
    found = sequences.fit_potts(family, progress=False)
    own = sequences.fit_potts(family, l2=(0.01, couplings), progress=False)
    assert torch.equal(found.coupling, own.coupling)


@pytest.mark.parametrize("method", ["pseudo-likelihood", "asymmetric"])
def test_the_penalty_counts_every_pair_once(method):
    """At the minimum the derivative of the pseudo-likelihood is -2λ times the parameter, for J in either triangle; couplings
    of both sides, each with half the penalty, have the same sum at their own minima to first order."""
    family, l2 = whole(potts()), 0.05
    found = sequences.fit_potts(family, l2=l2, steps=1000, progress=False).double()
    if method == "asymmetric":
        other = sequences.fit_potts(family, method, l2=l2, steps=1000, progress=False).double()
        assert float((other.coupling - found.coupling).norm() / found.coupling.norm()) < 0.1
        return
    x, w = family.x.double(), (family.weights / family.weights.sum()).double()
    h, j = found.field.clone().requires_grad_(True), found.coupling.clone().requires_grad_(True)
    g = h + torch.einsum("njb,jbia->nia", x, j)
    value = -(w * (x * torch.log_softmax(g, -1)).sum((1, 2))).sum()
    _, slope = torch.autograd.grad(value, [h, j])
    both = slope + slope.permute(2, 3, 0, 1)  # in J_ij and J_ji, which are one parameter
    both = both - both.mean(1, keepdim=True)
    both = both - both.mean(3, keepdim=True)  # in the gauge of what was found
    for i, k in itertools.combinations(range(4), 2):
        assert torch.allclose(both[i, :, k], -2 * l2 * j[i, :, k], atol=2e-3)


def test_mean_field_is_right_to_first_order():
    errors = []
    for scale in (0.04, 0.08):
        truth = potts(scale=scale)
        found = sequences.fit_potts(whole(truth), "mean-field", pseudocount=0.0)
        errors.append(float((found.coupling - truth.zero_sum().coupling).abs().max()))
    assert errors[0] < 0.1 * 0.04
    assert 2.5 < errors[1] / errors[0] < 6  # second order: four times


def test_boltzmann_learning_matches_correlations():
    truth = potts(scale=0.8)
    found = sequences.fit_potts(
        whole(truth), "boltzmann", chains=4000, sweeps=3, lr=0.3, target=0.995, progress=False, generator=gen()
    )
    exact = []
    for model in (truth, found.double()):  # connected correlations by enumeration, not by the chains that learned
        single, pairs = whole(model).frequencies()
        connected = (pairs - single[:, :, None, None] * single).permute(0, 2, 1, 3)
        exact.append(connected[torch.triu_indices(4, 4, 1).unbind()].flatten())
    assert float(torch.corrcoef(torch.stack(exact))[0, 1]) > 0.98
    assert float((exact[0] - exact[1]).abs().max()) < 0.03
    with pytest.warns(TrainingWarning, match="below 1"):
        sequences.fit_potts(whole(truth), "boltzmann", chains=50, steps=10, target=1.0, progress=False)


def test_too_few_iterations_are_said():
    with pytest.warns(TrainingWarning, match="still falling"):
        sequences.fit_potts(whole(potts(scale=1.5)), l2=0.0, steps=2, progress=False)
    with pytest.raises(ArgumentError, match="method"):
        sequences.fit_potts(whole(potts()), "plm")


# --- contacts and mutations ---------------------------------------------------------------------------------


def test_contacts_are_norms_without_the_gap_corrected_by_averages():
    model = potts(7, 4)
    j = model.zero_sum().coupling[:, 1:, :, 1:]
    norm = torch.stack([torch.stack([j[i, :, k].norm() for k in range(7)]) for i in range(7)])
    want = norm - norm.sum(1)[:, None] * norm.sum(0) / norm.sum()  # plmDCA's and adabmDCA's form
    found = sequences.contacts(model, minimum_separation=3, gap=0)
    assert found.pairs.shape == (10, 2)
    for (i, k), value in zip(found.pairs.tolist(), found.values, strict=True):
        assert k - i >= 3
        assert float(value) == pytest.approx(float(want[i, k]), abs=1e-9)
    assert bool((found.values.diff() <= 0).all())
    plain = sequences.contacts(model, minimum_separation=3, corrected=False, gap=None)
    assert float(plain.scores[0, 3]) == pytest.approx(float(model.zero_sum().coupling[0, :, 3].norm()))
    touching = torch.full((7, 7), float("nan"))
    i, k = found.pairs[1].tolist()
    touching[i, k] = 1.0
    i, k = found.pairs[3].tolist()
    touching[i, k] = 0.0
    assert sequences.precision(found, touching, 1) == 1.0  # pairs that nobody knows do not count
    assert sequences.precision(found, touching) == 0.5
    with pytest.raises(ArgumentError, match="leaves no pair"):
        sequences.contacts(model, minimum_separation=7)


def test_mutations_change_the_energy():
    model = potts(5, 5)
    wild = torch.tensor([1, 2, 3, 4, 0])
    x = model.domain.one_hot(wild[None], dtype=F64)
    table = sequences.mutation_table(model, wild)
    for i, a in itertools.product(range(5), range(5)):
        y = wild.clone()
        y[i] = a
        want = float(model(x) - model(model.domain.one_hot(y[None], dtype=F64)))
        assert float(table[i, a]) == pytest.approx(want, abs=1e-9)
    y = torch.tensor([1, 1, 3, 2, 0])
    want = float(model(x) - model(model.domain.one_hot(y[None], dtype=F64)))
    score = sequences.mutation_score(model, x[0], "C25A:U27C", first=24)
    assert float(score) == pytest.approx(want, abs=1e-9)
    for bad, match in [
        ("C2", "such as 'A3C'"),
        ("G2A", "has 'C' at position 2"),
        ("A9C", "from 1 to 5"),
        ("X2A", "'X'"),
    ]:
        with pytest.raises(ArgumentError, match=match):
            sequences.mutation_score(model, wild, bad)
    with pytest.raises(ArgumentError, match="alphabet="):
        sequences.mutation_score(potts(3, 6), torch.tensor([0, 1, 2]), "A1C")


# --- new sequences ------------------------------------------------------------------------------------------


def test_many_mutants_change_the_energy_as_one_does():
    g = gen(8)
    potts = models.Potts(6, 5)
    with torch.no_grad():
        potts.coupling.normal_(generator=g)  # neither symmetric nor without a diagonal: its symmetric part counts
        potts.field.normal_(generator=g)
    potts.double()
    wild = torch.tensor([1, 2, 3, 4, 1, 2])  # ACGUAC
    names = ["A1C", "A1C:G3U", "C2-,U4A,C6G", "A1A", "G3A:A5U:C6A:A1G"]
    changed = [{0: 2}, {0: 2, 2: 4}, {1: 0, 3: 1, 5: 3}, {}, {2: 1, 4: 4, 5: 1, 0: 3}]
    found = sequences.mutation_scores(potts, wild, names)
    for score, change in zip(found, changed, strict=True):
        mutant = wild.clone()
        for site, letter in change.items():
            mutant[site] = letter
        both = potts(potts.domain.one_hot(torch.stack([wild, mutant]), dtype=torch.float64)).detach()
        assert float(score) == pytest.approx(float(both[0] - both[1]), abs=1e-10)
    assert sequences.mutation_scores(potts, wild, []).shape == (0,)
    with pytest.raises(ArgumentError, match="position 1 changes twice"):
        sequences.mutation_scores(potts, wild, ["A1C:A1G"])


def test_drawn_sequences_follow_the_machine():
    """Frequencies of 4000 chains against enumeration, five standard errors: a false alarm in 10⁵ or so."""
    model = potts(3, 3, scale=0.8).float()
    family = whole(model.double())
    for start in ("random", "natural"):
        drawn = sequences.sample_sequences(model, family, 4000, sweeps=20, start=start, generator=gen(), progress=False)
        truth, _ = family.frequencies()
        found, _ = drawn.frequencies()
        assert bool(((found - truth).abs() < 5 * (truth * (1 - truth) / 4000).sqrt()).all())
    gapless = sequences.sample_sequences(models.Potts(3, 2), family, 5, sweeps=2, generator=gen(), progress=False)
    assert gapless.alphabet.letters == "AB"
    with pytest.raises(ShapeError, match="sites and letters"):
        sequences.sample_sequences(models.Potts(4, 3), family, 5, generator=gen())


def test_entropy_is_that_of_enumeration():
    model = potts(4, 3, scale=0.8)
    log_p = torch.log_softmax(-model(model.domain.states(dtype=F64)), 0)
    truth = float(-(log_p.exp() * log_p).sum())
    found = sequences.entropy(
        model, whole(model), chains=200, sweeps=10, max_betas=250, generator=gen(), progress=False
    )
    assert found.lower < truth < found.upper
    assert abs(found.value - truth) < 4 * found.stderr
    assert found.upper - found.lower < 1
    assert float(found.log_z.value) == pytest.approx(
        float(torch.logsumexp(-model(model.domain.states(dtype=F64)), 0)), abs=0.2
    )


def test_statistics_of_natural_and_drawn_sequences():
    letters = Alphabet("-AB")
    one = Family(torch.randint(0, 3, (50, 5), generator=gen()), letters).reweighted(0.7)
    other = Family(torch.randint(0, 3, (40, 5), generator=gen(1)), letters)
    found = sequences.compare(one, other)
    w = (one.weights / one.weights.sum()).double()
    x = one.x.double()
    f1 = torch.einsum("n,nia->ia", w, x)
    assert torch.allclose(found.one.natural, f1.flatten(), atol=1e-6)
    centered = x - f1
    want = [
        torch.einsum("n,na,nb,nc->abc", w, centered[:, i], centered[:, j], centered[:, k]).flatten()
        for i, j, k in itertools.combinations(range(5), 3)
    ]
    assert torch.allclose(found.three.natural, torch.cat(want), atol=1e-6)  # the third cumulant is the centered moment
    want = [
        torch.einsum("n,na,nb->ab", w, centered[:, i], centered[:, j]).flatten()
        for i, j in itertools.combinations(range(5), 2)
    ]
    assert torch.allclose(found.two.natural, torch.cat(want), atol=1e-6)
    a, b = found.two.natural, found.two.drawn
    assert found.two.pearson == pytest.approx(float(torch.corrcoef(torch.stack([a, b]))[0, 1]))
    assert found.two.slope == pytest.approx(
        float(((a - a.mean()) * (b - b.mean())).sum() / (a - a.mean()).square().sum())
    )
    same = (other.states[:, None] == one.states[None]).double().mean(-1)
    assert torch.allclose(found.nearest.double(), same.amax(1))
    own = (one.states[:, None] == one.states[None]).double().mean(-1).fill_diagonal_(0)
    assert torch.allclose(found.nearest_natural.double(), own.amax(1))
    flat = w.sqrt()[:, None] * centered.flatten(1)
    _, s, v = torch.linalg.svd(flat)
    assert torch.allclose((centered.flatten(1) @ v[:2].T).abs(), found.components[0].abs(), atol=1e-5)
    assert found.explained[0] == pytest.approx(float(s[0] ** 2 / s.square().sum()), abs=1e-5)
    perfect = sequences.compare(one, one)
    for part in (perfect.one, perfect.two, perfect.three):
        assert (part.pearson, part.slope) == (pytest.approx(1), pytest.approx(1))
    assert "nearest identity" in repr(found)
    with pytest.raises(ArgumentError, match="differ"):
        sequences.compare(one, Family(other.states, Alphabet("-BA")))


def test_triples_are_drawn_where_there_are_many():
    family = Family(torch.randint(0, 2, (20, 30), generator=gen()), Alphabet("-A"))
    assert len(sequences.compare(family, family, triples=10).three.natural) == 80
    assert math.comb(30, 3) > 10


# --- RBMs ---------------------------------------------------------------------------------------------------


def test_an_rbm_learns_the_law_of_a_weighted_family():
    """Every state stands once, so that weights are all there is to learn from; judged by enumeration."""
    truth = potts(4, 3, scale=1.0)
    family = whole(truth)
    x = truth.domain.states(dtype=F64)
    p = torch.softmax(-truth(x), 0)
    rbm = sequences.fit_rbm(
        family, 12, sparsity=0.001, steps=300, batch_size=200, lr=0.04, chains=200, sweeps=2, progress=False
    ).double()
    log_q = torch.log_softmax(-rbm(x), 0)
    profile = (x * family.profile().log()).sum((1, 2))
    gain = [float((p * (p.log() - log)).sum()) for log in (log_q, profile)]
    assert gain[0] < 0.2 * gain[1]
    w = sequences.hidden_weights(rbm)
    assert torch.allclose(w.sum(-1), torch.zeros(12, 4, dtype=F64), atol=1e-9)
    assert bool((w.flatten(1).norm(dim=1).diff() <= 0).all())
    with pytest.raises(ArgumentError, match="sparsity"):
        sequences.fit_rbm(family, 3, sparsity=-1.0)
