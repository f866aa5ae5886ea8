"""`assay run`: answer a prompt."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from assay.cli import common
from assay.cli.number_types import whole
from assay.cli.prompting import NEEDED, prompt_for, speed_line, start_template_process
from assay.cli.wrapping import AnswerPrinter
from assay.errors import AssayError
from assay.system.counting import counted

if TYPE_CHECKING:
    from assay.runtime.generate import Generation, Result
    from assay.runtime.opening import Opened
    from assay.text import Tokenizer

HELP = "answer a prompt, streaming; without a prompt, hold a conversation"
EXAMPLE = """
assay run smollm2 "What is the capital of France?"
assay run -m model.gguf --raw -p "Once upon a time" -n 64 --temp 0 --json
cat notes.txt | assay run -p "Summarise this in one sentence."
assay run --batch prompts.jsonl -o answers.jsonl --seed 1
assay run gemma3.gguf --image photo.png "What is in this picture?"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="[MODEL] [PROMPT]", help=f"MODEL is {common.MODEL_HELP}")
    common.add_model_option(parser)
    group = parser.add_argument_group("prompt (piped standard input is put before it)")
    source = group.add_mutually_exclusive_group()
    source.add_argument("-p", "--prompt", type=common.text_argument, metavar="TEXT", help="the same as PROMPT")
    source.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file; - for standard input")
    source.add_argument(
        "--batch",
        metavar="FILE",
        help="file of prompts, one JSON value per line, - for stdin; see docs/reference/python.md",
    )
    source.add_argument(
        "--ids", type=common.token_ids, metavar="1,2,3", help="the prompt as token ids, without a template"
    )
    group.add_argument("--system", "-sys", type=common.text_argument, metavar="TEXT", help="a system message")
    common.add_template_argument(group)
    common.add_image_arguments(group)
    group.add_argument("--raw", action="store_true", help="do not apply the chat template")
    group.add_argument("-e", "--escape", action="store_true", help=r"interpret \n, \t and \\ in -p as escapes")
    group.add_argument("--stop", action="append", default=[], type=common.text_argument, metavar="TEXT",
                       help="end the answer before this text; repeatable")  # fmt: skip
    group.add_argument("--logprobs", type=whole(0), metavar="N",
                       help="with --json: log-probability of every token and of the N best alternatives")  # fmt: skip
    add_form_arguments(group)
    batch = parser.add_argument_group("batch")
    batch.add_argument(
        "-o", "--output", metavar="FILE", help="file for the answers, one JSON object per line; default: stdout"
    )
    batch.add_argument("--resume", action="store_true", help="continue after the answers that FILE already has")
    batch.add_argument("--parallel", type=whole(1), metavar="N", help="maximum sequences computed at once (default 64)")
    common.add_sampling_arguments(parser)
    common.add_engine_arguments(parser)
    common.add_lora_argument(parser)
    common.add_stats_argument(parser)
    common.add_json_argument(parser)


def add_form_arguments(group: argparse._ArgumentGroup) -> None:
    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "--grammar", type=common.text_argument, metavar="TEXT", help="grammar of the answer, GBNF or Lark"
    )
    form.add_argument("--grammar-file", metavar="FILE", help="file with the grammar")
    form.add_argument("-j", "--json-schema", type=common.text_argument, metavar="SCHEMA",
                      help="JSON schema of the answer; {}: any object")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    _assign_words(args)
    if args.batch is not None:
        from assay.cli.batch import run_batch

        if args.image:
            raise AssayError("--image: is not for --batch; answer prompts with pictures one by one")

        return run_batch(args)
    if args.output is not None or args.resume:
        raise AssayError(f"{'--resume' if args.resume else '-o'}: needs --batch; leave it out for one prompt")
    if args.image and args.ids is not None:
        raise AssayError("--image: needs a text; ids have no place for a picture")
    start = time.perf_counter()
    text = None if args.ids is not None else _prompt_text(args)
    if text is None and args.ids is None:
        from assay.cli import chat

        return chat.run(args)
    if args.logprobs is not None and not args.json:
        raise AssayError("--logprobs: only part of the JSON object; add --json")
    common.check_model(args)
    start_template_process(args, text)
    opened = common.opened(args)
    prompt: Any = args.ids if text is None else prompt_for(args, text, opened)
    params = common.sampler_params(args, opened)
    from assay.library.language_model import LanguageModel

    if args.stats and not args.json:
        _announce(args.image, opened)
    with LanguageModel(opened) as model:
        if args.stats and not args.json and opened.draft_choice:
            common.say(opened.draft_choice)
        generation = model.stream(
            prompt, params=params, max_tokens=args.predict, stop=args.stop, logprobs=args.logprobs,
            ignore_eos=args.ignore_eos, images=args.image, **_form(args),
        )  # fmt: skip
        load_seconds = time.perf_counter() - start
        result = stream(generation, quiet=args.json, wrap=args.wrap)
        common.emit(args, _object(result, opened.tokenizer, load_seconds, model.engine.name), "")
        if (args.stats or result.finish_reason == "interrupted") and not args.json:
            common.say(f"\n{speed_line(result, load_seconds)}")
    return 130 if result.finish_reason == "interrupted" else 0


