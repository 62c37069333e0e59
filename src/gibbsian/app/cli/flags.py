"""What may be said on the command line: the flags of every command, and where it lives.

A new command is a row of `COMMANDS`, a function here with its flags, and `run_NAME(options, rest)` in a module beside this one.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple, NoReturn

import gibbsian
from gibbsian.errors import ArgumentError

__all__ = ["COMMANDS", "make_parser"]

_EPILOG = """\
five minutes:
  gibbsian train digits-rbm            train a Boltzmann machine on digits, judge it, write a report
  gibbsian train digits-rbm --live     the same, followed in the browser while it trains
  gibbsian sample runs/digits-rbm -n 9 draw from it
  gibbsian lab                         chains, wells and lattices that move, in the browser
  gibbsian train rows.csv              learn the law of a table, whatever its columns hold
  gibbsian list                        everything there is, with one line each

every argument of every class is a flag: gibbsian train digits-rbm --model.hidden 200 --objective.objective.steps 10
exit codes: 0 done · 1 could not be done, the reason is on stderr · 2 wrong use · 130 Ctrl-C, 143 SIGTERM: a checkpoint is kept
"""


class _Parser(argparse.ArgumentParser):
    """One that answers wrong use with one sentence."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{message}; see {self.prog} --help")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 1 on")
    return int(text)


# --- what several commands take -------------------------------------------------------------------


def _common(parser: _Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document for programs instead of tables")
    quiet = "no progress bars and no tables, only warnings and errors"
    parser.add_argument("--quiet", "-q", action="store_true", help=quiet)


def _trusting(parser: _Parser) -> None:
    _common(parser)
    parser.add_argument(
        "--trust",
        metavar="MODULE",
        action="append",
        default=[],
        help="a module of your own, by name or as a .py file, whose classes the recipe may name; may be repeated",
    )


def _of_a_run(parser: _Parser, what: str = "the run's folder") -> None:
    _trusting(parser)
    parser.add_argument("run", metavar="RUN", help=what)


def _reading(parser: _Parser) -> None:
    _common(parser)
    parser.add_argument("--drop", metavar="COLUMNS", help="columns of the file to leave out, with commas between")
    parser.add_argument("--missing", metavar="TOKEN", action="append", help="a token that stands for nothing, besides ? and the usual; may be repeated")  # fmt: skip
    parser.add_argument("--decimal", metavar="SIGN", choices=[".", ","], help="the decimal sign (default: found out)")
    parser.add_argument("--encoding", metavar="NAME", default="utf-8", help="of the text (default: utf-8)")


def _live(parser: _Parser) -> None:
    parser.add_argument("--live", action="store_true", help="follow it in the browser meanwhile (see `gibbsian watch`)")
    _viewing(parser)


def _viewing(parser: _Parser) -> None:
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="an address of this machine to be reached at (default: 127.0.0.1, from here alone)")  # fmt: skip
    parser.add_argument("--port", type=int, default=0, metavar="N", help="on this port (default: any that is free)")
    parser.add_argument("--no-browser", action="store_true", help="say the address and open nothing")


def _processes(parser: _Parser) -> None:
    parser.add_argument("--processes", type=_count, metavar="N", help="in N processes of this machine, by torchrun")


# --- each command ---------------------------------------------------------------------------------


def _train(parser: _Parser) -> None:
    _trusting(parser)
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a recipe's name, a YAML file, or a table (.csv, .tsv, .parquet)"
    )
    parser.add_argument("--run", metavar="FOLDER", help="a new folder for the run (default: runs/RECIPE, numbered)")
    parser.add_argument("--no-report", action="store_true", help="train only: judge and report later")
    _live(parser)
    parser.add_argument("--keys", action="store_true", help="show every key of a recipe and end")
    _processes(parser)


def _resume(parser: _Parser) -> None:
    _of_a_run(parser)
    parser.add_argument("--steps", type=_count, metavar="N", help="train to N updates in all")
    parser.add_argument("--epochs", type=_count, metavar="N", help="train to N epochs in all")
    parser.add_argument("--no-report", action="store_true", help="train only: judge and report later")
    _live(parser)
    _processes(parser)


