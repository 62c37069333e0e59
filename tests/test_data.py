"""Toy laws have the moments they say; files come back as they were written; steps are repeated and undone exactly."""

import gzip
import hashlib
import math
import sys
import tarfile

import numpy as np
import pytest
import torch

from gibbsian import data
from gibbsian.data import named
from gibbsian.data.named import NAMED, Named
from gibbsian.data.prepare import make_steps
from gibbsian.data.readers import read_idx
from gibbsian.errors import ArgumentError, CapabilityError, DataError, PrecisionWarning, RandomnessError


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


# --- toys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", data.TOYS)
def test_toys_are_reproducible_points_in_the_plane(name):
    before = torch.get_rng_state()
    x = data.toy(name, 500, generator=gen(), dtype=torch.float64)
    assert x.shape == (500, 2)
    assert x.dtype == torch.float64
    assert torch.isfinite(x).all()
    assert 1 < float(x.std()) < 3
    assert torch.equal(x, data.toy(name.replace("_", "-"), 500, generator=gen(), dtype=torch.float64))
    assert not torch.equal(x, data.toy(name, 500, generator=gen(1), dtype=torch.float64))
    assert torch.equal(before, torch.get_rng_state())


def test_toys_follow_their_laws():
    n = 20000
    board = data.toy("checkerboard", n, generator=gen())
    squares = ((board + 4) / 2).floor().long()
    assert ((squares.sum(1) % 2) == 0).all()  # black squares only, each as likely as the other
    used = torch.bincount(squares[:, 0] * 4 + squares[:, 1], minlength=16).float() / n
    assert (used > 0).sum() == 8
    assert ((used[used > 0] - 1 / 8).abs() < 4.5 * math.sqrt(1 / 8 * 7 / 8 / n)).all()

    eight = data.toy("eight_gaussians", n, generator=gen(), dtype=torch.float64)
    # Var x = 2.5² E cos² + 0.2²; the fourth moment of a point at radius 2.5 bounds the error
    assert abs(float(eight[:, 0].var()) - (2.5**2 / 2 + 0.04)) < 4.5 * 2.5**2 / 2 / math.sqrt(n)
    assert float(eight.mean(0).abs().max()) < 4.5 * 1.8 / math.sqrt(n)

    rings = data.toy("rings", n, generator=gen()).norm(dim=1)
    nearest = (rings / 0.75).round().clamp(1, 4)
    assert ((torch.bincount(nearest.long(), minlength=5)[1:] / n - 0.25).abs() < 4.5 * math.sqrt(3 / 16 / n)).all()
    assert float((rings - 0.75 * nearest).abs().max()) < 6 * 0.08

    cross = data.toy("cross", n, generator=gen())
    along = cross[:, 0].abs() > 1.5  # of the lying bar half is there, of the standing one nothing
    assert abs(float(along.float().mean()) - 0.35) < 4.5 * math.sqrt(0.35 * 0.65 / n)


@pytest.mark.parametrize(("bad", "error", "says"), [
    (lambda: data.toy("mons", 5, generator=gen()), ArgumentError, "did you mean 'moons'"),
    (lambda: data.toy("moons", 0, generator=gen()), ArgumentError, "from 1 on"),
    (lambda: data.toy("moons", 5, generator=None), RandomnessError, "generator"),
])  # fmt: skip
def test_bad_toys_are_refused(bad, error, says):
    with pytest.raises(error, match=says):
        bad()


# --- readers --------------------------------------------------------------------------------------


