// Every replica of a cluster, below the views. A server that computes in its own process shows nothing.

import { get } from "./api.js";
import { $, make } from "./dom.js";

const COLUMNS = ["replica", "node", "state", "engine", "running", "waiting", "streams", "tokens", "pages_available"];
const EVERY = 2000; // milliseconds

function table(rows) {
  const head = make("tr", {}, ...COLUMNS.map((name) => make("th", { scope: "col" }, name.replace("_", " "))));
  const body = rows.map((row) => make("tr", { class: row.suspect ? "suspect" : row.state, title: row.suspect || null },
    ...COLUMNS.map((name) => make("td", {}, String(row[name] ?? "")))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
}

async function show() {
  try {
    const { data } = await get("/v1/replicas");
    if (data.every((row) => row.node === "")) return; // this process alone
    $("replicas").replaceChildren(table(data));
    $("replicas").hidden = false;
  } catch { /* the next time */ }
  setTimeout(show, EVERY);
}

export function start() {
  show();
}
