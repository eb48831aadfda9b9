"""The `ndpool` command: `ndpool demo|doctor|show|pool|pyramid`, `ndpool graph show|check|run`, `ndpool --version`.

A command is one entry of COMMANDS: its arguments and its function, which imports what it needs when it runs. What goes
wrong is one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import cli_large
from .errors import PoolError
from .typed import Command, Wrong, record, shape

if TYPE_CHECKING:
    from .graph import Program


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Wrong(f"{message}; try {self.prog} --help")


# -- the commands ----------------------------------------------------------------------------------------------------


def _demo(arguments: argparse.Namespace) -> int:
    from .demo import run

    return run(arguments.out)


def _doctor(arguments: argparse.Namespace) -> int:
    from .doctor import report

    print(report())
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from .picture import look, window_svg

    op = record(arguments.record)
    view = look(op, arguments.shape)
    print(*view.lines[:3], sep="\n")
    for a, o in zip(view.pooled, view.output, strict=True):
        print(f"  axis {a}: {_positions(view.window.axes[a].reads(o))}")
    if arguments.out:
        Path(arguments.out).write_text(window_svg(op, arguments.shape), encoding="utf-8")
        print(f"picture in {arguments.out}")
    return 0


def _positions(reads: range) -> str:
    """The positions, the middle left out if they are many."""
    shown = [*map(str, reads)] if len(reads) <= 12 else [*map(str, reads[:3]), "...", *map(str, reads[-2:])]
    return ", ".join(shown) or "none"


def _graph_show(arguments: argparse.Namespace) -> int:
    from .graph.store import load

    program = load(arguments.file)
    print(program.summary())
    if arguments.svg:
        Path(arguments.svg).write_text(program.to_svg(), encoding="utf-8")
        print(f"picture in {arguments.svg}")
    return 0


def _graph_check(arguments: argparse.Namespace) -> int:
    from .graph.store import load

    program = load(arguments.file)
    with _running(arguments.file):
        report = program.check()
    print(report)
    return 0 if report.ok else 1


def _graph_run(arguments: argparse.Namespace) -> int:
    import numpy as np

    from .graph.draw import plain
    from .graph.store import load

    program, out = load(arguments.file), Path(arguments.out)
    if out.suffix not in (".npy", ".npz") or (out.suffix == ".npy" and len(program.outputs) > 1):
        raise Wrong(f"--out {out.name} cannot hold {len(program.outputs)} outputs; use a name that ends in .npz")
    inputs = _inputs(program, arguments.input)
    with _running(arguments.file):
        got = program(*inputs)
    results = got if len(program.outputs) > 1 else (got,)
    with out.open("wb") as file:
        if out.suffix == ".npy":
            np.save(file, results[0])
        else:
            np.savez(file, **{f"out{i}": result for i, result in enumerate(results)})
    for i, result in zip(program.outputs, results, strict=True):
        print(f"{plain(program.nodes[i].label)}: {result.dtype} {result.shape}")
    print(f"results in {out}")
    return 0


@contextmanager
def _running(file: str) -> Iterator[None]:
    """What arrays or ops say when they cannot go together, after the file's name."""
    try:
        yield
    except (ValueError, TypeError, ArithmeticError, MemoryError) as error:
        raise Wrong(f"{file}: {error}") from error


def _inputs(program: Program, given: Sequence[str]) -> list[Any]:
    """An array for each input, from "name=FILE" or, in the order of the inputs not named, "FILE"."""
    names = [node.label for node in program.inputs]
    files: dict[str, str] = {}
    loose = []
    for text in given:
        name, equals, path = text.partition("=")
        if equals and name in names and name not in files:
            files[name] = path
        else:
            loose.append(text)
    rest = [name for name in names if name not in files]
    if len(loose) != len(rest):
        raise Wrong(f"--input: {len(given)} files for the inputs {', '.join(names) or '(none)'}; give each its own")
    files.update(zip(rest, loose, strict=True))
    return [_array(files[name], node.dtype) for name, node in zip(names, program.inputs, strict=True)]


