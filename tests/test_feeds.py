"""Data beyond memory: whatever holds the rows, every one comes once an epoch, a run that is resumed sees the rows of one that was
not interrupted, and several processes see together what one does."""

import itertools
import json
import time
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import gibbsian as gb
from gibbsian.app import runs
from gibbsian.app.recipe import parse_recipe
from gibbsian.errors import DataError, GibbsianError
from gibbsian.training import Loading, checkpoint
from gibbsian.training.feeds import ahead
from gibbsian.training.feeds.choose import make_feed
from gibbsian.training.feeds.rows import ArrayRows, TensorRows
from gibbsian.training.feeds.streams import Stream
from gibbsian.training.feeds.windows import Pieces, _evenly

CPU = torch.device("cpu")
N, SIZE = 203, 10
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
IDS = np.arange(N, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)  # a row says its number


class Squares(Dataset):
    """Rows are made when they are asked for, with random numbers of the process that makes them."""

    def __init__(self, noise=0.0):
        self.noise = noise

    def __len__(self):
        return N

    def __getitem__(self, i):
        return torch.from_numpy(IDS[i]) + self.noise * torch.rand(3)


class Plain(IterableDataset):
    """Without a state; workers share the rows where there are any."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, N, step):
            yield torch.from_numpy(IDS[i])


class Stateful(IterableDataset):
    """One that counts; `asked` is how many rows were read in all."""

    def __init__(self):
        self.at, self.epoch, self.asked = 0, 0, 0

    def __iter__(self):
        start, self.at = self.at, 0
        for i in range(start, N):
            self.at, self.asked = i + 1, self.asked + 1
            yield {"x": torch.from_numpy(IDS[i]), "label": i % 3}
        self.at = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at = state["at"]


def mapped_array(tmp_path):
    np.save(tmp_path / "rows.npy", IDS)
    return np.load(tmp_path / "rows.npy", mmap_mode="r")


def mapped_tensor(tmp_path):
    IDS.tofile(tmp_path / "rows.bin")
    return torch.from_file(str(tmp_path / "rows.bin"), shared=True, size=IDS.size, dtype=torch.float32).view(N, 3)


def parquet(tmp_path, groups=17):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / "parquet"
    folder.mkdir(exist_ok=True)
    for k, part in enumerate(np.array_split(IDS, 4)):
        column = pa.FixedSizeListArray.from_arrays(part.reshape(-1), 3)
        pq.write_table(
            pa.table({"x": column, "label": np.arange(len(part)) % 3}), folder / f"{k}.parquet", row_group_size=groups
        )
    return gb.data.Parquet(folder, without=["label"])


def table(tmp_path):
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"x": IDS, "word": ["a"] * N, "label": np.arange(N) % 3})


def table_stream(tmp_path):
    return table(tmp_path).to_iterable_dataset(num_shards=4)


def shuffled_stream(tmp_path):
    return table_stream(tmp_path).shuffle(seed=0, buffer_size=20)


SOURCES = {
    "tensor": (lambda t: torch.from_numpy(IDS.copy()), Loading()),
    "pair": (lambda t: (torch.from_numpy(IDS.copy()), torch.arange(N)), Loading()),
    "dictionary": (lambda t: {"x": torch.from_numpy(IDS.copy()), "y": torch.arange(N)}, Loading()),
    "array on disk": (mapped_array, Loading()),
    "array on disk by a thread": (mapped_array, Loading(workers=1)),
    "array on disk in windows": (mapped_array, Loading(buffer=40)),
    "windows without a thread": (mapped_array, Loading(buffer=40, workers=0)),
    "windows below a batch": (mapped_array, Loading(buffer=3)),
    "tensor on disk": (mapped_tensor, Loading()),
    "parquet": (parquet, Loading(buffer=50)),
    "parquet at once": (parquet, Loading()),
    "dataset": (lambda t: Squares(1e-3), Loading()),
    "dataset by workers": (lambda t: Squares(1e-3), Loading(workers=2)),
    "table": (table, Loading()),
    "stream": (lambda t: Plain(), Loading(buffer=64, workers=0)),
    "stream at once": (lambda t: Plain(), Loading(workers=0)),
    "stream by workers": (lambda t: Plain(), Loading(buffer=64, workers=2)),
    "stream with a state": (lambda t: Stateful(), Loading(buffer=64, workers=0)),
    "table stream": (table_stream, Loading(buffer=64, workers=0)),
    "table stream by workers": (table_stream, Loading(buffer=64, workers=2)),
    "shuffled table stream": (shuffled_stream, Loading(buffer=64, workers=0)),
}  # fmt: skip


def feed_of(name, tmp_path, monkeypatch=None, **more):
    make, loading = SOURCES[name]
    return make_feed(make(tmp_path), SIZE, seed=0, device=CPU, check=lambda batch: None, loading=loading, **more)


def events(batch):
    return batch if isinstance(batch, torch.Tensor) else batch[0]


def ids(batch):
    return events(batch)[:, 0].round().long().tolist()


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Streams are read in small chunks, so that a few rows make many windows, and what is shown to objectives is not all."""
    monkeypatch.setattr("gibbsian.training.feeds.streams._CHUNK", 16)
    monkeypatch.setattr("gibbsian.training.feeds.windows.AT_HAND", 20)