def test_npz_mat_and_npy_come_back_as_they_were_written(tmp_path):
    from scipy.io import savemat

    x, y = np.arange(12.0).reshape(4, 3), np.array([1, 0, 1, 0])
    np.savez(tmp_path / "a.npz", X=x, y=y)
    savemat(tmp_path / "a.mat", {"x_train": x, "x_test": x[:2] + 1, "y_train": y})
    np.save(tmp_path / "a.npy", x.astype(np.float32))
    npz, mat, npy = (data.read(tmp_path / f"a.{kind}") for kind in ("npz", "mat", "npy"))
    assert torch.equal(npz.train.x, torch.tensor(x, dtype=torch.float32))
    assert npz.train.y.tolist() == y.tolist()
    assert mat.test.x.tolist() == (x[:2] + 1).tolist()
    assert mat.train.y.tolist() == y.tolist()
    assert isinstance(npy.train.x, np.memmap)
    assert npy.train[1:3].x.tolist() == x[1:3].tolist()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_finds_separator_header_and_labels(tmp_path, separator):
    rows = [["width", "height", "kind"], ["1.5", "2", "cat"], ["3", "4e1", "dog"], ["5", "6", "cat"]]
    (tmp_path / "a.csv").write_text("\n".join(separator.join(row) for row in rows))
    found = data.read(tmp_path / "a.csv", label="kind")
    assert found.train.x.tolist() == [[1.5, 2.0], [3.0, 40.0], [5.0, 6.0]]
    assert found.train.y.tolist() == [0, 1, 0]
    assert found.classes == ("cat", "dog")
    assert found.columns == ("width", "height")


def test_idx_with_and_without_gzip(tmp_path):
    raw = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (2, 2, 2)) + bytes(range(8))
    (tmp_path / "a-idx3-ubyte").write_bytes(raw)
    (tmp_path / "a-idx3-ubyte.gz").write_bytes(gzip.compress(raw))
    for name in ("a-idx3-ubyte", "a-idx3-ubyte.gz"):
        assert data.read(tmp_path / name).train.x.flatten().tolist() == list(range(8))
    wide = bytes([0, 0, 0x0D, 1]) + (2).to_bytes(4, "big") + np.array([1.5, -2.0], dtype=">f4").tobytes()
    (tmp_path / "b.idx").write_bytes(wide)
    assert data.read(tmp_path / "b.idx").train.x.tolist() == [1.5, -2.0]
    (tmp_path / "cut-ubyte").write_bytes(raw[:-3])
    with pytest.raises(DataError, match="not a whole idx file"):
        read_idx(tmp_path / "cut-ubyte")


def test_folders_of_images_give_classes(tmp_path):
    from PIL import Image

    for kind, value in (("cat", 10), ("dog", 200)):
        (tmp_path / kind).mkdir()
        for i in range(2):
            Image.fromarray(np.full((4, 5), value + i, dtype=np.uint8)).save(tmp_path / kind / f"{i}.png")
    found = data.read(tmp_path)
    assert found.train.x.shape == (4, 1, 4, 5)
    assert found.train.x[:, 0, 0, 0].tolist() == [10, 11, 200, 201]
    assert found.train.y.tolist() == [0, 0, 1, 1]
    assert found.classes == ("cat", "dog")
    Image.fromarray(np.zeros((3, 5), dtype=np.uint8)).save(tmp_path / "cat" / "small.png")
    with pytest.raises(DataError, match="one size"):
        data.read(tmp_path)


def _saved(path, rows):
    (np.savez if path.suffix == ".npz" else np.save)(path, **({"x": rows} if path.suffix == ".npz" else {"arr": rows}))
    return path


