"""`assay chat`: a conversation in the terminal, or through a pipe with one turn per line."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from assay.cli import common
from assay.cli.conversations import apply_setting, line_history, load_conversation, save_conversation, saved_names
from assay.cli.prompting import speed_line
from assay.cli.style import paint
from assay.cli.wrapping import AnswerPrinter
from assay.errors import AssayError
from assay.system.terminal import harmless

if TYPE_CHECKING:
    from assay.runtime.generate import Event, Result
    from assay.runtime.image_places import Images
    from assay.runtime.opening import Opened
    from assay.runtime.session import Message, Session
    from assay.text import ChatTemplate

HELP = "hold a conversation"
EXAMPLE = """
assay chat --system "Answer in one sentence."
echo "What is the capital of France?" | assay chat --temp 0 --json
"""

# A command with its arguments, its help, and its aliases.
COMMANDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("/help", "this list", ("/?", "/h")),
    ("/set NAME VALUE", "change a setting, such as temp 0.2 or stats on; without arguments: list all", ()),
    ("/system TEXT", "start a new conversation with this system message; without TEXT: with none", ()),
    ("/image FILE", "show the model a picture with the next message", ()),
    ("/reset", "start a new conversation", ("/clear", "/new")),
    ("/regenerate", "generate another answer to the last message", ("/regen", "/again")),
    ("/history", "print the conversation so far", ()),
    ("/save NAME", "save the conversation, under a name or in a file.json", ()),
    ("/load NAME", "continue a saved conversation; without NAME: list them", ()),
    ("/exit", "leave, as does Ctrl-D", ("/quit", "/bye")),
)
_NAMES = {name: usage.split()[0] for usage, _, others in COMMANDS for name in (usage.split()[0], *others)}
NOTE = 'End a line with \\ to continue on the next one, or put """ around several lines. Ctrl-C stops an answer.'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_model_argument(parser)
    parser.add_argument("--system", "-sys", type=common.text_argument, metavar="TEXT", help="a system message")
    common.add_template_argument(parser)
    common.add_image_arguments(parser)
    parser.add_argument("--stop", action="append", default=[], type=common.text_argument, metavar="TEXT",
                        help="end an answer before this text; repeatable")  # fmt: skip
    common.add_sampling_arguments(parser)
    common.add_engine_arguments(parser)
    common.add_lora_argument(parser)
    common.add_stats_argument(parser)
    common.add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    start = time.perf_counter()
    opened = common.opened(args)
    template = opened.template
    if template is None:
        raise AssayError(
            f"{opened.file.path}: has no chat template; name one with --template, or use `assay run --raw`"
        )
    params = common.sampler_params(args, opened)
    from assay.library.language_model import LanguageModel
    from assay.runtime.image_places import only_tokens
    from assay.runtime.session import Session
    from assay.text.reply import TAIL, assistant_message

    with LanguageModel(opened) as model:
        session = Session(
            model.generator,
            partial(_encoded, opened, template),
            params,
            read=lambda prompt, text: assistant_message(
                template.source, opened.tokenizer.decode(only_tokens(prompt[-TAIL:])), text
            ),
            system=args.system,
            max_tokens=args.predict,
            stop=args.stop,
            ignore_eos=args.ignore_eos,
        )
        load_seconds = time.perf_counter() - start
        for path in args.image:
            session.show(_picture(path))
        chat = _Chat(session, quiet=args.json, stats=args.stats, wrap=args.wrap, load_seconds=load_seconds)
        chat.talk()
        common.emit(args, {"messages": session.texts, "turns": chat.turns}, "")
    return 0


