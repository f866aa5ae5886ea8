"""Options and verbs of llama.cpp, Ollama, transformers and llm, translated to assay's.

An option with an equivalent is renamed. An option without meaning here is dropped with a note. Other known options
raise an error with a hint. A verb's own option of the same name takes precedence.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from assay.errors import AssayError

# Verbs of other tools.
VERBS = {
    "ls": "list", "models": "list", "generate": "run", "complete": "run", "completion-cli": "run", "prompt": "run",
    "server": "serve", "start": "serve", "download": "pull", "get": "pull", "remove": "rm", "delete": "rm",
    "info": "show", "status": "ps", "perplexity": "eval", "quantise": "quantize", "embedding": "embed",
    "conversation": "chat", "create": "convert",
}  # fmt: skip

# Options of Ollama, transformers, OpenAI and llama.cpp that assay has under another name.
RENAMED = {
    "--max-tokens": "-n", "--max-new-tokens": "-n", "--num-predict": "-n", "--num-ctx": "-c", "--ctx": "-c",
    "--num-thread": "-t", "--repetition-penalty": "--repeat-penalty", "-r": "--stop", "--reverse-prompt": "--stop",
    "-no-cnv": "--raw", "--no-conversation": "--raw", "--no-chat-template": "--raw", "--system-prompt": "--system",
    "--chat-template-file": "--template", "--chat-template": "--template", "-hf": "-m", "-hfr": "-m", "--hf-repo": "-m",
    "--cache-type-k": "--kv-type", "-ctk": "--kv-type", "--key": "--api-key", "-np": "--parallel",
    "--show-timings": "--stats", "--perf": "--stats", "-md": "--draft", "--model-draft": "--draft",
    "--kl-divergence-base": "--kl",
}  # fmt: skip
_HUB = {"-hf", "-hfr", "--hf-repo"}  # options whose value is a Hugging Face repository

# Options without meaning here: the number of their values, and the reason.
IGNORED: dict[str, tuple[int, str]] = {
    "--color": (0, "colour is used on terminals"),
    "--jinja": (0, "templates are always rendered by Jinja"),
    "--no-display-prompt": (0, "the prompt is never shown"),
    "--simple-io": (0, "a pipe always gets plain text"),
    "--no-warmup": (0, "nothing is warmed up"),
    "--no-mmap": (0, "files are mapped, and packed where memory allows"),
    "--mlock": (0, "memory is not locked"),
    "-fa": (1, "attention has one form"),
    "--flash-attn": (1, "attention has one form"),
    "-b": (1, "batches are cut by the scheduler"),
    "--batch-size": (1, "batches are cut by the scheduler"),
    "-ub": (1, "batches are cut by the scheduler"),
    "--ubatch-size": (1, "batches are cut by the scheduler"),
    "-ctv": (1, "--kv-type is for keys and values"),
    "--cache-type-v": (1, "--kv-type is for keys and values"),
    "--nowordwrap": (0, "text is not wrapped"),
    "--keepalive": (1, "a model stays loaded while the command runs"),
    "-st": (0, "one prompt gives one answer"),
    "--single-turn": (0, "one prompt gives one answer"),
    "-ngl": (1, "the engine has all layers; where there is a GPU, --engine cuda runs on it"),
    "--n-gpu-layers": (1, "the engine has all layers; where there is a GPU, --engine cuda runs on it"),
    "--gpu-layers": (1, "the engine has all layers; where there is a GPU, --engine cuda runs on it"),
    "--kl-divergence": (0, "--kl asks for it"),
    "--perplexity": (0, "it is always computed"),
    "-tb": (1, "-t applies to prompts and answers"),
    "--threads-batch": (1, "-t applies to prompts and answers"),
    "--keep": (1, "nothing of a prompt is discarded"),
    "--context-shift": (0, "nothing of a prompt is discarded"),
    "--no-context-shift": (0, "nothing of a prompt is discarded"),
    "--log-disable": (0, "there is no log"),
    "--no-perf": (0, "use --stats to print it"),
    "--numa": (1, "the system places threads"),
    "--prio": (1, "the system sets priorities"),
    "-cb": (0, "continuous batching is always on"),
    "--cont-batching": (0, "continuous batching is always on"),
    "--metrics": (0, "/metrics is always there"),
    "--slots": (0, "/slots is always there"),
    "--embedding": (0, "/v1/embeddings is always there"),
    "--embeddings": (0, "/v1/embeddings is always there"),
    "--no-webui": (0, "the page is only loaded on request"),
    "-co": (0, "colour is used on terminals"),
}

HINTS = {
    "-cnv": "use `assay chat`",
    "--conversation": "use `assay chat`",
    "-i": "use `assay chat`",
    "--interactive": "use `assay chat`",
    "-mu": "download the file and give its path",
    "--model-url": "download the file and give its path",
    "-a": "a model is served under the name of its file",
    "--alias": "a model is served under the name of its file",
    "--prompt-cache": "the prefix cache lives as long as the process; `assay serve` keeps it between prompts",
    "--mirostat": "mirostat is not available; see --top-p, --min-p and --typical",
    "--samplers": "the order is that of llama.cpp and cannot be changed",
    "--rope-freq-base": "the value of the file is used",
    "--rope-scale": "the value of the file is used",
    "--rope-scaling": "the value of the file is used",
    "--lora": "adapters are not supported; merge it into the model first",
    "--mmproj": "images are not supported",
    "--format": "use --json-schema '{}' for an answer that is a JSON object",
    "--think": "use --template-arg enable_thinking=true",
}


def translated(parser: argparse.ArgumentParser, words: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """The command line with options of other tools translated."""
    known = parser._option_string_actions
    out: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in known or not word.startswith("-"):
            out.append(word)
            takes_value = name in known and not equals and known[name].nargs is None
            if takes_value and rest:  # the next word is the value, even if it looks like an option
                out.append(rest.pop(0))
        elif name in RENAMED and RENAMED[name] in known:
            out.append(RENAMED[name])
            if known[RENAMED[name]].nargs is None and (equals or rest):
                value = value if equals else rest.pop(0)
                out.append(f"hf:{value}" if name in _HUB and not value.startswith("hf:") else value)
        elif name in IGNORED:
            count, why = IGNORED[name]
            if count and not equals and rest and not rest[0].startswith("-"):
                rest.pop(0)
            say(f"{name}: ignored; {why}")
        elif name in HINTS:
            raise AssayError(f"{name}: no such option; {HINTS[name]}")
        else:
            out.append(word)
    return out
