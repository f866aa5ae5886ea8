// Two answers to one question, side by side: other models or other settings, tokens aligned, and where they part.

import { post } from "./api.js";
import { $, make, percent, token, visible } from "./dom.js";

const request = (side) => ({
  model: $(`model-${side}`).value || undefined,
  messages: [{ role: "user", content: $("question").value }],
  temperature: Number($(`temperature-${side}`).value || 0),
  seed: Number($(`seed-${side}`).value || 0),
  max_tokens: Number($("compare-tokens").value || 64),
  logprobs: true, top_logprobs: 5,
});

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
  note.textContent = "Answering…";
  try {
    const [a, b] = (await Promise.all(["a", "b"].map((side) => post("/v1/chat/completions", request(side)))))
      .map((reply) => reply.choices[0].logprobs?.content ?? []);
    const shared = common(a, b);
    const length = Math.max(a.length, b.length);
    let at = -1;
    for (let i = 0; i < length && at < 0; i++) if (a[i]?.id !== b[i]?.id) at = i;
    [a, b].forEach((tokens, side) => {
      $(side ? "answer-b" : "answer-a").replaceChildren(...tokens.map((item, i) => {
        const element = token(item);
        if (!shared[side].has(i)) element.classList.add("other");
        if (i === at) element.classList.add("part");
        return element;
      }));
    });
    note.textContent = words(a, b, at);
  } catch (error) {
    note.textContent = error.message;
  }
}

export function start() {
  $("compare-form").addEventListener("submit", (event) => { event.preventDefault(); compare(); });
}

export function models(options) {
  for (const side of ["a", "b"]) $(`model-${side}`).replaceChildren(...options.map((o) => o.cloneNode(true)));
  if (options.length > 1) $("model-b").selectedIndex = 1;
}