def _write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(("make", "error", "says"), [
    (lambda d: data.read(d / "none.npz"), DataError, "there is no file"),
    (lambda d: data.read(_write(d / "a.xyz", "1")), DataError, "no kind that is known"),
    (lambda d: data.read(_write(d / "a.npz", "not a zip")), DataError, "cannot be read as npz"),
    (lambda d: data.read(_write(d / "a.mat", "no mat")), DataError, "cannot be read as mat"),
    (lambda d: data.read(_write(d / "a.csv", "a,b\n1,2\n3")), DataError, "row 3: 1 cells"),
    (lambda d: data.read(_write(d / "a.csv", "a,b\n1,x\n3,4")), DataError, "column 'b'"),
    (lambda d: data.read(_write(d / "a.csv", "a,b\n1,nan\n3,4")), DataError, "row 2 has no finite number under 'b'"),
    (lambda d: data.read(_write(d / "a.csv", "a,b\n1,2\n3,\n,\n4, ")), DataError, r"row 3 .* 'b' \(2 such cells in 2 of 3"),
    (lambda d: data.read(_write(d / "a.csv", "1,\n3,4")), DataError, "row 1 .* take those rows out of the file, or fill"),
    (lambda d: data.read(_write(d / "a.csv", "a,y\n1,0\n3,\n5,1")), DataError, "row 3 .* under 'y'"),
    (lambda d: data.read(_write(d / "a.csv", "a,y\n1,cat\n3,nan")), DataError, "row 3 .* under 'y'"),
    (lambda d: data.read(_saved(d / "a.npz", [[0.0, 1.0], [np.nan, 1.0]])), DataError, r"a.npz, x: entry \[1, 0\] is nan"),
    (lambda d: data.prepare(data.read(_saved(d / "a.npy", [[0.0, 1], [np.nan, 1]])), ["standardize"]), DataError, "1 of 4"),
    (lambda d: data.prepare(data.read(_saved(d / "a.npy", [[0.0, 1], [np.nan, 1]])), ["whiten"]), DataError, "1 of 4"),
    (lambda d: data.prepare(data.read(_saved(d / "a.npy", [[0.0, 1], [np.nan, 1]])), ["rescale"]), DataError, "1 of 4"),
    (lambda d: data.read(_write(d / "a.csv", "y\n1\n2")), DataError, "no column but the labels 'y'"),
    (lambda d: data.read(_write(d / "a.csv", "a,b\n")), DataError, "a header and no rows"),
    (lambda d: data.read(_write(d / "a.csv", "a,b\n1,x\n3,4")), DataError, "holds 'x', which is no number; take the column out"),
    (lambda d: data.read(_write(d / "a.csv", "a,b\n1,2"), label="c"), DataError, "no column 'c'"),
    (lambda d: data.read(d), DataError, "holds no images"),
    (lambda d: data.load("mnits"), ArgumentError, "did you mean 'mnist'"),
])  # fmt: skip
def test_bad_files_are_refused_with_a_reason(tmp_path, make, error, says):
    with pytest.raises(error, match=says):
        make(tmp_path)


def test_parquet_says_what_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(CapabilityError, match="gibbsian\\[parquet\\]"):
        data.read(tmp_path / "a.parquet")


def test_parquet_is_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet as parquet

    parquet.write_table(pyarrow.table({"a": [1.0, 2.0], "label": [0, 1]}), tmp_path / "a.parquet")
    found = data.read(tmp_path / "a.parquet")
    assert found.train.x.tolist() == [[1.0], [2.0]]
    assert found.train.y.tolist() == [0, 1]


# --- named sets -----------------------------------------------------------------------------------


def test_numbers_that_single_precision_cannot_hold_do_not_pass_in_silence(tmp_path):
    seconds = 1.7e9 + 10.0 * np.arange(50)
    np.savez(tmp_path / "a.npz", x=np.stack([np.arange(50.0), seconds], 1))
    with pytest.warns(PrecisionWarning, match="column 1 of 2 varies by 144.309 about 1.7e.09, .* in steps of 128"):
        data.load(str(tmp_path / "a.npz"))
    (tmp_path / "a.csv").write_text("a,b\n1,2\n1e39,3\n")
    with pytest.raises(DataError, match=r"numbers reach 1e\+39, beyond 3.40282e\+38"):
        data.load(str(tmp_path / "a.csv"))


