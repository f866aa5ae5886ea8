"""`assay tokenize`: token ids of a text or a chat, text of ids, and differences to the ids of another tokenizer."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.cli.common import (
    add_json_argument,
    add_model_option,
    add_template_variables,
    emit,
    model_path,
    say,
    template_arguments,
    text_argument,
    token_ids,
)
from assay.errors import AssayError
from assay.system.text_files import read_text

if TYPE_CHECKING:
    from assay.text import Tokenizer
    from assay.text.compare import Chat, TokenDifference

HELP = "show token ids and pieces of a text or a chat; explain the wrong ids of another tokenizer"
EXAMPLE = """assay tokenize smollm2 "Hello world"
assay tokenize smollm2 --ids 19556,905
assay tokenize tinyllama "1" --chat --check [1,29966,29989,1792,29989,29958,13,29896]"""

_SHOWN = 20  # differences


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[MODEL] TEXT",
        help="the model (default: smollm2) and the text; - reads the text from stdin, byte for byte",
    )
    add_model_option(parser)
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="the same as TEXT")
    parser.add_argument("--ids", type=token_ids, metavar="IDS", help="decode these ids instead")
    parser.add_argument("--no-bos", action="store_true", help="do not add BOS")
    parser.add_argument("--no-special", action="store_true", help="treat special tokens in the text as plain text")
    chat = parser.add_argument_group("chat")
    chat.add_argument(
        "--chat", action="store_true", help="treat the text as a user message and apply the chat template"
    )
    chat.add_argument("--system", type=text_argument, metavar="TEXT", help="system message for --chat")
    chat.add_argument(
        "--template", metavar="NAME|FILE",
        help="chat template instead of the model's own: chatml, llama2, llama3, zephyr (TinyLlama's), mistral, phi3, "
        "gemma, alpaca, or a file",
    )  # fmt: skip
    add_template_variables(chat)
    parser.add_argument(
        "--check", metavar="IDS",
        help="compare ids (or a file of ids) with the right ones and explain the differences; exit code 1 if any",
    )  # fmt: skip
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    text = _operands(args)
    path = model_path(args)
    from assay.gguf import open_file
    from assay.text import Tokenizer

    file = open_file(path)
    tokenizer = Tokenizer.from_gguf(file)
    for note in tokenizer.vocab.notes:
        say(f"note: {note}")
    if args.ids is not None:
        shown = tokenizer.decode(args.ids)
        emit(args, {**_listing(tokenizer, args.ids), "text": shown}, shown, exact=True)
        return 0
    assert text is not None
    chat: Chat | None = None
    if args.chat:
        from assay.text import ChatTemplate, encode_chat
        from assay.text.compare import Chat

        template = ChatTemplate.choose(file, tokenizer, args.template).with_variables(template_arguments(args))
        chat = Chat(template, _messages(args, text))
        ids = encode_chat(tokenizer, chat.template, chat.messages)
    else:
        ids = tokenizer.encode(text, parse_special=not args.no_special)
    if args.no_bos and ids[:1] == [tokenizer.bos]:
        ids = ids[1:]
    if args.check is None:
        emit(args, _listing(tokenizer, ids), lambda: "\n".join(_table(tokenizer, ids)))
        return 0
    return _check(args, tokenizer, ids, None if args.chat else text, chat)


def _operands(args: argparse.Namespace) -> str | bytes | None:
    """Assign the positional arguments to MODEL and TEXT. Returns the text, or None if ids are decoded."""
    words: list[str] = [*([] if args.model is None else [args.model]), *args.words]
    words += [] if args.prompt is None else [args.prompt]
    wanted = 0 if args.ids is not None else 1
    if len(words) > wanted + 1:
        raise AssayError(f"{words[wanted + 1]}: one argument too many; put the text in quotes")
    if len(words) < wanted:
        raise AssayError("no text given; see `assay tokenize --help`")
    if wanted and len(words) == 1 and (args.model is not None or _names_a_model(words[0])):
        raise AssayError(f"{words[0]}: no text after the model; give one, or - for standard input")
    args.model = words[0] if len(words) > wanted else None
    if not wanted:
        if args.check is not None or args.chat:
            raise AssayError("--ids: decodes ids; leave out --check and --chat")
        return None
    if (args.system is not None or args.template is not None or args.template_args) and not args.chat:
        raise AssayError("--system, --template and --template-arg need --chat")
    if words[-1] == "-":
        return sys.stdin.buffer.read()
    try:
        return text_argument(words[-1])
    except argparse.ArgumentTypeError as error:
        raise AssayError(f"TEXT: {error}; use - to read any bytes from standard input") from None


def _names_a_model(word: str) -> bool:
    from assay.runtime.model_names import find_name
    from assay.runtime.registry_models import CATALOGUE

    known = word in CATALOGUE or (":" in word and find_name(word) is not None)  # `phi` alone is also a text
    return known or word.startswith(("hf:", "ollama:")) or word.endswith(".gguf")


def _messages(args: argparse.Namespace, text: str | bytes) -> list[dict[str, str]]:
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise AssayError(
                f"standard input: not valid UTF-8 at offset {error.start}; a chat message must be text"
            ) from None
    system = [] if args.system is None else [{"role": "system", "content": args.system}]
    return [*system, {"role": "user", "content": text}]


def _listing(tokenizer: Tokenizer, ids: Sequence[int]) -> dict[str, Any]:
    """Tokens as JSON. Bytes of a piece that are not valid UTF-8 alone are written `\\xHH`."""
    return {"ids": list(ids), "pieces": [tokenizer.piece(i).decode("utf-8", "backslashreplace") for i in ids]}


def _table(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[str]:
    """A table with one line per token."""
    width = max((len(str(token)) for token in ids), default=0)
    for token in ids:
        yield f"{token:>{width}}  {tokenizer.show(token)}"


def _check(
    args: argparse.Namespace, tokenizer: Tokenizer, ids: list[int], text: str | bytes | None, chat: Chat | None
) -> int:
    from assay.text.compare import explain

    given = _check_ids(args.check)
    findings = explain(tokenizer, ids, given, text=text, chat=chat)
    result = {
        **_listing(tokenizer, ids),
        "given": given,
        "same": ids == given,
        "findings": [asdict(finding) for finding in findings],
    }
    emit(args, result, lambda: "\n".join(_verdict(ids, given, findings)))
    return 0 if ids == given else 1


def _verdict(ids: list[int], given: list[int], findings: list[TokenDifference]) -> Iterator[str]:
    if ids == given:
        yield f"same: all {len(ids)} ids agree"
        return
    for finding in findings[:_SHOWN]:
        yield f"{finding.fault}: at {finding.at}: {finding.message}"
    if len(findings) > _SHOWN:
        yield f"and {len(findings) - _SHOWN} more"
    yield f"expected  {' '.join(map(str, ids))}"
    yield f"given     {' '.join(map(str, given))}"


def _check_ids(argument: str) -> list[int]:
    """Ids from the argument, or from the file that it names."""
    try:
        return token_ids(argument)
    except argparse.ArgumentTypeError:
        path = Path(argument)
    if not path.is_file():
        raise AssayError(f"--check {argument:.60}: neither token ids such as 1,2,3 nor a file")
    try:
        return token_ids(read_text(path, "token ids; give a text file of ids such as 1,2,3"))
    except argparse.ArgumentTypeError as error:
        raise AssayError(f"--check {argument}: the file does not hold token ids ({error})") from None
