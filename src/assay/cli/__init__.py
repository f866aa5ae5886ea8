"""The command line: a table of verbs and one place where errors become exit codes.

`VERBS` lists the verbs. Each verb is a module of its name (or of `_OTHER_NAMES`) with `HELP` (one line),
`EXAMPLE`, `add_arguments(parser)` and `run(args) -> int`. With `COMMAND = True`, `args.command` holds the words after
`--`. Only the module of the given verb is imported, and it imports heavy packages only when it runs.

The other modules are helpers of verbs:

    common           arguments of several verbs, and how results and notes are printed
    cluster_options  arguments that name a cluster
    prompting        prompts of `run` and `chat` as token ids; `batch` is `run --batch`
    conversations    history and settings of `chat`
    style, progress  colours, tables and progress bars on a terminal
    foreign          options and verbs of other programs, translated
    word_order       options before, between and after the positional words

Exit codes: 0 done; 1 a mismatch was found (a result, not an error); 2 an error of the user (one line on stderr);
130 interrupted. Any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn

from assay.cli import foreign
from assay.cli.progress import on_stderr
from assay.cli.style import paint
from assay.cli.word_order import options_first
from assay.errors import AssayError
from assay.system.stages import shown_by
from assay.system.terminal import printable
from assay.version import __version__

# A new verb is one module and one name here, in the order of the help page.
GROUPS = {
    "talk to a model": ("run", "chat", "serve", "ps"),
    "find and keep models": ("search", "pull", "list", "show", "rm"),
    "find the fault in an engine": (
        "diagnose",
        "audit",
        "diff",
        "watch",
        "bisect",
        "ci",
        "tokenize",
        "trace",
        "check",
        "kit",
        "verify",
        "mcp",
    ),
    "measure and make": ("bench", "eval", "quantize", "imatrix", "convert", "export-web", "embed", "inspect"),
    "this machine": ("doctor", "completion"),
}
VERBS = tuple(verb for group in GROUPS.values() for verb in group)

_OTHER_NAMES = {  # modules of verbs whose names are taken, or are no names of modules
    "list": "listing", "audit": "audit_verb", "verify": "verify_receipt", "export-web": "export_web",
}  # fmt: skip
_LONGEST = 4000  # characters of an error
# Imports and a diagnosis make many small objects and few cycles: collect after 50,000 new ones, not after 700.
_COLLECTED_AFTER = (50_000, 20, 20)

EXAMPLES = """\
  assay run smollm2 "Why is the sky blue?"      # downloads 98 MB once; without a prompt it converses
  assay serve smollm2                           # a page and an OpenAI-compatible API at http://127.0.0.1:8080
  assay diagnose smollm2 my-engine.log          # which operation of my engine is wrong, and why"""


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
        if message.startswith("unrecognized arguments: "):
            message = message.replace(" -- ", " ")  # `options_first` put it there
        wrong = re.match(r"unrecognized arguments: (-[\w-]+)", message)
        near = difflib.get_close_matches(wrong[1], self._option_string_actions, 1, 0.7) if wrong else []
        hint = f"did you mean {near[0]}? " if near else ""
        raise AssayError(f"{message}; {hint}see `{self.prog} --help`")


def verbs() -> list[str]:
    """The verbs whose modules are installed."""
    return [verb for verb in VERBS if find_spec(_module(verb)) is not None]


def _module(verb: str) -> str:
    """The module of a verb, which is called otherwise where another thing has that name."""
    return f"assay.cli.{_OTHER_NAMES.get(verb, verb)}"


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
    own = foreign.translated(parser, rest, lambda line: print(f"assay: {line}", file=sys.stderr))
    return parser.parse_args(options_first(parser, own), argparse.Namespace(command=list(command)))


def overview() -> str:
    """The text of `assay --help`."""
    there = verbs()
    groups = "\n\n".join(
        "\n".join([paint(f"{title}:", "bold"), *(f"  {verb:<11}{load(verb).HELP}" for verb in some if verb in there)])
        for title, some in GROUPS.items()
    )
    return (
        f"{paint('usage:', 'bold')} assay VERB [MODEL] [options]\n\n"
        "Runs GGUF language models and proves every number.\n\n"
        f"{groups}\n\n"
        "MODEL is a path, a name (smollm2, the default; qwen3; llama3.2:1b; `assay search` lists them),\n"
        "hf:owner/repo[:file-or-quant] or ollama:name[:tag].\n"
        "`assay VERB --help` lists options; `assay --version` prints the version.\n\n"
        f"{paint('examples:', 'bold')}\n{EXAMPLES}"
    )


def no_such_verb(verb: str) -> str:
    """The error for an unknown verb, with a suggestion: the same verb of another tool, the nearest one, or the list."""
    if verb in foreign.VERB_HINTS:
        return f"{verb}: no such verb; {foreign.VERB_HINTS[verb]}"
    meant = foreign.VERBS.get(verb) or next(iter(difflib.get_close_matches(verb, verbs(), 1)), None)
    if meant in verbs():
        return f"{verb}: no such verb; did you mean `assay {meant}`?"
    if _is_model(verb):
        return f"{verb}: a model, not a verb; did you mean `assay run {verb}`?"
    if verb.startswith("-") or " " in verb or verb.endswith(".gguf"):
        return f"{verb:.60}: not a verb; did you mean `assay run` before it?"
    return f"{verb}: no such verb; there are {', '.join(verbs())}"


def _is_model(word: str) -> bool:
    from assay.runtime.model_names import find_name

    return find_name(word) is not None or word.startswith(("hf:", "ollama:", "hf.co/"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(*_COLLECTED_AFTER)
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
        wanted = foreign.SAME_VERBS.get(arguments[1], arguments[1]) if len(arguments) > 1 else ""
        if wanted in verbs():
            verb_parser(wanted).print_help()
        elif wanted and not wanted.startswith("-"):
            raise AssayError(no_such_verb(wanted))
        else:
            print(overview())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "-v", "--version", "version"):
        print(f"assay {__version__}")
        return 0
    verb, *rest = arguments
    verb = foreign.SAME_VERBS.get(verb, verb)
    if verb not in verbs():
        raise AssayError(no_such_verb(verb))
    try:
        parsed = parse(verb, rest)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    with shown_by(on_stderr()):
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
