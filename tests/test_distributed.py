"""Several processes on the CPU: the same training as one, per-rank chains, and what happens when one dies."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rank_checks import STATES, machine
from scipy.stats import chisquare, kstest
from torch import Tensor
from torch.distributed import DistBackendError
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

import gibbsian as gb
from gibbsian import errors, kernels, models, objectives
from gibbsian.app.cli import main
from gibbsian.app.cli.launch import _failed, _words
from gibbsian.distributed import Shards, World
from gibbsian.distributed.gradients import GradientExchange
from gibbsian.objectives.persistent import Chains


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def the_data() -> Tensor:
    return (torch.rand(203, 6, generator=gen()) < torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9, 0.5])).double()


def weights(energy: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in energy.parameters()])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """What every rank of every job of rank_checks.py returned, by name, number of processes and rank."""
    folder = tmp_path_factory.mktemp("ranks")
    here = Path(__file__).parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{Path(gb.__file__).parent.parent}:{here}"}
    command = [sys.executable, str(here / "nursery.py"), "rank_checks", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

    def found(name: str, size: int, rank: int = 0) -> Any:
        trouble = folder / f"{name}-{size}-{rank}.txt"
        if name in {"killed", "late"}:
            return trouble.read_text() if trouble.exists() else ""
        assert not trouble.exists(), trouble.read_text()
        return torch.load(folder / f"{name}-{size}-{rank}.pt")

    return found


def test_alone_nothing_is_shared():
    world = World()
    assert world.alone
    assert world.first
    assert world.mean({"a": 1.0}, torch.device("cpu")) == {"a": 1.0}
    assert GradientExchange(world, []).finish(3, (1.0, 0.0)) == [1.0, 0.0]
    assert torch.equal(world.gather_rows(torch.ones(2)), torch.ones(2))


# --- shards: what is found does not depend on the number of processes -------------------------------


def differing(one: Any, other: Any) -> set[str]:
    return {key for key in one if not _same(one[key], other[key])} | set(one) ^ set(other)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


@pytest.mark.parametrize(("job", "own"), [("sampled", "share"), ("judged", "states"), ("exchanged", "own")])
@pytest.mark.parametrize("size", [2, 3])
def test_what_is_found_is_that_of_one_process_to_the_bit(ranks, job, own, size):
    one, others = ranks(job, 1), [ranks(job, size, rank) for rank in range(size)]
    for other in others:
        assert differing(one, other) == {own}
    assert sum(other[own] for other in others) == one[own]  # every process holds its share


@pytest.mark.parametrize("size", [2, 3])
def test_metrics_of_several_processes_are_those_of_one(ranks, size):
    """To the bit but for moments of features, which are added in another order; each process computes its share of the features."""
    one, others = ranks("measured", 1), [ranks("measured", size, rank) for rank in range(size)]
    for other in others:
        assert differing(one, other) <= {"own", "fid", "shared"}
        assert float(other["fid"]) == pytest.approx(float(one["fid"]), rel=1e-10)
        assert other["shared"] == pytest.approx(
            [0.0] * 3, abs=1e-7
        )  # of samples of which every process has its own rows
    assert sum(other["own"] for other in others) == one["own"] == 2 * 1300 + 6
    x, y = torch.randn(700, 3, generator=gen(1)), 0.3 + torch.randn(600, 3, generator=gen(2))
    assert torch.equal(one["mmd"], gb.metrics.mmd(x, y))
    assert one["rows"] == (700, 600)


def test_pooled_diagnostics_are_those_of_the_gathered_chains(ranks):
    for size in (1, 2, 3):
        found = ranks("sampled", size)
        assert found["pooled"]
        assert found["streamed_pooled"]
        assert found["held"]
        assert found["steps"] == 35


def test_spread_chains_have_streams_of_their_own(ranks):
    """No two chains of 37 move alike, and what goes on does not repeat what was there before."""
    found = ranks("sampled", 2)
    noise = found["mala"].diff(dim=0).transpose(0, 1).flatten(1)
    assert len(torch.unique(noise, dim=0)) == 37
    assert not torch.equal(found["more"], found["mala"][:5])


def test_spread_estimates_hold_the_truth(ranks):
    """Within four standard errors of the exact sum (a false alarm in 16,000; the seed is fixed)."""
    found = ranks("judged", 3)
    assert abs(float(found["ais"]) - found["truth"]) < 4 * float(found["stderr"])
    assert len(found["weights"].unique()) == 64
    assert torch.equal(found["more"][:64], found["weights"])
    assert abs(float(found["smc"]) - found["truth"]) < 0.5
    assert torch.allclose(found["likelihood"], found["plain"], rtol=1e-14)
    for name in ("grown", "from_ends"):
        assert found[name][1] < found["truth"] < found[name][2]


def test_shards_are_dealt_in_order_and_refuse_more_processes_than_there_are():
    dealt = []
    for rank in range(3):
        parts = Shards(0, count=16, world=World(rank, 3)).parts(1000)
        dealt += [part.rows for part in parts]
        assert parts[0].own.start == 0
    assert [d.start for d in dealt[1:]] == [d.stop for d in dealt[:-1]]
    assert len(dealt) == 16
    assert (dealt[0].start, dealt[-1].stop) == (0, 1000)
    with pytest.raises(errors.ProcessError, match="20 rows or chains make 2 shards, too few for 3 processes"):
        Shards(0, world=World(0, 3)).parts(20)
    g = gen()
    target = gb.energies.Gaussian(torch.zeros(1), torch.eye(1))
    trace = gb.sample(target, kernels.MALA(0.5), torch.zeros(8, 1), 5, generator=g)
    with pytest.raises(errors.ArgumentError, match="a trace of one process"):
        gb.sample(target, kernels.MALA(0.5), trace, 5, generator=Shards(0))
    spread = gb.sample(target, kernels.MALA(0.5), torch.zeros(8, 1), 5, generator=Shards(0)).gather()
    with pytest.raises(errors.ArgumentError, match="holds no states"):
        gb.sample(target, kernels.MALA(0.5), spread, 5, generator=g)


def test_temperatures_that_travel_leave_the_law_alone(ranks):
    """From exact draws at every temperature nothing moves, though a good part of all swaps is made (p > 10⁻⁴, fixed seed)."""
    found, rbm = ranks("exchanged", 2), machine()
    with torch.no_grad():
        expected = 4000 * torch.softmax(-rbm(STATES), 0).numpy()
    for draws in found["cold"]:
        seen = torch.bincount((draws.long() * 2 ** torch.arange(6)).sum(1), minlength=64).numpy()
        order = (STATES.long() * 2 ** torch.arange(6)).sum(1).numpy()
        some = expected > 5
        counts, wanted = (
            np.append(seen[order][some], seen[order][~some].sum()),
            np.append(expected[some], expected[~some].sum()),
        )
        assert chisquare(counts, wanted).pvalue > 1e-4
    assert (found["swaps"] > 0.2).all()
    assert torch.equal(found["temperature"].sort(0).values, torch.arange(4)[:, None].expand(4, 4000))
    assert (found["temperature"] != torch.arange(4)[:, None]).double().mean() > 0.3
    for draws in found["skewed"]:  # exp(x) is exponential
        assert kstest(draws[:, 0].exp().numpy(), "expon").pvalue > 1e-4


# --- training --------------------------------------------------------------------------------------


def test_two_processes_train_what_one_does(ranks):
    """The mean gradient over all rows is the same sum in another order, at once or in parts."""
    two, other = ranks("trained", 2), ranks("trained", 2, 1)
    assert differing(two, other) <= {"validation"}
    exact, how = objectives.ExactLikelihood(), {"batch_size": 20, "lr": 0.05}
    one = gb.fit(models.RBM(6, 3).double(), exact, the_data(), steps=60, validation=the_data(), ema=0.9,
                 logging=gb.training.Logging(every=20, validate_every=30), **how)  # fmt: skip
    assert torch.allclose(two["weights"], weights(one.energy), rtol=1e-9, atol=1e-11)
    assert torch.allclose(two["ema"], weights(one.ema), rtol=1e-9, atol=1e-11)
    assert torch.allclose(two["parts"], weights(one.energy), rtol=1e-9, atol=1e-11)
    assert two["validation"] == pytest.approx([r["validation_loss"] for r in one.history if "validation_loss" in r])
    assert two["losses"] == 3


def test_a_divergence_in_one_process_rolls_all_of_them_back(ranks):
    one, other = ranks("diverged", 2), ranks("diverged", 2, 1)
    assert torch.equal(one["weights"], other["weights"])
    assert (one["step"], len(one["events"]), one["events"][0]["step"]) == (30, 1, 10)
    assert "another process diverged" in one["events"][0]["message"]
    assert "only here" in other["events"][0]["message"]


def test_a_lost_process_ends_the_job_with_one_sentence(ranks):
    said = ranks("killed", 2).splitlines()[-1]
    assert re.search(r"ProcessError: another process of this job was lost \([^()]*(?:onnection|roken pipe)[^()]*\); see its own message; the last "
                     r"checkpoint is of step 40 in \S+killed; go on with gibbsian.resume\(", said)  # fmt: skip
    assert not ranks("killed", 2, 1)  # it had no time to say anything
    assert "another process of this job did not answer in time (" in ranks("late", 2)


NCCL = {
    "was lost (remote process exited or there was a network error, NCCL version 2.28.8 ncclRemoteError: A call failed possibly due to "
    "a network error or a remote process exiting prematurely)": """[rank1]: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268,
 remote process exited or there was a network error, NCCL version 2.28.8
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
""",
    "did not answer in time ([Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=980, "
    "NumelOut=980, Timeout(ms)=600000) ran for 600020 milliseconds before timing out)": """[Rank 0] Watchdog caught collective operation
 timeout: WorkNCCL(SeqNum=808, OpType=ALLREDUCE, NumelIn=980, NumelOut=980, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.
Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96""",
}


@pytest.mark.parametrize("meaning", NCCL)
def test_errors_of_nccl_end_the_job_with_the_same_sentence(tmp_path, monkeypatch, meaning):
    """As torch raises them: from a sum, from the wait for one, or from whatever looks at its result first."""
    sentence = f"another process of this job {meaning}; see its own message"

    def broken(*_: Any, **__: Any) -> Any:
        raise DistBackendError(NCCL[meaning])

    monkeypatch.setattr(torch.distributed, "all_reduce", broken)
    with pytest.raises(errors.ProcessError, match=f"^{re.escape(sentence)}$"):
        World(0, 2).sum(torch.zeros(1))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: SimpleNamespace(wait=broken))
    parameter = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(errors.ProcessError, match=f"^{re.escape(sentence)}$"):
        GradientExchange(World(0, 2), [parameter]).finish(3, (0.0,))

    def look(run: Any) -> None:
        if run.step == 17:
            broken()

    where = r"; the last checkpoint is of step 10 in \S+; go on with gibbsian.resume\("
    with pytest.raises(errors.ProcessError, match=f"^{re.escape(sentence)}{where}"):
        gb.fit(models.RBM(6, 3).double(), objectives.ExactLikelihood(), the_data(), steps=30, hooks=[look],
               run_dir=tmp_path / "run", checkpoints=gb.training.Checkpoints(every=10))  # fmt: skip


def test_a_lost_run_goes_on_to_the_bit_on_as_many_processes(ranks):
    undisturbed, resumed = ranks("straight", 2), ranks("resumed", 2)
    assert torch.equal(resumed["weights"], undisturbed["weights"])
    assert torch.equal(resumed["last"], undisturbed["chains"])
    assert undisturbed["seen"][40:] == resumed["seen"]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_run_goes_on_on_any_number_of_processes_and_nothing_is_lost_or_repeated(ranks, size):
    undisturbed, before = ranks("straight", 2), ranks("resumed", 2)
    found = [ranks("resumed", size, rank) for rank in range(size)]
    assert torch.equal(found[0]["chains"], before["chains"])  # all chains, in their order
    assert sum(one["own"] for one in found) == 48
    assert max(one["own"] for one in found) - min(one["own"] for one in found) <= 1
    assert found[0]["seen"] == undisturbed["seen"][40:]  # the same rows in every step, whoever sees them
    assert (found[0]["step"], found[0]["end"]) == (40, 80)
    assert found[0]["files"] == (size if size > 1 else 0)  # each its own
    for other in found[1:]:
        assert torch.equal(other["weights"], found[0]["weights"])
    for epoch in range(0, 80, 4):
        assert sorted(chain.from_iterable(undisturbed["seen"][epoch : epoch + 4])) == list(range(64))


def test_a_run_of_one_process_goes_on_on_three(ranks):
    before, found = ranks("resumed", 1), [ranks("widened", 3, rank) for rank in range(3)]
    assert torch.equal(found[0]["chains"], before["last"])
    assert [one["own"] for one in found] == [16, 16, 16]


def test_gradients_leave_while_others_are_computed(ranks):
    one, two, other = ranks("overlapped", 1), ranks("overlapped", 2), ranks("overlapped", 2, 1)
    assert (two["sent"], other["sent"], one["sent"]) == (2, 2, 0)
    assert torch.equal(two["gradients"], other["gradients"])
    assert torch.allclose(two["gradients"], one["gradients"], rtol=1e-12)
    assert two["signals"] == [2.0, 0.0]
    assert two["trouble"] == other["trouble"] == [0.0, 1.0]
    assert two["bytes"] == 2 * 8 * (two["numel"] + 3)  # two updates: every gradient once, rows and two signals


# --- the command line, larger networks ---------------------------------------------------------------


def test_commands_of_two_processes_find_what_those_of_one_find(ranks):
    two, other, one = ranks("commanded", 2), ranks("commanded", 2, 1), ranks("commanded", 1)
    assert two["codes"] == other["codes"] == [0, 0, 0]
    assert one["codes"] == [0, 0]
    assert torch.equal(two["drawn"], one["drawn"])
    assert two["judged"] == one["judged"]
    assert two["pictures"]


def test_the_launcher_passes_on_one_sentence_and_the_exit_code(tmp_path):
    """In a process of its own: torch's launcher leaves the logs of processes that ended by themselves open."""
    call = [sys.executable, "-m", "gibbsian", "sample", str(tmp_path / "nowhere"), "--processes", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(call, capture_output=True, text=True, env=environment, timeout=600, check=False)
    assert done.returncode == 1
    assert done.stderr.count("there is no run folder") == 1
    assert "Traceback" not in done.stderr


def left(folder: Path, rank: int, code: int, sentence: str = "", log: str = "") -> ProcessFailure:
    """A process that ended with a code, having left a sentence for the launcher, and a log."""
    own = folder / "attempt_0" / str(rank)
    own.mkdir(parents=True)
    (own / "stderr.log").write_text(log)
    if sentence:
        message = {"message": f"GibbsianError: {sentence}", "extraInfo": {"py_callstack": "", "timestamp": "7"}}
        (own / "error.json").write_text(json.dumps({"message": message}))
    return ProcessFailure(rank, 1, code, str(own / "error.json"))


LOST = "another process of this job was lost (Connection closed by peer); see its own message"


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        ([(1, "No space: a"), (1, "No space: a")], 1, ""),
        ([(1, LOST), (2, "bad row")], 2, "gibbsian: bad row\n"),
        ([(-6, ""), (-6, "")], 134, "gibbsian: process 0 aborted (SIGABRT), as those do that wait on NCCL for a process that was lost "
         "or does not answer\n"),
        ([(1, LOST), (-9, "")], 137, "gibbsian: process 1 was ended from outside (SIGKILL)\n"),
        ([(1, LOST), (1, "", "noise\nTraceback (most recent call last):\n  a\nKeyError: 3\n")], 1,
         "Traceback (most recent call last):\n  a\nKeyError: 3\n"),
        ([(1, LOST), (3, "")], 3, "gibbsian: process 1 failed without a word\n"),
        ([(1, LOST), (3, "", "gibbsian: first\ngibbsian: last\n")], 3, "gibbsian: last\n"),
    ],
)  # fmt: skip
def test_the_launcher_passes_on_who_failed_by_itself(tmp_path, capsys, ends, code, said):
    """Process 0, which has spoken already, fails for the other's sake in the same second."""
    failures = {rank: left(tmp_path, rank, *end) for rank, end in enumerate(ends)}
    assert _failed(failures, tmp_path) == code
    assert capsys.readouterr().err == said


