"""Tables from files: reading, the commands, run folders that stand alone, drift, the report."""

import json
import math
import runpy
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gibbsian.app.cli import main
from gibbsian.app.tables import TableRecipe, compared, load
from gibbsian.errors import ArgumentError, DataError
from gibbsian.tables import TableWarning, reading
from gibbsian.tables.drift import counted, drift
from gibbsian.tables.families import Options
from gibbsian.tables.fitting import fit_table
from gibbsian.tables.frames import as_frame
from gibbsian.tables.reading import Source, in_pieces, read_table


def people(n=250, seed=0):
    rng = np.random.default_rng(seed)
    sex = rng.choice(["female", "male"], n)
    age = rng.integers(18, 90, n).astype(float)
    age[rng.random(n) < 0.1] = np.nan
    wage = np.exp(rng.normal(1 + (sex == "male"), 0.4)).round(3)
    day = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 365, n), unit="D")
    return pd.DataFrame({"age": age, "sex": sex, "wage": wage, "day": day, "kids": rng.poisson(1, n)})


# --- reading --------------------------------------------------------------------------------------------


def written(tmp_path, text, name="a.csv", **how):
    path = tmp_path / name
    path.write_text(text, **how)
    return path


def test_a_table_is_read_with_its_types(tmp_path):
    text = "\ufeffage, sex ,born,zip,height\n30,f,2001-02-03,0123,1.5\n?,m,,0456,\nNA,f,1999-12-31,0789,1.75\n"
    table = read_table(written(tmp_path, text, encoding="utf-8"), types={"zip": "category"})
    assert list(table.columns) == ["age", "sex", "born", "zip", "height"]
    assert table["age"].isna().tolist() == [False, True, True]
    assert table["born"].dtype.kind == "M"
    assert table["born"].isna().tolist() == [False, True, False]
    assert table["zip"].tolist() == ["0123", "0456", "0789"]  # names, as they are written
    (piece,) = in_pieces(Source(str(tmp_path / "a.csv")), {"zip": "category"}, list(table.columns))
    assert piece["zip"].tolist() == ["0123", "0456", "0789"]
    summer = read_table(written(tmp_path, "a\n2020-01-01T08:00+01:00\n\n2020-07-01T08:00+02:00\n", "f.csv"))
    assert summer["a"].dt.hour.tolist() == [7, 6]
    semicolons = read_table(written(tmp_path, "a;b\n1,5;x\n2,25;y\n", "b.csv"))
    assert semicolons["a"].tolist() == [1.5, 2.25]
    tabs = read_table(written(tmp_path, "1\t2\n3\t4\n", "c.tsv"))
    assert list(tabs.columns) == ["x0", "x1"]
    assert tabs["x1"].tolist() == [2, 4]
    some = read_table(written(tmp_path, "a,b,c\n1,2,-\n3,4,5\n", "d.csv"), columns=("a", "c"), missing=("-",))
    assert list(some.columns) == ["a", "c"]
    assert math.isnan(some["c"][0])
    assert list(read_table(tmp_path / "d.csv", drop=("a",)).columns) == ["b", "c"]
    latin = tmp_path / "e.csv"
    latin.write_bytes("name\nJosé\nAna\n".encode("latin-1"))
    assert read_table(latin, encoding="latin-1")["name"][0] == "José"


