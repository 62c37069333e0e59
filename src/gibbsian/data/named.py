"""Named data sets: embedded ones, and public ones that are read from files wherever they are found (`fetch`)."""

import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gibbsian.data.fetch import fetch, find
from gibbsian.data.hugging_face import PREFIX, read_hugging_face
from gibbsian.data.readers import read, read_idx
from gibbsian.data.sets import DataSet, Rows
from gibbsian.data.toy import TOYS, toy
from gibbsian.errors import ArgumentError, DataError, suggest
from gibbsian.random import stream

Get = Callable[[str], Path]  # the path of a file of a set


@dataclass(frozen=True)
class Named:
    """Where a named set comes from and how it is read: `build(entry, get, part)`, with `get(file)` the path of a file."""

    about: str
    build: Callable[["Named", Get, str | None], DataSet]
    folder: str = ""  # its files lie here, below yours and the cache
    files: dict[str, str] = field(default_factory=dict)  # name: SHA-256
    url: str = ""  # of the folder that is their home
    classes: tuple[str, ...] = ()

    def fetch(self, file: str, *, offline: bool = False) -> Path:
        """The path of one of the files, checked."""
        return fetch(self.folder, file, self.files[file], self.url, offline=offline)

    def load(self, part: str | None = None, *, offline: bool = False) -> DataSet:
        """The set, or as much of it as one part needs."""
        return self.build(self, partial(self.fetch, offline=offline), part)


def load(
    name: str | Path,
    *,
    n: int = 10000,
    seed: int = 0,
    label: str | None = None,
    part: str | None = None,
    offline: bool = False,
    streaming: bool = False,
) -> DataSet:
    """A data set by name (`gibbsian list data`), a toy law by name, or a file or folder by path.

    Args:
        name: such as "digits", "mnist", "moons", "hf:ylecun/mnist" (a set of Hugging Face's hub), or a path that
            `gibbsian.data.read` takes.
        n: how many points of a toy law.
        seed: of a toy law.
        label: for files, the column or array with the labels.
        part: "test" where nothing else is needed: files of the training part are then not asked for.
        offline: never fetch anything.
        streaming: for sets of Hugging Face, and folders of files that its `datasets` knows: fetch rows as they are needed.

    >>> load("moons", n=100)
    DataSet(moons: train 100 × (2,))
    """
    text = str(name)
    key = text.lower().replace("_", "-").replace(" ", "-")
    law = key.replace("-", "_")
    if law in TOYS:
        return DataSet(law, Rows(toy(law, n, generator=stream(seed, "toy"))))
    if key in NAMED:
        return NAMED[key].load(part, offline=offline).replace(name=key)
    if text.startswith(PREFIX) or streaming:
        return read_hugging_face(text, label=label, offline=offline, streaming=streaming)
    if Path(text).expanduser().exists() or "/" in text or Path(text).suffix:
        return read(text, label=label)
    near = suggest(key, [*NAMED, *TOYS])
    raise ArgumentError(f"there is no data set {text!r}; {near}See `gibbsian list data`, or give the path of a file")


def path_of(name: str | Path) -> Path | None:
    """The file or folder that `load` would read, made absolute; None for named sets and toy laws.

    >>> path_of("moons") is None, path_of("rows.csv").name
    (True, 'rows.csv')
    """
    key = str(name).lower().replace("_", "-").replace(" ", "-")
    away = key in NAMED or key.replace("-", "_") in TOYS or key.startswith(PREFIX)
    return None if away else Path(name).expanduser().absolute()


# --- the sets -------------------------------------------------------------------------------------


def _idx(entry: Named, get: Get, part: str | None) -> DataSet:
    """The four files of MNIST and its relatives; bytes `(rows, 28, 28)`."""

    def rows(start: str) -> Rows:
        x, y = (torch.from_numpy(read_idx(get(f"{start}-{k}-ubyte.gz"))) for k in ("images-idx3", "labels-idx1"))
        return Rows(x, y.long())

    test = rows("t10k")
    return DataSet(entry.folder, test if part == "test" else rows("train"), test=test, classes=entry.classes)


def _digits(entry: Named, get: Get, _part: str | None) -> DataSet:
    from sklearn.datasets import load_digits

    found = load_digits()
    x = torch.from_numpy(found.images.astype(np.uint8))
    return DataSet("digits", Rows(x, torch.from_numpy(found.target).long()), classes=entry.classes)


def _photographs(entry: Named, get: Get, _part: str | None) -> DataSet:
    from sklearn.datasets import load_sample_images

    luma = np.array([0.299, 0.587, 0.114], dtype=np.float32)
    gray = [np.asarray(image, dtype=np.float32) @ luma / 255 for image in load_sample_images().images]
    return DataSet("photographs", Rows(torch.from_numpy(np.stack(gray).astype(np.float32))))


