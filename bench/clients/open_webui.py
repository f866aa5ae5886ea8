"""Every kind of request that Open WebUI sends to a server, through Open WebUI's own API, as its page uses it.

    pip install open-webui                                          # in an environment of its own
    WEBUI_AUTH=False OFFLINE_MODE=True HF_HUB_OFFLINE=1 RAG_EMBEDDING_ENGINE=openai RAG_EMBEDDING_MODEL=tiny \\
        RAG_OPENAI_API_BASE_URL=http://127.0.0.1:8090/v1 RAG_OPENAI_API_KEY=none DATA_DIR=FOLDER \\
        open-webui serve --port 8091
    python bench/clients/open_webui.py http://127.0.0.1:8091 http://127.0.0.1:8090

The second address is that of bench/record.py. The exit code is 1 if Open WebUI could not use an answer.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from typing import Any
from urllib.parse import quote

import httpx

TOOL = '''"""
title: Clock
"""
class Tools:
    def clock(self, town: str) -> str:
        """
        The time in a town.
        :param town: the town
        """
        return "noon in " + town
'''
ASK = [{"role": "user", "content": "hello the world"}]
SLIDERS = {
    "temperature": 0, "max_tokens": 12, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 1, "frequency_penalty": 0.1,
    "presence_penalty": 0.1, "repeat_penalty": 1.1, "repeat_last_n": 64, "mirostat": 0, "mirostat_eta": 0.1,
    "mirostat_tau": 5, "tfs_z": 1, "num_ctx": 2048, "num_keep": 24, "num_batch": 512, "num_thread": 2, "num_gpu": 0,
    "use_mmap": True, "use_mlock": False, "stop": ["###"], "logit_bias": "5:1", "keep_alive": "5m", "think": False,
}  # fmt: skip
SHORT = {"temperature": 0, "max_tokens": 12}


class Page:
    """A signed-in user of Open WebUI, who says to the recorder what comes next."""

    def __init__(self, url: str, recorder: str) -> None:
        self.recorder = recorder
        self.failed = 0
        self.client = httpx.Client(base_url=url, timeout=120)
        found = self.client.post("/api/v1/auths/signin", json={"email": "", "password": ""}).json()
        self.client.headers["Authorization"] = f"Bearer {found['token']}"

    def ask(
        self, what: str, method: str, path: str, body: Any = None, *, status: int = 200, named: bool = True, **more: Any
    ) -> Any:
        if named:
            httpx.get(f"{self.recorder}/~what/{quote(what)}")
        reply = self.client.request(method, path, json=body, **more)
        fine = reply.status_code == status if status == 200 else reply.status_code >= 400
        self.told(what, fine, f"{reply.status_code} {reply.text}")
        try:
            return reply.json()
        except json.JSONDecodeError:
            return reply.text

    def told(self, what: str, fine: bool, shown: str) -> None:
        self.failed += not fine
        print("ok  " if fine else "FAIL", what, "|", shown[: 1200 if not fine else 110].replace("\n", " "), flush=True)

    def chat(self, what: str, model: str, *, wait: bool = True, **more: Any) -> tuple[str, str]:
        """A chat as the page begins one: stored, answered in the background, with title, tags and follow-ups."""
        user, answer = str(uuid.uuid4()), str(uuid.uuid4())
        said = {"id": user, "parentId": None, "childrenIds": [answer], "role": "user", "content": "hello the world",
                "timestamp": int(time.time()), "models": [model]}  # fmt: skip
        blank = {"id": answer, "parentId": user, "childrenIds": [], "role": "assistant", "content": "", "model": model,
                 "modelName": model, "modelIdx": 0, "timestamp": int(time.time())}  # fmt: skip
        history = {"messages": {user: said, answer: blank}, "currentId": answer}
        chat = {"title": "New Chat", "models": [model], "history": history, "messages": [said, blank], "params": {}}
        made = self.ask(what, "POST", "/api/v1/chats/new", {"chat": chat})
        body = {
            "stream": True, "model": model, "messages": ASK, "params": SHORT, "chat_id": made["id"], "id": answer,
            "session_id": "s", "parent_id": user, "user_message": said, "features": {},
            "background_tasks": {"title_generation": True, "tags_generation": True, "follow_up_generation": True},
        } | more  # fmt: skip
        begun = self.ask(what, "POST", "/api/chat/completions", body, named=False)
        if wait:
            self.wait(made["id"])
            stored = self.client.get(f"/api/v1/chats/{made['id']}").json()["chat"]["history"]["messages"][answer]
            error = stored.get("error")
            shown = stored.get("content") or stored.get("output")
            self.told(f"{what}: what the page shows", not error and bool(shown), json.dumps(error or shown))
        return made["id"], str(begun.get("task_id") or (begun.get("task_ids") or [""])[0])

    def wait(self, chat: str) -> None:
        """Until the tasks of a chat have ended."""
        for _ in range(300):
            if not self.client.get(f"/api/tasks/chat/{chat}").json().get("task_ids"):
                break
            time.sleep(0.2)
        time.sleep(0.5)


def connections(page: Page) -> None:
    server = page.recorder
    page.ask("the OpenAI connection is verified", "POST", "/openai/verify", {"url": f"{server}/v1", "key": "none"})
    page.ask("the Ollama connection is verified", "POST", "/ollama/verify", {"url": server, "key": "none"})
    page.ask("connections are saved", "POST", "/openai/config/update", {
        "ENABLE_OPENAI_API": True, "OPENAI_API_BASE_URLS": [f"{server}/v1"], "OPENAI_API_KEYS": ["none"],
        "OPENAI_API_CONFIGS": {"0": {"enable": True, "provider": "llama.cpp"}}})  # fmt: skip
    for prefix in ("", "o"):  # the prefix tells the models of both connections apart; /api/show gets it, too
        page.ask("connections are saved", "POST", "/ollama/config/update", {
            "ENABLE_OLLAMA_API": True, "OLLAMA_BASE_URLS": [server],
            "OLLAMA_API_CONFIGS": {"0": {"enable": True, "prefix_id": prefix, "key": "none"}}})  # fmt: skip
        if not prefix:
            page.ask("Ollama: about a model", "POST", "/ollama/api/show", {"model": "tiny"})
    found = page.ask("the models of both connections", "GET", "/api/models?refresh=true")
    names = [row["id"] for row in found["data"]]
    page.told("both are listed", {"tiny", "o.tiny"} <= {name.removesuffix(":latest") for name in names}, str(names))


def chats(page: Page) -> None:
    for model, kind in (("tiny", "OpenAI"), ("o.tiny", "Ollama")):
        page.chat(f"{kind}: a chat of the page, with title, tags and follow-ups", model)
        page.chat(f"{kind}: a chat with every slider moved", model, params=SLIDERS, background_tasks={})
        page.ask(f"{kind}: a chat, not streamed", "POST", "/api/chat/completions",
                 {"model": model, "messages": ASK, "stream": False, "params": SHORT})  # fmt: skip
        for task in ("title", "tags", "follow_up", "queries", "emoji", "image_prompt"):
            body = {"model": model, "messages": [*ASK, {"role": "assistant", "content": "hello"}], "prompt": "hello",
                    "type": "web_search", "chat_id": "c"}  # fmt: skip
            page.ask(f"{kind}: task {task}", "POST", f"/api/v1/tasks/{task}/completions", body)
        chat, task_id = page.chat(f"{kind}: an answer that the user stops", model, wait=False,
                                  params={"temperature": 0, "max_tokens": 3000}, background_tasks={})  # fmt: skip
        time.sleep(1)
        page.ask(f"{kind}: stop", "POST", f"/api/tasks/stop/{task_id}", named=False)
        page.wait(chat)
    page.ask("an answer as Anthropic's API", "POST", "/api/v1/messages",
             {"model": "tiny", "max_tokens": 12, "messages": ASK})  # fmt: skip


def tools(page: Page) -> None:
    page.client.delete("/api/v1/tools/id/clock/delete")  # of an earlier run
    page.ask("a tool is made", "POST", "/api/v1/tools/create",
             {"id": "clock", "name": "clock", "content": TOOL, "meta": {"description": "the time"}})  # fmt: skip
    native = SHORT | {"function_calling": "native"}
    for model, kind in (("tiny", "OpenAI"), ("o.tiny", "Ollama")):
        page.chat(f"{kind}: tools are offered", model, tool_ids=["clock"], params=native, background_tasks={})
        page.chat(f"{kind}: tools in the prompt", model, tool_ids=["clock"],
                  params=SHORT | {"function_calling": "default"}, background_tasks={})  # fmt: skip
    called = native | {"max_tokens": 500, "custom_params": {"tool_choice": "required"}}
    chat, task_id = page.chat("OpenAI: a tool is called, its result goes back", "tiny", wait=False,
                              tool_ids=["clock"], params=called, background_tasks={})  # fmt: skip
    time.sleep(6)
    page.ask("stop", "POST", f"/api/tasks/stop/{task_id}", named=False)
    page.wait(chat)


def documents(page: Page) -> None:
    server = page.recorder
    engines = {
        "openai": {"openai_config": {"url": f"{server}/v1", "key": "none"}},
        "ollama": {"ollama_config": {"url": server, "key": "none"}},
    }
    for engine, config in engines.items():
        page.ask("documents: settings", "POST", "/api/v1/retrieval/embedding/update",
                 {"RAG_EMBEDDING_ENGINE": engine, "RAG_EMBEDDING_MODEL": "tiny", "RAG_EMBEDDING_BATCH_SIZE": 4,
                  **config})  # fmt: skip
        text = f"hello the world of {engine}. in a town, at noon.\n" * 4
        path, sent = "/api/v1/files/?process_in_background=false", ("note.txt", text.encode(), "text/plain")
        file = page.ask(f"documents: a file is embedded, {engine}", "POST", path, files={"file": sent})
        page.chat(f"documents: a question about a file, {engine}", "tiny", background_tasks={},
                  files=[{"type": "file", "id": file["id"], "name": "note.txt", "status": "uploaded"}])  # fmt: skip
    page.ask("documents: settings", "POST", "/api/v1/retrieval/config/update", {
        "ENABLE_RAG_HYBRID_SEARCH": True, "RAG_RERANKING_ENGINE": "external", "RAG_RERANKING_MODEL": "tiny",
        "RAG_EXTERNAL_RERANKER_URL": f"{server}/v1/rerank", "RAG_EXTERNAL_RERANKER_API_KEY": "none", "TOP_K": 3,
        "TOP_K_RERANKER": 3, "RELEVANCE_THRESHOLD": 0})  # fmt: skip
    page.chat("documents: a question, ranked anew", "tiny", background_tasks={},
              files=[{"type": "file", "id": file["id"], "name": "note.txt", "status": "uploaded"}])  # fmt: skip


def as_ollama(page: Page) -> None:
    """The routes that Open WebUI passes on, and the settings of its admin about models."""
    model = page.ask("Ollama: models", "GET", "/ollama/api/tags")["models"][0]["model"]
    page.ask("Ollama: version", "GET", "/ollama/api/version")
    page.ask("Ollama: what is loaded", "GET", "/ollama/api/ps")
    short = {"num_predict": 8, "temperature": 0}
    page.ask("Ollama: generate", "POST", "/ollama/api/generate",
             {"model": model, "prompt": "hello", "stream": False, "options": short})  # fmt: skip
    page.ask("Ollama: chat", "POST", "/ollama/api/chat",
             {"model": model, "messages": ASK, "stream": False, "options": short})  # fmt: skip
    page.ask("Ollama: embed", "POST", "/ollama/api/embed", {"model": model, "input": ["hello", "the world"]})
    page.ask("Ollama: one embedding", "POST", "/ollama/api/embeddings", {"model": model, "prompt": "hello"})
    page.ask("Ollama: OpenAI's models", "GET", "/ollama/v1/models")
    page.ask("Ollama: OpenAI's chat", "POST", "/ollama/v1/chat/completions",
             {"model": model, "messages": ASK, "max_tokens": 8})  # fmt: skip
    page.ask("Ollama: OpenAI's completion", "POST", "/ollama/v1/completions",
             {"model": model, "prompt": "hello", "max_tokens": 8})  # fmt: skip
    page.ask("Ollama: OpenAI's embeddings", "POST", "/ollama/v1/embeddings", {"model": model, "input": "hello"})
    page.ask("Ollama: OpenAI's responses", "POST", "/ollama/v1/responses",
             {"model": model, "input": "hello", "max_output_tokens": 16})  # fmt: skip
    page.ask("Ollama: Anthropic's messages", "POST", "/ollama/v1/messages",
             {"model": model, "messages": ASK, "max_tokens": 8})  # fmt: skip
    page.ask("Ollama: a pull is refused", "POST", "/ollama/api/pull/0", {"model": "another"}, status=403)
    page.ask("Ollama: a deletion is refused", "DELETE", "/ollama/api/delete/0", {"model": model}, status=403)
    page.ask("Ollama: a copy is refused", "POST", "/ollama/api/copy/0", {"source": model, "destination": "b"},
             status=403)  # fmt: skip
    page.ask("Ollama: a preset is refused", "POST", "/ollama/api/create/0",
             {"model": "b", "from": "tiny", "system": "be brief"}, status=403)  # fmt: skip
    page.ask("Ollama: a model is unloaded", "POST", "/ollama/api/unload", {"model": model})
    page.ask("OpenAI: responses", "POST", "/openai/responses",
             {"model": "tiny", "input": "hello", "max_output_tokens": 16})  # fmt: skip
    page.ask("llama.cpp: models", "GET", "/openai/models/0/catalog")
    page.ask("llama.cpp: load", "POST", "/openai/models/0/load", {"model": "tiny"})
    page.ask("llama.cpp: an unload is refused", "POST", "/openai/models/0/unload", {"model": "tiny"}, status=403)
    page.ask("llama.cpp: a download is refused", "POST", "/openai/models/0/download", {"model": "another"}, status=403)
    page.ask("llama.cpp: a deletion is refused", "DELETE", "/openai/models/0?model=tiny", status=403)


if __name__ == "__main__":
    user = Page(*sys.argv[1:3])
    for part in (connections, chats, tools, documents, as_ollama):
        part(user)
    sys.exit(1 if user.failed else 0)
