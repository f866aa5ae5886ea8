"""Arguments that several verbs share (model, engine, sampling), and how they print results and notes.

Results go to stdout; progress and notes go to stderr.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.number_types import LARGEST, MOST_LAYERS, MOST_SEED, MOST_THREADS, MOST_TOKENS, real, whole
from assay.cli.number_types import number as number  # verbs import it from here
from assay.errors import AssayError
from assay.runtime.params import DEFAULT_CTX, DRY_BREAKERS, LIMITS, Breakers, SamplerParams
from assay.system.plain import plain as plain  # verbs import it from here
from assay.system.stages import unseen
from assay.system.terminal import harmless
from assay.system.text_files import PLAIN, decode_text

if TYPE_CHECKING:
    from assay.gguf import GGUFFile
    from assay.models import Model
    from assay.runtime.generate import Generation, Result
    from assay.runtime.opening import Opened
    from assay.text import Tokenizer


# --- models


MODEL_HELP = (
    "a path, a name (smollm2, qwen3, llama3.2:1b; `assay search` lists them), hf:owner/repo[:file-or-quant] or "
    "ollama:name[:tag]; default: smollm2, downloaded once"
)


class Once(argparse.Action):
    """An argument that can be given in two forms, such as MODEL and -m MODEL, but only once."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: object) -> None:
        if value is None:  # argparse also calls this with the default of an omitted positional
            return
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"{value}: the {self.dest} is given twice")
        setattr(namespace, self.dest, value)


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """MODEL, or `-m MODEL` as in llama.cpp and llm."""
    parser.set_defaults(model=None)
    parser.add_argument("model", nargs="?", metavar="MODEL", action=Once, default=argparse.SUPPRESS, help=MODEL_HELP)
    add_model_option(parser)


def add_model_option(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(model=None)
    parser.add_argument(
        "-m", "--model", dest="model", metavar="MODEL", action=Once, default=argparse.SUPPRESS, help="the same as MODEL"
    )


def model_path(args: argparse.Namespace) -> Path:
    """The file of the MODEL argument. It is downloaded if necessary, with progress on stderr."""
    from assay.runtime import hub

    note_large_model(args.model)
    return hub.resolve(args.model)


def check_model(args: argparse.Namespace) -> None:
    """Refuse a MODEL that is neither a name nor a file, before the modules that run models are imported."""
    from assay.runtime import hub

    hub.check(args.model)


def note_large_model(name: str | None) -> None:
    """Say before a download that a model is larger than this machine's memory, and name smaller ones."""
    from assay.runtime.hub import not_here
    from assay.runtime.model_names import smaller_models
    from assay.system import machine

    model, memory = not_here(name), machine.memory()
    if model is not None and model.is_supported and model.size > memory:
        say(
            f"{model.name}: {model.size / 1e9:.0f} GB of weights, and the memory of this machine has "
            f"{memory / 1e9:.0f} GB: it will be slow or fail; smaller: {', '.join(smaller_models(model, memory))}"
        )


def opened(args: argparse.Namespace, *, cache_size: int | None = 0) -> Opened:
    """Open the model of MODEL with the engine options. `cache_size` 0 means a cache for one context."""
    check_model(args)
    from assay.runtime.opening import OpenOptions, open_model

    names = ("engine", "precision", "threads", "kv_type", "ctx_size", "template", "draft", "tier", "cpu_experts")
    given: dict[str, Any] = {name: getattr(args, name, None) for name in names}
    options = OpenOptions(
        **given,
        cache_size=cache_size,
        template_arguments=template_arguments(args),
        lookahead=getattr(args, "lookahead", True),
        lora=tuple(getattr(args, "lora", ())),
        mmproj=getattr(args, "mmproj", None),
    )
    note_large_model(args.model)
    return open_model(args.model, options)


def open_model(args: argparse.Namespace) -> tuple[GGUFFile, Model, Tokenizer]:
    """The file, the model built from it, and its tokenizer."""
    found = opened(args)
    return found.file, found.model, found.tokenizer


# --- engines


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--engine", metavar="NAME", help="reference, cpu, cuda or wgpu; default: the fastest of cuda and cpu here"
    )
    group.add_argument(
        "--precision",
        metavar="NAME",
        help="arithmetic of the engine: fast, exact (cpu, cuda, wgpu), tensor, mixed (cuda), f64, f32 (reference); "
        "default: fast, of cuda mixed where requests are answered (prompts in tensor, answers in fast), of reference "
        "f64. fast has the same bits on every engine and machine",
    )
    group.add_argument(
        "-t",
        "--threads",
        type=whole(1, MOST_THREADS),
        metavar="N",
        help="number of threads; default: chosen by the engine",
    )
    group.add_argument(
        "--cpu-experts", type=whole(0, MOST_LAYERS), metavar="N",
        help="compute the experts of the first N layers on the cpu, beside --engine cuda: for a model larger than the "
        "GPU's memory; the output is the same",
    )  # fmt: skip
    group.add_argument(
        "-c", "--ctx-size", type=whole(0, MOST_TOKENS), metavar="N",
        help=f"context size in tokens; 0: the training context; default: the training context, at most {DEFAULT_CTX}",
    )  # fmt: skip
    group.add_argument("--kv-type", metavar="TYPE", help="data type of the KV cache, such as f16")
    add_tier_argument(group)
    group.add_argument(
        "--lookahead", action=argparse.BooleanOptionalAction, default=True,
        help="speculate: guess tokens from earlier text and check several in one step; the output is the same",
    )  # fmt: skip
    group.add_argument(
        "--draft", metavar="MODEL",
        help="draft model for speculation: a small model with the same vocabulary, an EAGLE-3 head or an "
        "assistant of Gemma 4; mtp: the file's own draft head; auto, auto:MODEL: measure all ways when the model is "
        "loaded, and keep the fastest",
    )  # fmt: skip


