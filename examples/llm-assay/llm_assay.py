"""The models of an assay server in llm (https://llm.datasette.io).

    llm install ./examples/llm-assay
    assay serve smollm2 &
    llm -m assay/smollm2 "Why is the sky blue?"

`ASSAY_URL` names another server than http://127.0.0.1:8080, `ASSAY_API_KEY` its key. Without a server there
are no models.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import httpx
import llm
from llm.default_plugins.openai_models import AsyncChat, Chat


def url() -> str:
    return os.environ.get("ASSAY_URL", "http://127.0.0.1:8080").rstrip("/")


def _headers() -> dict[str, str]:
    key = os.environ.get("ASSAY_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _models() -> list[dict[str, Any]]:
    try:
        found = httpx.get(f"{url()}/v1/models", headers=_headers(), timeout=2.0)
        return list(found.raise_for_status().json()["data"])
    except (httpx.HTTPError, ValueError, KeyError):
        return []


class _Keyless:
    """llm asks for no key: the environment has one, or the server wants none."""

    needs_key = None
    key_env_var = None

    def get_key(self, explicit_key: str | None = None) -> str:
        return explicit_key or os.environ.get("ASSAY_API_KEY", "none")


class AssayChat(_Keyless, Chat):  # type: ignore[misc]
    pass


class AsyncAssayChat(_Keyless, AsyncChat):  # type: ignore[misc]
    pass


class AssayEmbedding(llm.EmbeddingModel):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        self.model_id = f"assay/{name}"
        self._name = name

    def embed_batch(self, items: Any) -> list[list[float]]:
        body = {"model": self._name, "input": list(items)}
        found = httpx.post(f"{url()}/v1/embeddings", json=body, headers=_headers(), timeout=600.0).raise_for_status()
        return [item["embedding"] for item in found.json()["data"]]


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    for card in _models():
        given: dict[str, Any] = {
            "model_name": card["id"], "api_base": f"{url()}/v1", "supports_schema": True, "supports_tools": True,
        }  # fmt: skip
        name = f"assay/{card['id']}"
        register(AssayChat(name, **given), AsyncAssayChat(name, **given))


@llm.hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    for card in _models():
        register(AssayEmbedding(card["id"]))
