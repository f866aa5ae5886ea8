"""The command line: a table of verbs and one place where errors become exit codes.

`VERBS` lists the verbs. Each verb is a module of its name (`assay list` is `listing.py`) with `HELP` (one line),
`EXAMPLE`, `add_arguments(parser)` and `run(args) -> int`. With `COMMAND = True`, `args.command` holds the words after
`--`. Only the module of the given verb is imported, and it imports heavy packages only when it runs.

The other modules are helpers of verbs:

    common           arguments of several verbs, and how results and notes are printed
    cluster_options  arguments that name a cluster
    prompting        prompts of `run` and `chat` as token ids; `batch` is `run --batch`
    conversations    history and settings of `chat`
    style, progress  colours, tables and progress bars on a terminal
    foreign          options and verbs of other programs, translated

Exit codes: 0 done; 1 a mismatch was found (a result, not an error); 2 an error of the user (one line on stderr);
130 interrupted. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn

from assay.cli import foreign
from assay.cli.style import paint
from assay.errors import AssayError
from assay.system.terminal import printable
from assay.version import __version__

# A new verb is one module and one name here, in the order of the help page.
VERBS = (
    "run", "chat", "serve", "ps",
    "list", "pull", "show", "rm",
    "inspect", "tokenize", "embed",
    "trace", "diff", "check", "diagnose", "watch", "bisect", "kit",
    "bench", "eval", "imatrix", "quantize", "convert",
    "completion",
)  # fmt: skip

_LONGEST = 4000  # characters of an error

EXAMPLE = 'assay run -p "The capital of France is" -n 16'


class Parser(argparse.ArgumentParser):
    """An argument parser with one-line errors and an epilog of examples."""

    def __init__(self, prog: str | None = None, description: str | None = None, example: str = "") -> None:
        lines = "\n".join(f"  {line}" for line in example.strip().splitlines())
        super().__init__(
            prog,
            description=description,
            epilog=f"example:\n{lines}" if lines else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r"unrecognized arguments: (-[\w-]+)", message)
        near = difflib.get_close_matches(wrong[1], self._option_string_actions, 1, 0.7) if wrong else []
        hint = f"did you mean {near[0]}? " if near else ""
        raise AssayError(f"{message}; {hint}see `{self.prog} --help`")


def verbs() -> list[str]:
    """The verbs whose modules are installed."""
    return [verb for verb in VERBS if find_spec(_module(verb)) is not None]


def _module(verb: str) -> str:
    """The module of a verb. That of `list` is called `listing`, so that it does not shadow the built-in type."""
    return f"assay.cli.{'listing' if verb == 'list' else verb}"


def load(verb: str) -> ModuleType:
    return import_module(_module(verb))


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """The parser of one verb, help page included."""
    module = load(verb)
    text = module.HELP[:1].upper() + module.HELP[1:]
    parser = Parser(prog=f"assay {verb}", description=f"{text}.", example=module.EXAMPLE)
    module.add_arguments(parser)
    return parser


def parse(verb: str, rest: Sequence[str]) -> argparse.Namespace:
    """The arguments of a verb."""
    command: Sequence[str] = ()
    if "--" in rest and getattr(load(verb), "COMMAND", False):
        at = list(rest).index("--")
        rest, command = rest[:at], rest[at + 1 :]
    parser = verb_parser(verb)
    return parser.parse_args(
        foreign.translated(parser, rest, lambda line: print(f"assay: {line}", file=sys.stderr)),
        argparse.Namespace(command=list(command)),
    )


def overview() -> str:
    """The text of `assay --help`."""
    lines = "\n".join(f"  {verb:<10} {load(verb).HELP}" for verb in verbs())
    return (
        f"{paint('usage:', 'bold')} assay VERB [MODEL] [options]\n\n"
        "Runs GGUF language models and proves every number.\n\n"
        f"{paint('verbs:', 'bold')}\n{lines}\n\n"
        "MODEL is a path, a name such as smollm2 (the default, downloaded once), hf:owner/repo[:file-or-quant]\n"
        "or ollama:name[:tag]. `assay VERB --help` lists options; `assay --version` prints the version.\n\n"
        f"{paint('example:', 'bold')}\n  {EXAMPLE}"
    )


def no_such_verb(verb: str) -> str:
    """The error for an unknown verb, with a suggestion: the same verb of another tool, the nearest one, or the list."""
    meant = foreign.VERBS.get(verb) or next(iter(difflib.get_close_matches(verb, verbs(), 1)), None)
    if meant in verbs():
        return f"{verb}: no such verb; did you mean `assay {meant}`?"
    if verb.startswith("-") or " " in verb or verb.endswith(".gguf"):
        return f"{verb:.60}: not a verb; did you mean `assay run` before it?"
    return f"{verb}: no such verb; there are {', '.join(verbs())}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except AssayError as error:
        return _fault(str(error))
    except BrokenPipeError:  # the reader closed the pipe: `assay … | head`
        _discard_stdout()
        return 141
    except OSError as error:
        _discard_stdout()
        what = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return _fault(f"{what}{error.strerror or error}")
    except MemoryError as error:
        return _fault(f"out of memory ({str(error) or 'an allocation failed'}); use fewer tokens or a smaller context")
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


def _dispatch(arguments: list[str]) -> int:
    if sys.stdout is None:  # closed by the caller: `assay … >&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  it stays open to the end
    for stream in (sys.stdout, sys.stderr):  # a character that the terminal cannot show is escaped
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        if len(arguments) > 1 and arguments[1] in verbs():
            verb_parser(arguments[1]).print_help()
        else:
            print(overview())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version", "version"):
        print(f"assay {__version__}")
        return 0
    verb, *rest = arguments
    if verb not in verbs():
        raise AssayError(no_such_verb(verb))
    try:
        parsed = parse(verb, rest)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    code = int(load(verb).run(parsed))
    sys.stdout.flush()
    return code


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null if it cannot be flushed, because Python would fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fault(message: str) -> int:
    print(
        f"{paint('assay:', 'red', sys.stderr)} {printable(' '.join(message.splitlines()), _LONGEST)}", file=sys.stderr
    )
    return 2
