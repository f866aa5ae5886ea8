// The tokens view: the answer first, tinted where the model was in doubt; beside it what a token could have been.

import { post } from "./api.js";
import { rawPrompt } from "./answers.js";
import { shown } from "./chat.js";
import { $, doubt, make, options, percent, roving, visible } from "./dom.js";
import { modelName } from "./models.js";
import { SENTENCE } from "./welcome.js";

const STEPS = [[0.95, "sure"], [0.6, "60 %"], [0.3, "30 %"], [0.05, "5 %"]];

function piece({ id, piece: text, special }) {
  return make("span", { class: special ? "piece special" : "piece", role: "listitem" },
    make("b", {}, visible(text)), make("small", {}, String(id)));
}

function select(element, item) {
  $("pieces").querySelector("[aria-current]")?.removeAttribute("aria-current");
  element.setAttribute("aria-current", "true");
  const p = Math.exp(item.logprob);
  $("choice").hidden = false;
  $("choice").replaceChildren(make("h2", {}, make("code", {}, visible(item.token)), ` ${percent(p)}`),
    make("p", { class: "note" }, `Token ${item.id}. The model weighed:`), options(item));
}

function generated(item) {
  const p = Math.exp(item.logprob);
  const shownAs = item.token === "" ? "∅" : item.token;
  const element = make("span", { class: "prob scored", role: "listitem", tabindex: -1, "aria-label": `${visible(item.token)}, ${percent(p)}` }, shownAs);
  element.style.setProperty("--doubtful", doubt(p));
  for (const kind of ["pointerenter", "focus", "click"]) element.addEventListener(kind, () => select(element, item));
  return element;
}

function legend() {
  const steps = STEPS.map(([p, label]) => {
    const mark = make("span", { class: "prob" }, label);
    mark.style.setProperty("--doubtful", doubt(p));
    return mark;
  });
  return make("p", { class: "key" }, "Probability: ", ...steps);
}

function listOf(pieces, label) {
  const list = make("div", { class: "pieces", role: "list", "aria-label": label });
  for (const item of pieces) list.append(piece(item), ...(item.piece.endsWith("\n") ? [make("span", { class: "break", role: "presentation" })] : []));
  return list;
}

function answer(tokens) {
  const list = make("div", { class: "probs answer", role: "list", "aria-label": "Tokens of the answer" }, ...tokens.map(generated));
  roving(list, ".scored");
  return list;
}

async function text(content) {
  const { pieces } = await post("/tokenize", { model: modelName(), content, add_special: true, with_pieces: true });
  $("choice").hidden = true;
  $("pieces").replaceChildren(listOf(pieces, "Tokens"));
  $("tokens-note").textContent = `${pieces.length} tokens, ${[...content].length} characters. The number below a token is its id.`;
}

async function last() {
  const { model, messages, tokens, raw } = shown;
  const { pieces } = raw ? await post("/tokenize", { model, content: rawPrompt(messages), add_special: true, with_pieces: true })
    : await post("/apply-template", { model, messages });
  const list = answer(tokens);
  $("pieces").replaceChildren(make("h2", {}, "Answer"), list, legend(), make("h2", {}, "Prompt, as the model reads it"), listOf(pieces, "Tokens of the prompt"));
  const surprise = tokens.reduce((sum, t) => sum - t.logprob, 0) / Math.max(tokens.length, 1);
  $("tokens-note").textContent = `${tokens.length} tokens in the answer, ${pieces.length} in the prompt` +
    (tokens.length ? `; perplexity ${Math.exp(surprise).toFixed(2)}. Point at a token, tap it, or move with the arrow keys.` : ".");
  $("choice").hidden = !tokens.length;
  const least = tokens.reduce((best, t, i) => (t.logprob < tokens[best].logprob ? i : best), 0);
  if (tokens.length) select(list.querySelectorAll(".scored")[least], tokens[least]);
}

async function look() {
  const content = $("text").value;
  try {
    if (content) await text(content);
    else if (shown.messages) await last();
    else {
      $("pieces").replaceChildren(make("button", { type: "button", onclick: () => show(SENTENCE) }, `Try “${SENTENCE}”`));
      $("choice").hidden = true;
      $("tokens-note").textContent = "Type a text, or ask something in the chat: its answer appears here.";
    }
  } catch (error) {
    $("tokens-note").textContent = error.message;
  }
}

export function show(given) {
  if (given !== undefined) $("text").value = given;
  return look();
}

export function start() {
  $("tokenize").addEventListener("submit", (event) => { event.preventDefault(); look(); });
}