def add_tier_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--tier", type=whole(0, 2), metavar="N",
        help="wgpu: compute floats with the device's fma() (0), with an error-free transformation (1) or with integers "
        "(2); default: the first that gives the cpu's bits",
    )  # fmt: skip


def add_image_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE",
        help="a picture before the text of the prompt, or where it has <__media__>; repeatable",
    )  # fmt: skip
    add_mmproj_argument(parser)


def add_mmproj_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--mmproj", metavar="FILE", help="file with the tower for pictures; default: the one beside the model"
    )


def add_lora_argument(parser: argparse.ArgumentParser, help: str = "apply a LoRA adapter (GGUF)") -> None:
    """For verbs that generate, and for `diagnose`; the others compute the model of the file alone."""
    parser.add_argument(
        "--lora", action="append", default=[], metavar="FILE[=SCALE]",
        help=f"{help}, by default with scale 1; repeatable",
    )  # fmt: skip


# --- sampling

# Field of SamplerParams, its flags (those of llama.cpp), its help. The field has the type and the default.
SAMPLING: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("temp", ("--temp", "--temperature"), "temperature; 0 is greedy"),
    ("top_k", ("--top-k",), "keep the k most probable tokens; 0: all"),
    ("top_p", ("--top-p",), "keep the most probable tokens until their total probability reaches p; 1: off"),
    ("min_p", ("--min-p",), "keep tokens with at least this fraction of the best probability; 0: off"),
    ("typical", ("--typical", "--typical-p"), "locally typical sampling; 1: off"),
    ("top_n_sigma", ("--top-n-sigma", "--top-nsigma"), "keep logits within n standard deviations of the best; -1: off"),
    ("repeat_last_n", ("--repeat-last-n",), "how many recent tokens the penalties consider; 0: none, -1: all"),
    ("repeat_penalty", ("--repeat-penalty",), "penalty factor for tokens that occurred before; 1: off"),
    ("frequency_penalty", ("--frequency-penalty",), "penalty for each earlier occurrence of a token; 0: off"),
    ("presence_penalty", ("--presence-penalty",), "penalty for a token that occurred before at all; 0: off"),
    ("dry_multiplier", ("--dry-multiplier",), "DRY: penalty for repeated sequences; 0: off"),
    ("dry_base", ("--dry-base",), "DRY: base of the penalty's growth with the length"),
    ("dry_allowed_length", ("--dry-allowed-length",), "DRY: longest repetition without a penalty"),
    ("dry_penalty_last_n", ("--dry-penalty-last-n",), "DRY: how many recent tokens to consider; 0: none, -1: all"),
    ("xtc_probability", ("--xtc-probability",), "XTC: probability of dropping the most probable tokens; 0: off"),
    ("xtc_threshold", ("--xtc-threshold",), "XTC: smallest probability of a token that may be dropped"),
)


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = {field.name: field.default for field in fields(SamplerParams)}
    group = parser.add_argument_group("sampling, as in llama.cpp")
    group.add_argument("-n", "--predict", "--n-predict", type=whole(-1), default=-1, metavar="N",
                       help="maximum tokens to generate; -1 (default): no limit but the context")  # fmt: skip
    group.add_argument(
        "-s",
        "--seed",
        type=whole(-1, MOST_SEED),
        default=-1,
        metavar="N",
        help="seed of the sampler; -1 (default): random",
    )
    for name, flags, text in SAMPLING:
        default = defaults[name]
        group.add_argument(
            *flags, dest=name, type=setting_type(name), default=default, metavar="N", help=f"{text} (default {default})"
        )
    group.add_argument("--dry-sequence-breaker", action="append", type=text_argument, metavar="TEXT",
                       help=r"DRY: text that ends a repetition; repeatable; default: \n : \" *; none: off")  # fmt: skip
    group.add_argument("-l", "--logit-bias", action="append", default=[], type=_bias, metavar="ID±V",
                       help="add to a token's logit, as in 15043+1.5 or 2-inf; repeatable")  # fmt: skip
    group.add_argument("--ignore-eos", action="store_true", help="continue after the end-of-sequence token")


