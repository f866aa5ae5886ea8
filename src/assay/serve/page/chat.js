// The conversation: send, stream, stop, edit, regenerate, branch. It survives a reload (store.js).

import { stream } from "./api.js";
import { $, make, probabilities } from "./dom.js";
import { markdown } from "./markdown.js";
import { settings, systemPrompt } from "./settings.js";
import * as store from "./store.js";

const log = $("messages");
const input = $("input");
const send = $("send");
const ALTERNATIVES = 5;
const CURRENT = "assay.conversation";

let talk = store.fresh();
let running = null; // the AbortController of the answer under way
let openTokens = () => {};

export const shown = { messages: null, tokens: [], model: null }; // the answer whose tokens are looked at

const messagesTo = (node) => {
  const turns = [];
  for (let at = node; at; at = talk.nodes[at.parent]) turns.unshift({ role: at.role, content: at.content, reasoning_content: at.reasoning });
  return turns;
};

function busy(controller) {
  running = controller;
  send.textContent = controller ? "Stop" : "Send";
  $("status").textContent = controller ? "Answering…" : "";
}

async function save() {
  try { localStorage.setItem(CURRENT, talk.id); } catch { /* private windows keep nothing */ }
  if (talk.leaf) await store.keep(talk);
  await list();
}

// --- showing

function draw() {
  log.replaceChildren(...store.way(talk).map(bubble));
  log.scrollTop = log.scrollHeight;
  const last = store.way(talk).findLast((node) => node.role === "assistant");
  Object.assign(shown, last ? record(last) : { messages: null, tokens: [] });
}

const record = (node) => ({ messages: node.asked ?? messagesTo(talk.nodes[node.parent]), tokens: node.tokens ?? [], model: node.model });

function bubble(node) {
  const body = make("div", { class: "body" });
  const article = make("article", { class: `message ${node.role}`, "aria-label": node.role }, body);
  if (node.reasoning) article.insertBefore(make("div", { class: "reasoning", "aria-label": "reasoning" }, node.reasoning), body);
  if (node.fault) { article.classList.add("fault"); body.textContent = node.fault; }
  else if (node.role === "assistant") body.append(markdown(node.content));
  else body.textContent = node.content;
  article.append(tools(node, body));
  return article;
}

function tools(node, body) {
  const meta = make("div", { class: "meta" }, ...(node.facts ?? []).map((fact) => make("span", {}, fact)));
  const button = (name, onclick, attributes = {}) => meta.append(make("button", { type: "button", onclick, ...attributes }, name));
  const others = store.siblings(talk, node);
  if (others.length > 1) {
    const at = others.indexOf(node);
    const turn = (step) => () => { if (!running) { store.follow(talk, others[at + step].id); draw(); save(); } };
    button("◀", turn(-1), { disabled: at === 0, "aria-label": "Previous version" });
    meta.append(make("span", { class: "branch" }, `${at + 1} of ${others.length}`));
    button("▶", turn(1), { disabled: at === others.length - 1, "aria-label": "Next version" });
  }
  if (node.role === "user") button("Edit", () => edit(node, body), { class: "edit" });
  if (node.tokens?.length) {
    button("Probabilities", (event) => {
      const on = event.target.getAttribute("aria-pressed") !== "true";
      event.target.setAttribute("aria-pressed", String(on));
      body.replaceChildren(on ? probabilities(node.tokens) : markdown(node.content));
    }, { "aria-pressed": "false", class: "inline" });
    button("Tokens", () => { Object.assign(shown, record(node)); openTokens(); });
  }
  if (node.role === "assistant") button("Regenerate", () => regenerate(node), { class: "regenerate" });
  return meta;
}

// --- changing

function edit(node, body) {
  if (running) return;
  const field = make("textarea", { rows: 3, "aria-label": "Edit the message" });
  field.value = node.content;
  const form = make("form", { class: "editing", onsubmit: (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    talk.leaf = node.parent;
    store.add(talk, { role: "user", content: field.value.trim() });
    answer();
  } }, field, make("div", { class: "actions" }, make("button", { type: "submit" }, "Send"), make("button", { type: "button", onclick: draw }, "Cancel")));
  body.replaceChildren(form);
  field.focus();
}

function regenerate(node) {
  if (running) return;
  talk.leaf = node.parent;
  answer();
}

