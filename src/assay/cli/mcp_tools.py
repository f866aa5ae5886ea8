"""The tools of `assay mcp`: each runs a verb in a process of its own and returns what the verb prints.

A process can be stopped when it takes too long, and a verb's result and error are the same words as on a terminal. A
difference (exit code 1) is a result; an error (exit code 2) is raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from assay.errors import AssayError
from assay.system.terminal import printable

if TYPE_CHECKING:
    from assay.verify.faults import Fault

SECONDS = 300.0  # for one call
LONGEST = 40_000  # characters of a result; the middle of a longer one is left out
AT_ONCE = 2  # processes
_places = asyncio.Semaphore(AT_ONCE)


async def inspect_model(model: str, tensors: bool = False, graph: bool = False) -> str:
    """Metadata, types, memory needs and validity of a GGUF file. `tensors` lists every tensor, `graph` every node
    with its operation and shape: the names that a dump should use."""
    options = [*(["--tensors"] if tensors else []), *(["--graph"] if graph else [])]
    return await _verb("inspect", _word("model", model), "--fast", *options)


async def tokenize(model: str, text: str, chat: bool = False) -> str:
    """The right token ids of a text with their pieces. `chat` applies the model's chat template to it first."""
    return await _verb("tokenize", f"--model={model}", f"--prompt={text}", *(["--chat"] if chat else []))


async def check_ids(model: str, text: str, ids: list[int], chat: bool = False) -> str:
    """Compare the ids that an engine was given for a text with the right ones, and explain each difference."""
    given = ",".join(map(str, ids))
    options = ["--chat"] if chat else []
    return await _verb("tokenize", f"--model={model}", f"--prompt={text}", f"--check={given}", *options)


async def diagnose(model: str, dump: str = "", log: str = "", prompt: str = "", tokens: list[int] | None = None) -> str:
    """Find the bug in an engine: the first operation that is wrong on its own inputs, the known mistake that gives
    these values, the right formula, and what to dump next. Give `dump` (path of a .jsonl, .npz or .safetensors file
    or of a log) or `log` (the printed lines themselves), and what the engine was given: `prompt` or `tokens`."""
    async with _evidence(dump, log) as path:
        return await _verb("diagnose", _word("model", model), path, *_given(prompt, tokens))


async def next_evidence(
    model: str, dump: str = "", log: str = "", prompt: str = "", tokens: list[int] | None = None
) -> str:
    """The one value to print or run to make next. Without `dump` and `log`: the first values to print at all."""
    if not dump and not log:
        return FIRST
    async with _evidence(dump, log) as path:
        found = json.loads(await _verb("diagnose", _word("model", model), path, *_given(prompt, tokens), "--json"))
    if asked := _found(found, "next_observation"):
        return asked
    verdict = found.get("verdict", "clear")
    if verdict == "healthy":
        return HEALTHY
    return f"nothing more is needed: the verdict is {verdict}; call diagnose for the cause"


async def diff(a: str, b: str, model: str = "", prompt: str = "", tokens: list[int] | None = None) -> str:
    """Compare two runs node by node: noise or wrong. Each side is a model file (its definition), FILE@ENGINE such as
    FILE@cpu, a trace or a dump."""
    options = [f"--model={model}"] if model else []
    return await _verb("diff", _word("a", a), _word("b", b), *options, *_given(prompt, tokens))


async def trace(
    model: str,
    nodes: str,
    prompt: str = "",
    tokens: list[int] | None = None,
    decode: int = 0,
    engine: str = "reference",
) -> str:
    """The right values of nodes: shape, statistics and first values, a JSON line each. `nodes` is a regular expression
    (`^Qcur-0$`). `decode` computes the last tokens one by one."""
    options = [f"--nodes={nodes}", f"--decode={decode}", f"--engine={engine}", "--summary"]
    return await _verb("trace", _word("model", model), *options, *_given(prompt, tokens))


async def explain_fault(fault: str) -> str:
    """Explain a known mistake by the name that diagnose gives: the wrong and the right formula, how it shows, the
    cheapest run that exposes it, and public threads about it."""
    from assay.verify.faults import FAULTS, known_as

    names = known_as(fault)
    if not names:
        near = [known for known in FAULTS if any(word in known for word in fault.split("-"))][:12]
        raise AssayError(f"{printable(fault, 60)}: no such fault; near: {', '.join(near) or 'none'}")
    return "\n\n".join(_told(FAULTS[name]) for name in names)


