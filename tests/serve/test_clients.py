"""Other people's clients, unchanged, against a live server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import forked
from tests.serve.conftest import Server, start_server
from tests.tiny import make

ASK = [{"role": "user", "content": "hello the world"}]
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "the weather of a town",
    "parameters": {
        "type": "object",
        "properties": {"town": {"enum": ["oslo", "rome"]}},
        "required": ["town"],
        "additionalProperties": False,
    },
}
TOOLS: list[Any] = [{"type": "function", "function": WEATHER}]
TOWN = {
    "type": "object",
    "properties": {"town": {"enum": ["oslo"]}},
    "required": ["town"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose template knows no tools."""
    found = start_server([("plain", make(tmp_path_factory.mktemp("clients") / "plain.gguf", n_ctx=2048))])
    yield found
    assert found.end() == 0


def expected(server: Server, **given: Any) -> str:
    """What the chat route says to the same question."""
    body = {"messages": ASK, "temperature": 0, "max_tokens": 4, **given}
    found = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
    return str(found["choices"][0]["message"]["content"])


# --- openai


@pytest.fixture
def openai_client(server: Server) -> Any:
    openai = pytest.importorskip("openai", reason="the openai package is not installed")
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_openai_one_model(openai_client: Any) -> None:
    assert openai_client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(Exception, match="does not exist"):
        openai_client.models.retrieve("zork")


def test_openai_responses(openai_client: Any, server: Server) -> None:
    made = openai_client.responses.create(model="tiny", input="hello the world", temperature=0, max_output_tokens=4)
    assert made.output_text == expected(server)
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert made.usage.output_tokens == 4
    messages = [{"role": "system", "content": "be brief"}, *ASK]
    told = openai_client.responses.create(
        model="tiny", instructions="be brief", input=ASK, temperature=0, max_output_tokens=4
    )
    assert told.output_text == expected(server, messages=messages)
    with pytest.raises(Exception, match="not stored"):
        openai_client.responses.create(model="tiny", input="x", previous_response_id=made.id)
    with pytest.raises(Exception, match="background: responses are not stored"):
        openai_client.responses.create(model="tiny", input="x", background=True)


def test_openai_responses_streamed(openai_client: Any, server: Server) -> None:
    with openai_client.responses.stream(model="tiny", input=ASK, temperature=0, max_output_tokens=100) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == expected(
        server, max_tokens=100
    )
    assert final.output_text == expected(server, max_tokens=100)
    assert [e.sequence_number for e in events if hasattr(e, "sequence_number")] == sorted(
        e.sequence_number for e in events if hasattr(e, "sequence_number")
    )