def _sample(parser: _Parser) -> None:
    _of_a_run(parser, "the run's folder, or zoo:NAME (see gibbsian list zoo)")
    parser.add_argument("-n", type=_count, default=64, metavar="N", help="how many (default: 64)")
    parser.add_argument("--class", dest="label", metavar="Y", help="of one class, by number or name")
    parser.add_argument(
        "--clamp",
        metavar="FILE",
        help="complete partial examples: an .npy or .csv file of rows in the data's units, NaN (or empty) where unknown",
    )
    parser.add_argument("--steps", type=_count, metavar="N", help="steps of each chain (default: the recipe's)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the chains (default: 0)")
    parser.add_argument("--given", metavar="CELLS", help="cells of a table that are held, such as age=30,sex=female")
    where = "where to write: .npy, .npz, .csv or .png (default: RUN/samples.npz, for tables RUN/samples.csv)"
    parser.add_argument("--out", metavar="FILE", help=where)
    _processes(parser)


def _score(parser: _Parser) -> None:
    _reading(parser)
    parser.add_argument("places", metavar="RUN rows.csv", nargs="+", help="the run's folder, and a table")
    parser.add_argument(
        "--explain", action="store_true", help="how surprising every cell is, given the rest of its row"
    )
    parser.add_argument("--against", metavar="RUN", help="test whether the rows follow the law of this run")
    parser.add_argument("--alpha", type=float, default=0.05, metavar="LEVEL", help="share of normal rows that are flagged (default: 0.05)")  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="where to write a .csv of scores")


def _impute(parser: _Parser) -> None:
    _reading(parser)
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("rows", metavar="rows.csv", help="a table")
    parser.add_argument("--draws", type=_count, metavar="K", help="K files with gaps drawn, instead of means and most probable values")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (default: 0)")
    parser.add_argument("--out", metavar="FILE", help="where to write (default: ROWS-filled.csv here)")


def _evaluate(parser: _Parser) -> None:
    _of_a_run(parser)
    how = "auto, exact, quadrature, ais or none (default: the recipe's)"
    parser.add_argument("--likelihood", metavar="HOW", help=how)
    parser.add_argument("--chains", type=_count, metavar="N", help="chains of AIS")
    parser.add_argument("--betas", type=_count, metavar="N", help="temperatures of AIS; left out, as many as it takes")
    other = "another data set that should look foreign; may be repeated"
    parser.add_argument("--outside", metavar="DATA", action="append", help=other)
    _processes(parser)


def _report(parser: _Parser) -> None:
    _trusting(parser)
    parser.add_argument("run", metavar="RUN", nargs="+", help="the run's folder; several are compared on one page")
    parser.add_argument(
        "--out", metavar="FILE", help="where to write the page of several (default: comparison.html beside them)"
    )
    parser.add_argument("--fresh", action="store_true", help="judge the model anew instead of using what is there")


def _watch(parser: _Parser) -> None:
    _trusting(parser)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs, or of comparisons, side by side")
    _viewing(parser)


def _search(parser: _Parser) -> None:
    _trusting(parser)
    parser.add_argument(
        "recipe", metavar="RECIPE", help="a recipe's name, or a YAML file; further flags change its keys"
    )
    parser.add_argument("--space", metavar="FILE", required=True, help="what is searched")
    parser.add_argument("--trials", type=_count, default=50, metavar="N", help="in all, over all workers (default: 50)")
    parser.add_argument(
        "--objective", default="likelihood", metavar="O", help="likelihood (default), mmd, auroc or accuracy"
    )
    parser.add_argument(
        "--sampler", default="tpe", metavar="S", help="tpe (default), random, gp, cma-es, qmc, brute-force"
    )
    parser.add_argument(
        "--pruner", default="none", metavar="P", help="none (default), median, halving, hyperband, wilcoxon"
    )
    parser.add_argument(
        "--looks", type=_count, default=4, metavar="N", help="judge a trial N times on its way, for the pruner"
    )
    parser.add_argument("--storage", metavar="URL", help="of a data base (default: SQLite in the folder)")
    parser.add_argument(
        "--heartbeat", type=_count, default=20, metavar="S", help="seconds between signs of life (default: 20)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampler (default: 0)")
    parser.add_argument("--run", metavar="FOLDER", help="where the trials lie (default: runs/search-RECIPE)")
    parser.add_argument("--no-report", action="store_true", help="judge nothing on the test part")