def _announce(images: Sequence[str], opened: Opened) -> None:
    """Say what each picture becomes, before it is computed."""
    if not images:
        return
    from assay.runtime.pictured_prompt import picture_bytes
    from assay.vision.picture import decode_picture

    reader, position = opened.pictures, opened.position_bytes
    for path in images:
        height, width, _ = decode_picture(picture_bytes(path)).shape
        tokens = reader.tokens(width, height)
        rows = 4 * tokens * reader.projector.tower.width
        common.say(
            f"{path}: {width}×{height} pixels, {counted(tokens, 'token')}, {rows / 1e6:.1f} MB of rows, "
            f"{tokens * position / 1e6:.1f} MB in the cache"
        )


def stream(generation: Generation, *, quiet: bool = False, wrap: bool = True) -> Result:
    """Generate to the end and stream the text. Ctrl-C ends the generation and keeps the partial answer."""
    shown = 0
    printer = AnswerPrinter(wrap=wrap)
    with common.interruptible(generation):
        for event in generation:
            if event.text and not quiet:
                printer.write(event.text)
                shown += len(event.text)
    result = generation.result
    if not quiet:
        printer.write(result.text[shown:] + ("" if result.text.endswith("\n") else "\n"))
    return result


def _assign_words(args: argparse.Namespace) -> None:
    """Assign the words to MODEL and PROMPT. The first is the model, unless -m is given or it is a sentence."""
    words = list(args.words)
    sentence = len(words) == 1 and any(c.isspace() for c in words[0].strip()) and not os.path.exists(words[0])
    if words and args.model is None and not sentence:
        args.model = words.pop(0)
    if words and (args.prompt, args.file, args.ids, args.batch) != (None,) * 4:
        raise AssayError(f"{words[0]:.40}: a second prompt; give one of PROMPT, -p, -f, --ids and --batch")
    if words:
        args.prompt = common.text_argument(" ".join(words))


def _prompt_text(args: argparse.Namespace) -> str | None:
    """The prompt, or None to start a chat: no prompt is given and both ends are terminals."""
    if args.file is not None:
        return common.read_text(args.file, "a prompt; give the text file of a prompt, and the model with -m")
    given = _unescape(args.prompt) if args.prompt is not None and args.escape else args.prompt
    if given is not None:
        piped = common.read_text("-") if common.is_piped() else ""
        return f"{piped.rstrip()}\n\n{given}" if piped.strip() else str(given)
    if sys.stdin is not None and not sys.stdin.isatty():
        text = common.read_text("-")
        if not text.strip() and not args.raw:
            raise AssayError(f"run: standard input is empty; {NEEDED}")
        return text
    if sys.stdin is None or args.json or args.raw:
        raise AssayError(f"run: needs a prompt; {NEEDED}")
    return None


def _form(args: argparse.Namespace) -> dict[str, Any]:
    """The grammar or schema of the answer, if one is given."""
    if args.json_schema is not None:
        try:
            return {"json_schema": json.loads(args.json_schema) or {"type": "object"}}
        except (ValueError, RecursionError) as error:
            raise AssayError(f"--json-schema: not JSON ({error})") from None
    text = common.read_text(args.grammar_file, "a grammar; give a file in GBNF") if args.grammar_file else args.grammar
    return {"grammar": text} if text is not None else {}


def _unescape(text: str) -> str:
    escapes = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}
    out, rest = [], iter(text)
    for c in rest:
        following = next(rest, "") if c == "\\" else None
        out.append(c if following is None else escapes.get(following, c + following))
    return "".join(out)


def _object(result: Result, tokenizer: Tokenizer, load_seconds: float, engine: str) -> dict[str, Any]:
    timing = result.timing
    found: dict[str, Any] = {
        "prompt_ids": result.prompt_ids,
        "ids": result.ids,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "timing": {
            "load_seconds": load_seconds,
            "prompt_tokens": timing.prompt_tokens,
            "prompt_seconds": timing.prompt_seconds,
            "prompt_tokens_per_second": timing.prompt_rate,
            "tokens": timing.tokens,
            "seconds": timing.seconds,
            "tokens_per_second": timing.rate,
        },
        "engine": engine,
    }
    if result.logprobs is not None:
        found["logprobs"] = common.logprobs(result, tokenizer)
    return found
