// The layers view: the logit lens as a grid, layers by positions; beside it the five best of one cell.

import { post } from "./api.js";
import { shown } from "./chat.js";
import { $, bars, make, visible } from "./dom.js";
import { isRaw, modelName } from "./models.js";

let asked = null; // what the grid shows
let looking = false;

function select(cell, { pieces, lens }, y, x) {
  $("grid").querySelector("[aria-current]")?.removeAttribute("aria-current");
  cell.setAttribute("aria-current", "true");
  const last = y === lens.layers.length - 1;
  $("best").hidden = false;
  $("best").replaceChildren(make("h2", {}, last ? "The model's answer" : `Layer ${layerName(lens, y)}`),
    make("p", { class: "note" }, "After ", make("code", {}, visible(pieces[lens.positions[x]].piece)), ", the five best:"),
    bars(lens.grid[y][x].map((g) => ({ text: g.piece, p: g.p, id: g.id })), lens.grid[y][x][0].id));
}

const layerName = (lens, y) => lens.layers[y].replace("l_out-", "");

function row(found, y) {
  const { lens } = found;
  const last = y === lens.layers.length - 1;
  const line = make("tr", { class: last ? "answer" : null }, make("th", { scope: "row" }, last ? "answer" : layerName(lens, y)));
  lens.grid[y].forEach((guesses, x) => {
    const [best] = guesses;
    const cell = make("td", { tabindex: -1 }, visible(best.piece));
    cell.style.setProperty("--p", best.p.toFixed(3));
    for (const kind of ["pointerenter", "focus", "click"]) cell.addEventListener(kind, () => select(cell, found, y, x));
    line.append(cell);
  });
  return line;
}

function table(found) {
  const { pieces, lens } = found;
  const head = make("tr", {}, make("th", { scope: "col" }, "layer"), ...lens.positions.map((position) => make("th", { scope: "col", title: visible(pieces[position].piece) }, visible(pieces[position].piece))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...lens.layers.map((_, y) => row(found, y))));
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

// The pictures of the conversation's last question.
function pictures() {
  const said = shown.messages?.findLast(({ role }) => role === "user")?.content;
  return Array.isArray(said) ? said.filter(({ type }) => type === "image_url") : [];
}

async function look() {
  if (looking) return;
  const prompt = $("prompt").value;
  const chat = $("templated").checked && !isRaw();
  const seen = $("pictured").checked && !isRaw() ? pictures() : [];
  const content = seen.length ? [...seen, { type: "text", text: prompt }] : prompt;
  const what = chat || seen.length ? { messages: [{ role: "user", content }] } : { prompt };
  const button = $("trace").querySelector("button");
  const note = $("layers-note");
  looking = button.disabled = true;
  note.textContent = "Looking…";
  try {
    const found = await post("/v1/trace", { model: modelName(), ...what, lens: true, top: 5 });
    asked = `${modelName()} ${prompt}`;
    $("grid").replaceChildren(table(found));
    $("grid").scrollTo($("grid").scrollWidth, $("grid").scrollHeight); // the answer is the lowest row, at the right
    const { layers, positions } = found.lens;
    const cells = $("grid").querySelectorAll("tbody tr:last-child td");
    select(cells[positions.length - 1], found, layers.length - 1, positions.length - 1);
    note.textContent = `What each of ${layers.length} layers would predict after each token, were it the last. The stronger the colour, the surer it is.`;
  } catch (error) {
    note.textContent = error.message;
  }
  looking = button.disabled = false;
}

// Filled on arrival, and again if another model was chosen.
export function show(text) {
  $("with-pictures").hidden = isRaw() || !pictures().length;
  if ($("with-pictures").hidden) $("pictured").checked = false;
  if (text !== undefined) $("prompt").value = text;
  if ($("prompt").value && asked !== `${modelName()} ${$("prompt").value}`) look();
}

export function start() {
  $("trace").addEventListener("submit", (event) => { event.preventDefault(); look(); });
  $("grid").addEventListener("keydown", move);
}
