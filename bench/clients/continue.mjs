// Every kind of request that Continue's providers send to a server, through Continue's own code.
//
// In FOLDER, `core/` is that of github.com/continuedev/continue (the providers of the editor's extension, which the
// package on npm lags behind), and providers.ts has a line for each of the names in PROVIDERS below:
//     export { default as OpenAI } from "./core/llm/llms/OpenAI";
//   npm install --ignore-scripts esbuild winston @continuedev/core @continuedev/openai-adapters
//   npx esbuild providers.ts --bundle --platform=node --outfile=providers.cjs
//     --external:sqlite --external:sqlite3 --external:onnxruntime-node --external:sharp --external:*.node
//   node bench/clients/continue.mjs FOLDER http://127.0.0.1:8090 MODEL
//
// The address is that of bench/record.py. MODEL has tokens for filling in and can rank: `tests/serve/test_recordings.py PATH` makes one.
import { mkdtempSync } from "node:fs";
import Module, { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, url, model] = process.argv.slice(2);
process.env.CONTINUE_GLOBAL_DIR = mkdtempSync(join(tmpdir(), "continue-"));
// Its databases of counts need compiled code and send nothing.
const rows = async () => [];
const stubs = { sqlite3: {}, "onnxruntime-node": {}, sharp: {} };
stubs.sqlite = { open: async () => ({ exec: rows, run: rows, get: rows, all: rows }) };
const original = Module._load;
Module._load = (name, ...rest) => stubs[name] ?? original(name, ...rest);
const providers = createRequire(import.meta.url)(join(folder, "providers.cjs"));

const question = "hello the world";
const tool = {
  type: "function",
  function: {
    name: "read_file",
    description: "View the contents of a file.",
    parameters: {
      type: "object", required: ["filepath"],
      properties: { filepath: { type: "string", description: "The path of the file" } },
    },
  },
};
const turn = [
  { role: "system", content: "You are in agent mode." },
  { role: "user", content: "read a.py" },
  { role: "assistant", content: "", toolCalls: [
    { id: "call_1", type: "function", function: { name: "read_file", arguments: '{"filepath":"a.py"}' } }] },
  { role: "tool", content: "print(1)", toolCallId: "call_1" },
];
const signal = () => new AbortController().signal;
let failed = 0;

async function step(what, work) {
  await fetch(`${url}/~what/${encodeURIComponent(what)}`);
  try {
    const found = await work();
    if (found === undefined || found === "" || found?.length === 0) throw new Error("nothing came back");
    console.log("ok  ", what, "|", JSON.stringify(found).slice(0, 100));
  } catch (error) {
    failed += 1;
    console.log("FAIL", what, "|", String(error?.stack ?? error).slice(0, 600));
  }
}

async function refused(what, work) {
  await fetch(`${url}/~what/${encodeURIComponent(what)}`);
  try {
    await work();
    failed += 1;
    console.log("FAIL", what, "| was not refused");
  } catch (error) {
    console.log("ok  ", what, "|", String(error.message ?? error).slice(0, 160));
  }
}

async function joined(stream, text) {
  let found = "";
  for await (const part of stream) found += text(part);
  return found;
}
const content = (message) => typeof message.content === "string" ? message.content : JSON.stringify(message.content);

// --- the classes of the editor's extension
const PROVIDERS = {
  OpenAI: "/v1/", LMStudio: "/v1/", Vllm: "/v1/", Mistral: "/v1/", Ollama: "/", LlamaCpp: "/", Anthropic: "/v1/",
};
const short = { maxTokens: 12, temperature: 0 };
for (const [name, path] of Object.entries(PROVIDERS)) {
  const made = new providers[name]({ model, apiBase: url + path, apiKey: "none", contextLength: 4096, uniqueId: "u",
    completionOptions: { model, ...short } });
  made.useOpenAIAdapterFor = [];
  if (made.ensureModelInfo) await made.ensureModelInfo(); // whether it fills in
  const options = { ...short, model };
  const chat = (messages, more) => joined(made.streamChat(messages, signal(), { ...options, ...more }), content);
  await step(`${name}: chat`, () => chat([{ role: "system", content: "be brief" }, { role: "user", content: question }]));
  await step(`${name}: chat, not streamed`, () => chat([{ role: "user", content: question }], { stream: false }));
  await step(`${name}: tools offered`, () => chat([{ role: "user", content: question }], { tools: [tool] }));
  await step(`${name}: a tool's result`, () => chat(turn, { tools: [tool] }));
  await step(`${name}: completion of a text`, () =>
    joined(made.streamComplete("hello the", signal(), { ...options, raw: true }), (text) => text));
  if (made.supportsFim()) {
    await step(`${name}: filling in`, () =>
      joined(made.streamFim("def add(a, b):\n    ", "\n    return c\n", signal(), { ...options, stop: ["\n\n"] }),
        (text) => text));
  } else if (["Mistral", "Ollama", "OpenAI"].includes(name)) {
    console.log("note", name, "does not fill in");
  }
  if (!["Anthropic", "LlamaCpp"].includes(name)) {
    await step(`${name}: models`, () => made.listModels());
    await step(`${name}: embeddings`, () => made.embed(["hello", "the world"]));
  }
}