def setting_type(name: str) -> Callable[[str], int | float]:
    """The argument type of a field of SamplerParams, with the range of `runtime/params.py`."""
    low, high, above = LIMITS.get(name, (-math.inf, math.inf, False))
    if "int" in str({field.name: field.type for field in fields(SamplerParams)}[name]):
        return whole(int(low), int(min(high, LARGEST)))
    return real(low, high, above=above)


def sampler_params(args: argparse.Namespace, opened: Opened) -> SamplerParams:
    values = {name: getattr(args, name) for name, _, _ in SAMPLING}
    breakers: Breakers = {}
    if args.dry_multiplier:
        breakers = opened.breakers([text for text in args.dry_sequence_breaker or DRY_BREAKERS if text != "none"])
    seed = None if args.seed < 0 else args.seed
    return SamplerParams(**values, seed=seed, dry_breakers=breakers, logit_bias=tuple(args.logit_bias))


def _bias(text: str) -> tuple[int, float]:
    at = max(text.rfind("+"), text.rfind("-"))
    try:
        return int(text[:at]), float(text[at:])
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected ID+VALUE or ID-VALUE (found {text!r:.60})") from None


# --- text in


def text_argument(text: str) -> str:
    """An argument type: text. The bytes on the command line must be valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"not valid UTF-8 at character {error.start}") from None
    return text


def read_text(path: str, expected: str = PLAIN) -> str:
    """The text of a file, or of stdin for `-`. Line ends are not translated. `expected`: see system/text_files.py."""
    data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    return decode_text(data, "standard input" if path == "-" else path, expected)


@contextmanager
def dump_of(args: argparse.Namespace, given: str | None) -> Iterator[Any]:
    """The file of a DUMP argument; for `-`, the dump on standard input, which can be read in the block."""
    if given != "-":
        yield given
        return
    for option in ("image", "cluster"):
        if getattr(args, option, None) is not None:
            raise AssayError(f"--{option}: reads the dump more than once; give a file instead of -")
    from assay.library.command import as_dump

    with tempfile.TemporaryDirectory(prefix="assay-") as folder:
        path = Path(folder) / "standard input"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            if not file.tell():
                raise AssayError("standard input: is empty; pipe what the engine printed")
        yield as_dump(path, path.name, args.pattern, lenient=True)


def is_piped() -> bool:
    """Whether standard input is a pipe or a regular file; a device or a socket is not."""
    if sys.stdin is None:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # not a file: a buffer, or closed
        return not sys.stdin.closed
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def token_ids(text: str) -> list[int]:
    """An argument type: token ids separated by commas or spaces, optionally in brackets."""
    items = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    try:
        ids = [int(item) for item in items]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected token ids such as 1,2,3 ({str(error)[:80]})") from None
    if wrong := [token for token in ids if not 0 <= token < 2**31]:
        raise argparse.ArgumentTypeError(f"expected token ids, which are 0 or more (found {wrong[0]})")
    return ids


def add_template_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--template",
        metavar="NAME",
        help="chat template instead of the file's own: the name of a built-in one, or a file",
    )
    add_template_variables(parser)


def add_template_variables(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--template-arg", "--chat-template-kwargs", dest="template_args", action="append", type=_template_argument,
        metavar="KEY=VALUE",
        help="variable of the chat template, such as enable_thinking=false; repeatable; a JSON object sets several",
    )  # fmt: skip


def _template_argument(text: str) -> dict[str, Any]:
    """`KEY=VALUE`, or a JSON object. A value that is not valid JSON is taken as text."""

    def value(some: str) -> Any:
        try:
            return json.loads(some)
        except (ValueError, RecursionError):
            return some

    if text.lstrip().startswith("{"):
        found = value(text)
        if isinstance(found, dict):
            return found
        raise argparse.ArgumentTypeError(f"not a JSON object (found {text!r:.60})")
    key, equals, rest = text.partition("=")
    if not equals or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE or a JSON object (found {text!r:.60})")
    return {key: value(rest)}


def template_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The variables of the template. The last value of a name is used."""
    return {key: value for some in getattr(args, "template_args", None) or () for key, value in some.items()}


