// Two answers to one question, side by side: other models or other settings, tokens aligned, and where they part.

import { answerOf } from "./answers.js";
import { $, percent, probabilities, visible } from "./dom.js";
import { cardOf, chosen } from "./models.js";

async function ask(side) {
  const model = $(`model-${side}`).value || undefined;
  const settings = {
    temperature: Number($(`temperature-${side}`).value || 0), seed: Number($(`seed-${side}`).value || 0),
    max_tokens: Number($("compare-tokens").value || 64),
  };
  const tokens = [];
  const messages = [{ role: "user", content: $("question").value }];
  for await (const part of answerOf({ model, messages, settings, raw: cardOf(model)?.template === false })) tokens.push(...part.tokens);
  return tokens;
}

// Which tokens two answers share, in order: the longest common subsequence of their ids.
function common(a, b) {
  const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i][j] = a[i].id === b[j].id ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  const shared = [new Set(), new Set()];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i].id === b[j].id) { shared[0].add(i++); shared[1].add(j++); }
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return shared;
}

function words(a, b, at) {
  if (at < 0) return a.length ? `The same ${a.length} tokens.` : "Nothing was answered.";
  const say = (t) => (t ? `“${visible(t.token)}” (${percent(Math.exp(t.logprob))})` : "the end");
  const other = b[at] && a[at]?.top_logprobs.find((t) => t.id === b[at].id);
  return `They part at token ${at + 1}: ${say(a[at])} against ${say(b[at])}` +
    (other ? `, which the first gave ${percent(Math.exp(other.logprob))}.` : ".");
}

async function compare() {
  const note = $("compare-note");
  const button = $("compare-form").querySelector("button");
  note.textContent = "Answering…";
  button.disabled = true;
  try {
    const [a, b] = await Promise.all(["a", "b"].map(ask));
    const shared = common(a, b);
    const length = Math.max(a.length, b.length);
    let at = -1;
    for (let i = 0; i < length && at < 0; i++) if (a[i]?.id !== b[i]?.id) at = i;
    [a, b].forEach((tokens, side) => {
      const list = probabilities(tokens);
      list.querySelectorAll(".prob").forEach((element, i) => {
        if (!shared[side].has(i)) element.classList.add("other");
        if (i === at) element.classList.add("part");
      });
      $(side ? "answer-b" : "answer-a").replaceChildren(list);
    });
    $("compare-key").hidden = at < 0;
    note.textContent = words(a, b, at);
  } catch (error) {
    note.textContent = error.message;
  }
  button.disabled = false;
}

// With --browser: the page that runs the chosen model in this browser.
export function show() {
  const link = $("in-browser");
  link.hidden = !chosen()?.browser;
  link.href = `/browser/${encodeURIComponent(chosen()?.id)}/`;
}

export function start() {
  $("model").addEventListener("change", show);
  $("compare-form").addEventListener("submit", (event) => { event.preventDefault(); compare(); });
  for (const side of ["a", "b"]) $(`model-${side}`).replaceChildren(...[...$("model").options].map((option) => option.cloneNode(true)));
  if ($("model").options.length > 1) $("model-b").selectedIndex = 1;
}
