"""The command `gibbsian`.

Here and in `flags` the command line is only read: nothing heavy is imported before it is known what to do, so that
`gibbsian --help` answers at once. The commands live in the modules beside.
"""

import argparse
import codecs
import errno
import io
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from gibbsian.app.cli.flags import COMMANDS, make_parser
from gibbsian.errors import ArgumentError, GibbsianError

__all__ = ["main"]

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _make_printable()
    parser = make_parser()
    try:
        options, rest = _read(parser, arguments)
        if options.command is None:
            parser.print_help()
            return 0
    except SystemExit as stop:  # --help, --version, or wrong use, already said
        return int(stop.code or 0)
    except GibbsianError as error:  # wrong use, or a member of the zoo that is damaged
        return _fail(str(error), 2 if isinstance(error, ArgumentError) else 1)
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
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        near = get_close_matches(arguments[0], COMMANDS, 1)
        hint = f"did you mean `gibbsian {near[0]}`? " if near else ""
        raise ArgumentError(f"there is no command {arguments[0]!r}; {hint}there are {', '.join(COMMANDS)}")
    given = {
        "arguments": arguments,
        "folder": None,
        "run": None,
        "places": None,
        "runs": None,
        "against": None,
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
    named = _named_of_the_zoo(options)
    if not named:
        return
    zoo = import_module("gibbsian.zoo")
    folders = {place: zoo.path(place[4:]) for place in named}
    if options.command not in {"sample", "score", "impute"}:
        raise ArgumentError(
            f"{named[0]} is a trained model, which is drawn from (gibbsian sample {named[0]}); its figures stand on its card: "
            f"gibbsian list {named[0]}"
        )
    for place in named:
        zoo.checked_path(place[4:])
    if options.places:
        options.places = [str(folders.get(place, place)) for place in options.places]
        options.against = options.against and str(folders.get(options.against, options.against))
    else:
        _draw_from(folders[options.run], options)


def _named_of_the_zoo(options: argparse.Namespace) -> list[str]:
    """The places that are called zoo:NAME."""
    if options.command in {"train", "search", "sequences"}:  # whose new folder may be called anything
        return []
    places = [*(options.places or []), *_listed(options.run), *_listed(options.runs), *_listed(options.against)]
    return [place for place in places if place.startswith("zoo:")]


def _listed(places: str | list[str] | None) -> list[str]:
    return places if isinstance(places, list) else [places or ""]


def _draw_from(folder: Path, options: argparse.Namespace) -> None:
    """Let a command read the folder of a trained model, and write beside whoever asks."""
    options.run = str(folder)
    if options.command == "sample":
        options.out = options.out or f"{folder.name}-samples.{'csv' if (folder / 'table.yaml').exists() else 'npz'}"


def _run(options: argparse.Namespace, rest: list[str]) -> int:
    os.environ.setdefault("MPLBACKEND", "Agg")
    if options.trust:
        import_module("gibbsian.training.trust").trust(options.trust)
    module = import_module(f"gibbsian.app.cli.{COMMANDS[options.command].module or options.command}")
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
