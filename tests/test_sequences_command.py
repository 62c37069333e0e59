"""`gibbsian sequences`: a family from the command line."""

import csv
import json

import pytest
import torch

from gibbsian import sequences
from gibbsian.app.cli import main


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def alignment(tmp_path):
    family, touching = sequences.demo_family(300, generator=gen())
    family.write(tmp_path / "made.fasta")
    rows = ["i,j,heavy"]
    rows += [f"{i},{j},{5 if touching[i, j] else 20}" for i in range(38) for j in range(i + 1, 38)]
    (tmp_path / "distances.csv").write_text("\n".join(rows))
    return tmp_path / "made.fasta", touching


def test_a_family_gives_contacts_mutations_new_sequences_and_a_report(alignment, tmp_path, capsys):
    file, touching = alignment
    run = tmp_path / "run"
    given = [
        "--alphabet",
        "rna",
        "--method",
        "mean-field",
        "-n",
        "60",
        "--sweeps",
        "5",
        "--no-entropy",
        "--first",
        "10",
    ]
    code = main(
        ["sequences", str(file), *given, "--distances", str(tmp_path / "distances.csv"), "--run", str(run), "--json"]
    )
    assert code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["precision"]["L/5"] == 1.0  # eleven pairs are planted, seven asked for
    (touch,) = [one for one in found["verdict"] if "touch" in one["text"]]
    assert touch == {"level": "good", "text": "of the strongest L/5 pairs 100 % touch (chance: 2 %)"}  # 11 of 703
    assert [one["level"] for one in found["verdict"] if "mutants are scored by mean field" in one["text"]] == ["bad"]
    contacts = table(run / "contacts.csv")
    assert all(row["touching"] == "1" for row in contacts[:7])
    assert touching[int(contacts[0]["i"]) - 10, int(contacts[0]["j"]) - 10] == 1
    mutants = table(run / "mutations.csv")
    family = sequences.read(file, "rna")
    assert mutants[0]["mutant"][:-1] == f"{family.text(0)[0]}10"
    potts = sequences.fit_potts(family, "mean-field")
    for row in mutants[:5]:
        score = sequences.mutation_score(potts, family.states[0], row["mutant"], first=10)
        assert float(row["score"]) == pytest.approx(float(score), abs=1e-4)
    assert len(sequences.read(run / "drawn.fasta", "rna", identity=None)) == 60
    page = (run / "report.html").read_text()
    assert all(one["text"] in page for one in found["verdict"])
    for words in ("Contacts", "Logos", "fields in the zero-sum gauge", "principal components", "Mutations"):
        assert words in page


def test_a_scan_is_scored_and_ranked(alignment, tmp_path, capsys):
    family = sequences.read(alignment[0], "rna")
    potts = sequences.fit_potts(family, "mean-field")
    old = family.text(0)
    names = [f"{old[i]}{24 + i}{'ACGU'[(i + k) % 4]}" for i in range(30) if old[i] != "-" for k in range(2)]
    names.append(":".join(names[:1] + names[4:5]))
    truth = [float(sequences.mutation_score(potts, family.states[0], name, first=24)) for name in names]
    rows = [f"{name},{-value:.6f},{k}" for k, (name, value) in enumerate(zip(names, truth, strict=True))]
    (tmp_path / "scan.csv").write_text("\n".join(["mutant,harm,row", *rows]))
    run = tmp_path / "run"
    given = [
        "--alphabet",
        "rna",
        "--method",
        "mean-field",
        "-n",
        "40",
        "--sweeps",
        "2",
        "--no-entropy",
        "--first",
        "24",
    ]
    scan = ["--mutants", str(tmp_path / "scan.csv"), "--run", str(run), "--json"]
    assert main(["sequences", str(alignment[0]), *given, *scan]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scan"]["harm"] == pytest.approx(-1)
    assert abs(found["scan"]["row"]) < 0.9
    assert [float(row["score"]) for row in table(run / "scan.csv")] == pytest.approx(truth, abs=1e-4)
    assert "Spearman with" in (run / "report.html").read_text()


def test_an_rbm_has_logos_of_its_hidden_units(alignment, tmp_path):
    run = tmp_path / "run"
    given = ["--method", "rbm", "--hidden", "2", "--steps", "5", "-n", "40", "--sweeps", "2", "--no-entropy", "--quiet"]
    assert main(["sequences", str(alignment[0]), "--alphabet", "rna", *given, "--run", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert "hidden unit 2, weights" in page
    assert not (run / "contacts.csv").exists()


@pytest.mark.parametrize(("given", "words"), [
    (["none.fasta"], "there is no file"),
    (["made.fasta", "--wild", "nobody"], "no sequence has this name"),
    (["made.fasta", "--alphabet", "protien"], "protein"),
    (["made.fasta", "--distances", "made.fasta"], "expected i and j"),
    (["made.fasta", "--distances", "far.csv"], "outside 0 to 37"),
    (["made.fasta", "--mutants", "far.csv"], "expected mutant"),
    (["made.fasta", "--mutants", "none.csv"], "cannot be read as a table of mutants"),
    (["made.fasta", "--mutants", "far.csv", "--method", "rbm"], "another --method"),
    (["made.fasta", "--mutants", "wrong.csv", "--first", "99"], "positions go from 99 to 136"),
    (["made.fasta", "--device", "abacus"], "cannot be used"),
    (["made.fasta", "--run", "."], "already holds files"),
    (["one.fasta"], "no two sequences that differ (2 in all)"),
])  # fmt: skip
def test_what_cannot_be_done_is_said_in_a_sentence(alignment, tmp_path, monkeypatch, capsys, given, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "far.csv").write_text("i,j,d\n0,38,5\n")
    (tmp_path / "one.fasta").write_text(">a\nACGU\n>b\nACGU\n")
    (tmp_path / "wrong.csv").write_text("mutant,fitness\nA3C,1\n")
    if "--alphabet" not in given:
        given = [*given, "--alphabet", "rna"]
    assert main(["sequences", *given]) in (1, 2)
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1