def _told(row: Fault) -> str:
    lines = {
        "wrong": row.wrong, "right": row.right, "symptom": row.symptom, "in the numbers": row.tell,
        "shows first at": row.shows, "probe": row.probe,
        "seen in": " ".join(address for _, address in row.links),
    }  # fmt: skip
    return "\n".join([row.id, *(f"  {label}: {text}" for label, text in lines.items() if text)])


TOOLS = (inspect_model, tokenize, check_ids, diagnose, next_evidence, diff, trace, explain_fault)

INSTRUCTIONS = (
    "assay finds bugs in engines that run GGUF models. Compare token ids first (check_ids). Then let the engine print "
    "or save values of a short prompt and call diagnose: it judges every node on its own inputs and names the mistake. "
    "next_evidence says what to print if the evidence does not suffice, trace gives the right values, explain_fault "
    "describes a mistake. Nodes have llama.cpp's names (attn_norm-0, Qcur-0, l_out-0, result_output)."
)
HEALTHY = (
    "no fault shows in these values. Values of the first token hide every mistake of rotation, mask and scale: save "
    "whole tensors, or rows of the last token. If the prompt is right and later tokens are not, save a decode step, too"
)
FIRST = (
    "1. Compare the token ids of a short prompt with check_ids.\n"
    "2. Run at least five different tokens, because one token at position 0 hides every mistake of rotation, mask and "
    "scale.\n"
    "3. Save each layer's output (l_out-0, l_out-1, …) and the logits (result_output) for all tokens, as .npz or "
    "as JSON lines, or print rows of the last token: name, shape, values. Call diagnose.\n"
    "4. It names the first wrong layer. Save the nodes inside that layer next; inspect_model with graph=true lists "
    "them."
)


def _word(name: str, text: str) -> str:
    """A positional argument, which must not be taken for an option."""
    if not text or text.startswith("-"):
        raise AssayError(f"{name}: must be a path or a name (found {printable(text, 60)!r})")
    return text


def _given(prompt: str, tokens: list[int] | None) -> list[str]:
    """The options for what the engine was given."""
    found = [f"--prompt={prompt}"] if prompt else []
    return [*found, *([f"--tokens={','.join(map(str, tokens))}"] if tokens else [])]


@contextlib.asynccontextmanager
async def _evidence(dump: str, log: str) -> AsyncIterator[str]:
    """The path of the evidence: a dump, or a file with the given lines, which is removed afterwards."""
    if bool(dump) == bool(log):
        raise AssayError("give exactly one of dump and log")
    if dump:
        yield _word("dump", dump)
        return
    with tempfile.TemporaryDirectory(prefix="assay-mcp-") as folder:
        path = Path(folder) / ("engine.jsonl" if log.lstrip().startswith("{") else "engine.log")
        path.write_text(log, encoding="utf-8")
        yield str(path)


def _found(value: object, key: str) -> str:
    """The first text under a key, at any depth."""
    waiting = [value]
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, dict):
            if isinstance(item.get(key), str) and item[key]:
                return str(item[key])
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return ""


async def _verb(verb: str, *arguments: str) -> str:
    """Output of a verb. An error of the user raises AssayError with the verb's own words."""
    async with _places:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "assay", verb, *arguments, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(process.communicate(), SECONDS)
        except TimeoutError:
            raise AssayError(f"{verb}: took more than {SECONDS:g} s; give fewer tokens or nodes") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode not in (0, 1) or not out:
        lines = err.decode("utf-8", "replace").strip().splitlines() or [f"{verb}: ended with {process.returncode}"]
        raise AssayError(printable(lines[-1].removeprefix("assay: "), 4000))
    text = out.decode("utf-8", "replace").rstrip()
    half = LONGEST // 2
    return (
        text
        if len(text) <= LONGEST
        else f"{text[:half]}\n… {len(text) - LONGEST} characters left out …\n{text[-half:]}"
    )
