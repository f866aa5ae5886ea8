// The server, live: streams, queue, cache, speed. It is asked once a second while the view is open.

import { get } from "./api.js";
import { $, make } from "./dom.js";

const KEPT = 60; // seconds of the curve
const speeds = [];
let timer = null;

const meter = (share, label) => {
  const bar = make("meter", { min: 0, max: 1, value: share.toFixed(3), "aria-label": label });
  return make("span", { class: "meter" }, bar, ` ${label}`);
};

function curve() {
  const NS = "http://www.w3.org/2000/svg";
  const top = Math.max(...speeds, 1);
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("viewBox", `0 0 ${KEPT} 30`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Tokens per second, the last ${speeds.length} seconds, at most ${top.toFixed(0)}`);
  const line = document.createElementNS(NS, "polyline");
  line.setAttribute("points", speeds.map((s, i) => `${KEPT - speeds.length + i},${(29 - (28 * s) / top).toFixed(1)}`).join(" "));
  svg.append(line);
  return svg;
}

function row(kind, values) {
  return make("tr", {}, ...values.map((value) => make(kind, kind === "th" ? { scope: "col" } : {}, value)));
}

function model(m, status) {
  const used = m.cache.used / Math.max(m.cache.positions, 1);
  const facts = make("div", { class: "facts" },
    make("span", {}, m.loaded ? `${(m.bytes / 1e6).toFixed(0)} MB in memory` : "on disk"),
    meter(m.running / status.parallel, `${m.running} of ${status.parallel} run`),
    meter(m.waiting / Math.max(status.queue, 1), `${m.waiting} of ${status.queue} wait`),
    meter(used, `cache ${(100 * used).toFixed(0)} %`),
    make("span", {}, `${m.tokens_per_second.toFixed(1)} tokens/s`));
  const parts = [make("h2", {}, m.id), facts];
  if (m.streams.length) {
    const head = make("thead", {}, row("th", ["state", "prompt", "cached", "answer", "seconds", "tokens/s"]));
    const body = make("tbody", {}, ...m.streams.map((s) => row("td", [
      s.state, `${s.prompt_tokens}`, `${s.cached_tokens}`, `${s.tokens}`, s.seconds.toFixed(1), s.tokens_per_second.toFixed(1)])));
    parts.push(make("div", { class: "scroll", tabindex: 0 }, make("table", { class: "streams" }, head, body)));
  }
  return make("section", { class: "card" }, ...parts);
}

async function ask() {
  try {
    const status = await get("/v1/status");
    speeds.push(status.models.reduce((sum, m) => sum + m.tokens_per_second, 0));
    while (speeds.length > KEPT) speeds.shift();
    const minutes = Math.floor(status.uptime_s / 60);
    $("server-note").textContent = `assay ${status.version}, up ${minutes} min, ${status.requests} requests; ` +
      `at most ${Math.max(...speeds).toFixed(0)} tokens/s in the last minute.`;
    $("curve").replaceChildren(curve());
    $("server-models").replaceChildren(...status.models.map((m) => model(m, status)));
  } catch (error) {
    $("server-note").textContent = error.message;
  }
}

export function watch(on) {
  clearInterval(timer);
  if (!on) return;
  ask();
  timer = setInterval(() => { if (!document.hidden) ask(); }, 1000);
}
