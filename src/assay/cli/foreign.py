"""Options and verbs of llama.cpp, Ollama, vLLM, transformers and llm, translated to assay's.

An option with an equivalent is renamed. An option without meaning here is dropped with a note. Other known options
raise an error with a hint. A verb's own option of the same name takes precedence. `foreign_options.py` has the options.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Container, Sequence

from assay.cli.foreign_options import HINTS, HUB, IGNORED, RENAMED, SWITCHES
from assay.errors import AssayError

# Verbs of other tools that mean exactly one of assay's: they run it.
SAME_VERBS = {"ls": "list", "download": "pull", "remove": "rm", "delete": "rm", "quantise": "quantize"}

# Verbs of other tools that are near one of assay's: the error names it.
VERBS = {
    "models": "list", "generate": "run", "complete": "run", "completion-cli": "run", "prompt": "run",
    "server": "serve", "start": "serve", "get": "pull", "info": "show", "status": "ps", "perplexity": "eval",
    "embedding": "embed", "conversation": "chat", "find": "search", "llama-cli": "run", "llama-run": "run",
    "llama-simple": "run", "llama-server": "serve", "llama-quantize": "quantize", "llama-imatrix": "imatrix",
    "llama-bench": "bench", "llama-perplexity": "eval", "llama-embedding": "embed", "llama-tokenize": "tokenize",
    "llama-eval-callback": "trace", "llama-gguf": "inspect",
}  # fmt: skip

# Verbs of other tools that assay does not need: the error says what to do instead.
VERB_HINTS = {
    "stop": "a model runs only while a command runs: end `assay serve` with Ctrl-C or SIGTERM; `assay ps` shows it",
    "create": "there are no Modelfiles: give --system, --template and sampling options to `assay run` or `assay chat`, "
    "or `assay serve --presets FILE`",
    "cp": "a model is a file: copy it; `assay show MODEL` prints its path",
    "push": "assay publishes nothing; upload the file with `hf upload`",
    "login": "set HF_TOKEN for private repositories of the hub",
    "signin": "set HF_TOKEN for private repositories of the hub",
    "update": "reinstall with pip; `assay --version` prints the version",
}


def translated(parser: argparse.ArgumentParser, words: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """The command line with options of other tools translated."""
    known = parser._option_string_actions
    out: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":  # only positional words follow
            return [*out, word, *rest]
        name, equals, value = word.partition("=")
        name = _spelled(name, known)
        word = name + equals + value
        if name in known or not word.startswith("-"):
            out.append(word)
            takes_value = name in known and not equals and known[name].nargs is None
            if takes_value and rest:  # the next word is the value, even if it looks like an option
                out.append(rest.pop(0))
        elif name in RENAMED and RENAMED[name] in known:
            out.append(RENAMED[name])
            if known[RENAMED[name]].nargs is None and (equals or rest):
                value = value if equals else rest.pop(0)
                out.append(f"hf:{value}" if name in HUB and not value.startswith("hf:") else value)
        elif name in IGNORED:
            count, why = IGNORED[name]
            if count and not equals and rest and _is_value(name, rest[0]):
                rest.pop(0)
            say(f"{name}: ignored; {why}")
        elif name in HINTS:
            raise AssayError(f"{name}: no such option; {HINTS[name]}")
        elif name in RENAMED:  # argparse would read -hf as -h
            raise AssayError(f"{name}: no such option of this verb, which has no {RENAMED[name]} either")
        else:
            out.append(word)
    return out


def _spelled(name: str, known: Container[str]) -> str:
    """An option by its usual name: `-temp`, `--top_k` and `--n_predict` are spellings of llama.cpp too."""
    dashed = name.replace("_", "-")
    for other in (name, dashed, f"-{dashed}") if name.startswith("-") else ():
        if any(other in table for table in (known, RENAMED, IGNORED, HINTS)):
            return other
    return name


def _is_value(option: str, word: str) -> bool:
    """Whether a word is the value of an ignored option, and not the next option, the model or the prompt."""
    if option in SWITCHES:
        return word in ("on", "off", "auto", "0", "1", "true", "false")
    return not word.startswith("-") or re.fullmatch(r"-\d+(\.\d+)?", word) is not None