def test_digits_are_embedded():
    digits = data.load("digits")
    assert digits.train.x.shape == (1797, 8, 8)
    assert int(digits.train.x.max()) == 16
    assert torch.bincount(digits.train.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_files_are_found_checked_and_never_fetched_when_offline(tmp_path, monkeypatch):
    content = b"some bytes"
    files = {"a.bin": hashlib.sha256(content).hexdigest()}
    entry = Named("a test", lambda entry, get, part: get("a.bin"), "things", files, "http://localhost:9/")
    monkeypatch.setenv("GIBBSIAN_DATA", str(tmp_path / "mine"))
    monkeypatch.setenv("GIBBSIAN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"could not be fetched .*by hand into"):
        entry.fetch("a.bin")
    monkeypatch.setitem(NAMED, "things", entry)
    with pytest.raises(DataError, match="fetching is switched off"):
        data.load("things", offline=True)
    for place in ("cache", "mine"):  # yours comes first
        folder = tmp_path / place / "things"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.bin").write_bytes(content)
        assert entry.fetch("a.bin") == folder / "a.bin"
    (tmp_path / "mine" / "things" / "a.bin").write_bytes(b"other bytes")
    with pytest.raises(DataError, match="damaged"):
        entry.fetch("a.bin")


def test_color_photographs_are_read_from_the_members_of_their_archive_or_from_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("GIBBSIAN_DATA", str(tmp_path))
    monkeypatch.setenv("GIBBSIAN_CACHE", str(tmp_path / "none"))
    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz is not in"):
        data.load("cifar10", offline=True)
    rows = np.random.default_rng(0).integers(0, 256, (6, 2, 3073), dtype=np.uint8)
    digests = {}
    for name, part in zip(named._CIFAR_MEMBERS, rows, strict=True):
        part[:, 0] %= 10
        (folder / name).write_bytes(part.tobytes())
        digests[name] = hashlib.sha256(part.tobytes()).hexdigest()
    with pytest.raises(DataError, match="damaged"):
        data.load("cifar10", offline=True)
    monkeypatch.setattr(named, "_CIFAR_MEMBERS", digests)
    loose = data.load("cifar10", offline=True)
    archive = folder.parent / "cifar-10-binary.tar.gz"
    (folder / "test_batch.bin").rename(tmp_path / "away.bin")
    with pytest.raises(DataError, match=r"unpacked, in cifar-10-batches-bin/, where test_batch\.bin cannot be found"):
        data.load("cifar10", offline=True)
    (tmp_path / "away.bin").rename(folder / "test_batch.bin")
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "cifar-10-batches-bin")
    (folder / "test_batch.bin").unlink()
    monkeypatch.setitem(NAMED["cifar10"].files, archive.name, hashlib.sha256(archive.read_bytes()).hexdigest())
    for found in (loose, data.load("cifar10", offline=True)):
        assert found.train.x.shape == (10, 3, 32, 32)
        np.testing.assert_array_equal(found.train.x.flatten(1), rows[:5, :, 1:].reshape(10, -1))
        np.testing.assert_array_equal(found.test.x.flatten(1), rows[5, :, 1:])
        np.testing.assert_array_equal(found.train.y, rows[:5, :, 0].reshape(-1))
    assert len(data.load("cifar10", part="test", offline=True).train.x) == 2
    for path in (archive, *folder.iterdir()):
        path.unlink()
    (folder / "test_batch.bin").write_bytes(rows[5].tobytes())  # files of the training part are not asked for
    np.testing.assert_array_equal(data.load("cifar10", part="test", offline=True).test.x.flatten(1), rows[5, :, 1:])


def test_words_have_one_number_in_all_parts(tmp_path):
    x = np.zeros((3, 2))
    np.savez(
        tmp_path / "a.npz", x_train=x, y_train=list("abc"), x_test=x[:2], y_test=list("cb")
    )  # the test part lacks a
    found = data.read(tmp_path / "a.npz")
    assert found.classes == ("a", "b", "c")
    assert found.train.y.tolist() == [0, 1, 2]
    assert found.test.y.tolist() == [2, 1]
    with pytest.raises(DataError, match="no 'kind' for the labels"):
        data.read(tmp_path / "a.npz", label="kind")


def test_columns_may_share_a_name(tmp_path):
    (tmp_path / "a.csv").write_text("a,a,y\n1,2,0\n3,4,1\n")
    found = data.read(tmp_path / "a.csv")
    assert found.columns == ("a", "a")
    assert found.train.x.tolist() == [[1, 2], [3, 4]]


# --- steps ----------------------------------------------------------------------------------------


def gray(n=40):
    return data.DataSet("gray", data.Rows(torch.randint(256, (n, 4, 4), generator=gen()).byte(), torch.arange(n) % 3))


def test_steps_learn_from_training_rows_only_and_are_undone():
    steps = [
        {"split": {"validation": 8, "test": 0.25}},
        "flatten",
        "rescale",
        "standardize",
        {"whiten": {"kind": "pca"}},
    ]
    done = data.prepare(gray(), steps, seed=3)
    assert [len(rows) for rows in done.data.parts.values()] == [22, 8, 10]
    x = done.data.train.x
    assert float(x.mean(0).abs().max()) < 1e-5
    assert float((torch.cov(x.T) - torch.eye(16)).abs().max()) < 1e-3
    assert float(done.data.test.x.mean(0).abs().max()) > 0.05  # not centered on itself
    back = torch.cat([done.undo(rows.x) for rows in done.data.parts.values()])
    assert back.shape == (40, 4, 4)
    assert sorted(back.round().flatten().tolist()) == sorted(gray().train.x.flatten().tolist())


def test_steps_learn_from_all_rows_that_are_in_memory():
    x = torch.randn(2**16 + 4000, 2, generator=gen())
    x[: 2**16, 1] = 0  # sorted, as files often are
    x[2**16 :] += 9
    whole = data.DataSet("sorted", data.Rows(x))
    torch.testing.assert_close(data.prepare(whole, ["standardize"]).data.train.x.std(0), torch.ones(2))
    scaled = data.prepare(whole, ["rescale"]).data.train.x
    assert (scaled.min(), scaled.max()) == (0, 1)
    assert data.prepare(whole, [{"columns": {"varying": True}}]).data.train.x.shape == x.shape
    with pytest.raises(DataError, match="lies outside"):
        data.prepare(whole, [{"binarize": {"how": "sample", "anew": True}}])


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
@pytest.mark.parametrize("step", ["standardize", "rescale", {"rescale": {"old": [1.7e9, 1.7e9 + 500]}}, "whiten"])
def test_columns_far_from_zero_keep_their_digits(step, dtype):
    near = torch.randint(500, (300, 1), generator=gen()).to(dtype)
    moved, there = (
        data.prepare(data.DataSet("a", data.Rows(x)), [step if isinstance(step, str) or far else {"rescale": {"old": [0, 500]}}])
        for far, x in ((False, near), (True, near + 1_700_000_000))
    )  # fmt: skip
    x = there.data.train.x
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, moved.data.train.x, rtol=0, atol=1e-5)
    assert float((there.undo(x) - there.undo(moved.data.train.x)).abs().max()) < 0.01
    assert float((there.undo(x) - near - 1_700_000_000).abs().max()) < 0.01


