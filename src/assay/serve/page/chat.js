// The conversation: send, stream, stop, regenerate. Each answer's tokens are kept for the tokens view.

import { stream } from "./api.js";
import { $, make } from "./dom.js";
import { settings, systemPrompt } from "./settings.js";

const log = $("messages");
const input = $("input");
const send = $("send");
const ALTERNATIVES = 5;

let turns = []; // {role, content, reasoning_content}
let running = null; // the AbortController of the answer under way

export const shown = { messages: null, tokens: [], model: null }; // the answer whose tokens are looked at

function bubble(role, text = "") {
  const body = make("div", { class: "body" }, text);
  const article = make("article", { class: `message ${role}`, "aria-label": role }, body);
  log.append(article);
  log.scrollTop = log.scrollHeight;
  return { article, body };
}

function busy(controller) {
  running = controller;
  send.textContent = controller ? "Stop" : "Send";
  $("status").textContent = controller ? "Answering…" : "";
}

async function answer(openTokens) {
  log.querySelectorAll(".regenerate").forEach((button) => button.remove());
  const system = systemPrompt();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...turns];
  const { article, body } = bubble("assistant");
  const meta = make("div", { class: "meta" });
  const controller = new AbortController();
  const request = {
    model: $("model").value || undefined, messages, ...settings(), stream: true,
    stream_options: { include_usage: true }, logprobs: true, top_logprobs: ALTERNATIVES,
  };
  const tokens = [];
  const started = performance.now();
  let text = "", thought = null, first = 0, usage = null, reason = null, speed = 0;
  const record = { messages, tokens, model: request.model };
  Object.assign(shown, record);
  busy(controller);
  try {
    for await (const event of stream("/v1/chat/completions", request, controller.signal)) {
      usage = event.usage ?? usage;
      speed = event.timings?.tokens_per_second ?? speed;
      const choice = event.choices[0];
      if (!choice) continue;
      reason = choice.finish_reason ?? reason;
      tokens.push(...(choice.logprobs?.content ?? []));
      const { content, reasoning_content: reasoning } = choice.delta;
      if (content || reasoning) {
        first ||= performance.now();
        const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
        if (reasoning) {
          if (!thought) article.insertBefore(thought = make("div", { class: "reasoning", "aria-label": "reasoning" }), body);
          thought.textContent += reasoning;
        }
        if (content) body.textContent = text += content;
        if (follow) log.scrollTop = log.scrollHeight;
      }
      const took = (performance.now() - first) / 1000;
      if (first && took > 0.3) $("status").textContent = `${tokens.length} tokens, ${((tokens.length - 1) / took).toFixed(1)} per second`;
    }
  } catch (error) {
    if (error.name === "AbortError") reason = "stopped";
    else {
      article.classList.add("fault");
      body.textContent = text ? `${text}\n${error.message}` : error.message;
      reason = "error";
    }
  }
  busy(null);
  if (reason !== "error") turns.push({ role: "assistant", content: text, reasoning_content: thought?.textContent });
  const facts = [];
  if (usage) facts.push(`${usage.prompt_tokens} in (${usage.prompt_tokens_details.cached_tokens} cached), ${usage.completion_tokens} out`);
  else facts.push(`${tokens.length} tokens`);
  if (first) {
    const took = (performance.now() - first) / 1000;
    const rate = speed || (tokens.length > 1 ? (tokens.length - 1) / took : 0);
    if (rate) facts.push(`${rate.toFixed(1)} tokens/s`);
    facts.push(`first after ${((first - started) / 1000).toFixed(2)} s`);
  }
  if (reason) facts.push(reason);
  meta.append(...facts.map((fact) => make("span", {}, fact)));
  if (tokens.length) meta.append(make("button", { type: "button", onclick: () => { Object.assign(shown, record); openTokens(); } }, "Tokens"));
  meta.append(make("button", { type: "button", class: "regenerate", onclick: () => regenerate(openTokens) }, "Regenerate"));
  article.append(meta);
  log.scrollTop = log.scrollHeight;
}

function regenerate(openTokens) {
  if (running) return;
  if (turns.at(-1)?.role === "assistant") turns.pop();
  log.lastElementChild?.remove();
  answer(openTokens);
}

function fit() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

export function start(openTokens) {
  const stop = () => running?.abort();
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (running) return stop();
    if (!text) return;
    input.value = "";
    fit();
    if (turns.at(-1)?.role === "user") turns.pop(); // its answer failed
    turns.push({ role: "user", content: text });
    bubble("user", text);
    answer(openTokens);
  });
  input.addEventListener("input", fit);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!running) $("composer").requestSubmit();
    }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
  $("clear").addEventListener("click", () => {
    stop();
    turns = [];
    Object.assign(shown, { messages: null, tokens: [] });
    log.replaceChildren();
    input.focus();
  });
}
