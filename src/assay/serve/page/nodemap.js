// The map of layers and operations, and the values behind a cell.

import { digits, make, off, value } from "./figures.js";

const depth = (node) => (node.nmse == null || node.nmse > 1e-1 ? 3 : node.nmse > 1e-4 ? 2 : 1); // of a wrong node
const MOST_ROWS = 24, LEAST_ROW = 12; // pixels of a row
const isInput = (node) => node.role === "embd" || node.role.startsWith("inp");

export function map(data, show) {
  const kinds = new Map(data.kinds.map((kind) => [kind.id, kind]));
  const seen = new Set();
  const buttons = []; // [row][column], for the arrow keys

  const press = (node, label) => {
    seen.add(node.known);
    const name = `${node.name}: ${node.said}`;
    const shade = ["differs", "inherited"].includes(node.known) ? ` d${depth(node)}` : "";
    const button = make("button", {
      type: "button", class: `cell ${node.known}${shade}`, title: name, "aria-label": name,
      "aria-pressed": "false", "data-node": node.name, tabindex: -1,
    }, make("span", { "aria-hidden": "true" }, kinds.get(node.known).mark), label ?? null);
    button.addEventListener("click", () => choose(button, node));
    return button;
  };
  const choose = (button, node, focus = false) => {
    for (const other of buttons.flat()) if (other) { other.setAttribute("aria-pressed", String(other === button)); other.tabIndex = other === button ? 0 : -1; }
    if (focus) button.focus();
    show(node);
  };
  const strip = (nodes) => {
    if (!nodes.length) return null;
    const line = nodes.map((node) => press(node, make("span", { class: "name" }, node.name)));
    buttons.push(line);
    return make("div", { class: "strip", role: "group", "aria-label": "outside the layers" }, ...line);
  };

  const outer = data.nodes.filter((node) => node.layer === null);
  const layers = [...new Set(data.nodes.filter((node) => node.layer !== null).map((node) => node.layer))].sort((a, b) => a - b);
  const at = new Map(data.nodes.map((node) => [`${node.role}\n${node.layer}`, node]));
  const before = strip(outer.filter(isInput));
  const body = make("tbody");
  for (const layer of layers) {
    const line = [];
    const row = make("tr", {}, make("th", { scope: "row" }, String(layer)));
    for (const role of data.roles) {
      const node = at.get(`${role}\n${layer}`);
      if (!node) seen.add("absent");
      const button = node ? press(node) : null;
      line.push(button);
      row.append(make("td", {}, button ?? make("span", { class: "cell absent", title: kinds.get("absent").legend }, make("span", { "aria-hidden": "true" }, "·"))));
    }
    buttons.push(line);
    body.append(row);
  }
  const after = strip(outer.filter((node) => !isInput(node)));
  const head = make("tr", {}, make("td"), ...data.roles.map((role) => make("th", { scope: "col" }, make("span", {}, role))));
  const table = make("table", { "aria-label": "Verdict on every operation of every layer" }, make("thead", {}, head), body);
  const tallest = Math.floor((0.5 * innerHeight) / Math.max(1, layers.length));
  table.style.setProperty("--row", `${Math.max(LEAST_ROW, Math.min(MOST_ROWS, tallest))}px`);
  table.style.setProperty("--columns", data.roles.length);
  const legend = make("ul", { class: "legend" }, ...data.kinds.filter((kind) => seen.has(kind.id)).map((kind) =>
    make("li", {}, make("span", { class: `cell ${kind.id}`, "aria-hidden": "true" }, kind.mark), kind.legend)));
  const scroll = make("div", { id: "map", class: "scroll" }, before, layers.length ? table : null, after);
  scroll.addEventListener("keydown", (event) => move(event, buttons));
  const first = buttons.flat().find((button) => button?.dataset.node === data.first) ?? buttons.flat().find(Boolean);
  return { element: scroll, legend, open: () => first?.click() };
}

// The arrow keys walk over the cells; only one of them is a stop of the Tab key.
function move(event, buttons) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const step = steps[event.key];
  if (!step) return;
  let y = buttons.findIndex((line) => line.includes(event.target));
  if (y < 0) return;
  let x = buttons[y].indexOf(event.target);
  for (;;) {
    y += step[0];
    x += step[1];
    if (y < 0 || y >= buttons.length || x < 0) return;
    const next = buttons[y][Math.min(x, buttons[y].length - 1)];
    if (step[1] && x >= buttons[y].length) return;
    if (next) {
      event.preventDefault();
      next.click();
      next.focus();
      return;
    }
  }
}

export function detail(box, node) {
  const said = make("p", {}, node.said, ". ", node.nmse == null && !node.rows.length ? null : make("span", { class: "soft" }, `${off(node.nmse)}; on its own inputs ${off(node.own_nmse)}`));
  const parts = [make("h2", {}, node.name), said, make("p", { class: "formula" }, make("code", {}, node.formula))];
  if (node.segment.length) parts.push(make("p", { class: "soft" }, `recomputed through ${node.segment.join(" → ")}`));
  if (node.rows.length) {
    const body = node.rows.map(([where, found, want, own]) => {
      const scale = Math.max(Math.abs(found), Math.abs(own), 1e-30);
      const bad = Math.abs(found - own) > 1e-3 * scale;
      const n = digits(found, Math.abs(found - want) > Math.abs(found - own) ? want : own);
      return make("tr", { class: bad ? "off" : null }, make("th", { scope: "row" }, where), ...[found, want, own].map((x) => make("td", {}, value(x, n))));
    });
    const head = ["at", "engine", "definition", "on own inputs"].map((name) => make("th", { scope: "col" }, name));
    parts.push(make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)));
  } else parts.push(make("p", { class: "soft" }, "No values to compare."));
  box.replaceChildren(...parts);
}