def _spike_words(entry: Named, get: Get, _part: str | None) -> DataSet:
    """Where a Gaussian with common input crosses a threshold of each unit (a dichotomized Gaussian): pairs do not say all of it."""
    g = stream(0, "spike-words")
    rows, n = 40_000, 15
    thresholds = 0.9 + 0.7 * torch.rand(n, generator=g)
    gain = 0.35 + 0.35 * torch.rand(n, generator=g)
    own, common = torch.randn(rows, n, generator=g), torch.randn(rows, 1, generator=g)
    spikes = (1 - gain.square()).sqrt() * own + gain * common > thresholds
    return DataSet("spike-words", Rows(spikes.to(torch.uint8)))


def _binarized(entry: Named, get: Get, _part: str | None) -> DataSet:
    from scipy.io import loadmat

    arrays = [loadmat(get(file))["X"] for file in entry.files]
    train, valid, test = (Rows(torch.from_numpy(np.ascontiguousarray(x)).reshape(-1, 28, 28)) for x in arrays)
    return DataSet(entry.folder, train, valid, test)


def _silhouettes(entry: Named, get: Get, _part: str | None) -> DataSet:
    from scipy.io import loadmat

    found = loadmat(get("caltech101_silhouettes_28_split1.mat"))

    def part(name: str) -> Rows:  # rows are column by column, and the background is 1
        x = 1 - np.ascontiguousarray(found[f"{name}_data"].reshape(-1, 28, 28).transpose(0, 2, 1))
        return Rows(torch.from_numpy(x), torch.from_numpy(found[f"{name}_labels"].reshape(-1).astype(np.int64) - 1))

    names = tuple(str(c[0]) for c in found["classnames"][0])
    return DataSet(entry.folder, part("train"), part("val"), part("test"), names)


