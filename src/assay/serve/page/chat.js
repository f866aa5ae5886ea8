// The chat view: asks, streams, stops. Conversations are trees: an edit or another answer is a further branch.

import { answerOf } from "./answers.js";
import { attached, clearFiles, contentOf, startAttaching } from "./attach.js";
import { $, make, remember } from "./dom.js";
import { list, startHistory } from "./history.js";
import { icon } from "./icons.js";
import { growing } from "./markdown.js";
import { bubble, thoughtOf } from "./message.js";
import { isRaw, keepSpeed, modelName } from "./models.js";
import { settings, systemPrompt } from "./settings.js";
import * as store from "./store.js";
import { welcome } from "./welcome.js";

const log = $("messages");
const input = $("input");
const send = $("send");
const CURRENT = "assay.conversation";
const HINT = matchMedia("(hover: hover)").matches ? "Enter sends, Shift+Enter breaks the line, Escape stops." : "";

let talk = store.fresh();
let running = null; // the AbortController of the answer under way
let openView = () => {};

export const shown = { messages: null, tokens: [], model: null, raw: false }; // the answer whose tokens are looked at

const messagesTo = (node) => {
  const turns = [];
  for (let at = node; at; at = talk.nodes[at.parent]) turns.unshift({ role: at.role, content: contentOf(at), reasoning_content: at.reasoning });
  return turns;
};

function busy(controller) {
  running = controller;
  const label = controller ? "Stop" : "Send";
  send.replaceChildren(icon(controller ? "stop" : "send"));
  send.setAttribute("aria-label", label);
  send.title = label;
  log.setAttribute("aria-busy", String(controller !== null));
  $("status").textContent = controller ? "Answering…" : HINT;
}

async function save(conversation = talk) {
  remember(CURRENT, talk.id);
  if (conversation.leaf) await store.keep(conversation);
  await list();
}

// --- showing

const actions = {
  edit, regenerate, busy: () => running !== null,
  tokens: (node) => { Object.assign(shown, record(node)); openView("tokens", ""); },
  turn: (node) => { store.follow(talk, node.id); draw(); save(); },
};

function draw() {
  const nodes = store.way(talk);
  log.replaceChildren(...nodes.map((node) => bubble(talk, node, actions)));
  log.toggleAttribute("data-empty", !nodes.length);
  $("welcome").hidden = nodes.length > 0;
  if (!nodes.length) welcome({ ask, open: openView });
  input.placeholder = isRaw() ? "Text for the model to continue" : "Ask something";
  document.title = talk.title ? `${talk.title} · assay` : "assay";
  log.scrollTop = log.scrollHeight;
  const last = nodes.findLast((node) => node.role === "assistant");
  Object.assign(shown, last ? record(last) : { messages: null, tokens: [] });
}

const record = (node) => ({ messages: node.asked ?? messagesTo(talk.nodes[node.parent]), tokens: node.tokens ?? [], model: node.model, raw: node.raw });

export const redraw = () => { if (!running) draw(); };

// --- changing

function edit(node, body) {
  if (running || body.querySelector(".editing")) return;
  const before = [...body.childNodes];
  const cancel = () => { body.replaceChildren(...before); body.closest(".message").querySelector(".edit").focus(); };
  const field = make("textarea", { rows: 3, "aria-label": "Edit the message" });
  field.value = node.content;
  const form = make("form", { class: "editing", onsubmit: (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    talk.leaf = node.parent;
    store.add(talk, { role: "user", content: field.value.trim(), files: node.files, raw: isRaw() });
    answer();
  }, onkeydown: (event) => { if (event.key === "Escape") cancel(); } },
  field, make("div", { class: "actions" }, make("button", { type: "submit", class: "main" }, "Send"), make("button", { type: "button", onclick: cancel }, "Cancel")));
  body.replaceChildren(form);
  field.focus();
}

function regenerate(node) {
  if (running) return;
  talk.leaf = node.parent;
  answer();
}

function ask(text, files = []) {
  while (talk.nodes[talk.leaf]?.fault) talk.leaf = talk.nodes[talk.nodes[talk.leaf].parent]?.parent ?? null; // its answer failed
  store.add(talk, { role: "user", content: text, files: files.length ? files : undefined, raw: isRaw() });
  answer();
}