// --- what they read of a model themselves
await step("Vllm: the model and its context", async () => {
  const made = new providers.Vllm({ apiBase: `${url}/v1/`, model: "", isFromAutoDetect: true, uniqueId: "u" });
  for (let i = 0; i < 50 && !made.model; i++) await new Promise((done) => setTimeout(done, 100));
  if (made.model !== model || !(made.contextLength > 0)) throw new Error(`${made.model} ${made.contextLength}`);
  return made.contextLength;
});
await step("Ollama: the context", async () => {
  const made = new providers.Ollama({ model, apiBase: `${url}/`, uniqueId: "u" });
  await joined(made.streamChat([{ role: "user", content: question }], signal(), { maxTokens: 4 }), content);
  if (made.contextLength !== 32768) throw new Error(`${made.contextLength}`);
  return made.contextLength;
});
await refused("Ollama: a model that the server may not pull", async () => {
  const reply = await fetch(`${url}/api/pull`, { method: "POST", headers: { "Content-Type": "application/json",
    Authorization: "Bearer undefined" }, body: JSON.stringify({ name: "another" }) }); // as installModel sends it
  throw new Error((await reply.json()).error);
});
await step("OpenAI: an answer that the user stops", async () => {
  const made = new providers.OpenAI({ model, apiBase: `${url}/v1/`, apiKey: "none", uniqueId: "u" });
  made.useOpenAIAdapterFor = [];
  const stop = new AbortController();
  let parts = 0;
  for await (const _ of made.streamChat([{ role: "user", content: question }], stop.signal,
    { model, maxTokens: 2000, temperature: 0 })) if (++parts === 3) stop.abort();
  return parts;
});

// --- the adapters of the command line, and of the extension where it uses them
const adapters = pathToFileURL(join(folder, "node_modules/@continuedev/openai-adapters/dist/index.js"));
const { constructLlmApi } = await import(adapters);
const BASES = {
  openai: "/v1/", "llama.cpp": "/", lmstudio: "/v1/", ollama: "/", vllm: "/v1/", mistral: "/v1/", anthropic: "/v1/",
  jina: "/v1/", cohere: "/v2/", deepseek: "/v1/",
};
const openaiTurn = turn.map(({ toolCalls, toolCallId, ...rest }) =>
  ({ ...rest, ...(toolCalls && { tool_calls: toolCalls }), ...(toolCallId && { tool_call_id: toolCallId }) }));
const delta = (chunk) => (chunk.choices[0]?.delta?.content ?? "") + JSON.stringify(chunk.choices[0]?.delta?.tool_calls ?? "")
  .replace('""', "");
for (const [provider, path] of Object.entries(BASES)) {
  const api = constructLlmApi({ provider, apiBase: url + path, apiKey: "none", model });
  const ask = { model, max_tokens: 12, temperature: 0, messages: [{ role: "user", content: question }] };
  const name = `adapter ${provider}`;
  if (!["jina", "cohere", "deepseek"].includes(provider)) {
    await step(`${name}: chat`, () => joined(api.chatCompletionStream({ ...ask, stream: true,
      stream_options: { include_usage: true } }, signal()), delta));
    await step(`${name}: chat, not streamed`, async () =>
      (await api.chatCompletionNonStream(ask, signal())).choices[0].message.content);
    await step(`${name}: an agent's turn`, () =>
      joined(api.chatCompletionStream({ ...ask, messages: openaiTurn, tools: [tool], stream: true }, signal()), delta));
    await step(`${name}: a call is required`, () => joined(api.chatCompletionStream({ ...ask, max_tokens: 400,
      tools: [tool], tool_choice: { type: "function", function: { name: "read_file" } }, stream: true }, signal()), delta));
  }
  if (!["jina", "cohere", "anthropic", "deepseek"].includes(provider)) {
    await step(`${name}: models`, async () => (await api.list()).map((row) => row.id));
    await step(`${name}: embeddings`, async () =>
      (await api.embed({ model, input: ["hello", "the world"] })).data.map((row) => row.embedding));
  }
  if (["openai", "mistral", "llama.cpp"].includes(provider)) {
    await step(`${name}: filling in`, () => joined(api.fimStream({ model, prompt: "def add(a, b):\n    ",
      suffix: "\n    return c\n", max_tokens: 12, temperature: 0, stream: true }, signal()),
      (chunk) => chunk.choices[0].delta.content));
  }
  if (["openai", "vllm", "jina", "cohere"].includes(provider)) {
    await step(`${name}: rerank`, async () => {
      const found = await api.rerank({ model, query: "hello", documents: ["hello the world", "in a"] });
      return (found.data ?? found.results).map((row) => row.relevance_score);
    });
  }
}
const api = constructLlmApi({ provider: "openai", apiBase: `${url}/v1/`, apiKey: "none", model });
await refused("a conversation that is too long", () => api.chatCompletionNonStream(
  { model, messages: [{ role: "user", content: "hello ".repeat(60000) }] }, signal()));
process.exit(failed ? 1 : 0);
