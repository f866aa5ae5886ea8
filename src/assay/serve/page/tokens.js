// The tokens view: pieces with ids; a generated token is coloured by its probability and shows its alternatives.

import { post } from "./api.js";
import { shown } from "./chat.js";
import { $, make, options, percent, visible, withTip } from "./dom.js";

function piece({ id, piece: text, special }) {
  return make("span", { class: special ? "piece special" : "piece", role: "listitem" },
    make("b", {}, visible(text)), make("small", {}, String(id)));
}

function generated(item) {
  const p = Math.exp(item.logprob);
  const label = `${item.token}, ${percent(p)}`;
  const element = make("span", { class: "piece scored", role: "listitem", tabindex: 0, "aria-label": label },
    make("b", {}, visible(item.token)), make("small", {}, `${item.id} · ${percent(p)}`));
  element.style.setProperty("--p", p.toFixed(3));
  return withTip(element, () => options(item));
}

// A new line in the text is one on the page.
function fill(elements, texts) {
  const list = $("pieces");
  list.replaceChildren();
  elements.forEach((element, i) => {
    list.append(element);
    if (texts[i].endsWith("\n")) list.append(make("span", { class: "break", role: "presentation" }));
  });
}

export async function show() {
  const note = $("tokens-note");
  const text = $("text").value;
  const model = $("model").value || undefined;
  try {
    if (text) {
      const { pieces } = await post("/tokenize", { model, content: text, add_special: true, with_pieces: true });
      fill(pieces.map(piece), pieces.map((p) => p.piece));
      note.textContent = `${pieces.length} tokens, ${[...text].length} characters.`;
    } else if (shown.messages) {
      const { pieces } = await post("/apply-template", { model: shown.model, messages: shown.messages });
      const prompt = pieces.map(piece);
      fill([...prompt, ...shown.tokens.map(generated)], [...pieces.map((p) => p.piece), ...shown.tokens.map((t) => t.token)]);
      const surprise = shown.tokens.reduce((sum, t) => sum - t.logprob, 0) / Math.max(shown.tokens.length, 1);
      note.textContent = `The prompt has ${prompt.length} tokens, the answer ${shown.tokens.length}` +
        (shown.tokens.length ? `, with a perplexity of ${Math.exp(surprise).toFixed(2)}. Point at one to see what else it could have been.` : ".");
    } else {
      $("pieces").replaceChildren();
      note.textContent = "Ask something first, or type a text.";
    }
  } catch (error) {
    note.textContent = error.message;
  }
}

export function start() {
  $("tokenize").addEventListener("submit", (event) => { event.preventDefault(); show(); });
}