def test_a_column_that_never_changes_repeats_none():
    x = torch.randn(90, 3, generator=gen())
    x[:, 0] = 1
    made = data.prepare(data.DataSet("still", data.Rows(x)), [{"columns": {"correlation": 0.9}}])
    assert made.data.train.x.shape == (90, 3)


def test_steps_are_repeated_exactly_from_what_was_learned():
    steps = [{"split": {"test": 10}}, "flatten", "rescale", {"binarize": {"how": "sample"}}]
    once, again = (data.prepare(gray(), steps, seed=1) for _ in range(2))
    assert torch.equal(once.data.train.x, again.data.train.x)
    assert not torch.equal(once.data.train.x, data.prepare(gray(), steps, seed=2).data.train.x)
    known = data.prepare(gray(), steps, seed=1, fitted=once.fitted)
    assert torch.equal(known.data.test.x, once.data.test.x)
    assert set(once.data.train.x.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("steps", "put_off"),
    [
        ([{"split": {"test": 20}}, "flatten", "rescale", {"binarize": {"how": "sample", "anew": True}}], 3),
        (["flatten", "rescale", {"binarize": {"how": "sample"}}, {"split": {"test": 20}}, "rescale"], 1),
        (["flatten", {"columns": {"varying": True}}, "standardize"], 1),
        (["flatten", "rescale", {"split": {"test": 20}}], 0),
        ([{"dequantize": {"levels": 17}}], 0),
    ],
)
def test_steps_that_wait_until_rows_are_asked_for_give_the_same_rows(steps, put_off):
    raw = data.load("digits")
    whole = data.prepare(raw, steps, seed=3)
    again = data.prepare(raw, steps, seed=3, fitted=whole.fitted, whole=False)
    assert again.late == put_off
    assert len(again.data.train) == len(whole.data.train)
    for part in whole.data.parts:
        a, b = whole.finished(part, 40), again.finished(part, 40)
        assert torch.equal(a.x, b.x)
        assert a.x.dtype == b.x.dtype
    assert data.prepare(raw, steps, seed=3).late == whole.late  # not where something is still to be learned