_CIFAR_MEMBERS = {  # of the archive, by the SHA-256 of each
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


_CIFAR_INSIDE = "cifar-10-batches-bin/"


def _cifar10(entry: Named, get: Get, part: str | None) -> DataSet:
    """The members of the archive, unpacked in `cifar-10-batches-bin/` or still inside it."""
    *train, test = _CIFAR_MEMBERS
    asked = [test] if part == "test" else [*train, test]
    unpacked = {name: find(entry.folder, _CIFAR_INSIDE + name, _CIFAR_MEMBERS[name]) for name in asked}
    missing = [name for name, path in unpacked.items() if path is None]

    def rows(contents: list[bytes]) -> Rows:
        pixels = torch.frombuffer(bytearray(b"".join(contents)), dtype=torch.uint8).reshape(-1, 3073)
        return Rows(pixels[:, 1:].reshape(-1, 3, 32, 32), pixels[:, 0].long())

    loose = [path.read_bytes() for path in unpacked.values() if path is not None and not missing]
    contents = _cifar_archived(get, asked, missing) if missing else loose
    held = rows(contents[-1:])
    return DataSet(entry.folder, held if part == "test" else rows(contents[:-1]), test=held, classes=entry.classes)


def _cifar_archived(get: Get, asked: list[str], missing: list[str]) -> list[bytes]:
    """Members out of the archive."""
    try:
        archive = get("cifar-10-binary.tar.gz")
    except DataError as error:
        raise DataError(
            f"{error}; or unpacked, in {_CIFAR_INSIDE}, where {', '.join(missing)} cannot be found"
        ) from error
    with tarfile.open(archive) as tar:
        return [tar.extractfile(_CIFAR_INSIDE + name).read() for name in asked]  # type: ignore[union-attr]


def _wine(entry: Named, get: Get, _part: str | None) -> DataSet:
    return read(get(*entry.files), label="quality")


def _parkinsons(entry: Named, get: Get, _part: str | None) -> DataSet:
    found = read(get("parkinsons_updrs.data"))
    return found.replace(train=Rows(found.train.x[:, 3:]), columns=found.columns[3:])


def _anomalies(entry: Named, get: Get, _part: str | None) -> DataSet:
    return read(get(*entry.files)).replace(classes=("normal", "anomaly"))


_DIGIT_NAMES = tuple("0123456789")
_FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")


def _idx_set(about: str, folder: str, url: str, classes: tuple[str, ...], *sha256: str) -> Named:
    parts = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return Named(about, _idx, folder, dict(zip(parts, sha256, strict=True)), url, classes)


def _uci(about: str, folder: str, build: Any, url: str, file: str, sha256: str) -> Named:
    home = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
    return Named(about, build, folder, {file: sha256}, home + url)


def _adbench(file: str, sha: str, about: str) -> Named:
    home = "https://raw.githubusercontent.com/Minqi824/ADBench/main/adbench/datasets/Classical/"
    return Named(f"{about}; label 1 is an anomaly", _anomalies, "adbench", {file: sha}, home)


NAMED: dict[str, Named] = {
    "digits": Named(
        "1797 handwritten digits, 8×8, gray values 0 to 16; embedded in scikit-learn", _digits, classes=_DIGIT_NAMES
    ),
    "photographs": Named("two photographs, 427×640, gray values 0 to 1; embedded in scikit-learn", _photographs),
    "spike-words": Named("40000 words of 15 units in {0, 1}, made: neurons with common input, active 6 to 18 % of the time", _spike_words),
    "mnist": _idx_set(
        "60000 + 10000 handwritten digits, 28×28 bytes", "mnist", "https://ossci-datasets.s3.amazonaws.com/mnist/", _DIGIT_NAMES,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion-mnist": _idx_set(
        "60000 + 10000 pieces of clothing, 28×28 bytes", "fashion_mnist", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _FASHION,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    "kmnist": _idx_set(
        "60000 + 10000 cursive Japanese characters, 28×28 bytes", "kmnist", "http://codh.rois.ac.jp/kmnist/dataset/kmnist/", _KUZUSHIJI,
        "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
        "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
        "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5",
        "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c",
    ),
    "cifar10": Named(
        "50000 + 10000 photographs of ten kinds, 3×32×32 bytes",
        _cifar10,
        "cifar10",
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        "https://www.cs.toronto.edu/~kriz/",
        classes=_CIFAR,
    ),
    "binarized-mnist": Named(
        "MNIST in the fixed binarization of density papers, 50000 / 10000 / 10000 × 28×28",
        _binarized,
        "binarized_mnist",
        {
            "binarized_mnist_train.mat": "79a0312c7389d855cfc97e3812de3998417c5829d8a51543b56a90a91252ae7e",
            "binarized_mnist_valid.mat": "7436afc856959075c7787025bb8a4ba2b520b9230ee39667c66aa7dd2819dd68",
            "binarized_mnist_test.mat": "5bc30222e1e7896cbccd1e1db6b28540cc1230f4d2d5473841a5f6cc54be8d38",
        },
    ),
    "caltech-silhouettes": Named(
        "4100 / 2264 / 2307 silhouettes of 101 kinds of things, 28×28 bits",
        _silhouettes,
        "caltech101_silhouettes",
        {"caltech101_silhouettes_28_split1.mat": "eb6735e8d84b1850fabc5590124aab1755e90c9fd28123585324398405e1e42a"},
        "https://people.cs.umass.edu/~marlin/data/",
    ),
    "red-wine": _uci(
        "1599 red wines, 11 chemical measurements, quality as label", "wine_quality", _wine, "wine-quality/",
        "winequality-red.csv", "4a402cf041b025d4566d954c3b9ba8635a3a8a01e039005d97d6a710278cf05e",
    ),
    "white-wine": _uci(
        "4898 white wines, 11 chemical measurements, quality as label", "wine_quality", _wine, "wine-quality/",
        "winequality-white.csv", "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
    ),
    "parkinsons": _uci(
        "5875 voice recordings of people with Parkinson's disease, 19 measurements", "parkinsons", _parkinsons, "parkinsons/telemonitoring/",
        "parkinsons_updrs.data", "f2c7d5025dec4e92e7feae367a5f7ccf58789a10ac6b54bdf15976c599f9dd39",
    ),
    "ionosphere": _adbench(
        "18_Ionosphere.npz", "bca46cb0cfd1bf9ddef6cde5ad2215d54fb0189508d0d4c4eb98e788cad69001", "351 radar returns, 32 columns"
    ),
    "cardio": _adbench(
        "6_cardio.npz", "bc5009bde6930b4d298b594f31b34485a9a17210cff0e8fb00a8c3068b885a2d", "1831 heart recordings, 21 columns"
    ),
    "satellite": _adbench(
        "30_satellite.npz", "1f048f5686f1b8c16a227fdfa3c81a62cd9a92715714a6b24c69b1c5ad96b46e", "6435 satellite pixels, 36 columns"
    ),
    "thyroid": _adbench(
        "38_thyroid.npz", "8de161b3f235b7647bb0b39a836d983ff61d67bf234edac461da2d71e889cb87", "3772 blood tests, 6 columns"
    ),
    "shuttle": _adbench(
        "32_shuttle.npz", "26900b0f6be45d9ddb7a402c9b2f956ceda42d23a8ca4cf4406b8bc1352823d1", "shuttle sensors, 9 columns"
    ),
    "mammography": _adbench(
        "23_mammography.npz", "a0308ac9712d78321073b1c2dc98dc37665c0f35c1cc33019416fe8f8d7de7ea", "11183 x-rays, 6 columns"
    ),
}  # fmt: skip