def test_what_is_left_for_the_launcher_is_what_was_said(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "0" / "error.json"))
    (tmp_path / "0").mkdir()
    assert main(["train", "digits-rbm", "--run", str(tmp_path / "file" / "run"), "--quiet"]) == 1
    assert f": {tmp_path}" in (said := capsys.readouterr().err)
    assert _words(0, tmp_path) == said.strip()


def test_a_table_is_refused_in_several_processes(tmp_path, monkeypatch, capsys):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    monkeypatch.setenv("RANK", "0")
    assert main(["train", str(tmp_path / "rows.csv")]) == 2
    assert "the law of a table runs in one process; leave --processes out" in capsys.readouterr().err


@pytest.mark.parametrize("objective", [objectives.DenoisingScoreMatching(0.3), objectives.SlicedScoreMatching()])
def test_activations_that_are_computed_again_give_the_same_training(objective):
    """Derivatives of any order, to rounding; blocks are called again in the backward pass, and left as they were."""
    data = torch.randn(24, 1, 8, 8, generator=gen(1), dtype=torch.float64)
    calls: list[int] = []

    def trained(**engine: Any) -> Tensor:
        energy = gb.energies.ResidualEnergy((1, 8, 8), widths=(4, 8), blocks=1).double()
        block = energy.net.stages[0][0]
        hook = block.first.register_forward_pre_hook(lambda *_: calls.append(1))
        gb.fit(energy, objective, data, steps=2, batch_size=12, engine=gb.training.Engine(**engine))
        hook.remove()
        calls.append(0)
        assert "forward" not in vars(block)
        return weights(energy)

    plain, again = trained(), trained(recompute=True)
    first = calls.index(0)
    assert sum(calls[first:]) > sum(calls[:first])
    assert torch.allclose(plain, again, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(plain, weights(gb.energies.ResidualEnergy((1, 8, 8), widths=(4, 8), blocks=1).double()))


def test_what_cannot_be_computed_again_or_in_parts_is_refused():
    engine = gb.training.Engine(recompute=True)
    with pytest.raises(errors.CapabilityError, match="holds no network"):
        gb.fit(models.RBM(6, 3).double(), objectives.ExactLikelihood(), the_data(), steps=1, engine=engine)
    normed = gb.energies.MLPEnergy(6, hidden=(4, 4), spectral_norm=True).double()
    with pytest.raises(errors.CapabilityError, match="spectral_norm move at every pass"):
        gb.fit(normed, objectives.DenoisingScoreMatching(0.3), torch.randn(8, 6).double(), steps=1, engine=engine)
    with pytest.raises(errors.ArgumentError, match="captures whole steps"):
        gb.training.Engine(compile=True, accumulate=2)


def test_a_part_of_a_batch_counts_by_its_rows():
    """Five rows in two parts: the gradient is the mean over rows, not over parts."""
    data = the_data()[:5]
    one, two = (
        gb.fit(models.RBM(6, 3).double(), objectives.ExactLikelihood(), data, steps=20, batch_size=5, engine=engine)
        for engine in (gb.training.Engine(), gb.training.Engine(accumulate=2))
    )
    assert torch.allclose(weights(one.energy), weights(two.energy), rtol=1e-9, atol=1e-12)
    assert one.history[-1]["loss"] == pytest.approx(two.history[-1]["loss"])


def test_buffers_bound_to_classes_keep_them_when_dealt_anew():
    """Slots of class k stay slots of class k, in equal numbers, and none is lost."""
    objective = objectives.PersistentContrastiveDivergence(kernels.Gibbs(), chains=2, buffer=8, classes=2)
    states = [
        Chains(torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]) + 10.0 * torch.arange(4 * r, 4 * r + 4).repeat(2))
        for r in range(3)
    ]
    found = [objective.redealt(states, rank, 2).x for rank in range(2)]
    for x in found:
        assert torch.equal(x % 10, torch.tensor([0.0, 1.0]).repeat_interleave(6))
    assert torch.equal(torch.cat(found).sort().values, torch.cat([state.x for state in states]).sort().values)
    with pytest.raises(errors.ArgumentError, match="cannot be dealt to 9 processes"):
        objectives.PersistentContrastiveDivergence(kernels.Gibbs()).redealt(states[:1], 0, 9)