def _sequences(parser: _Parser) -> None:
    _common(parser)
    parser.add_argument("file", metavar="FILE", help="an alignment, or demo")
    parser.add_argument("--alphabet", default="protein", metavar="A", help="protein (default), rna, dna, or letters")
    parser.add_argument(
        "--method", default="pseudo-likelihood", choices=["mean-field", "pseudo-likelihood", "asymmetric", "boltzmann", "rbm"]
    )  # fmt: skip
    parser.add_argument("--hidden", type=_count, default=50, metavar="N", help="hidden units of an RBM (default: 50)")
    parser.add_argument("--steps", type=_count, metavar="N", help="iterations or updates at most")
    parser.add_argument(
        "--identity", type=float, default=0.8, metavar="S", help="weigh sequences at this identity (default: 0.8)"
    )
    parser.add_argument("--most-gaps", type=float, metavar="S", help="leave out sequences with a larger share of gaps")
    parser.add_argument("--distances", metavar="CSV", help="a structure: columns i, j (sites from 0) and a distance")
    parser.add_argument("--column", metavar="NAME", help="of the distance (default: the first beside i and j)")
    parser.add_argument("--below", type=float, default=8.0, metavar="D", help="what counts as a contact (default: 8)")
    parser.add_argument(
        "--insertions",
        choices=["drop", "keep"],
        help="small letters and dots: left out, as in a2m and a3m (default where the first sequence has capitals), or read as letters and gaps",
    )
    parser.add_argument("--wild", metavar="NAME", help="the sequence whose mutants are scored (default: the first)")
    parser.add_argument(
        "--mutants", metavar="CSV", help="a scan: a column mutant (A3C, A3C:G7U) and measurements to be ranked"
    )
    parser.add_argument("--first", type=int, default=1, metavar="N", help="position of the first site (default: 1)")
    parser.add_argument("-n", type=_count, default=1000, metavar="N", help="new sequences to draw (default: 1000)")
    parser.add_argument("--sweeps", type=_count, default=200, metavar="N", help="Gibbs sweeps of each (default: 200)")
    parser.add_argument("--no-entropy", action="store_true", help="leave out log Z and the entropy")
    parser.add_argument("--device", default="auto", metavar="D", help="auto (default), cpu, cuda")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is random (default: 0)")
    parser.add_argument("--run", metavar="FOLDER", help="a new folder (default: runs/sequences-NAME, numbered)")


def _lab(parser: _Parser) -> None:
    _common(parser)
    parser.add_argument(
        "section", nargs="?", metavar="WHERE", help="where to begin, such as landscape or 'landscape?law=ring'"
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="on this port (default: any that is free)")
    parser.add_argument("--no-browser", action="store_true", help="say the address and open nothing")
    parser.add_argument("--out", metavar="FILE", help="write the lab as one HTML file instead, which needs no server")


def _list(parser: _Parser) -> None:
    _common(parser)
    parser.add_argument("what", nargs="*", metavar="WHAT", help="kinds (kernels), or single names (MALA, digits-rbm)")


def _doctor(parser: _Parser) -> None:
    _common(parser)
    parser.add_argument("--fast", action="store_true", help="skip the compiler")


class Command(NamedTuple):
    """What a command does in a few words, its flags, and the module that runs it where that has another name."""

    about: str
    flags: Callable[[_Parser], None]
    module: str | None = None
    more: str = ""


