"""The witness `xllamacpp`: llama.cpp's server in this process, asked for log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.errors import AssayError
from assay.models import Model
from assay.verify.witness.follower import packages

N_CTX = 1024


class XllamacppTalker:
    """Answers as its server does, without HTTP."""

    def __init__(self, model: Model, *, threads: int | None = None) -> None:
        (library,) = packages("xllamacpp", "xllamacpp")
        settings = library.CommonParams()
        settings.model.path = str(model.file.parts[0].path)
        settings.n_ctx, settings.n_parallel, settings.n_gpu_layers, settings.verbosity = N_CTX, 1, 0, -1
        if threads:
            settings.cpuparams.n_threads = threads
        try:
            self._server = library.Server(settings)
        except RuntimeError as error:
            raise AssayError(f"{model.file.path}: xllamacpp cannot load the file ({error})") from None

    def ask(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        server = self._server
        answer = server.handle_chat_completions if path.endswith("/chat/completions") else server.handle_completions
        try:
            found: dict[str, Any] = answer(dict(body))
        except RuntimeError as error:
            raise AssayError(f"engine xllamacpp: no answer ({error})") from None
        return found

    def close(self) -> None:
        del self._server
