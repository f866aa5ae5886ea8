"""`assay run --batch`: answer a file of prompts, computed together, and write the answers in the same order.

A line is a JSON value: a string or `{"prompt": …}` (as -p), `{"ids": […]}`, or `{"messages": […]}`. An object may have
an `id`, which its answer repeats, and its own settings under the names of the Python API. Blank lines are skipped.
A line that fails gets `{"error": …}` in its place; the other lines are still answered.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from assay.cli import common
from assay.cli.prompting import encode_prompt, start_template_process
from assay.errors import AssayError
from assay.system.plain import plain
from assay.system.text_files import open_text

if TYPE_CHECKING:
    from assay.runtime.generate import Pending
    from assay.runtime.opening import Opened

_PROMPTS = ("prompt", "ids", "messages")


def run_batch(args: argparse.Namespace) -> int:
    from assay.library.language_model import LanguageModel

    to_file = args.output not in (None, "-")
    if args.resume and not to_file:
        raise AssayError("--resume: needs the file to continue; name it with -o FILE")
    start = time.monotonic()
    lines = _lines(args.batch)
    skipped = _skip_answered(Path(args.output), lines) if args.resume else 0
    start_template_process(args)
    opened = common.opened(args, cache_size=None)
    params = common.sampler_params(args, opened)
    asked: list[tuple[int, Any]] = []  # index and id of lines that were read but not answered yet

    def requests() -> Iterator[Any]:
        for index, line in lines:
            name, request = _request(args, opened, line, params)
            asked.append((index, name))
            yield request

    done = failed = tokens = 0
    parallel = {} if args.parallel is None else {"parallel": args.parallel}
    with LanguageModel(opened, **parallel) as model, _output(args) as out:
        for pending in model.batch(requests()):
            index, name = asked.pop(0)
            answer = _answer(pending, opened)
            out.write(json.dumps(plain({"index": index, "id": name} | answer)).encode() + b"\n")
            out.flush()
            done += 1
            failed += "error" in answer
            tokens += answer.get("tokens", 0)
            if sys.stderr.isatty():
                print(f"\r\033[K{done} lines", end="", file=sys.stderr, flush=True)
    seconds = time.monotonic() - start
    kept = f", {skipped} already answered" if skipped else ""
    print(f"{done} answers{kept}, {failed} failed; {tokens} tokens, {tokens / seconds:.1f}/s", file=sys.stderr)
    if to_file:
        summary = {"path": args.output, "lines": done, "skipped": skipped, "failed": failed, "tokens": tokens}
        common.emit(args, summary | {"seconds": seconds}, "")
    if failed:
        raise AssayError(f"--batch: {failed} of {done} lines could not be answered; see their `error`")
    return 0


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, numbered from 0. The file is opened now: a wrong one must not cost the old answers."""
    expected = "JSON lines; write a JSON string or object a line"
    return _numbered(sys.stdin.buffer if path == "-" else open_text(Path(path), expected))


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    index = 0
    with nullcontext(file) if file is sys.stdin.buffer else file:
        for line in file:
            if line.strip():
                yield index, line
                index += 1


def _output(args: argparse.Namespace) -> Any:
    if args.output in (None, "-"):
        return nullcontext(sys.stdout.buffer)
    return open(args.output, "ab" if args.resume else "wb")


# --- a line in


def _request(args: argparse.Namespace, opened: Opened, line: bytes, params: Any) -> tuple[Any, Any]:
    """The id of a line, and its request for `LanguageModel.batch` or its error."""
    name = None
    try:
        value = _parse(line)
        name = value.pop("id", None)
        prompts = [key for key in _PROMPTS if key in value]
        if len(prompts) != 1:
            raise AssayError(f"line: needs one of prompt, ids and messages (found {', '.join(prompts) or 'none'})")
        prompt = value.pop(prompts[0])
        if prompts[0] == "prompt" and isinstance(prompt, str):
            prompt = encode_prompt(args, prompt, opened)
        elif not isinstance(prompt, list):
            raise AssayError(f"{prompts[0]}: must be {'a text' if prompts[0] == 'prompt' else 'a list'}")
        return name, (prompt, _defaults(args, value) | value | {"params": params})
    except AssayError as error:
        return name, error


def _parse(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode())
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError) as error:
        raise AssayError(f"line: is not JSON ({str(error)[:100]})") from None
    if isinstance(value, str):
        return {"prompt": value}
    if not isinstance(value, dict):
        raise AssayError(f"line: must be a string or an object (found {type(value).__name__})")
    if "params" in value:
        raise AssayError("params: no such setting")
    return value


def _defaults(args: argparse.Namespace, line: dict[str, Any]) -> dict[str, Any]:
    """Settings of the command line, which a line can override."""
    from assay.library.settings import LENGTHS

    found = {"stop": args.stop, "logprobs": args.logprobs, "ignore_eos": args.ignore_eos}
    return found if any(name in line for name in LENGTHS) else found | {"max_tokens": args.predict}


# --- a line out


def _answer(pending: Pending, opened: Opened) -> dict[str, Any]:
    try:
        result = pending.result
    except AssayError as error:
        return {"error": str(error)}
    found: dict[str, Any] = {
        "text": result.text,
        "finish_reason": result.finish_reason,
        "prompt_tokens": len(result.prompt_ids),
        "tokens": len(result.ids),
        "seed": result.seed,
        "ids": result.ids,
    }
    return found if result.logprobs is None else found | {"logprobs": common.logprobs(result, opened.tokenizer)}


def _skip_answered(path: Path, lines: Iterator[tuple[int, bytes]]) -> int:
    """Skip the lines that have an answer in `path`. An answer that was only partly written is removed."""
    if not path.exists():
        return 0
    with open(path, "r+b") as file:
        count = _count(path, file, lines)
        file.truncate()
    return count


def _count(path: Path, file: BinaryIO, lines: Iterator[tuple[int, bytes]]) -> int:
    count, end = 0, 0
    for line in file:
        if not line.endswith(b"\n"):
            break
        try:
            answer = json.loads(line)
            fits = isinstance(answer, dict) and answer["index"] == count
        except (ValueError, KeyError, RecursionError):
            fits = False
        if not fits:
            raise AssayError(f"{path}: line {count + 1} is not an answer of a batch; name another file with -o")
        asked = next(lines, None)
        if asked is None:
            raise AssayError(f"{path}: has more answers than there are prompts; name another file with -o")
        try:
            name = _parse(asked[1]).get("id")
        except AssayError:
            name = None
        if name != answer.get("id"):
            raise AssayError(f"{path}: line {count + 1} answers {answer.get('id')!r:.60} (expected {name!r:.60}); "
                             "name another file with -o")  # fmt: skip
        count, end = count + 1, end + len(line)
    file.seek(end)
    return count