# --- results out


def add_stats_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stats", "--verbose", "-v", action="store_true", help="print token counts and speed of an answer on stderr"
    )
    parser.add_argument(
        "--wrap", action=argparse.BooleanOptionalAction, default=True,
        help="break the lines of an answer at words, on a terminal",
    )  # fmt: skip


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of every verb that reads a dump or a log: its names and its lines."""
    parser.add_argument("--map", metavar="FILE", help="file with a JSON object from the dump's names to node names")
    parser.add_argument("--pattern", action="append", default=[], metavar="TEXT",
                        help="pattern of a log line, such as '{name} {layer}: rms={rms}'; repeatable")  # fmt: skip


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def emit(
    args: argparse.Namespace, obj: Mapping[str, Any], text: str | Callable[[], str], *, exact: bool = False
) -> None:
    """Print the result on stdout: the object with --json, else the text.

    With `exact`, control characters are escaped only on a terminal, not in a pipe or a file.
    """
    unseen()
    if args.json:
        print(json.dumps(plain(obj), allow_nan=False))
        return
    found = text if isinstance(text, str) else text()
    shown = for_terminal(found) if exact else harmless(found)
    print(shown, end="" if shown.endswith("\n") or not shown else "\n")


def for_terminal(text: str) -> str:
    """Text of a model: unchanged for a pipe or a file, control sequences escaped for a terminal."""
    return harmless(text) if sys.stdout.isatty() else text


def say(line: str) -> None:
    """Print a note on stderr."""
    unseen()
    print(harmless(line), file=sys.stderr, flush=True)


def logprobs(result: Result, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Every token with its log-probability and the best alternatives."""
    return [
        {
            "id": choice.id,
            "piece": tokenizer.piece(choice.id),
            "logprob": choice.logprob,
            "top": [{"id": r.id, "piece": tokenizer.piece(r.id), "logprob": r.logprob} for r in choice.top],
        }
        for choice in result.logprobs or ()
    ]


@contextmanager
def interruptible(generation: Generation) -> Iterator[None]:
    """Within this context Ctrl-C ends the generation only; a second Ctrl-C ends the program."""

    def first(_signal: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, previous)
        generation.interrupt()
        if generation.computing:  # do not wait for the current step
            raise KeyboardInterrupt

    previous = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, first)
    except ValueError:  # not the main thread, which alone can handle signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