def test_steps_that_draw_anew_run_on_batches():
    done = data.prepare(gray(), ["flatten", "rescale", {"binarize": {"how": "sample", "anew": True}}])
    assert done.late == 1
    assert done.data.train.x.unique().numel() > 10  # still gray
    batch = done.data.train.x[:5], done.data.train.y[:5]
    a, b = (done.transform(batch, gen(seed)) for seed in (0, 1))
    assert set(a[0].unique().tolist()) == {0.0, 1.0}
    assert not torch.equal(a[0], b[0])
    assert torch.equal(a[1], batch[1])
    assert torch.equal(done.finished("train").x, done.finished("train").x)


def test_arrays_on_disk_stay_there(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(80, dtype=np.uint8).reshape(20, 4))
    done = data.prepare(data.read(tmp_path / "a.npy"), [{"split": {"test": 5}}, "rescale", "standardize"])
    assert isinstance(done.data.train.x, np.memmap)
    assert done.late == 2
    assert float(done.finished("train").x.mean(0).abs().max()) < 1e-5
    assert done.undo(done.finished("test").x).round()[-1].tolist() == [76, 77, 78, 79]


def test_other_sets_go_through_the_same_steps():
    done = data.prepare(gray(), [{"split": {"test": 10}}, "flatten", "rescale", "standardize"])
    shifted = data.DataSet("b", data.Rows(gray().train.x // 2))
    assert float(done.other(shifted).mean()) < -0.5


def test_entries_that_are_held_go_where_the_steps_put_them():
    images = data.DataSet("a", data.Rows(torch.arange(48.0).reshape(4, 3, 4)))
    steps = ["flatten", {"columns": {"keep": [5, 0]}}, {"rescale": {"old": [0, 10]}}, {"noise": {"sd": 9.0}}]
    done = data.prepare(images, steps)
    clamp = torch.zeros(2, 3, 4, dtype=torch.bool)
    clamp[0, 1, 1] = clamp[1, 0, 0] = True
    x, held = done.clamped(10 * torch.ones(2, 3, 4), clamp)
    assert held.tolist() == [[True, False], [False, True]]
    assert x.tolist() == [[1, 1], [1, 1]]  # noise is for training batches
    with pytest.raises(DataError, match="whiten mixes all entries"):
        data.prepare(images, ["flatten", "whiten"]).clamped(torch.ones(2, 3, 4), clamp)


def test_columns_only_take_patches_and_dequantize():
    x = torch.randn(50, 3, generator=gen())
    x = torch.cat([x, x[:, :1] * 2 + 1], 1)  # repeats the first
    table = data.DataSet("t", data.Rows(x, torch.arange(50) % 2))
    done = data.prepare(table, [{"columns": {"correlation": 0.98}}, {"only": {"labels": [0]}}, {"take": {"n": 9}}])
    assert done.data.train.x.shape == (9, 3)
    assert (done.data.train.y == 0).all()
    still = data.DataSet("s", data.Rows(torch.cat([torch.ones(9, 1), torch.arange(9.0)[:, None]], 1)))
    assert data.prepare(still, [{"columns": {"varying": True}}]).data.train.x.shape == (9, 1)
    images = data.DataSet("i", data.Rows(torch.rand(2, 20, 30, generator=gen())))
    patches = data.prepare(images, [{"patches": {"size": 6, "count": 100}}]).data.train.x
    assert patches.shape == (100, 6, 6)
    assert float(patches.mean((1, 2)).abs().max()) < 1e-6
    filled = data.prepare(gray(), ["dequantize"])
    assert torch.equal(filled.undo(filled.data.train.x), gray().train.x.float())
    assert float(filled.data.train.x.max()) < 1
    for levels in (2, 256, 65536):  # noise just below 1 is not rounded up to the next number
        top = torch.full((1_000_000,), levels - 2)
        assert torch.equal((data.dequantize(top, levels, generator=gen()) * levels).floor(), top.float())


def test_augmentation_touches_training_batches_only():
    one = torch.zeros(1, 6, 6)
    one[0, 2, 3] = 1.0
    images = data.DataSet("i", data.Rows(one.expand(400, 6, 6).clone()), test=data.Rows(one))
    done = data.prepare(images, [{"shift": {"pixels": 1}}, {"noise": {"sd": 0.01, "low": -0.5, "high": 1.0}}])
    assert torch.equal(done.finished("train").x, images.train.x)
    assert torch.equal(done.other(images, "test"), one)
    batch = done.transform(images.train.x, gen())
    assert float(batch.max()) <= 1.0
    places = (batch > 0.5).nonzero()[:, 1:].tolist()
    counts = {(r, c): places.count([r, c]) for r in (1, 2, 3) for c in (2, 3, 4)}
    assert sum(counts.values()) == 400
    # nine places, equally likely: 400/9 with deviation 6.3
    assert all(abs(n - 400 / 9) < 4.5 * math.sqrt(400 * 8 / 81) for n in counts.values())
    mirrored = data.prepare(images, [{"shift": {"pixels": 0, "flip": True}}]).transform(images.train.x, gen())
    assert abs(int(mirrored[:, 2, 2].sum()) - 200) < 4.5 * 10
    assert torch.equal(mirrored[:, 2, 2] + mirrored[:, 2, 3], torch.ones(400))


@pytest.mark.parametrize(("bad", "says"), [
    (lambda: make_steps(["binarise"]), "did you mean 'binarize'"),
    (lambda: make_steps([{"binarize": {"haw": "sample"}}]), "did you mean 'how'"),
    (lambda: make_steps(["take"]), "needs n"),
    (lambda: make_steps([{"flatten": {}, "take": {"n": 1}}]), "one name"),
    (lambda: make_steps([3]), "one name"),
    (lambda: make_steps([{"take": 3}]), "one name"),
    (lambda: data.prepare(gray(), [{"split": {"test": 40}}]), "leave some"),
    (lambda: data.prepare(gray(), ["rescale", {"binarize": {"anew": True}}, {"take": {"n": 2}}]), "must come before"),
    (lambda: data.prepare(gray(), [{"binarize": {"anew": True}}]), "outside"),
    (lambda: data.prepare(gray(), [{"reshape": {"shape": [3]}}]), "cannot take the shape"),
    (lambda: data.prepare(gray(), [{"dequantize": {"levels": 2}}]), "whole numbers from 0 to 1"),
    (lambda: data.prepare(data.DataSet("c", data.Rows(torch.ones(3, 2))), ["standardize"]), "never change"),
])  # fmt: skip
def test_bad_steps_are_refused(bad, says):
    with pytest.raises((ArgumentError, DataError), match=says):
        bad()


def test_columns_keep_their_names_and_cues_are_rows_of_all_columns():
    x = torch.arange(12.0).reshape(4, 3)
    done = data.prepare(data.DataSet("a", data.Rows(x), columns=("p", "q", "r")), [{"columns": {"keep": [2, 0]}}])
    assert done.data.columns == ("r", "p")
    assert (done.columns, done.shape) == (("p", "q", "r"), (3,))  # those of raw rows
    rows, held = done.clamped(x[:1], torch.tensor([[True, False, False]]))
    assert rows.tolist() == [[2.0, 0.0]]
    assert held.tolist() == [[False, True]]