class _Chat:
    """The terminal side of a session: reads turns and commands, shows answers."""

    def __init__(self, session: Session, *, quiet: bool, stats: bool, wrap: bool, load_seconds: float) -> None:
        self.session = session
        self.quiet = quiet
        self.stats = stats
        self.load_seconds = load_seconds
        self.tty = sys.stdin.isatty()
        self.printer = AnswerPrinter(wrap=wrap)
        self.turns: list[dict[str, object]] = []

    def talk(self) -> None:
        with line_history() if self.tty else contextlib.nullcontext(lambda text: None) as remember:
            if self.tty:
                self.note("/? lists the commands. Ctrl-C stops an answer, Ctrl-D leaves.")
            for text in self.inputs():
                remember(text)
                if text.startswith("/") and "\n" not in text:
                    if not self.command(text):
                        return
                elif text.strip():
                    self.answer(partial(self.session.ask, text))

    def inputs(self) -> Iterator[str]:
        """Read turns: a line, lines joined by a trailing backslash, a block between triple quotes, or a paste.

        A paste, and an input that was recalled, has its line ends in it and is a turn as it is.
        """
        lines: list[str] = []
        block = False
        while True:
            try:
                line = self.read("... " if lines or block else "> ")
            except EOFError:
                if self.tty:
                    self.note("")
                if lines:
                    yield "\n".join(lines)
                return
            except KeyboardInterrupt:  # at the prompt: discard the typed lines
                self.note("")
                lines, block = [], False
                continue
            if block:
                block = not line.rstrip().endswith('"""')
                lines.append(line if block else line.rstrip()[:-3])
            elif not lines and line.startswith('"""') and "\n" not in line:
                rest = line[3:]
                block = not rest.rstrip().endswith('"""')
                lines.append(rest if block else rest.rstrip()[:-3])
            elif line.endswith("\\") and "\n" not in line:
                lines.append(line[:-1])
                continue
            else:
                lines.append(line)
            if not block:
                yield "\n".join(lines).strip("\n")
                lines = []

    def read(self, prompt: str) -> str:
        if self.tty:
            return self.ask_terminal(prompt)
        line = sys.stdin.buffer.readline()
        if not line:
            raise EOFError
        try:
            return line.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise AssayError(f"standard input: not valid UTF-8 (byte 0x{line[error.start]:02x})") from None

    def ask_terminal(self, prompt: str) -> str:
        """Read a line from the terminal. The prompt is never written to a redirected stdout."""
        if not sys.stdout.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)
            prompt = ""
        try:
            return input(_prompt(prompt))
        except UnicodeDecodeError:
            self.note("the input is not valid UTF-8; type it again")
            return ""

    def command(self, text: str) -> bool:
        """Run a command. False ends the chat."""
        typed, _, rest = text.partition(" ")
        name, rest = _NAMES.get(typed, ""), rest.strip()
        if name == "/exit":
            return False
        if not name:
            near = difflib.get_close_matches(typed, _NAMES, 1)
            self.note(f"{typed}: no such command; " + (f"did you mean {near[0]}?" if near else "/? lists them"))
            return True
        try:
            getattr(self, f"on_{name[1:]}")(rest)
        except (AssayError, OSError) as error:
            self.note(f"{name}: {error}")
        return True

    def on_help(self, _: str) -> None:
        width = max(len(usage) for usage, _, _ in COMMANDS)
        self.note("\n".join(f"{usage:<{width}}  {about}" for usage, about, _ in COMMANDS) + "\n" + NOTE)

    def on_set(self, rest: str) -> None:
        found = apply_setting(self.session, rest)
        if isinstance(found, bool):
            self.stats = found
            self.note(f"statistics {'on' if found else 'off'}")
        else:
            self.note(found)

    def on_system(self, rest: str) -> None:
        self.session.set_system(rest or None)
        self.note("started a new conversation with that system message" if rest else "no system message")

    def on_image(self, rest: str) -> None:
        if not rest:
            raise AssayError("name the file of a picture")
        self.session.show(_picture(rest))
        self.note("the picture goes with your next message")

    def on_reset(self, _: str) -> None:
        self.session.reset()
        self.note("started a new conversation")

    def on_regenerate(self, _: str) -> None:
        if self.session.can_repeat:
            self.answer(self.session.again)
        else:
            self.note("there is no message to answer yet")

    def on_history(self, _: str) -> None:
        self.note("\n".join(f"{m['role']}: {m['content']}" for m in self.session.messages) or "nothing yet")

    def on_save(self, rest: str) -> None:
        self.note(f"saved as {save_conversation(rest, self.session.texts)}")

    def on_load(self, rest: str) -> None:
        if not rest:
            self.note(", ".join(saved_names()) or "no conversation is saved; use /save NAME")
            return
        self.session.messages = load_conversation(rest)
        self.note(f"{len(self.session.messages)} messages")

    def answer(self, ask: Callable[[], Iterator[Event]]) -> None:
        """Stream an answer. Ctrl-C ends it; the conversation continues with the partial answer."""
        shown = 0
        try:
            events = ask()
            generation = self.session.generation
            assert generation is not None
            with common.interruptible(generation):
                for event in events:
                    shown += self.show(event.text)
        except AssayError as error:
            if not self.tty:
                raise
            self.note(f"assay: {error}")
            return
        result = generation.result
        self.show(result.text[shown:] + "\n")
        self.record(result)

    def record(self, result: Result) -> None:
        self.turns.append(
            {
                "text": result.text,
                "finish_reason": result.finish_reason,
                "prompt_tokens": result.timing.prompt_tokens,
                "cached_tokens": result.timing.cached_tokens,
                "tokens": result.timing.tokens,
            }
        )
        if self.stats or result.finish_reason == "interrupted":
            self.note(f"({speed_line(result, self.load_seconds)})")

    def show(self, text: str) -> int:
        if not self.quiet:
            self.printer.write(text)
        return len(text)

    def note(self, text: str) -> None:
        """Print a note on stderr, dim on a terminal."""
        print(paint(harmless(text), "dim", sys.stderr), file=sys.stderr, flush=True)


def _picture(path: str) -> bytes:
    from assay.runtime.pictured_prompt import picture_bytes

    return picture_bytes(path)


def _encoded(
    opened: Opened, template: ChatTemplate, messages: Sequence[Message], pictures: Sequence[bytes]
) -> tuple[Sequence[int], Images]:
    """The ids of a conversation, and the places of its pictures."""
    from assay.text import encode_chat

    if not pictures:
        return encode_chat(opened.tokenizer, template, messages), ()
    from assay.runtime.pictured_prompt import prompt_with_pictures

    found = [opened.pictures.read(data) for data in pictures]
    return prompt_with_pictures(opened.tokenizer, messages, found, template)


def _prompt(text: str) -> str:
    """The prompt in colour. Escape codes are marked, so that readline does not count their width."""
    painted = paint(text, "cyan")
    return painted.replace("\033[36m", "\001\033[36m\002").replace("\033[0m", "\001\033[0m\002")
