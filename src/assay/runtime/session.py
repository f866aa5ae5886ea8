"""A chat: messages, the chat template that encodes them, and the generator that answers.

Every turn encodes the whole conversation again, and the prefix cache finds the part that was computed before. The model
therefore sees exactly what the template makes of the messages, and edited history needs no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from assay.runtime.generate import Event, Generation, Generator
from assay.runtime.image_places import Images
from assay.runtime.params import SamplerParams

Message = dict[str, Any]
# The ids of a prompt and the places of its pictures, from messages and the pictures in them, in order.
EncodeChat = Callable[[Sequence[Message], Sequence[bytes]], tuple[Sequence[int], Images]]
ReadAnswer = Callable[[Sequence[int], str], Message]  # from the prompt's ids and the text of the answer


PICTURES = "pictures"  # of a message: the bytes of the pictures before its text


def _with_parts(messages: Sequence[Message]) -> tuple[list[Message], list[bytes]]:
    """Messages with a part for each picture, and the pictures in order."""
    found, pictures = list[Message](), list[bytes]()
    for message in messages:
        if own := message.get(PICTURES):
            parts = [*({"type": "image"} for _ in own), {"type": "text", "text": message["content"]}]
            message = {key: value for key, value in message.items() if key != PICTURES} | {"content": parts}
            pictures += own
        found.append(message)
    return found, pictures


def as_written(prompt: Sequence[int], text: str) -> Message:
    return {"role": "assistant", "content": text}


class Session:
    """Ask questions and stream the answers. An interrupted answer stays in the history as far as it was generated."""

    def __init__(
        self,
        generator: Generator,
        encode: EncodeChat,
        params: SamplerParams,
        *,
        read: ReadAnswer = as_written,
        system: str | None = None,
        max_tokens: int = -1,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
    ) -> None:
        self._generator = generator
        self._encode = encode
        self._read = read  # parses an answer into a message: reasoning fed back as content would confuse the model
        self.params = params  # of the next answer; may be replaced, as may `max_tokens`
        self.max_tokens = max_tokens
        self._stop = tuple(stop)
        self._ignore_eos = ignore_eos
        self.messages: list[Message] = []
        self._shown: list[bytes] = []  # pictures for the next message
        self.generation: Generation | None = None  # of the latest answer
        self.set_system(system)

    def reset(self) -> None:
        """Drop all messages but the system message."""
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def set_system(self, text: str | None) -> None:
        """Start a new conversation with another system message, or with none."""
        self.messages = [{"role": "system", "content": text}] if text else []

    def show(self, picture: bytes) -> None:
        """Put a picture before the text of the next message."""
        self._shown.append(picture)

    def ask(self, text: str) -> Iterator[Event]:
        """Answer a message; tokens are generated while the result is iterated. An error discards the message."""
        asked: Message = {"role": "user", "content": text}
        if self._shown:
            asked = {**asked, PICTURES: tuple(self._shown)}
            self._shown = []
        return self._answer([*self.messages, asked])

    def again(self) -> Iterator[Event]:
        """Generate another answer to the last message."""
        asked = self.messages
        while asked and asked[-1]["role"] == "assistant":
            asked = asked[:-1]
        return self._answer(asked)

    @property
    def texts(self) -> list[Message]:
        """The messages without their pictures."""
        return [{key: value for key, value in m.items() if key != PICTURES} for m in self.messages]

    @property
    def can_repeat(self) -> bool:
        return any(message["role"] == "user" for message in self.messages)

    def _answer(self, messages: list[Message]) -> Iterator[Event]:
        prompt, images = self._encode(*_with_parts(messages))
        self.generation = self._generator.generate(
            prompt,
            self.params,
            max_tokens=self.max_tokens,
            stop=self._stop,
            ignore_eos=self._ignore_eos,
            images=images,
        )
        return self._stream(self.generation, prompt, messages)

    def _stream(self, generation: Generation, prompt: Sequence[int], messages: list[Message]) -> Iterator[Event]:
        try:
            yield from generation
        finally:
            if generation.ended:
                self.messages = [*messages, self._read(prompt, generation.result.text)]