// The answer as it grows: text is drawn once a frame, and the log follows if its end is in sight.
function drawing(article, body, raw) {
  const grown = raw ? { push: (text) => body.append(text), end() {} } : growing(body);
  let waiting = "", frame = 0, thought = null;
  const flush = () => {
    frame = 0;
    const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    grown.push(waiting);
    waiting = "";
    if (follow) log.scrollTop = log.scrollHeight;
  };
  return {
    text(text) { waiting += text; frame ||= requestAnimationFrame(flush); },
    reasoning(text) {
      if (!thought) { const [box, inner] = thoughtOf(""); thought = inner; article.insertBefore(box, body); }
      thought.append(text);
      log.scrollTop = log.scrollHeight;
    },
    thought: () => thought?.textContent,
    end() { cancelAnimationFrame(frame); if (waiting) flush(); grown.end(); },
  };
}

async function answer() {
  draw();
  const asking = talk; // another conversation may be opened meanwhile, which stops this answer
  const raw = isRaw(), model = modelName(), system = raw ? "" : systemPrompt();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...messagesTo(talk.nodes[talk.leaf])];
  const body = make("div", { class: "body" });
  const article = make("article", { class: `message assistant${raw ? " raw" : ""}`, "aria-label": "Answer" }, body);
  log.append(article);
  log.scrollTop = log.scrollHeight;
  const controller = new AbortController();
  const picture = drawing(article, body, raw);
  const tokens = [], parts = [];
  const started = performance.now();
  let first = 0, usage = null, reason = null, speed = 0, fault = null;
  Object.assign(shown, { messages, tokens, model, raw });
  busy(controller);
  await save();
  try {
    for await (const part of answerOf({ model, messages, settings: settings(), raw, signal: controller.signal })) {
      usage = part.usage || usage;
      speed = part.speed || speed;
      reason = part.reason ?? reason;
      tokens.push(...part.tokens);
      if (part.text || part.reasoning) first ||= performance.now();
      if (part.reasoning) picture.reasoning(part.reasoning);
      if (part.text) { parts.push(part.text); picture.text(part.text); }
      const took = (performance.now() - first) / 1000;
      if (first && took > 0.3) $("status").textContent = `${tokens.length} tokens, ${((tokens.length - 1) / took).toFixed(1)} per second`;
    }
  } catch (error) {
    if (error.name === "AbortError") reason = "stopped";
    else { fault = error.message; reason = "error"; }
  }
  picture.end();
  const text = parts.join("");
  const rate = speed || (first && tokens.length > 1 ? (tokens.length - 1) / ((performance.now() - first) / 1000) : 0);
  if (tokens.length > 8) keepSpeed(model, rate);
  const figures = { usage, speed: rate, first: first ? (first - started) / 1000 : 0, reason };
  const gone = talk !== asking && !(await store.get(asking.id)); // it was deleted
  if (!gone) store.add(asking, { role: "assistant", content: text, reasoning: picture.thought(), tokens, figures, fault: fault && text ? `${text}\n${fault}` : fault, asked: messages, model, raw });
  if (talk === asking) draw();
  try { if (!gone) await save(asking); } finally { if (running === controller) busy(null); } // done is what a reload would show
}

// --- conversations

function show(conversation) {
  if ($("chat").hidden) openView("chat");
  if (running && conversation.id === talk.id) return; // its answer is under way
  running?.abort();
  talk = conversation;
  draw();
  save();
}

function exported() {
  const file = new Blob([JSON.stringify({ title: talk.title, messages: store.way(talk).map((node) => ({ role: node.role, content: contentOf(node) })), conversation: talk }, null, 1)], { type: "application/json" });
  const address = URL.createObjectURL(file);
  make("a", { href: address, download: `${(talk.title || "conversation").replace(/[^\w -]+/g, "")}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function fit() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

function submit(event) {
  event.preventDefault();
  if (running) { running.abort(); return; }
  const text = isRaw() ? input.value : input.value.trim();
  if (!text.trim() && !attached().length) return;
  const files = attached();
  input.value = "";
  clearFiles();
  fit();
  ask(text, files);
}

export async function start(open) {
  openView = open;
  $("composer").addEventListener("submit", submit);
  input.addEventListener("input", fit);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!running) $("composer").requestSubmit();
    }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.abort(); });
  $("export").addEventListener("click", exported);
  startAttaching();
  startHistory({ current: () => talk, show, here: () => !$("chat").hidden, renamed: (other) => { if (other.id === talk.id) { talk.title = other.title; document.title = `${talk.title} · assay`; } } });
  busy(null);
  const last = remember(CURRENT);
  const found = last ? await store.get(last) : null;
  if (found && !talk.leaf) talk = found;
  if (!running) draw();
  await list();
}
