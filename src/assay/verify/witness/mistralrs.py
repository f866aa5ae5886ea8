"""The witness `mistralrs`: mistral.rs in this process, asked for log-probabilities.

Only its chats return log-probabilities, so a text is sent as a chat whose template is the bare text.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.errors import AssayError
from assay.models import Model
from assay.verify.witness.follower import packages

BARE = "{{ messages[0]['content'] }}"


class MistralrsTalker:
    """Two runners over one file.

    One with the bare template, and one with the file's own, created for the first chat.
    """

    def __init__(self, model: Model, *, threads: int | None = None) -> None:
        os.environ.setdefault("RUST_LOG", "error")  # otherwise it prints its progress on stdout
        (self._library,) = packages("mistralrs", "mistralrs")
        self._path = model.file.parts[0].path
        begins = model.file.metadata.get(
            "tokenizer.ggml.add_bos_token", model.file.metadata.get("tokenizer.ggml.model") == "llama"
        )
        self._folder = tempfile.TemporaryDirectory(prefix="assay-mistralrs-")
        bare = Path(self._folder.name) / "bare.jinja"
        bare.write_text(("{{ bos_token }}" if begins else "") + BARE)
        self._text = self._runner(jinja_explicit=str(bare))
        self._chat: Any = None

    def _runner(self, **options: Any) -> Any:
        which = self._library.Which.GGUF(quantized_model_id=str(self._path.parent), quantized_filename=self._path.name)
        try:
            return self._library.Runner(which=which, **options)
        except (ValueError, RuntimeError, OSError) as error:
            raise AssayError(f"{self._path}: mistral.rs cannot load the file ({error})") from None

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if body.get("echo"):
            raise AssayError("engine mistralrs: does not score prompts")
        if path.endswith("/chat/completions"):
            self._chat = self._chat or self._runner()
            runner, messages, top = self._chat, body["messages"], body["top_logprobs"]
        else:
            runner, messages, top = self._text, [{"role": "user", "content": body["prompt"]}], body["logprobs"]
        request = self._library.ChatCompletionRequest(
            messages=messages, model="default", logprobs=True, top_logprobs=top, max_tokens=body["max_tokens"],
            temperature=float(body["temperature"]), top_p=body.get("top_p"),
        )  # fmt: skip
        try:
            reply = runner.send_chat_completion_request(request)
        except (ValueError, RuntimeError) as error:
            raise AssayError(f"engine mistralrs: no answer ({error})") from None
        choice = reply.choices[0]
        content = [_step(step) for step in (choice.logprobs.content if choice.logprobs else None) or ()]
        return {
            "choices": [{
                "message": {"content": choice.message.content}, "finish_reason": choice.finish_reason,
                "logprobs": {"content": content},
            }],
            "usage": {"prompt_tokens": reply.usage.prompt_tokens, "completion_tokens": reply.usage.completion_tokens},
        }  # fmt: skip

    def close(self) -> None:
        self._text = self._chat = None
        self._folder.cleanup()


def _step(step: Any) -> dict[str, Any]:
    """A token as OpenAI's servers give it. Its own id is known only if it is among the best."""
    top = [{"id": t.token, "token": t.bytes, "logprob": t.logprob} for t in step.top_logprobs]
    own = next((t["id"] for t in top if (t["token"], t["logprob"]) == (step.token, step.logprob)), None)
    return {"id": own, "token": step.token, "logprob": step.logprob, "top_logprobs": top}