def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    people(20).to_parquet(tmp_path / "a.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "a.parquet"), people(20), check_dtype=False)


@pytest.mark.parametrize(
    ("text", "how", "words"),
    [
        ("", {}, "is empty"),
        ("a,b\n", {}, "has no rows"),
        ("a,a\n1,2\n", {}, "more than one column named 'a'"),
        ("a,b\n1,2\n1,2,3\n", {}, "line 3"),
        ("a\n" + "1\n" * 20 + "x\n2\n", {}, "row 21, column 'a' holds 'x' where numbers are expected"),
        ("a\nx\n", {"types": {"a": "numeric"}}, "row 1, column 'a' holds 'x'"),
        ("a\n2020-01-01\nsoon\n", {"types": {"a": "date"}}, "row 2, column 'a' holds 'soon', which is no date"),
        ("a,b\n1,2\n", {"columns": ("aa",)}, "no column 'aa'; did you mean 'a'"),
        ("a,b\n1,2\n", {"drop": ("z",)}, "no column 'z'"),
        ("zip,b\n1,2\n", {"types": {"zpi": "category"}}, "types names a column 'zpi', .* did you mean 'zip'"),
        ("sep=;\na;b\n1;2\n", {}, "begins with 'sep=;', which is neither names nor a row"),
        ("a\n2020-01-01T08:00Z\n2020-01-02\n", {}, "row 2, column 'a' holds '2020-01-02' without a time zone"),
    ],
)
def test_what_cannot_be_understood_is_said_in_a_sentence(tmp_path, text, how, words):
    with pytest.raises((DataError, ArgumentError), match=words):
        read_table(written(tmp_path, text), **how)


def test_rows_and_header_of_other_lengths_neither_shift_columns_nor_pass_in_silence(tmp_path):
    """pandas alone would take the first column of a longer row as names of rows, and all others one too far to the left."""
    for text in ("a,b,c\n1,2,3,4\n5,6,7,8\n", "a,b,c\n1,2,3\n5,6,7,8\n", "a,b,c\n" + "1,2,3,\n" * 60 + "5,6,7,8\n"):
        with pytest.raises(DataError, match=r"and 4 in its first row|line 3, saw 4|more cells than its first line"):
            read_table(written(tmp_path, text))
    assert read_table(written(tmp_path, "a,b,c\n1,2,3,\n5,6,7,\n")).to_dict("list") == {
        "a": [1, 5],
        "b": [2, 6],
        "c": [3, 7],
    }
    with pytest.warns(TableWarning, match="1 of 4 rows .* end early, the first is row 2 with 1 of 3 cells"):
        short = read_table(written(tmp_path, "a,b,c\n1,2,3\n4\n5,6,\n\n7,8,9\n"))
    assert short["b"].isna().tolist() == [False, True, False, False]


def test_row_numbers_without_a_name_are_spoken_of(tmp_path):
    people(20).to_csv(tmp_path / "a.csv")
    with pytest.warns(TableWarning, match="the first column of .* has no name and counts the rows"):
        read_table(tmp_path / "a.csv", most=15)


def test_a_wrong_encoding_and_a_missing_file_are_said(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"name\nJos\xe9\n")
    with pytest.raises(DataError, match="is no text in utf-8"):
        read_table(path)
    with pytest.raises(DataError, match="there is no file"):
        read_table(tmp_path / "b.csv")


def test_a_large_table_is_sampled_evenly(tmp_path):
    """2000 of 120000 rows: their mean number is that of all within 4 standard errors."""
    n = 120_000
    written(tmp_path, "i\n" + "\n".join(map(str, range(n))) + "\n")
    some = read_table(tmp_path / "a.csv", most=2000)["i"]
    assert (some == some.index).all()  # where they stand in the file
    written(tmp_path, "i\n" + "\n".join([*map(str, range(400)), "many"] * 2) + "\n")
    with pytest.warns(TableWarning, match="holds numbers in 75 % of its cells, words such as 'three' in row 3"):
        mixed = read_table(written(tmp_path, "a\n1\n2\nthree\n4\n", "b.csv"))
    assert mixed["a"].tolist() == ["1", "2", "three", "4"]
    with pytest.raises(DataError, match=r"row (401|802), column 'i' holds 'many'"):
        read_table(tmp_path / "a.csv", most=750, types={"i": "numeric"})
    assert len(set(some)) == 2000
    assert abs(some.mean() - n / 2) < 4 * n / math.sqrt(12 * 2000)


def test_new_rows_come_by_name_in_any_order(tmp_path):
    written(tmp_path, "b,a\n1,x\n2,y\n")
    (piece,) = in_pieces(Source(str(tmp_path / "a.csv")), {}, ("a", "b"))
    assert list(piece.columns) == ["a", "b"]
    for names, words in ((("a",), "has 'b', which training did not know"), (("a", "b", "c"), "lacks the column 'c'")):
        with pytest.raises(DataError, match=words):
            list(in_pieces(Source(str(tmp_path / "a.csv")), {}, names))


# --- commands -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose training file is gone and whose folder has moved."""
    folder = tmp_path_factory.mktemp("tables")
    people().assign(odd=np.arange(250) % 10 == 0).to_csv(folder / "people.csv", index=False)
    flags = [
        "--family",
        "tilted",
        "--components",
        "2",
        "--steps",
        "60",
        "--label",
        "odd",
        "--run",
        str(folder / "first"),
    ]
    assert main(["train", str(folder / "people.csv"), *flags, "-q"]) == 0
    (folder / "people.csv").unlink()
    shutil.move(folder / "first", folder / "run")
    people(120, seed=1).to_csv(folder / "rows.csv", index=False)
    return folder / "run"


def said(capsys, *arguments):
    code = main([*map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def test_rows_are_scored_explained_filled_in_and_drawn_without_the_training_file(run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = run.parent / "rows.csv"
    found = said(capsys, "score", run, rows, "--explain", "--out", "scores.csv")
    scores = pd.read_csv("scores.csv")
    model = load(run).model
    new = read_table(rows)
    np.testing.assert_allclose(scores["log_likelihood"], model.log_prob(new).value, rtol=1e-9)
    np.testing.assert_allclose(scores["surprise age"], model.surprise(new)[:, 0], rtol=1e-6)
    assert scores["surprise age"].isna().equals(new["age"].isna())
    assert found["rows"] == 120
    assert set(scores["strangest"]) <= set(new.columns)
    said(capsys, "impute", run, rows, "--out", "filled.csv")
    filled = pd.read_csv("filled.csv")
    assert list(filled.columns) == list(new.columns)
    assert not filled.isna().any().any()
    known = new["age"].notna()
    np.testing.assert_array_equal(filled.loc[known, "age"], new.loc[known, "age"])
    assert filled["age"].dtype.kind == "i"
    files = said(capsys, "impute", run, rows, "--draws", 2, "--out", "drawn.csv")["files"]
    assert not pd.read_csv(files[0]).equals(pd.read_csv(files[1]))
    said(capsys, "sample", run, "-n", 30, "--given", "sex=female,age=30", "--out", "new.csv")
    drawn = pd.read_csv("new.csv")
    assert set(drawn["sex"]) == {"female"}
    assert set(drawn["age"]) == {30}
    assert (drawn["wage"] > 0).all()
    assert drawn["day"].str.fullmatch(r"\d{4}-\d\d-\d\d").all()
    again = main(["sample", str(run), "-n", "30", "--given", "sex=female,age=30", "--out", "again.csv", "-q"])
    assert again == 0
    assert pd.read_csv("again.csv").equals(drawn)


@pytest.mark.parametrize("command", [["impute"], ["impute", "--draws", "2"], ["score"]])
def test_rows_are_written_as_a_whole_or_not_at_all(command, run, tmp_path, monkeypatch, capsys):
    """A target may be the file that the rows are read from, which must not shrink meanwhile, nor vanish where a later row is odd."""
    monkeypatch.setattr(reading, "pieces", partial(reading.pieces, rows=30))
    rows, folder = people(90, seed=1).astype({"age": object}), tmp_path / "not yet" / "there"
    first, *more = command
    target = folder / ("rows-1.csv" if more else "rows.csv")
    given = [first, str(run), str(tmp_path / "rows.csv"), "--out", str(folder / "rows.csv"), *more]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    assert main([*given, "-q"]) == 0
    whole = target.read_text()
    assert len(pd.read_csv(target)) == 90
    rows.loc[75, "age"] = "old"
    rows.to_csv(tmp_path / "rows.csv", index=False)
    assert main([*given, "-q"]) == 1
    assert "row 76" in capsys.readouterr().err
    assert target.read_text() == whole
    assert not list(folder.glob(".*"))


def test_the_report_tells_of_the_table(run):
    assert main(["report", str(run), "-q"]) == 0
    page = (run / "report.html").read_text()
    for words in (
        "Samples against the data",
        "The strangest rows",
        "Missing cells",
        "Labels",
        "dependence of pairs",
        "never below 0",
    ):
        assert words in page
    found = json.loads((run / "evaluation.json").read_text())
    assert 0 <= found["auroc"] <= 1
    assert len(found["strange"]) == 8


def test_drift_is_seen_where_there_is_some_and_holds_its_level(run, capsys, tmp_path):
    rows = run.parent / "rows.csv"
    same = said(capsys, "score", rows, "--against", run)["drift"]
    assert same["p_value"] > 0.01
    people(120, seed=2).assign(wage=lambda t: t["wage"] * 1.6).to_csv(tmp_path / "new.csv", index=False)
    moved = said(capsys, "score", tmp_path / "new.csv", "--against", run)["drift"]
    assert moved["p_value"] < 0.01
    assert min(moved["columns"], key=moved["columns"].get) == "wage"
    low = 0
    for seed in range(16):  # p ≤ 0.1 in at most 6 of 16 trainings and tests of rows of the law: false alarm 1e-3
        table = people(120, seed=100 + seed)
        model = fit_table(table, family="mixture", options=Options(components=1, seed=seed))
        new = model.rows(people(60, seed=200 + seed))
        kept, _ = compared(model, as_frame(table))
        low += drift(model, kept, new, model.judged(new), seed=seed, permutations=99).p_value <= 0.1
    assert low <= 6


def test_shares_of_few_rows_are_compared_at_their_level():
    """p ≤ 0.05 in at most a share of 0.05 + 3.1 standard errors of tests of equal shares: false alarm 1e-3 each."""
    rng, shares = np.random.default_rng(0), np.array([0.5, 0.3, 0.1, 0.05, 0.03, 0.02])
    for new in (4, 30, 300):
        pairs = [np.stack([rng.multinomial(300, shares), rng.multinomial(new, shares)]) for _ in range(400)]
        low = np.mean([counted(pair[:, pair.sum(0) > 0]) <= 0.05 for pair in pairs])
        assert low <= 0.05 + 3.1 * (0.05 * 0.95 / 400) ** 0.5
    assert counted(np.array([[200, 80, 20], [20, 200, 80]])) < 1e-6
    assert counted(np.array([[290, 10], [0, 4]])) < 1e-4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sample", "RUN", "--given", "sexx=male"], "did you mean 'sex'"),
        (["sample", "RUN", "--given", "sex=robot"], "knows no 'robot'"),
        (["sample", "RUN", "--given", "age"], "expected name=value"),
        (["sample", "RUN", "--out", "a.npz"], "ends in .csv"),
        (["resume", "RUN"], "is the run of a table"),
        (["evaluate", "RUN"], "is the run of a table"),
        (["score", "RUN", "ROWS", "--out", "a.npz"], "ends in .csv"),
        (["score", "RUN", "HEADER"], "holds a header and no rows"),
        (["impute", "RUN", "HEADER"], "holds a header and no rows"),
        (["score", "RUN"], "say a run and a table of rows"),
        (["score", "nowhere", "ROWS"], "there is no run folder"),
        (["train", "ROWS", "--famly", "mixture"], "did you mean 'family'"),
        (["train", "ROWS", "--types", "age=number"], "must be one of 'numeric'"),
        (["train", "ROWS", "--family", "forest"], "must be one of 'mixture'"),
        (["train", "ROWS", "--units", "20"], "give at most 12, or take the family mixture or tilted"),
        (["train", "ROWS", "--seed", "2001-99-99"], "seed must be a whole number"),
        (["train", "ROWS", "--seed", "9" * 5000], "--seed 999"),
        (["train", "ROWS", "--components", "["], "is not understood"),
        (["train", "ROWS", "--decimal", ";"], "is . or ,"),
        (["score", "RUN", "ROWS", "--encoding", "nonsense"], "such as utf-8"),
        (["sample", "RUN", "--given", "sex=male,sex=female"], "said twice"),
        (["train", "ROWS", "--hidden", ""], "hidden is empty"),
        (["train", "ROWS", "--hidden", "8,many"], "hidden must be a whole number"),
        (["train", "ROWS", "--components", "two"], "components must be a whole number"),
    ],
)
def test_wrong_use_is_said_in_one_line(run, capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    people(0).to_csv("header.csv", index=False)
    places = {"RUN": str(run), "ROWS": str(run.parent / "rows.csv"), "HEADER": "header.csv"}
    assert main([places.get(word, word) for word in arguments]) in {1, 2}
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_tables_larger_than_memory_teach_with_all_their_rows(tmp_path, capsys):
    people(400).assign(odd=np.arange(400) % 10 == 0).to_csv(tmp_path / "a.csv", index=False)
    flags = ["--family", "mixture", "--components", "2", "--rows", "150", "--label", "odd", "--run", tmp_path / "run"]
    found = said(capsys, "train", tmp_path / "a.csv", *flags, "--no-report")
    assert found["rows"] == 400
    assert load(tmp_path / "run").notes["rows"] == 400


def test_the_example_of_a_table_with_gaps_runs(tmp_path, capsys, monkeypatch):
    people(90).drop(columns="day").assign(ill=lambda t: np.where(t["wage"] > 4, "yes", "no")).to_csv(tmp_path / "a.csv", index=False, na_rep="?")  # fmt: skip
    monkeypatch.setattr("sys.argv", ["heart.py", str(tmp_path / "a.csv"), "--family", "mixture"])
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "heart.py"), run_name="__main__")
    said_ = capsys.readouterr().out
    assert "of 20 draws" in said_
    assert "strangest cell: age" in said_


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("table: {path: [a.csv]}", "path: ['a.csv'] was given where one word"),
        ("table: {path: a.csv, schema: 3}", "schema: 3 was given"),
        ("table: {path: a.csv, label: [a]}", "label: ['a'] was given"),
        ("table: {path: a.csv, rows: many}", "rows must be a whole number"),
        ("table: {path: a.csv, drop: [[a]]}", "drop: [['a']] holds more than names"),
        ("table: {path: a.csv, types: [a]}", "types: ['a'] was given"),
        ("table: {path: a.csv, types: {a: [1]}}", "types: {'a': [1]} was given"),
        ("table: {path: a.csv, encoding: nonsense}", "such as utf-8"),
        ("table: {path: a.csv, seed: 2001-99-99}", "seed must be a whole number"),
        (f"table: {{path: a.csv, seed: {'9' * 5000}}}", "is not valid YAML"),
        ("[" * 3000, "is not valid YAML"),
        ("a: &a [x, x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 99)}]\n" for a, b in zip("abcd", "bcdt", strict=True)), "too long"),
    ],
)  # fmt: skip
def test_a_recipe_of_a_table_that_is_none_is_refused_in_one_line(text, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(text)
    assert main(["train", "a.yaml"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_recipe_of_a_table_does_the_same(run, tmp_path):
    people(60).to_csv(tmp_path / "people.csv", index=False)
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        f"table:\n  path: {tmp_path / 'people.csv'}\n  family: mixture\n  components: 2\n  drop: [day]\n  types: {{kids: category}}\n"
    )
    assert main(["train", str(recipe), "--run", str(tmp_path / "a"), "--no-report", "-q"]) == 0
    assert main(["train", str(tmp_path / "a" / "table.yaml"), "--run", str(tmp_path / "b"), "--no-report", "-q"]) == 0
    one, two = (load(tmp_path / name).model for name in "ab")
    assert one.schema["kids"].kind == "category"
    assert one.schema.names == ("age", "sex", "wage", "kids")
    table = people(60).drop(columns="day")
    torch.testing.assert_close(one.log_prob(table).value, two.log_prob(table).value, rtol=0, atol=0)
    with pytest.raises(ArgumentError, match="say which file"):
        TableRecipe.of({})


def test_runs_of_one_table_are_compared_and_those_of_others_are_not_ranked(tmp_path, capsys):
    from gibbsian.app import tables

    for name, rows, family in (("one", 250, "parzen"), ("two", 250, "mixture"), ("other", 240, "mixture")):
        people(rows).to_csv(tmp_path / f"{rows}.csv", index=False)
        flags = ["--family", family, "--run", str(tmp_path / name), "--no-report", "-q"]
        assert main(["train", str(tmp_path / f"{rows}.csv"), *flags]) == 0
    one, two, other = (str(tmp_path / name) for name in ("one", "two", "other"))
    assert main(["report", one, two]) == 0
    said, page = capsys.readouterr().out, (tmp_path / "comparison.html").read_text()
    kept = {name: tables.load(tmp_path / name).model.calibration for name in ("one", "two")}
    means = {name: float(scores.mean()) for name, scores in kept.items()}
    best, second = sorted(means, key=lambda name: -means[name])
    assert f"{best} is" in said  # best, or ahead by chance
    assert f"{means[best] - means[second]:.2f} nats a row" in said
    for name, scores in kept.items():
        reach = 3 * float(scores.std(ddof=1)) / len(scores) ** 0.5
        assert f"{means[name]:.2f} [{means[name] - reach:.2f}, {means[name] + reach:.2f}]" in page
    assert page.count('class="drawing"') == people(9).shape[1]  # a picture a column
    assert main(["report", one, other, "--out", str(tmp_path / "far.html")]) == 0
    assert "cannot be compared" in capsys.readouterr().out
    assert 'class="drawing"' not in (tmp_path / "far.html").read_text()
    assert main(["report", one, str(tmp_path / "run of a recipe")]) == 2
    assert "with runs of tables" in capsys.readouterr().err