COMMANDS = {
    "train": Command(
        "train a model by a recipe, judge it, and write a report",
        _train,
        more="RECIPE is a name from `gibbsian list recipes` or a YAML file. Further flags change any of its keys:\n"
        "  gibbsian train digits-rbm --fit.epochs 50 --model.hidden 200 --run runs/wide\n"
        "  gibbsian train mnist-rbm --fit.device cuda\n"
        "  gibbsian train mnist-rbm --processes 8      one for each of 8 GPUs; on several machines see docs/distributed.md\n"
        "  gibbsian train rows.csv --drop id --types zip=category     a table is a recipe by itself\n"
        "  gibbsian train mine.yaml --print_config     shows the whole recipe, defaults included\n"
        "  gibbsian train mine.yaml --trust mine.py    the recipe names classes of that file, such as mine.Machine\n"
        "  gibbsian train digits-rbm --keys            shows every key with its meaning",
    ),
    "resume": Command("go on with a run from its newest checkpoint, as if it had not stopped", _resume, module="train"),
    "sample": Command("draw samples from a trained model", _sample),
    "score": Command(
        "log-likelihood and p-value of new rows under the law of a table",
        _score,
        module="table",
        more="  gibbsian score RUN rows.csv --explain --out scores.csv\n"
        "  gibbsian score rows.csv --against RUN       do the rows still follow the training law?",
    ),
    "impute": Command("fill in the gaps of new rows by the law of a table", _impute, module="table"),
    "evaluate": Command(
        "judge a trained model: likelihood with an interval, calibration, outsiders", _evaluate, module="train"
    ),
    "report": Command("write the HTML report of a run, or of several side by side", _report, module="train"),
    "watch": Command(
        "follow runs in the browser, while they train or afterwards",
        _watch,
        more="It only reads, so runs can be watched by several people at once. Over ssh:\n"
        "  there   gibbsian watch runs/digits-rbm --no-browser --port 8000\n"
        "  here    ssh -N -L 8000:127.0.0.1:8000 there, and open the address that was said there",
    ),
    "search": Command(
        "search the settings of a recipe for the best on validation rows, with Optuna",
        _search,
        more="space.yaml says which keys, and from where to where:\n"
        "  fit.lr: {low: 0.01, high: 1.0, log: true}\n"
        "  model.hidden: [50, 400]\n"
        "  objective.objective.steps: {choices: [1, 5, 20]}\n"
        "Started again, here or on another machine with the same --storage, it goes on, or is one more worker.\n"
        "  gibbsian search digits-rbm --space space.yaml --trials 50\n"
        "  gibbsian search mine.yaml --space space.yaml --storage postgresql://host/searches --fit.epochs 50",
    ),
    "sequences": Command(
        "learn a machine from aligned sequences: contacts, mutations, new sequences and a report",
        _sequences,
        more="FILE is FASTA, a2m, a3m or Stockholm, plain or gzipped; `demo` is a made RNA family of two hairpins.\n"
        "  gibbsian sequences demo\n"
        "  gibbsian sequences family.fasta.gz --distances distances.csv\n"
        "  gibbsian sequences riboswitch.sto --alphabet rna --method boltzmann --device cuda\n"
        "  gibbsian sequences family.a2m --method rbm --hidden 50",
    ),
    "lab": Command("open the lab: chains, machines and lattices that move, in the browser", _lab),
    "list": Command(
        "show what there is: recipes, data, models, energies, kernels, objectives, estimators", _list, module="listing"
    ),
    "doctor": Command(
        "check this installation: versions, devices, the compiler, samplers against exact answers", _doctor
    ),
}


def make_parser() -> _Parser:
    """The parser of all commands."""
    parser = _Parser(
        prog="gibbsian",
        description="Energy-based models: define an energy, train it by any principle, sample it, know its likelihood.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gibbsian {gibbsian.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        about = command.about
        one = commands.add_parser(
            name,
            help=about,
            description=about[0].upper() + about[1:] + "." + (f"\n\n{command.more}" if command.more else ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.flags(one)
    return parser