PER_EPOCH = -(-N // SIZE)


@forks
@pytest.mark.parametrize("name", SOURCES)
def test_every_row_comes_once_an_epoch_in_another_order_and_a_resumed_run_sees_the_same(name, tmp_path):
    feed = feed_of(name, tmp_path)
    feed.first()
    batches, kept = [], {}
    for step in range(2 * PER_EPOCH + 5):
        if step in (7, PER_EPOCH, PER_EPOCH + 12):
            checkpoint.write_tree(
                tmp_path, f"at{step}", {"position": (feed.epoch, feed.index), "reading": feed.state()}
            )
            kept[step] = feed.epoch, feed.index
        batches.append(feed.next())
    feed.close()
    seen = [i for batch in batches for i in ids(batch)]
    first, second = seen[:N], seen[N : 2 * N]
    assert sorted(first) == sorted(second) == list(range(N))
    assert first != second
    assert np.abs(np.diff(first)).mean() > 5  # neighbors in the data are none in the order
    for step in kept:
        tree = checkpoint.read_tree(tmp_path, f"at{step}")
        again = feed_of(name, tmp_path)
        again.first()
        again.seek(*tree["position"], state=tree["reading"])
        for batch in batches[step : step + 9]:
            torch.testing.assert_close(again.next(), batch, rtol=0, atol=0)
        again.close()


@forks
@pytest.mark.parametrize(
    "name",
    ["array on disk", "array on disk in windows", "windows below a batch", "parquet", "parquet at once", "dataset", "table", "stream",
     "table stream"],
)  # fmt: skip
def test_processes_share_every_batch_whatever_their_number(name, tmp_path):
    whole = feed_of(name, tmp_path)
    wanted = [Counter(ids(whole.next())) for _ in range(2 * PER_EPOCH - 3)]
    whole.close()
    for world in (2, 3):
        feeds = [feed_of(name, tmp_path, rank=rank, world=world) for rank in range(world)]
        for k, want in enumerate(wanted):
            assert sum((Counter(ids(feed.next())) for feed in feeds), Counter()) == want, (world, k)
        for feed in feeds:
            feed.close()


def test_the_right_feed_is_chosen(tmp_path):
    kinds = {
        "tensor": TensorRows,
        "array on disk": ArrayRows,
        "tensor on disk": ArrayRows,
        "array on disk in windows": Pieces,
        "stream": Stream,
    }
    for name, kind in kinds.items():
        assert type(feed_of(name, tmp_path)) is kind, name


def test_a_stream_with_a_state_is_not_read_again(tmp_path):
    feed = feed_of("stream with a state", tmp_path)
    for _ in range(15):
        feed.next()
    state, position = feed.state(), (feed.epoch, feed.index)
    again = feed_of("stream with a state", tmp_path)
    again.seek(*position, state=state)
    again.next()
    assert again.chunks.source.asked <= 64 + 16  # the window that it stood in, and not the 150 rows before


def test_validation_sees_every_row_once_in_order(tmp_path):
    for name in ("array on disk in windows", "parquet", "stream", "table stream", "dataset"):
        feed = feed_of(name, tmp_path)
        sizes = [len(b) if isinstance(b, torch.Tensor) else len(b[0]) for b in feed.sweep()]
        assert max(sizes) <= SIZE
        assert [i for batch in feed_of(name, tmp_path).sweep() for i in ids(batch)] == list(range(N)), name


def test_windows_hold_a_few_pieces_and_never_the_whole(tmp_path):
    feed = feed_of("parquet", tmp_path)
    decoded, read = [], feed.parts[0].read
    feed.parts[0].read = lambda start, stop: decoded.append((start, stop)) or read(start, stop)
    for _ in range(PER_EPOCH):
        feed.next()
        assert sum(window.end - window.begin for _, window in feed.held) <= 3 * (50 + 17)
    assert sum(stop - start for start, stop in decoded) <= N + 50 + 17  # every group once, and the next window
    feed.close()


@pytest.mark.parametrize("world", [2, 3])
def test_processes_decode_row_groups_of_their_own(world, tmp_path):
    """A share of the groups each, and one more where two shares meet; but what objectives are shown first is from all over."""
    groups, looked = [], []
    for rank in range(world):
        feed = feed_of("parquet at once", tmp_path, rank=rank, world=world)
        decoded, read = set(), feed.parts[0].read
        feed.parts[0].read = lambda start, stop, read=read, decoded=decoded: decoded.add(start) or read(start, stop)
        looked.append(ids(feed.first()))
        most = -(-(len(feed.edges) - 1) // world) + 2
        assert len(decoded) > most
        decoded.clear()
        for _ in range(PER_EPOCH):
            feed.next()
        feed.close()
        groups.append(decoded)
        assert len(decoded) <= most
    assert set.union(*groups) == set(feed.edges[:-1].tolist())
    assert len(set().union(*looked)) == sum(map(len, looked))


def test_every_row_of_a_window_comes_in_any_batch_and_every_batch_from_all_over_it():
    """Sixty rows in five batches of twelve: each batch has one or two of every fifth row; chi-square of who has which (p > 10⁻³)."""
    batch, g, seen = np.arange(60) // 12, torch.Generator().manual_seed(0), np.zeros((60, 5))
    for _ in range(1000):
        row = _evenly(batch, g)
        assert sorted(row) == list(range(60))
        seen[row, batch] += 1
        assert all(np.abs(row[batch == k] - (np.arange(12) * 5 + 2)).max() <= 8 for k in range(5))
    assert chisquare(seen.ravel()).pvalue > 1e-3


def test_slow_sources_are_read_ahead_and_quick_ones_are_not(tmp_path, monkeypatch):
    quick, slow = feed_of("array on disk", tmp_path), feed_of("array on disk", tmp_path)
    monkeypatch.setattr("gibbsian.training.feeds.rows.SLOW", 1.0)
    for _ in range(5):
        quick.next()
    monkeypatch.setattr("gibbsian.training.feeds.rows.SLOW", 0.0)
    for _ in range(5):
        slow.next()
    assert quick.reader is None
    assert isinstance(slow.reader, ahead.ThreadReader)
    slow.close()


class Slow(Plain):
    def __iter__(self):
        for row in super().__iter__():
            time.sleep(4e-4)
            yield row


@forks
def test_a_slow_stream_gets_a_process_that_reads(tmp_path):
    def make():
        return make_feed(Slow(), SIZE, seed=0, device=CPU, check=lambda batch: None, loading=Loading(buffer=32))

    feed, calm = (
        make(),
        make_feed(Plain(), SIZE, seed=0, device=CPU, check=lambda b: None, loading=Loading(buffer=32, workers=0)),
    )
    assert [ids(feed.next()) for _ in range(PER_EPOCH)] == [ids(calm.next()) for _ in range(PER_EPOCH)]
    assert feed.workers == 1
    feed.close()


@pytest.mark.parametrize(
    ("make", "loading", "says"),
    [
        (lambda t: {"a": IDS, "b": IDS}, Loading(), "columns='a'"),
        (lambda t: {"a": IDS, "b": IDS}, Loading(columns="c"), "no column 'c'"),
        (lambda t: {"train": table(t), "test": table(t)}, Loading(), r"data\['train'\]"),
        (lambda t: "rows.parquet", Loading(), "give a tensor"),
    ],
)
def test_what_is_not_understood_is_said(make, loading, says, tmp_path):
    with pytest.raises(DataError, match=says):
        make_feed(make(tmp_path), SIZE, seed=0, device=CPU, check=lambda batch: None, loading=loading).next()


def test_columns_are_chosen_by_name_and_objectives_may_want_them_all():
    data = {"id": torch.arange(N), "pixels": torch.from_numpy(IDS)}
    common = {"seed": 0, "device": CPU, "check": lambda batch: None}
    pair = make_feed(data, SIZE, **common, loading=Loading(columns=("pixels", "id"))).next()
    assert (pair[0][:, 0] == pair[1]).all()
    assert set(make_feed(data, SIZE, **common, dictionaries=True).next()) == {"id", "pixels"}
    seen = make_feed(
        data, SIZE, **common, transform=lambda batch, generator: batch["pixels"] + batch["id"][:, None]
    ).next()
    assert (seen[:, 0] % 2 == 0).all()


@pytest.mark.parametrize("bad", [{"workers": -1}, {"buffer": 0}, {"ahead": 0}, {"columns": ()}, {"columns": (1,)}])
def test_loading_refuses_what_makes_no_sense(bad):
    with pytest.raises(GibbsianError):
        Loading(**bad)


def tiny():
    return gb.models.RBM(3, 2)


class Loud(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        return torch.tensor([i % 2, i // 2 % 2, i // 4 % 2], dtype=torch.float32)


class LoudStream(IterableDataset):
    def __iter__(self):
        return iter(Loud()[i] for i in range(N))


@forks
@pytest.mark.parametrize(
    ("data", "loading"),
    [(Loud, Loading(workers=2)), (LoudStream, Loading(buffer=50, workers=1)), (LoudStream, Loading(buffer=50))],
)
def test_a_run_that_is_resumed_trains_what_one_at_once_does(data, loading, tmp_path):
    objective = gb.objectives.PersistentContrastiveDivergence(gb.kernels.Gibbs(), chains=4)
    options = {"batch_size": SIZE, "loading": loading, "lr": 0.1, "progress": False}
    machines = []
    for cut in (None, 17):
        torch.manual_seed(0)
        machine = tiny()
        folder = tmp_path / str(cut)
        run = gb.fit(machine, objective, data(), steps=cut or 50, run_dir=folder, **options)
        machines.append(gb.resume(folder, data(), steps=50, progress=False).energy if cut else run.energy)
    for a, b in zip(*(m.parameters() for m in machines), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_loader_that_knows_where_it_is_goes_on_there():
    class Counting:
        """As torchdata's StatefulDataLoader: a state after every batch."""

        def __init__(self):
            self.at, self.given = 0, []

        def __iter__(self):
            start, self.at = self.at, 0
            for k in range(start, 20):
                self.at = k + 1
                self.given.append(k)
                yield torch.full((4, 3), float(k))
            self.at = 0

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    common = {"seed": 0, "device": CPU, "check": lambda batch: None}
    feed = make_feed(Counting(), 4, **common)
    feed.first()
    assert feed.state() == {"at": 0}
    for _ in range(13):
        feed.next()
    again = make_feed(Counting(), 4, **common)
    again.seek(0, 13, state=feed.state())
    assert [int(again.next()[0, 0]) for _ in range(9)] == [*range(13, 20), 0, 1]
    assert again.loader.given[0] == 13
    assert isinstance(make_feed(DataLoader(Squares(), batch_size=4), 4, **common).first(), torch.Tensor)


# --- parquet and tables of Hugging Face in the data room ------------------------------------------


def test_parquet_rows_are_those_that_were_written(tmp_path):
    rows = parquet(tmp_path)
    assert rows.shape == (N, 3)
    assert np.array_equal(np.asarray(rows), IDS)
    part = rows[20:90]
    assert len(part) == 70
    assert np.array_equal(np.asarray(part), IDS[20:90])
    assert np.array_equal(part[np.array([69, 0, 33])], IDS[[89, 20, 53]])
    assert part.edges()[0] == 0
    assert part.edges()[-1] == 70
    assert (np.diff(part.edges()) <= 17).all()
    with pytest.raises(DataError, match="without steps"):
        rows[::2]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"a": ["x", "y"]}, "say columns="),
        ({"a": [[1.0], [1.0, 2.0]]}, "one length"),
        ({"a": [1.0, None], "b": [1.0, 2.0]}, "empty"),
        ({"a": [[1.0], [2.0]], "b": [[1.0], [2.0]]}, "one column of lists"),
    ],
)
def test_parquet_that_is_no_rows_of_numbers_is_refused(columns, says, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=says):
        np.asarray(gb.data.Parquet(tmp_path))


def test_folders_of_parquet_and_saved_tables_are_data_sets_whose_rows_stay_there(tmp_path):
    datasets = pytest.importorskip("datasets")
    parquet(tmp_path)
    found = gb.data.load(str(tmp_path / "parquet"))
    assert repr(found) == f"DataSet(parquet: train {N} × (3,), labeled)"
    assert found.train.on_disk
    features = datasets.Features(
        {"image": datasets.Sequence(datasets.Value("float32")), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    )
    whole = datasets.Dataset.from_dict({"image": IDS, "label": np.arange(N) % 3}, features=features)
    datasets.DatasetDict({"train": whole, "test": whole.select(range(10))}).save_to_disk(
        tmp_path / "saved", num_proc=None
    )
    saved = gb.data.load(str(tmp_path / "saved"))
    assert saved.classes == ("a", "b", "c")
    assert len(saved.test) == 10
    prepared = gb.data.prepare(saved, [{"split": {"validation": 20}}, "standardize"])
    rows = prepared.data.train
    assert rows.on_disk
    assert len(rows) == N - 20
    assert np.array_equal(np.asarray(rows.x), IDS[: N - 20])
    assert rows.y.tolist() == [i % 3 for i in range(N - 20)]
    x = prepared.finished("train").x
    assert torch.allclose(x.mean(0), torch.zeros(3), atol=1e-5)


def test_states_are_plain_values(tmp_path):
    for name in ("stream", "stream with a state", "table stream"):
        feed = feed_of(name, tmp_path)
        for _ in itertools.repeat(None, 9):
            feed.next()
        json.dumps(feed.state())


STREAMED = """
data:
  name: {place}
  streaming: true
  steps: [{{split: {{validation: 20, test: 30}}}}, {{rescale: {{old: [0, 203]}}}}, {{binarize: {{how: threshold}}}}]
model: {{RBM: {{visible: 3, hidden: 2}}}}
objective: {{ContrastiveDivergence: {{kernel: Gibbs, steps: 1}}}}
fit: {{steps: 12, batch_size: 10, lr: 0.01, checkpoints: {{every: 5}}, loading: {{buffer: 32, workers: 0}}}}
evaluate: {{likelihood: none}}
sample: {{show: 4, steps: 5}}
"""


@pytest.mark.parametrize("saved", [True, False])
def test_recipes_stream_sets_of_hugging_face(saved, tmp_path):
    """The first rows are held out, the stream goes on after them, steps run batch by batch, and a run is resumed at the exact row."""
    folder = tmp_path / "set"
    if saved:
        table(tmp_path).save_to_disk(folder)
    else:
        pytest.importorskip("datasets")
        parquet(tmp_path)
        folder = tmp_path / "parquet"
    text = STREAMED.format(place=folder)
    recipe = parse_recipe(text, name="streamed")
    prepared = recipe.data.prepare()
    rows = "a stream" if not saved else str(N - 50)
    assert repr(prepared.data) == f"DataSet({folder.name}: train {rows}, validation 20, test 30 × (3,), labeled)"
    held = [prepared.data.parts[part].x[:, 0].tolist() for part in ("test", "validation")]
    assert held == [list(range(30)), list(range(30, 50))]
    assert prepared.data.train[:4].x[:, 0].tolist() == [50, 51, 52, 53]
    assert prepared.finished("train", 60).x[:, 0].tolist() == [0.0] * 52 + [1.0] * 8
    options = {
        "seed": 0,
        "device": CPU,
        "check": lambda batch: None,
        "transform": lambda batch, g: prepared.data.train.arranged(batch),
    }
    x, y = make_feed(prepared.data.train.batches(True), 10, **options).next()
    places = x[:, 0].long() if saved else x[:, 0].long() % 51  # in a file
    assert torch.equal(y, places % 3)

    runs.train(recipe, tmp_path / "whole", progress=False)
    short = parse_recipe(text, ["--fit.steps", "7"], name="streamed")
    runs.train(short, tmp_path / "cut", progress=False)
    runs.resume_run(tmp_path / "cut", steps=12)
    whole, cut = (gb.load(tmp_path / name).state_dict() for name in ("whole", "cut"))
    assert all(torch.equal(whole[key], cut[key]) for key in whole)


def test_streams_in_recipes_refuse_what_needs_an_end(tmp_path):
    pytest.importorskip("datasets")
    parquet(tmp_path)
    text = STREAMED.format(place=tmp_path / "parquet")
    with pytest.raises(GibbsianError, match="say how long to train with fit\\.steps"):
        runs.train(parse_recipe(text.replace("steps: 12", "epochs: 2"), name="a"), tmp_path / "a", progress=False)
    with pytest.raises(GibbsianError, match="of a stream without an end; say a number of rows"):
        parse_recipe(text.replace("test: 30", "test: 0.1"), name="a").data.prepare()
    with pytest.raises(GibbsianError, match="no set of Hugging Face"):
        gb.data.load("digits.csv", streaming=True)
    with pytest.raises(GibbsianError, match="only the first rows"):
        gb.data.load(tmp_path / "parquet", streaming=True).train[5:9]


@pytest.mark.parametrize("streaming", [True, False])
def test_offline_nobody_is_asked_for_a_set_of_hugging_face(streaming, monkeypatch):
    datasets, asked = pytest.importorskip("datasets"), []
    monkeypatch.setattr("socket.getaddrinfo", lambda *place, **_: asked.append(place))
    with pytest.raises(DataError, match="hf:nobody/nothing could not be had"):
        gb.data.load("hf:nobody/nothing", offline=True, streaming=streaming)
    assert not asked
    assert not datasets.config.HF_HUB_OFFLINE