def _array(path: str, dtype: str | None) -> Any:
    """The array in an .npy file, without pickles."""
    import numpy as np

    from .engines.dtypes import kind

    try:
        with open(path, "rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)  # np.load, for this one format
    except (ValueError, EOFError) as error:
        raise Wrong(f"{path} is not an .npy file with one array of numbers: {error}") from None
    if dtype == "bfloat16" and array.dtype == "V2":  # NumPy writes bfloat16 without its name
        import ml_dtypes

        array = array.view(ml_dtypes.bfloat16)
    if kind(array.dtype) not in ("bool", "integer", "real", "complex"):
        raise Wrong(f"{path} holds {array.dtype}, not numbers")
    return array


# -- the table of commands -------------------------------------------------------------------------------------------

_FILE = {"file": {"metavar": "FILE", "help": "a program, as `save` or `to_json` wrote it"}}
_GRAPH = {
    "show": Command(
        "list the nodes of a program, and draw it",
        {**_FILE, "--svg": {"metavar": "OUT.svg", "help": "write a drawing"}},
        _graph_show,
    ),
    "check": Command("test every derivative of a program; exit code 1 if one is wrong", _FILE, _graph_check),
    "run": Command(
        "run a program on arrays",
        {
            **_FILE,
            "--input": {
                "metavar": "[NAME=]X.npy",
                "action": "append",
                "default": [],
                "help": "an array for the input of that name, or for the next one",
            },
            "--out": {"metavar": "Y.npy", "required": True, "help": "the result; .npz (out0, out1, ...) for several"},
        },
        _graph_run,
    ),
}

COMMANDS: dict[str, Command] = {
    "demo": Command(
        "pool a picture with every op, check each against the spec, write a page",
        {"--out": {"default": "demo.html", "metavar": "FILE", "help": "the page (default: demo.html)"}},
        _demo,
    ),
    "doctor": Command("say what is installed, which engines run here, and if one does not, why", run=_doctor),
    "show": Command(
        "say what an op reads, and draw it",
        {
            "record": {"metavar": "RECORD", "help": 'an op record, like "MaxPool(3, stride=2, padding=1)"'},
            "--shape": {"type": shape, "metavar": "N,N,...", "help": "the input's shape (default: a small example)"},
            "--out": {"metavar": "FILE", "help": "write the window as SVG"},
        },
        _show,
    ),
    "graph": Command("look at, check or run a saved program", commands=_GRAPH),
    **cli_large.COMMANDS,
}


def _parser() -> argparse.ArgumentParser:
    from . import __doc__ as about
    from . import __version__

    parser = _Parser(prog="ndpool", description=(about or "").partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"ndpool {__version__}")
    _add(parser, COMMANDS)
    return parser


def _add(parser: argparse.ArgumentParser, commands: dict[str, Command]) -> None:
    under = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in commands.items():
        sub = under.add_parser(name, help=command.help, description=command.help)
        for argument, options in command.arguments.items():
            sub.add_argument(argument, **options)
        if command.commands:
            _add(sub, command.commands)
        else:
            sub.set_defaults(run=command.run)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 if all is well, 1 if a check failed, 2 if the command line is wrong, 130 after Ctrl-C."""
    try:
        arguments = _parser().parse_args(argv)
        return int(arguments.run(arguments))
    except (Wrong, PoolError, OSError, MemoryError) as error:
        _complain(str(error))
        return 2
    except KeyboardInterrupt as error:
        _complain(str(error) or "interrupted")
        return 130  # as shells have it of Ctrl-C
    except SystemExit as done:  # argparse, after --help and --version
        return int(done.code or 0)


def _complain(text: str) -> None:
    """One line on stderr."""
    words = " ".join(text.split())
    print("ndpool:", "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words), file=sys.stderr)
