"""A conversation: messages, the template that spells them, and the generator that answers.

Every turn encodes the whole conversation anew; the cache finds how much of it was there before. So what the
model sees is always exactly what the template makes of the messages, and editing history costs nothing special.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from assay.runtime.generate import Event, Generation, Generator
from assay.runtime.params import SamplerParams

Message = dict[str, str]
EncodeChat = Callable[[Sequence[Message]], list[int]]
ReadAnswer = Callable[[Sequence[int], str], Message]  # from the prompt's ids and the answer


def as_written(prompt: Sequence[int], text: str) -> Message:
    return {"role": "assistant", "content": text}


class Session:
    """Ask and be answered; an answer that was cut short stays in the history as far as it came."""

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
        self._read = read  # an answer as a message: reasoning that goes back as content would confuse the model
        self.params = params  # of the next answer; they may be exchanged, as may `max_tokens`
        self.max_tokens = max_tokens
        self._stop = tuple(stop)
        self._ignore_eos = ignore_eos
        self.messages: list[Message] = []
        self.generation: Generation | None = None  # the latest
        self.set_system(system)

    def reset(self) -> None:
        """Forget the conversation, not the system message."""
        self.messages = [message for message in self.messages if message["role"] == "system"]

    def set_system(self, text: str | None) -> None:
        """Begin a new conversation under another system message, or under none."""
        self.messages = [{"role": "system", "content": text}] if text else []

    def ask(self, text: str) -> Iterator[Event]:
        """The answer to a message, as it is iterated. If it cannot be given, the message is not kept."""
        return self._answer([*self.messages, {"role": "user", "content": text}])

    def again(self) -> Iterator[Event]:
        """Another answer to the last message."""
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
        return self._follow(self.generation, prompt, messages)

    def _follow(self, generation: Generation, prompt: list[int], messages: list[Message]) -> Iterator[Event]:
        try:
            yield from generation
        finally:
            if generation.ended:
                self.messages = [*messages, self._read(prompt, generation.result.text)]
