"""A chat: messages, the chat template that encodes them, and the generator that answers.

Every turn encodes the whole conversation again, and the prefix cache finds the part that was computed before. The model
therefore sees exactly what the template makes of the messages, and edited history needs no special case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from assay.runtime.generate import Event, Generation, Generator
from assay.runtime.params import SamplerParams

Message = dict[str, str]
EncodeChat = Callable[[Sequence[Message]], list[int]]
ReadAnswer = Callable[[Sequence[int], str], Message]  # from the prompt's ids and the text of the answer


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
        self.generation: Generation | None = None  # of the latest answer
        self.set_system(system)

    def reset(self) -> None:
        """Drop all messages but the system message."""
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def set_system(self, text: str | None) -> None:
        """Start a new conversation with another system message, or with none."""
        self.messages = [{"role": "system", "content": text}] if text else []

    def ask(self, text: str) -> Iterator[Event]:
        """Answer a message; tokens are generated while the result is iterated. An error discards the message."""
        return self._answer([*self.messages, {"role": "user", "content": text}])

    def again(self) -> Iterator[Event]:
        """Generate another answer to the last message."""
        asked = self.messages
        while asked and asked[-1]["role"] == "assistant":
            asked = asked[:-1]
        return self._answer(asked)

    @property
    def can_repeat(self) -> bool:
        return any(message["role"] == "user" for message in self.messages)

    def _answer(self, messages: list[Message]) -> Iterator[Event]:
        prompt = self._encode(messages)
        self.generation = self._generator.generate(
            prompt,
            self.params,
            max_tokens=self.max_tokens,
            stop=self._stop,
            ignore_eos=self._ignore_eos,
        )
        return self._stream(self.generation, prompt, messages)

    def _stream(self, generation: Generation, prompt: list[int], messages: list[Message]) -> Iterator[Event]:
        try:
            yield from generation
        finally:
            if generation.ended:
                self.messages = [*messages, self._read(prompt, generation.result.text)]