async function answer() {
  draw();
  const system = systemPrompt();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...messagesTo(talk.nodes[talk.leaf])];
  const body = make("div", { class: "body" });
  const article = make("article", { class: "message assistant", "aria-label": "assistant" }, body);
  log.append(article);
  log.scrollTop = log.scrollHeight;
  const controller = new AbortController();
  const request = {
    model: $("model").value || undefined, messages, ...settings(), stream: true,
    stream_options: { include_usage: true }, logprobs: true, top_logprobs: ALTERNATIVES,
  };
  const tokens = [];
  const started = performance.now();
  let text = "", frame = 0, thought = null, first = 0, usage = null, reason = null, speed = 0, fault = null;
  Object.assign(shown, { messages, tokens, model: request.model });
  busy(controller);
  await save();
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
        if (content) {
          text += content;
          frame ||= requestAnimationFrame(() => { frame = 0; body.replaceChildren(markdown(text)); }); // once a frame is enough
        }
        if (follow) log.scrollTop = log.scrollHeight;
      }
      const took = (performance.now() - first) / 1000;
      if (first && took > 0.3) $("status").textContent = `${tokens.length} tokens, ${((tokens.length - 1) / took).toFixed(1)} per second`;
    }
  } catch (error) {
    if (error.name === "AbortError") reason = "stopped";
    else { fault = text ? `${text}\n${error.message}` : error.message; reason = "error"; }
  }
  cancelAnimationFrame(frame);
  const facts = [usage ? `${usage.prompt_tokens} in (${usage.prompt_tokens_details.cached_tokens} cached), ${usage.completion_tokens} out` : `${tokens.length} tokens`];
  if (first) {
    const took = (performance.now() - first) / 1000;
    const rate = speed || (tokens.length > 1 ? (tokens.length - 1) / took : 0);
    if (rate) facts.push(`${rate.toFixed(1)} tokens/s`);
    facts.push(`first after ${((first - started) / 1000).toFixed(2)} s`);
  }
  if (reason) facts.push(reason);
  store.add(talk, { role: "assistant", content: text, reasoning: thought?.textContent, tokens, facts, fault, asked: messages, model: request.model });
  draw();
  try { await save(); } finally { busy(null); } // done is what a reload would show
}

// --- conversations

async function list() {
  const found = await store.all();
  $("conversations").replaceChildren(...found.map((c) => make("option", { value: c.id, selected: c.id === talk.id }, c.title || "untitled")));
  if (!found.some((c) => c.id === talk.id)) $("conversations").prepend(make("option", { value: talk.id, selected: true }, "New chat"));
}

function show(conversation) {
  running?.abort();
  talk = conversation;
  draw();
  save();
}

function exported() {
  const file = new Blob([JSON.stringify({ title: talk.title, messages: store.way(talk).map(({ role, content }) => ({ role, content })), conversation: talk }, null, 1)], { type: "application/json" });
  const address = URL.createObjectURL(file);
  make("a", { href: address, download: `${(talk.title || "conversation").replace(/[^\w -]+/g, "")}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function fit() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight + 2}px`;
}

export async function start(open) {
  openTokens = open;
  const stop = () => running?.abort();
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (running) return stop();
    if (!text) return;
    input.value = "";
    fit();
    while (talk.nodes[talk.leaf]?.fault) talk.leaf = talk.nodes[talk.nodes[talk.leaf].parent]?.parent ?? null; // its answer failed
    store.add(talk, { role: "user", content: text });
    answer();
  });
  input.addEventListener("input", fit);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!running) $("composer").requestSubmit();
    }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
  $("clear").addEventListener("click", () => { show(store.fresh()); input.focus(); });
  $("export").addEventListener("click", exported);
  $("delete").addEventListener("click", async () => { await store.remove(talk.id); show((await store.all())[0] ?? store.fresh()); });
  $("conversations").addEventListener("change", async (event) => {
    const found = (await store.all()).find((c) => c.id === event.target.value);
    if (found) show(found);
  });
  let last = null;
  try { last = localStorage.getItem(CURRENT); } catch { /* as above */ }
  const found = (await store.all()).find((c) => c.id === last);
  if (found && !talk.leaf) { talk = found; draw(); }
  await list();
}
