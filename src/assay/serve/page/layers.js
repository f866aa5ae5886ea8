// The layers view: the logit lens as a grid, layers by positions. Arrow keys move between cells.

import { post } from "./api.js";
import { $, alternatives, make, visible, withTip } from "./dom.js";

function table({ pieces, lens }) {
  const head = make("tr", {}, make("th", { scope: "col" }, "layer"));
  for (const position of lens.positions) head.append(make("th", { scope: "col" }, visible(pieces[position].piece)));
  const body = make("tbody");
  lens.grid.forEach((cells, layer) => {
    const row = make("tr", {}, make("th", { scope: "row" }, lens.layers[layer].replace("l_out-", "")));
    cells.forEach((guesses, i) => {
      const [best] = guesses;
      const cell = make("td", { tabindex: -1 }, visible(best.piece));
      cell.style.setProperty("--p", best.p.toFixed(3));
      withTip(cell, () => {
        const where = make("div", {}, `after ${visible(pieces[lens.positions[i]].piece)}, layer ${layer}`);
        return make("div", {}, where, alternatives(guesses.map((g) => ({ text: g.piece, p: g.p, id: g.id })), null));
      });
      row.append(cell);
    });
    body.append(row);
  });
  return make("table", {}, make("thead", {}, head), body);
}

function move(event) {
  const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
  const rows = $("grid").querySelectorAll("tbody tr");
  if (!step || !rows.length) return;
  event.preventDefault();
  const cell = document.activeElement.closest("td");
  const y = cell ? [...rows].indexOf(cell.parentElement) + step[0] : rows.length - 1;
  const x = cell ? cell.cellIndex + step[1] : rows[0].cells.length - 1;
  const next = rows[y]?.cells[x];
  if (next?.tagName === "TD") {
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

export function start() {
  $("trace").addEventListener("submit", async (event) => {
    event.preventDefault();
    const prompt = $("prompt").value;
    const what = $("templated").checked ? { messages: [{ role: "user", content: prompt }] } : { prompt };
    const button = event.submitter ?? $("trace").querySelector("button");
    const note = $("layers-note");
    button.disabled = true;
    note.textContent = "Looking…";
    try {
      const found = await post("/v1/trace", { model: $("model").value || undefined, ...what, lens: true, top: 5 });
      $("grid").replaceChildren(table(found));
      $("grid").scrollTop = $("grid").scrollHeight;
      note.textContent = `${found.lens.layers.length} layers, ${found.tokens.length} tokens. The stronger the colour, the surer the layer; the lowest row is the model's own answer.`;
    } catch (error) {
      note.textContent = error.message;
    }
    button.disabled = false;
  });
  $("grid").addEventListener("keydown", move);
}
