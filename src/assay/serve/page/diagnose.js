// Somebody's dump or log lines: a verdict on every node as a map, layers by nodes, and the cause in words.

import { post } from "./api.js";
import { $, make, withTip } from "./dom.js";

const LARGEST = 1.4e6; // bytes of a file; larger ones are for the command line
const zone = $("drop");
let file = null; // {name, data} of what was dropped

function map(nodes) {
  const layers = new Map();
  for (const node of nodes) {
    const [, name, layer] = /^(.*?)(?:-(\d+))?$/.exec(node.name);
    const key = layer === undefined ? "" : Number(layer);
    if (!layers.has(key)) layers.set(key, []);
    layers.get(key).push({ ...node, short: name });
  }
  const body = make("tbody");
  for (const [layer, found] of layers) {
    const row = make("tr", {}, make("th", { scope: "row" }, layer === "" ? "·" : String(layer)));
    const cell = make("td");
    for (const node of found) {
      const how = node.verdict === "wrong" ? (node.own === false ? "inherited" : "wrong") : node.verdict;
      const mark = make("span", { class: `node ${how}`, tabindex: 0, "aria-label": `${node.name}: ${how}` }, node.short);
      cell.append(withTip(mark, () => make("div", {}, `${node.name}: ${how}${node.explained_by ? `, explained by ${node.explained_by}` : ""}, nmse ${node.nmse?.toExponential(1) ?? "?"}`)), " ");
    }
    row.append(cell);
    body.append(row);
  }
  return make("table", {}, make("caption", { class: "hidden" }, "Verdict on every node"), body);
}

async function read(dropped) {
  if (!dropped) return;
  if (dropped.size > LARGEST) { $("diagnose-note").textContent = `${dropped.name}: too large for the page (${(dropped.size / 1e6).toFixed(1)} MB); use assay diagnose.`; return; }
  const bytes = new Uint8Array(await dropped.arrayBuffer());
  let text = "";
  for (let i = 0; i < bytes.length; i += 4096) text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  file = { name: dropped.name, data: btoa(text) };
  $("lines").value = "";
  $("lines").rows = 2; // what is seen next matters more
  $("diagnose-note").textContent = `${dropped.name}, ${(dropped.size / 1e3).toFixed(0)} kB`;
}

async function examine() {
  const note = $("diagnose-note");
  const text = $("lines").value;
  if (!text.trim() && !file) { note.textContent = "Drop a dump, or paste log lines."; return; }
  note.textContent = "Comparing every node with the definition; this takes a while…";
  $("map").replaceChildren();
  $("cause").textContent = "";
  $("examine").disabled = true;
  try {
    const evidence = text.trim() ? { text } : file;
    const prompt = $("fed").value || undefined;
    const found = await post("/v1/diagnose", { model: $("model").value || undefined, prompt, ...evidence });
    const wrong = found.nodes.filter((n) => n.verdict === "wrong" && n.own !== false).length;
    note.textContent = `${found.nodes.length} nodes seen, ${wrong} wrong on their own inputs: ${found.verdict}.`;
    $("map").replaceChildren(map(found.nodes));
    $("cause").textContent = found.words;
  } catch (error) {
    note.textContent = error.message;
  }
  $("examine").disabled = false;
}

export function start() {
  $("diagnose-form").addEventListener("submit", (event) => { event.preventDefault(); examine(); });
  $("dump").addEventListener("change", (event) => read(event.target.files[0]));
  $("lines").addEventListener("input", () => { file = null; });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    zone.addEventListener(kind, (event) => {
      event.preventDefault();
      zone.classList.toggle("over", kind === "dragover");
      if (kind === "drop") read(event.dataTransfer.files[0]);
    });
  }
}