def test_openai_responses_with_tools_and_schemas(openai_client: Any) -> None:
    tools = [{"type": "function", "strict": False, **WEATHER}]
    given = {"model": "tiny", "temperature": 0, "tools": tools, "tool_choice": "required"}
    first = openai_client.responses.create(input=ASK, **given)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert call.name == "weather"
    assert json.loads(call.arguments)["town"] in ("oslo", "rome")
    with openai_client.responses.stream(input=ASK, **given) as stream:
        events = list(stream)
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert json.loads(done.arguments) == json.loads(call.arguments)
    parts = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert len(parts) > 2 and "".join(parts) == done.arguments
    answered = [*ASK, call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    again = openai_client.responses.create(model="tiny", input=answered, tools=tools, max_output_tokens=4)
    assert again.status in ("completed", "incomplete")
    form = {"format": {"type": "json_schema", "name": "town", "schema": TOWN}}
    assert json.loads(openai_client.responses.create(model="tiny", input=ASK, text=form).output_text) == {
        "town": "oslo"
    }


# Programs of four JavaScript clients. Each prints an object of texts; `ask` is the same question for all.
JAVASCRIPT = {
    "openai": """
        const OpenAI = require("openai");
        const client = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
        const ask = { model: "tiny", messages: [{ role: "user", content }], temperature: 0, max_tokens: 4 };
        const whole = (await client.chat.completions.create(ask)).choices[0].message.content;
        let parts = "";
        for await (const part of await client.chat.completions.create({ ...ask, stream: true })) {
          parts += part.choices[0]?.delta?.content ?? "";
        }
        const items = { model: "tiny", input: content, temperature: 0, max_output_tokens: 4 };
        const response = (await client.responses.create(items)).output_text;
        const models = []; for await (const model of client.models.list()) models.push(model.id);
        return { whole, parts, response, models: models.join() };
    """,
    "@anthropic-ai/sdk": """
        const Anthropic = require("@anthropic-ai/sdk");
        const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
        const ask = { model: "tiny", messages: [{ role: "user", content }], max_tokens: 4, temperature: 0 };
        const whole = (await client.messages.create(ask)).content[0].text;
        const parts = (await client.messages.stream(ask).finalMessage()).content[0].text;
        const counted = (await client.messages.countTokens({ model: "tiny", messages: ask.messages })).input_tokens;
        const models = []; for await (const model of client.models.list()) models.push(model.id);
        return { whole, parts, counted: counted > 5 ? "some" : "none", models: models.join() };
    """,
    "ollama": """
        const { Ollama } = require("ollama");
        const client = new Ollama({ host: url });
        const ask = { model: "tiny", messages: [{ role: "user", content }] };
        ask.options = { temperature: 0, num_predict: 4 };
        const whole = (await client.chat(ask)).message.content;
        let parts = "";
        for await (const part of await client.chat({ ...ask, stream: true })) parts += part.message.content;
        const models = (await client.list()).models.map((model) => model.model).join();
        return { whole, parts, models };
    """,
    "ai": """
        const { generateText, streamText } = require("ai");
        const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
        const model = createOpenAICompatible({ name: "assay", baseURL: url + "/v1" })("tiny");
        const ask = { model, prompt: content, temperature: 0, maxOutputTokens: 4, maxRetries: 0 };
        const whole = (await generateText(ask)).text;
        let parts = "";
        for await (const part of streamText(ask).textStream) parts += part;
        return { whole, parts };
    """,
}


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("package", JAVASCRIPT)
def test_in_javascript(server: Server, tmp_path: Path, package: str) -> None:
    script = tmp_path / "ask.cjs"
    body = f"async (url, content) => {{{JAVASCRIPT[package]}}}"
    script.write_text(
        f'({body})(process.argv[2], "hello the world").then((found) => console.log(JSON.stringify(found)));'
    )
    known = subprocess.run(["node", "-e", f"require('{package}')"], capture_output=True, cwd=tmp_path)
    if known.returncode:
        pytest.skip(f"the npm package {package} is not installed where NODE_PATH points")
    done = subprocess.run(["node", script, server.url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if counted := found.pop("counted", None):
        assert counted == "some"
    assert found.pop("models", "tiny") == "tiny"
    assert set(found.values()) == {expected(server)}


# --- ollama


@pytest.fixture
def ollama(server: Server) -> Any:
    package = pytest.importorskip("ollama", reason="the ollama package is not installed")
    return package.Client(host=server.url)


SHORT = {"temperature": 0, "num_predict": 4}


def test_ollama_chat(ollama: Any, server: Server) -> None:
    found = ollama.chat(model="tiny", messages=ASK, options=SHORT)
    assert found.message.content == expected(server)
    assert (found.done, found.done_reason, found.eval_count) == (True, "length", 4)
    parts = list(ollama.chat(model="tiny:latest", messages=ASK, options=SHORT, stream=True))
    assert "".join(part.message.content for part in parts) == expected(server)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    form = ollama.chat(model="tiny", messages=ASK, format=TOWN, options={"temperature": 0})
    assert json.loads(form.message.content) == {"town": "oslo"}


def test_ollama_tools(ollama: Any, server: Server) -> None:
    body = {"model": "tiny", "messages": ASK, "tools": TOOLS, "stream": False, "options": SHORT}
    assert httpx.post(f"{server.url}/api/chat", json=body, timeout=60).status_code == 200
    turns = [*ASK, {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "weather", "arguments": {"town": "oslo"}}}]},
        {"role": "tool", "content": "rain", "tool_name": "weather"}]  # fmt: skip
    assert ollama.chat(model="tiny", messages=turns, tools=TOOLS, options=SHORT).done


