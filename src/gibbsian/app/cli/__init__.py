"""The command `gibbsian`.

This file only reads the command line: nothing heavy is imported before it is known what to do, so that
`gibbsian --help` answers at once. The commands live in the modules beside it.
"""

import argparse
import codecs
import errno
import io
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import gibbsian
from gibbsian.errors import ArgumentError, GibbsianError

__all__ = ["main"]

_COMMANDS = (
    "train", "resume", "sample", "score", "impute", "evaluate", "report", "search", "watch", "sequences", "lab", "list", "doctor",
)  # fmt: skip
_MODULES = {  # those of other names
    "resume": "train", "evaluate": "train", "report": "train", "list": "listing", "score": "table", "impute": "table",
}  # fmt: skip
_TERMINATED = 128 + 15  # what a shell says of a process that SIGTERM ended
_PLAIN = {
    "×": "x",
    "±": "+-",
    "·": "-",
    "–": "-",
    "—": "-",
    "−": "-",
    "…": "...",
    "β": "beta",
    "σ": "sigma",
    "√": "sqrt",
}
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


def _parser() -> _Parser:
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document for programs instead of tables")
    quiet = "no progress bars and no tables, only warnings and errors"
    common.add_argument("--quiet", "-q", action="store_true", help=quiet)
    trusting = _Parser(add_help=False, parents=[common])
    trusting.add_argument(
        "--trust",
        metavar="MODULE",
        action="append",
        default=[],
        help="a module of your own, by name or as a .py file, whose classes the recipe may name; may be repeated",
    )
    of_a_run = _Parser(add_help=False, parents=[trusting])
    of_a_run.add_argument("run", metavar="RUN", help="the run's folder, or to draw from zoo:NAME (gibbsian list zoo)")
    parser = _Parser(
        prog="gibbsian",
        description="Energy-based models: define an energy, train it by any principle, sample it, know its likelihood.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gibbsian {gibbsian.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def add(name: str, about: str, parent: _Parser, more: str = "") -> _Parser:
        return commands.add_parser(
            name,
            help=about,
            description=about[0].upper() + about[1:] + "." + (f"\n\n{more}" if more else ""),
            parents=[parent],
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    train = add(
        "train",
        "train a model by a recipe, judge it, and write a report",
        trusting,
        "RECIPE is a name from `gibbsian list recipes` or a YAML file. Further flags change any of its keys:\n"
        "  gibbsian train digits-rbm --fit.epochs 50 --model.hidden 200 --run runs/wide\n"
        "  gibbsian train mnist-rbm --fit.device cuda\n"
        "  gibbsian train mnist-rbm --processes 8      one for each of 8 GPUs; on several machines see docs/distributed.md\n"
        "  gibbsian train rows.csv --drop id --types zip=category     a table is a recipe by itself\n"
        "  gibbsian train mine.yaml --print_config     shows the whole recipe, defaults included\n"
        "  gibbsian train mine.yaml --trust mine.py    the recipe names classes of that file, such as mine.Machine\n"
        "  gibbsian train digits-rbm --keys            shows every key with its meaning",
    )
    train.add_argument(
        "recipe", metavar="RECIPE", help="a recipe's name, a YAML file, or a table (.csv, .tsv, .parquet)"
    )
    train.add_argument("--run", metavar="FOLDER", help="a new folder for the run (default: runs/RECIPE, numbered)")
    train.add_argument("--no-report", action="store_true", help="train only: judge and report later")
    _add_live(train)
    train.add_argument("--keys", action="store_true", help="show every key of a recipe and end")

    resume = add("resume", "go on with a run from its newest checkpoint, as if it had not stopped", of_a_run)
    resume.add_argument("--steps", type=_count, metavar="N", help="train to N updates in all")
    resume.add_argument("--epochs", type=_count, metavar="N", help="train to N epochs in all")
    resume.add_argument("--no-report", action="store_true", help="train only: judge and report later")
    _add_live(resume)

    sample = add("sample", "draw samples from a trained model", of_a_run)
    sample.add_argument("-n", type=_count, default=64, metavar="N", help="how many (default: 64)")
    sample.add_argument("--class", dest="label", metavar="Y", help="of one class, by number or name")
    sample.add_argument(
        "--clamp",
        metavar="FILE",
        help="complete partial examples: an .npy or .csv file of rows in the data's units, NaN (or empty) where unknown",
    )
    sample.add_argument("--steps", type=_count, metavar="N", help="steps of each chain (default: the recipe's)")
    sample.add_argument("--seed", type=int, default=0, metavar="N", help="of the chains (default: 0)")
    sample.add_argument("--given", metavar="CELLS", help="cells of a table that are held, such as age=30,sex=female")
    where = "where to write: .npy, .npz, .csv or .png (default: RUN/samples.npz, for tables RUN/samples.csv)"
    sample.add_argument("--out", metavar="FILE", help=where)

    reading = _Parser(add_help=False, parents=[common])
    reading.add_argument("--drop", metavar="COLUMNS", help="columns of the file to leave out, with commas between")
    reading.add_argument("--missing", metavar="TOKEN", action="append", help="a token that stands for nothing, besides ? and the usual; may be repeated")  # fmt: skip
    reading.add_argument("--decimal", metavar="SIGN", choices=[".", ","], help="the decimal sign (default: found out)")
    reading.add_argument("--encoding", metavar="NAME", default="utf-8", help="of the text (default: utf-8)")

    score = add(
        "score",
        "log-likelihood and p-value of new rows under the law of a table",
        reading,
        "  gibbsian score RUN rows.csv --explain --out scores.csv\n"
        "  gibbsian score rows.csv --against RUN       do the rows still follow the training law?",
    )
    score.add_argument("places", metavar="RUN rows.csv", nargs="+", help="the run's folder, and a table")
    score.add_argument("--explain", action="store_true", help="how surprising every cell is, given the rest of its row")
    score.add_argument("--against", metavar="RUN", help="test whether the rows follow the law of this run")
    score.add_argument("--alpha", type=float, default=0.05, metavar="LEVEL", help="share of normal rows that are flagged (default: 0.05)")  # fmt: skip
    score.add_argument("--out", metavar="FILE", help="where to write a .csv of scores")

    impute = add("impute", "fill in the gaps of new rows by the law of a table", reading)
    impute.add_argument("run", metavar="RUN", help="the run's folder")
    impute.add_argument("rows", metavar="rows.csv", help="a table")
    impute.add_argument("--draws", type=_count, metavar="K", help="K files with gaps drawn, instead of means and most probable values")  # fmt: skip
    impute.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (default: 0)")
    impute.add_argument("--out", metavar="FILE", help="where to write (default: ROWS-filled.csv here)")

    evaluate = add("evaluate", "judge a trained model: likelihood with an interval, calibration, outsiders", of_a_run)
    how = "auto, exact, quadrature, ais or none (default: the recipe's)"
    evaluate.add_argument("--likelihood", metavar="HOW", help=how)
    evaluate.add_argument("--chains", type=_count, metavar="N", help="chains of AIS")
    evaluate.add_argument(
        "--betas", type=_count, metavar="N", help="temperatures of AIS; left out, as many as it takes"
    )
    other = "another data set that should look foreign; may be repeated"
    evaluate.add_argument("--outside", metavar="DATA", action="append", help=other)

    report = add("report", "write the HTML report of a run, or of several side by side", trusting)
    report.add_argument("run", metavar="RUN", nargs="+", help="the run's folder; several are compared on one page")
    report.add_argument(
        "--out", metavar="FILE", help="where to write the page of several (default: comparison.html beside them)"
    )
    report.add_argument("--fresh", action="store_true", help="judge the model anew instead of using what is there")

    watch = add(
        "watch",
        "follow runs in the browser, while they train or afterwards",
        trusting,
        "It only reads, so runs can be watched by several people at once. Over ssh:\n"
        "  there   gibbsian watch runs/digits-rbm --no-browser --port 8000\n"
        "  here    ssh -N -L 8000:127.0.0.1:8000 there, and open the address that was said there",
    )
    watch.add_argument("runs", metavar="RUN", nargs="+", help="folders of runs, or of comparisons, side by side")
    _add_viewing(watch)

    _add_search(add, trusting)
    _add_sequences(add, common)
    lab = add("lab", "open the lab: chains, machines and lattices that move, in the browser", common)
    lab.add_argument(
        "section", nargs="?", metavar="WHERE", help="where to begin, such as landscape or 'landscape?law=ring'"
    )
    lab.add_argument("--port", type=int, default=0, metavar="N", help="on this port (default: any that is free)")
    lab.add_argument("--no-browser", action="store_true", help="say the address and open nothing")
    lab.add_argument("--out", metavar="FILE", help="write the lab as one HTML file instead, which needs no server")

    what = "show what there is: recipes, data, models, energies, kernels, objectives, estimators"
    listing = add("list", what, common)
    listing.add_argument("what", nargs="*", metavar="WHAT", help="kinds (kernels), or single names (MALA, digits-rbm)")

    what = "check this installation: versions, devices, the compiler, samplers against exact answers"
    doctor = add("doctor", what, common)
    doctor.add_argument("--fast", action="store_true", help="skip the compiler")
    for command in (train, resume, sample, evaluate):
        command.add_argument(
            "--processes", type=_count, metavar="N", help="in N processes of this machine, by torchrun"
        )
    return parser


def _add_live(command: _Parser) -> None:
    command.add_argument(
        "--live", action="store_true", help="follow it in the browser meanwhile (see `gibbsian watch`)"
    )
    _add_viewing(command)


def _add_viewing(command: _Parser) -> None:
    command.add_argument("--host", default="127.0.0.1", metavar="H", help="an address of this machine to be reached at (default: 127.0.0.1, from here alone)")  # fmt: skip
    command.add_argument("--port", type=int, default=0, metavar="N", help="on this port (default: any that is free)")
    command.add_argument("--no-browser", action="store_true", help="say the address and open nothing")


def _add_search(add: Callable[..., _Parser], trusting: _Parser) -> None:
    about = "search the settings of a recipe for the best on validation rows, with Optuna"
    more = (
        "space.yaml says which keys, and from where to where:\n"
        "  fit.lr: {low: 0.01, high: 1.0, log: true}\n"
        "  model.hidden: [50, 400]\n"
        "  objective.objective.steps: {choices: [1, 5, 20]}\n"
        "Started again, here or on another machine with the same --storage, it goes on, or is one more worker.\n"
        "  gibbsian search digits-rbm --space space.yaml --trials 50\n"
        "  gibbsian search mine.yaml --space space.yaml --storage postgresql://host/searches --fit.epochs 50"
    )
    one = add("search", about, trusting, more)
    one.add_argument("recipe", metavar="RECIPE", help="a recipe's name, or a YAML file; further flags change its keys")
    one.add_argument("--space", metavar="FILE", required=True, help="what is searched")
    one.add_argument("--trials", type=_count, default=50, metavar="N", help="in all, over all workers (default: 50)")
    one.add_argument(
        "--objective", default="likelihood", metavar="O", help="likelihood (default), mmd, auroc or accuracy"
    )
    one.add_argument(
        "--sampler", default="tpe", metavar="S", help="tpe (default), random, gp, cma-es, qmc, brute-force"
    )
    one.add_argument(
        "--pruner", default="none", metavar="P", help="none (default), median, halving, hyperband, wilcoxon"
    )
    one.add_argument(
        "--looks", type=_count, default=4, metavar="N", help="judge a trial N times on its way, for the pruner"
    )
    one.add_argument("--storage", metavar="URL", help="of a data base (default: SQLite in the folder)")
    one.add_argument(
        "--heartbeat", type=_count, default=20, metavar="S", help="seconds between signs of life (default: 20)"
    )
    one.add_argument("--seed", type=int, default=0, metavar="N", help="of the sampler (default: 0)")
    one.add_argument("--run", metavar="FOLDER", help="where the trials lie (default: runs/search-RECIPE)")
    one.add_argument("--no-report", action="store_true", help="judge nothing on the test part")


def _add_sequences(add: Callable[..., _Parser], common: _Parser) -> None:
    about = "learn a machine from aligned sequences: contacts, mutations, new sequences and a report"
    more = (
        "FILE is FASTA, a2m, a3m or Stockholm, plain or gzipped; `demo` is a made RNA family of two hairpins.\n"
        "  gibbsian sequences demo\n"
        "  gibbsian sequences family.fasta.gz --distances distances.csv\n"
        "  gibbsian sequences riboswitch.sto --alphabet rna --method boltzmann --device cuda\n"
        "  gibbsian sequences family.a2m --method rbm --hidden 50"
    )
    one = add("sequences", about, common, more)
    one.add_argument("file", metavar="FILE", help="an alignment, or demo")
    one.add_argument("--alphabet", default="protein", metavar="A", help="protein (default), rna, dna, or letters")
    one.add_argument(
        "--method", default="pseudo-likelihood", choices=["mean-field", "pseudo-likelihood", "asymmetric", "boltzmann", "rbm"]
    )  # fmt: skip
    one.add_argument("--hidden", type=_count, default=50, metavar="N", help="hidden units of an RBM (default: 50)")
    one.add_argument("--steps", type=_count, metavar="N", help="iterations or updates at most")
    one.add_argument(
        "--identity", type=float, default=0.8, metavar="S", help="weigh sequences at this identity (default: 0.8)"
    )
    one.add_argument("--most-gaps", type=float, metavar="S", help="leave out sequences with a larger share of gaps")
    one.add_argument("--distances", metavar="CSV", help="a structure: columns i, j (sites from 0) and a distance")
    one.add_argument("--column", metavar="NAME", help="of the distance (default: the first beside i and j)")
    one.add_argument("--below", type=float, default=8.0, metavar="D", help="what counts as a contact (default: 8)")
    one.add_argument(
        "--insertions",
        choices=["drop", "keep"],
        help="small letters and dots: left out, as in a2m and a3m (default where the first sequence has capitals), or read as letters and gaps",
    )
    one.add_argument("--wild", metavar="NAME", help="the sequence whose mutants are scored (default: the first)")
    one.add_argument(
        "--mutants", metavar="CSV", help="a scan: a column mutant (A3C, A3C:G7U) and measurements to be ranked"
    )
    one.add_argument("--first", type=int, default=1, metavar="N", help="position of the first site (default: 1)")
    one.add_argument("-n", type=_count, default=1000, metavar="N", help="new sequences to draw (default: 1000)")
    one.add_argument("--sweeps", type=_count, default=200, metavar="N", help="Gibbs sweeps of each (default: 200)")
    one.add_argument("--no-entropy", action="store_true", help="leave out log Z and the entropy")
    one.add_argument("--device", default="auto", metavar="D", help="auto (default), cpu, cuda")
    one.add_argument("--seed", type=int, default=0, metavar="N", help="of all that is random (default: 0)")
    one.add_argument("--run", metavar="FOLDER", help="a new folder (default: runs/sequences-NAME, numbered)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _make_printable()
    parser = _parser()
    try:
        options, rest = _read(parser, arguments)
        if options.command is None:
            parser.print_help()
            return 0
    except SystemExit as stop:  # --help, --version, or wrong use, already said
        return int(stop.code or 0)
    except ArgumentError as error:
        return _fail(str(error), 2)
    try:
        return _run(options, rest)
    except SystemExit as stop:  # --print_config, or SIGTERM while training
        code = int(stop.code or 0)
        return _fail(_go_on(options), code) if code == _TERMINATED else code
    except BrokenPipeError:  # the reader of our output has gone, such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (GibbsianError, KeyboardInterrupt, OSError) as error:
        message, code = _reason(error, options)
        _fail(message, code)
        _tell_launcher(message)
        return code


def _tell_launcher(message: str) -> None:
    """Leave what was said where the launcher that started this process, `torchrun`, looks for it."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        errors = import_module("torch.distributed.elastic.multiprocessing.errors")
        errors.get_error_handler().record_exception(GibbsianError(" ".join(message.split())))


def _make_printable() -> None:
    """Let terminals that know few characters get others in their place: x for ×, +- for ±."""
    codecs.register_error("gibbsian", _in_its_place)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="gibbsian")


def _in_its_place(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _read(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """What was asked for; only `train` takes further flags, those of its recipe."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
        near = get_close_matches(arguments[0], _COMMANDS, 1)
        hint = f"did you mean `gibbsian {near[0]}`? " if near else ""
        raise ArgumentError(f"there is no command {arguments[0]!r}; {hint}there are {', '.join(_COMMANDS)}")
    given = {
        "arguments": arguments,
        "folder": None,
        "run": None,
        "places": None,
        "trust": [],
        "live": False,
        "processes": None,
    }
    options, rest = parser.parse_known_args(arguments, argparse.Namespace(**given))
    _find_in_the_zoo(options)
    if rest and options.command not in ("train", "search"):
        command = f"gibbsian {options.command}" if options.command else "gibbsian"
        raise ArgumentError(f"{rest[0]} is not understood by `{command}`; see {command} --help")
    return options, rest


def _find_in_the_zoo(options: argparse.Namespace) -> None:
    """Put the folder of a trained model where it is named as zoo:NAME."""
    named = [place for place in options.places or [options.run] if str(place).startswith("zoo:")]
    if not named:
        return
    if options.command not in {"sample", "score", "impute"}:
        raise ArgumentError(
            f"{named[0]} is a trained model, which is drawn from (gibbsian sample {named[0]}); its figures stand on its card: "
            f"gibbsian list {named[0]}"
        )
    folders = {place: import_module("gibbsian.zoo").path(place[4:]) for place in named}
    if options.places:
        options.places = [str(folders.get(place, place)) for place in options.places]
    else:
        _draw_from(folders[options.run], options)


def _draw_from(folder: Path, options: argparse.Namespace) -> None:
    """Let a command read the folder of a trained model, and write beside whoever asks."""
    options.run = str(folder)
    if options.command == "sample":
        options.out = options.out or f"{folder.name}-samples.{'csv' if (folder / 'table.yaml').exists() else 'npz'}"


def _run(options: argparse.Namespace, rest: list[str]) -> int:
    os.environ.setdefault("MPLBACKEND", "Agg")
    if options.trust:
        import_module("gibbsian.training.trust").trust(options.trust)
    module = import_module(f"gibbsian.app.cli.{_MODULES.get(options.command, options.command)}")
    command = getattr(module, f"run_{options.command}")
    if options.processes is not None and "RANK" not in os.environ:
        return int(import_module("gibbsian.app.cli.launch").launch(options))
    with warnings.catch_warnings():  # how they are shown is changed for the time of the command
        return int(command(options, rest))


def _reason(error: BaseException, options: argparse.Namespace) -> tuple[str, int]:
    """What to say about an error, and the exit code."""
    if isinstance(error, GibbsianError):
        return str(error), 2 if isinstance(error, ArgumentError) else 1
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted; {_go_on(options)}", 130
    if not isinstance(error, OSError):
        raise error
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        where = f" at {error.filename}" if error.filename else ""
        return f"the disk is full{where}; what was saved before is whole. Make room, then {_go_on(options)}", 1
    return f"{error.strerror or error}: {error.filename}" if error.filename else str(error), 1


def _go_on(options: argparse.Namespace) -> str:
    """How to go on: with a run that has begun, else by the same command."""
    run = options.run if options.command == "resume" else options.folder
    begun = run and any(os.path.exists(os.path.join(run, name)) for name in ("recipe.yaml", "comparison.json"))
    if begun:
        return f"go on with: gibbsian resume {shlex.quote(str(run))}"
    return f"nothing was saved yet, give the same command again: gibbsian {shlex.join(options.arguments)}"


def _fail(message: str, code: int) -> int:
    print(f"gibbsian: {' '.join(message.split())}", file=sys.stderr)
    return code
