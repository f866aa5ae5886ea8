"""Options and verbs of llama.cpp, Ollama, vLLM, transformers and llm, translated to assay's.

An option with an equivalent is renamed. An option without meaning here is dropped with a note. Other known options
raise an error with a hint. A verb's own option of the same name takes precedence.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence

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

# Options of Ollama, transformers, OpenAI and llama.cpp that assay has under another name.
RENAMED = {
    "--max-tokens": "-n", "--max-new-tokens": "-n", "--num-predict": "-n", "--num-ctx": "-c", "--ctx": "-c",
    "--num-thread": "-t", "--repetition-penalty": "--repeat-penalty", "-r": "--stop", "--reverse-prompt": "--stop",
    "-no-cnv": "--raw", "--no-conversation": "--raw", "--no-chat-template": "--raw", "--system-prompt": "--system",
    "--chat-template-file": "--template", "--chat-template": "--template", "-hf": "-m", "-hfr": "-m", "--hf-repo": "-m",
    "--cache-type-k": "--kv-type", "-ctk": "--kv-type", "--key": "--api-key", "-np": "--parallel",
    "--show-timings": "--stats", "--perf": "--stats", "-md": "--draft", "--model-draft": "--draft",
    "--n-cpu-moe": "--cpu-experts", "-ncmoe": "--cpu-experts",
    "--kl-divergence-base": "--kl", "--nowordwrap": "--no-wrap", "-a": "--alias", "--served-model-name": "--alias",
    "--max-model-len": "-c", "--max-num-seqs": "--parallel", "--max-num-batched-tokens": "--chunk",
    "--kv-cache-dtype": "--kv-type", "--prompt-file": "-f",
    "--allowed-origins": "--cors", "--slot-save-path": "--cache-dir", "--sleep-idle-seconds": "--sleep-idle",
}  # fmt: skip
_HUB = {"-hf", "-hfr", "--hf-repo"}  # options whose value is a Hugging Face repository

# Options without meaning here: the number of their values, and the reason.
IGNORED: dict[str, tuple[int, str]] = {
    "--color": (0, "colour is used on terminals"),
    "--jinja": (0, "templates are always rendered by Jinja"),
    "--no-display-prompt": (0, "the prompt is never shown"),
    "--simple-io": (0, "a pipe always gets plain text"),
    "--no-warmup": (0, "there is no warm-up"),
    "--no-mmap": (0, "files are always memory-mapped"),
    "--mlock": (0, "memory is not locked"),
    "-fa": (1, "attention has only one implementation"),
    "--flash-attn": (1, "attention has only one implementation"),
    "--tensor-parallel-size": (1, "one GPU computes a model; --cluster and --split share it among processes"),
    "-tp": (1, "one GPU computes a model; --cluster and --split share it among processes"),
    "--gpu-memory-utilization": (1, "--cache-size sets the size of the KV cache in tokens"),
    "--dtype": (1, "a GGUF file states its types; --precision chooses the arithmetic"),
    "--quantization": (1, "a GGUF file states its types"),
    "--load-format": (1, "files are GGUF"),
    "--trust-remote-code": (0, "no code of a repository is run"),
    "--enable-lora": (0, "adapters are given with --lora FILE"),
    "--enforce-eager": (0, "the engine chooses"),
    "--enable-prefix-caching": (0, "prefixes are always cached"),
    "--enable-chunked-prefill": (0, "prompts are always computed in chunks"),
    "--enable-auto-tool-choice": (0, "tool calls are always read"),
    "--tool-call-parser": (1, "the format of tool calls is that of the template"),
    "--reasoning-parser": (1, "the format of thoughts is that of the template"),
    "--reasoning-format": (1, "the format of thoughts is that of the template"),
    "--disable-log-requests": (0, "requests are not logged"),
    "--swap-space": (1, "nothing is swapped to the CPU"),
    "--insecure": (0, "models come over https or from files"),
    "--kv-unified": (0, "all sequences share one cache"),
    "--cache-reuse": (1, "prefixes are always cached"),
    "--swa-full": (0, "the cache of a window holds the window"),
    "--main-gpu": (1, "CUDA_VISIBLE_DEVICES chooses the GPU"),
    "-mg": (1, "CUDA_VISIBLE_DEVICES chooses the GPU"),
    "--device": (1, "--engine cpu or cuda chooses"),
    "-dev": (1, "--engine cpu or cuda chooses"),
    "-sm": (1, "an engine runs all layers on one device"),
    "--split-mode": (1, "an engine runs all layers on one device"),
    "-ts": (1, "an engine runs all layers on one device"),
    "--tensor-split": (1, "an engine runs all layers on one device"),
    "--cpu-moe": (0, "--cpu-experts N computes the experts of N layers on the cpu"),
    "-cmoe": (0, "--cpu-experts N computes the experts of N layers on the cpu"),
    "-ot": (1, "an engine runs all layers on one device"),
    "--override-tensor": (1, "an engine runs all layers on one device"),
    "--no-kv-offload": (0, "the cache is where the engine is"),
    "-nkvo": (0, "the cache is where the engine is"),
    "--no-repack": (0, "the cpu engine packs weights when they fit"),
    "--props": (0, "/props is always available"),
    "--threads-http": (1, "one event loop serves all connections"),
    "--log-file": (1, "there is no log"),
    "-lv": (1, "there is no log"),
    "--log-verbosity": (1, "there is no log"),
    "-b": (1, "the scheduler chooses batch sizes"),
    "--batch-size": (1, "the scheduler chooses batch sizes"),
    "-ub": (1, "the scheduler chooses batch sizes"),
    "--ubatch-size": (1, "the scheduler chooses batch sizes"),
    "-ctv": (1, "--kv-type sets keys and values"),
    "--cache-type-v": (1, "--kv-type sets keys and values"),
    "--keepalive": (1, "a model stays loaded while the command runs"),
    "-st": (0, "one prompt gives one answer"),
    "--single-turn": (0, "one prompt gives one answer"),
    "-ngl": (1, "an engine runs all layers; --engine cuda uses a GPU"),
    "--n-gpu-layers": (1, "an engine runs all layers; --engine cuda uses a GPU"),
    "--gpu-layers": (1, "an engine runs all layers; --engine cuda uses a GPU"),
    "--kl-divergence": (0, "use --kl"),
    "--perplexity": (0, "it is always computed"),
    "-tb": (1, "-t applies to prompts and answers"),
    "--threads-batch": (1, "-t applies to prompts and answers"),
    "--keep": (1, "only `assay serve` shifts a context"),
    "--context-shift": (0, "only `assay serve` shifts a context"),
    "--no-context-shift": (0, "that is the default"),
    "--log-disable": (0, "there is no log"),
    "--no-perf": (0, "use --stats to print it"),
    "--numa": (1, "the system places threads"),
    "--prio": (1, "the system sets priorities"),
    "-cb": (0, "continuous batching is always on"),
    "--cont-batching": (0, "continuous batching is always on"),
    "--metrics": (0, "/metrics is always available"),
    "--slots": (0, "/slots is always available"),
    "--embedding": (0, "/v1/embeddings is always available"),
    "--embeddings": (0, "/v1/embeddings is always available"),
    "--no-webui": (0, "the page is only loaded on request"),
    "-co": (0, "colour is used on terminals"),
}

_SWITCHES = {"-fa", "--flash-attn"}  # a flag in older versions, which had no value

HINTS = {
    "-cnv": "use `assay chat`",
    "--conversation": "use `assay chat`",
    "-i": "use `assay chat`",
    "--interactive": "use `assay chat`",
    "-mu": "download the file and give its path",
    "--model-url": "download the file and give its path",
    "-a": "`assay serve --alias NAME` names a served model",
    "--alias": "`assay serve --alias NAME` names a served model",
    "--prompt-cache": "the prefix cache lives as long as the process; `assay serve` keeps it between prompts",
    "--mirostat": "mirostat is not available; see --top-p, --min-p and --typical",
    "--samplers": "the order is that of llama.cpp and cannot be changed",
    "--rope-freq-base": "the value of the file is used",
    "--rope-scale": "the value of the file is used",
    "--rope-scaling": "the value of the file is used",
    "--modelfile": "there are no Modelfiles; `assay show MODEL` prints what the file has",
    "--reranking": "rerankers are not supported",
    "--rerank": "rerankers are not supported",
    "--lora-modules": "give each adapter as --lora FILE; requests choose with `lora`",
    "--lora-scaled": "give --lora FILE=SCALE",
    "--speculative-config": "use --draft MODEL; --lookahead needs no draft model",
    "--pipeline-parallel-size": "use --cluster with --split N",
    "--ssl-keyfile": "put a reverse proxy with TLS before the server",
    "--ssl-key-file": "put a reverse proxy with TLS before the server",
    "--grp-attn-n": "the context is that of the file; see -c",
    "--hidethinking": "use --template-arg enable_thinking=false",
    "--reasoning-budget": "use --template-arg enable_thinking=false",
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
        if word == "--":  # only positional words follow
            return [*out, word, *rest]
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


def _is_value(option: str, word: str) -> bool:
    """Whether a word is the value of an ignored option, and not the next option, the model or the prompt."""
    if option in _SWITCHES:
        return word in ("on", "off", "auto", "0", "1", "true", "false")
    return not word.startswith("-") or re.fullmatch(r"-\d+(\.\d+)?", word) is not None