def test_ollama_generate(ollama: Any, server: Server) -> None:
    assert ollama.generate(model="tiny", prompt="hello the world", options=SHORT).response == expected(server)
    raw = ollama.generate(model="tiny", prompt="hello", raw=True, options=SHORT)
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 4}
    text = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
    assert raw.response == text
    parts = list(ollama.generate(model="tiny", prompt="hello", raw=True, options=SHORT, stream=True))
    assert "".join(part.response for part in parts) == text
    assert ollama.generate(model="tiny").done_reason == "load"


def test_ollama_about_models(ollama: Any) -> None:
    (card,) = ollama.list().models
    assert (card.model, card.details.format, card.details.family) == ("tiny", "gguf", "llama")
    shown = ollama.show("tiny")
    assert "<|turn|>" in shown.template
    assert shown.modelinfo["general.architecture"] == "llama"
    assert "tools" in shown.capabilities
    assert [m.model for m in ollama.ps().models] == ["tiny"]
    (vector,) = ollama.embed(model="tiny", input="hello").embeddings
    assert sum(x * x for x in vector) == pytest.approx(1, abs=1e-5)


def test_ollama_errors_are_texts(ollama: Any, server: Server) -> None:
    with pytest.raises(Exception, match="does not exist") as error:
        ollama.show("zork")
    assert error.value.status_code == 404
    bad = httpx.post(f"{server.url}/api/chat", json={"model": "tiny", "messages": [{"role": 3}]})
    assert bad.status_code == 400
    assert isinstance(bad.json()["error"], str)
    assert isinstance(httpx.get(f"{server.url}/api/zork").json()["error"], str)
    images = {"model": "tiny", "messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}
    refused = httpx.post(f"{server.url}/api/chat", json=images)
    assert (refused.status_code, "images are not supported by this model" in refused.text) == (400, True)


# --- llama-server


def test_llama_server_completion(server: Server) -> None:
    body = {"prompt": "hello", "temperature": 0, "n_predict": 8, "n_probs": 2, "return_tokens": True}
    whole = httpx.post(f"{server.url}/completion", json=body, timeout=60).json()
    assert (whole["stop"], whole["stop_type"], whole["tokens_predicted"]) == (True, "limit", 8)
    assert len(whole["tokens"]) == 8
    assert [len(p["top_logprobs"]) for p in whole["completion_probabilities"]] == [2] * 8
    assert whole["timings"]["predicted_n"] == 8
    with httpx.stream("POST", f"{server.url}/completion", json=body | {"stream": True}, timeout=60) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert "data: [DONE]" not in lines
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(event["content"] for event in events) == whole["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    ids = httpx.post(f"{server.url}/tokenize", json={"content": "hello", "add_special": True}).json()["tokens"]
    for prompt in (ids, [ids[0], "hello"]):
        again = httpx.post(f"{server.url}/completion", json=body | {"prompt": prompt}, timeout=60).json()
        assert again["tokens_evaluated"] >= 2
    stopped = httpx.post(f"{server.url}/completion", json=body | {"stop": whole["content"][2:4]}, timeout=60).json()
    assert stopped["stop_type"] == "word"


def test_llama_server_about_itself(server: Server) -> None:
    props = httpx.get(f"{server.url}/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert "/" not in props["model_path"]
    assert "<|turn|>" in props["chat_template"]
    slots = httpx.get(f"{server.url}/slots").json()
    assert len(slots) == props["total_slots"]
    assert not any("prompt" in slot for slot in slots)
    status = httpx.get(f"{server.url}/v1/status").json()
    assert status["models"][0]["id"] == "tiny"
    assert status["requests"] > 0


def test_filling_in_needs_a_model_that_can(server: Server) -> None:
    body = {"input_prefix": "def f(x):\n", "input_suffix": "\n    return y\n"}
    refused = httpx.post(f"{server.url}/infill", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported")


def test_filling_in(tmp_path: Path) -> None:
    """Prefix, suffix and middle are marked by the vocabulary's own tokens, whichever route asks."""
    marks = {"fim_pre": 261, "fim_suf": 262, "fim_mid": 263}
    metadata = {f"tokenizer.ggml.{name}_token_id": token for name, token in marks.items()}
    server = start_server([("fim", make(tmp_path / "fim.gguf", metadata=metadata))])
    try:
        short = {"temperature": 0, "n_predict": 4, "return_tokens": True}
        infill = {"input_prefix": "hello", "input_suffix": "world", **short}
        filled = httpx.post(f"{server.url}/infill", json=infill, timeout=60).json()

        def ids(text: str) -> list[int]:
            return list(httpx.post(f"{server.url}/tokenize", json={"content": text}).json()["tokens"])

        bos = httpx.post(f"{server.url}/tokenize", json={"content": "", "add_special": True}).json()["tokens"]
        prompt = [*bos, 261, *ids("hello"), 262, *ids("world"), 263]
        same = httpx.post(f"{server.url}/completion", json={"prompt": prompt, **short}, timeout=60).json()
        assert filled["tokens"] == same["tokens"]
        assert filled["tokens_evaluated"] == len(prompt)
        older = {"prompt": "hello", "suffix": "world", "temperature": 0, "max_tokens": 4}
        text = httpx.post(f"{server.url}/v1/completions", json=older, timeout=60).json()["choices"][0]["text"]
        ollama = {"model": "fim", "prompt": "hello", "suffix": "world", "stream": False, "options": SHORT}
        assert httpx.post(f"{server.url}/api/generate", json=ollama, timeout=60).json()["response"] == text
        assert text == filled["content"]
        shown = httpx.post(f"{server.url}/api/show", json={"model": "fim"}).json()
        assert "insert" in shown["capabilities"] and ".Suffix" in shown["template"]
        mistral = httpx.post(f"{server.url}/v1/fim/completions", json=older | {"random_seed": 1}, timeout=60).json()
        assert mistral["choices"] == [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        ]
        assert mistral["usage"]["prompt_tokens"] == len(prompt)
        hot = {"prompt": "hello", "max_tokens": 8, "temperature": 2, "random_seed": 7}
        seeded = [httpx.post(f"{server.url}/v1/fim/completions", json=hot, timeout=60).json() for _ in range(2)]
        assert seeded[0]["choices"] == seeded[1]["choices"]
        lines = httpx.post(f"{server.url}/v1/fim/completions", json=older | {"stream": True}, timeout=60).text
        parts = [
            json.loads(line[6:])["choices"][0]["delta"] for line in lines.split("\n") if line.startswith("data: {")
        ]
        assert parts[0]["role"] == "assistant" and "".join(part["content"] for part in parts) == text
    finally:
        server.end()


# --- tools on a model whose template has none


def test_tools_without_a_template_for_them(plain: Server) -> None:
    ask = {"messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 100}
    post = f"{plain.url}/v1/chat/completions"
    forced = httpx.post(post, json=ask | {"tool_choice": "required"}, timeout=60).json()["choices"][0]
    assert forced["finish_reason"] == "tool_calls"
    (call,) = forced["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["town"] in ("oslo", "rome")
    free = httpx.post(post, json=ask, timeout=60).json()["choices"][0]
    assert free["message"]["content"] or free["message"]["tool_calls"]
    turns = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]},
             {"role": "tool", "tool_call_id": call["id"], "content": "rain"}]  # fmt: skip
    assert httpx.post(post, json=ask | {"messages": turns}, timeout=60).status_code == 200


# --- pages elsewhere


def test_only_the_named_origins_may_read(tiny: Path) -> None:
    from tests.serve.conftest import SCRIPT

    script = SCRIPT.replace("port=0", "port=0, cors=('https://app.example',)").replace('key=given["key"]', 'key="k"')
    given = {"models": [("tiny", str(tiny))], "key": None, "memory": None, "options": {}, "limits": {}, "config": {}}
    process = forked.Popen([sys.executable, "-c", script, json.dumps(given)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    url = process.stdout.readline().strip()
    try:
        key = {"Authorization": "Bearer k"}
        mine = httpx.get(f"{url}/v1/models", headers={"Origin": "https://app.example", **key})
        assert mine.headers["access-control-allow-origin"] == "https://app.example"
        other = httpx.get(f"{url}/v1/models", headers={"Origin": "https://evil.example", **key})
        assert "access-control-allow-origin" not in other.headers
        asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
        before = httpx.options(f"{url}/v1/chat/completions", headers=asked)
        assert (before.status_code, before.content) == (204, b"")
        assert before.headers["access-control-allow-headers"] == "authorization,content-type"
    finally:
        process.terminate()
        process.wait(30)


def test_without_cors_there_are_no_such_headers(server: Server) -> None:
    reply = httpx.get(f"{server.url}/v1/models", headers={"Origin": "https://app.example"})
    assert not [name for name in reply.headers if name.startswith("access-control")]
    assert httpx.options(f"{server.url}/v1/models").status_code == 405


# --- the rest


def test_assay_ps(server: Server) -> None:
    done = forked.run(
        [sys.executable, "-m", "assay", "ps", "--url", server.url], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == [
        "MODEL", "STATE", "MEMORY", "RUNNING", "WAITING", "CACHE", "STATES", "TOKENS/S",
    ]  # fmt: skip
    assert done.stdout.splitlines()[1].split()[:2] == ["tiny", "loaded"]


def test_llm_with_our_plugin(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("llm", reason="llm is not installed")
    folder = Path(__file__).parents[2] / "examples" / "llm-assay"
    code = (
        "import sys, llm, llm.plugins, llm_assay; llm.plugins.load_plugins(); llm.plugins.pm.register(llm_assay)\n"
        "from llm.cli import cli; cli(sys.argv[1:])"
    )
    env = {**os.environ, "ASSAY_URL": server.url, "LLM_USER_PATH": str(tmp_path), "PYTHONPATH": str(folder)}

    def run(*args: str) -> str:
        done = subprocess.run([sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    options = ("-o", "temperature", "0", "-o", "max_tokens", "4")
    assert run("-m", "assay/tiny", "hello the world", *options).strip() == expected(server).strip()
    assert "assay/tiny" in run("models")
    assert len(json.loads(run("embed", "-m", "assay/tiny", "-c", "hello"))) == 64


@pytest.mark.slow
def test_langchain(server: Server) -> None:
    package = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    model = package.ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model="tiny", temperature=0, max_tokens=4)
    assert model.invoke("hello the world").content == expected(server)
    assert "".join(part.content for part in model.stream("hello the world")) == expected(server)
    (call,) = model.bind_tools(TOOLS, tool_choice="required").invoke("hello", max_tokens=100).tool_calls
    assert call["args"]["town"] in ("oslo", "rome")


@pytest.mark.slow
def test_langchain_as_ollama(server: Server) -> None:
    package = pytest.importorskip("langchain_ollama", reason="langchain-ollama is not installed")
    model = package.ChatOllama(base_url=server.url, model="tiny", temperature=0, num_predict=4)
    assert model.invoke("hello the world").content == expected(server)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["openai", "ollama_chat"])
def test_litellm(server: Server, dialect: str) -> None:
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    base = f"{server.url}/v1" if dialect == "openai" else server.url
    found = litellm.completion(
        model=f"{dialect}/tiny", messages=ASK, api_base=base, api_key="none", temperature=0, max_tokens=4
    )
    assert found.choices[0].message.content == expected(server)
    if dialect == "openai":
        asked = {"model": "openai/tiny", "messages": ASK, "api_base": base, "api_key": "none", "max_tokens": 100}
        parts = litellm.completion(**asked, tools=TOOLS, tool_choice="required", stream=True)
        (call,) = litellm.stream_chunk_builder(list(parts), messages=ASK).choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["town"] in ("oslo", "rome")


@pytest.mark.slow
def test_litellm_knows_a_prompt_that_is_too_long(server: Server) -> None:
    """Agents built on it shorten the conversation at this error alone."""
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    long = [{"role": "user", "content": "hello " * 600}]
    for name, base in (("openai/tiny", f"{server.url}/v1"), ("anthropic/tiny", server.url)):
        with pytest.raises(litellm.ContextWindowExceededError):
            litellm.completion(name, long, api_base=base, api_key="none", num_retries=0)


def test_litellm_as_anthropic(server: Server) -> None:
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    found = litellm.completion(
        model="anthropic/tiny", messages=ASK, api_base=server.url, api_key="none", temperature=0, max_tokens=4
    )
    assert found.choices[0].message.content == expected(server)


@pytest.mark.slow
def test_llama_index(server: Server) -> None:
    package = pytest.importorskip(
        "llama_index.llms.openai_like", reason="llama-index-llms-openai-like is not installed"
    )
    chat = pytest.importorskip("llama_index.core.llms").ChatMessage
    model = package.OpenAILike(
        model="tiny", api_base=f"{server.url}/v1", api_key="none", is_chat_model=True, is_function_calling_model=True,
        context_window=512, temperature=0, max_tokens=4,
    )  # fmt: skip
    ask = [chat(role="user", content="hello the world")]
    assert model.chat(ask).message.content == expected(server)
    assert "".join(part.delta or "" for part in model.stream_chat(ask)) == expected(server)
    model.max_tokens = 100
    made = model.chat(ask, tools=TOOLS, tool_choice="required")
    (call,) = model.get_tool_calls_from_response(made)
    assert call.tool_kwargs["town"] in ("oslo", "rome")


@pytest.mark.slow
def test_langchain_as_anthropic(server: Server) -> None:
    package = pytest.importorskip("langchain_anthropic", reason="langchain-anthropic is not installed")
    model = package.ChatAnthropic(
        base_url=server.url, api_key="none", model="tiny", temperature=0, max_tokens=4, max_retries=0
    )
    assert model.invoke("hello the world").content == expected(server)
    assert "".join(part.text for part in model.stream("hello the world")) == expected(server)
    (call,) = model.bind_tools(TOOLS, tool_choice="any").invoke("hello", max_tokens=100).tool_calls
    assert call["args"]["town"] in ("oslo", "rome")


@pytest.mark.slow
def test_llama_index_as_ollama(server: Server) -> None:
    package = pytest.importorskip("llama_index.llms.ollama", reason="llama-index-llms-ollama is not installed")
    chat = pytest.importorskip("llama_index.core.llms").ChatMessage
    model = package.Ollama(
        model="tiny", base_url=server.url, temperature=0, context_window=512, request_timeout=60,
        additional_kwargs={"num_predict": 4},
    )  # fmt: skip
    ask = [chat(role="user", content="hello the world")]
    assert model.chat(ask).message.content == expected(server)
    assert "".join(part.delta or "" for part in model.stream_chat(ask)) == expected(server)
