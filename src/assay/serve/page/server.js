// The server, live: streams, queue, cache, speed. It is asked once a second while the view is open.

import { get } from "./api.js";
import { $, fading, make } from "./dom.js";
import { bytes } from "./models.js";

const KEPT = 60; // seconds of the curve
const HEIGHT = 190, LEFT = 44, RIGHT = 14, BOTTOM = 28, TOP = 16; // pixels of the curve
const NS = "http://www.w3.org/2000/svg";
const speeds = [];
let timer = null;

const svg = (tag, attributes, ...children) => {
  const element = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

// The top of the axis: 1, 2 or 5 times a power of ten, so that its marks are round.
function round(top) {
  const power = 10 ** Math.floor(Math.log10(Math.max(top, 1)));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= top);
}

function curve(width) {
  const x = (i) => LEFT + ((width - LEFT - RIGHT) * i) / (KEPT - 1);
  const most = Math.max(...speeds);
  const top = round(Math.max(most, 10));
  const y = (s) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - s / top);
  const parts = [0, top / 2, top].flatMap((s) => [
    svg("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(s), y2: y(s) }),
    svg("text", { x: LEFT - 8, y: y(s) + 4, "text-anchor": "end" }, String(s))]);
  for (const [ago, anchor] of [[60, "start"], [30, "middle"], [0, "end"]]) {
    parts.push(svg("text", { x: x(KEPT - 1 - (ago * (KEPT - 1)) / 60), y: HEIGHT - 8, "text-anchor": anchor }, ago ? `${ago} s ago` : "now"));
  }
  const points = speeds.map((s, i) => `${x(KEPT - speeds.length + i).toFixed(1)},${y(s).toFixed(1)}`);
  const from = x(KEPT - speeds.length).toFixed(1);
  parts.push(svg("polygon", { class: "area", points: `${from},${y(0)} ${points.join(" ")} ${x(KEPT - 1)},${y(0)}` }), svg("polyline", { points: points.join(" ") }));
  if (!most) parts.push(svg("text", { class: "rest", x: (LEFT + width - RIGHT) / 2, y: y(top * 0.72), "text-anchor": "middle" }, "At rest: no tokens are being computed."));
  return svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `Tokens per second in the last minute, at most ${most.toFixed(0)}` }, ...parts);
}

function gauge(value, label, share) {
  const bar = make("i");
  bar.style.setProperty("--p", Math.min(share ?? 0, 1).toFixed(3));
  return make("div", { class: "gauge" }, make("b", {}, value), make("span", {}, label), ...(share === undefined ? [] : [bar]));
}

function row(kind, values) {
  return make("tr", {}, ...values.map((value) => make(kind, kind === "th" ? { scope: "col" } : {}, value)));
}

/** Slots of running sequences and of snapshots, which prefixes go on from. */
function states(s) {
  const used = s.running + s.snapshots;
  return gauge(`${used} of ${s.slots}`, `states in use, ${s.snapshots} of them snapshots (${bytes(s.bytes)} for all)`, used / s.slots);
}

const whole = (n) => n.toLocaleString("en");
const part = (a, b) => (b ? `${((100 * a) / b).toFixed(0)} %` : "–");

// Where a table is wider than the page, it scrolls and fades at the right.
const table = (label, ...parts) => fading(make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, make("table", { class: "streams" }, ...parts)));

/** All models: what is in memory, and how much of their prompts came from the cache. */
function overview(status) {
  const { memory, models, offered } = status;
  const sum = (key) => models.reduce((total, m) => total + m[key], 0);
  const gauges = make("div", { class: "gauges" },
    gauge(bytes(memory.used), `of ${bytes(memory.limit)} for models`, memory.used / memory.limit),
    gauge(`${memory.loaded}${memory.most ? ` of ${memory.most}` : ""}`, memory.loaded === 1 ? "model in memory" : "models in memory", memory.most ? memory.loaded / memory.most : undefined),
    gauge(part(sum("cached_tokens"), sum("prompt_tokens")), `of ${whole(sum("prompt_tokens"))} prompt tokens came from the cache`, sum("cached_tokens") / Math.max(sum("prompt_tokens"), 1)));
  const state = (m) => (m.engine_of ? `engine of ${m.engine_of}` : m.loaded ? "in memory" : "on disk");
  const rows = models.map((m) => [m.id, state(m), m.loaded && !m.engine_of ? bytes(m.bytes) : "", whole(m.prompt_tokens), part(m.cached_tokens, m.prompt_tokens), whole(m.generated_tokens), m.tokens_per_second.toFixed(1)]);
  const head = make("thead", {}, row("th", ["model", "state", "memory", "prompts, tokens", "from the cache", "answers, tokens", "tokens/s"]));
  const body = make("tbody", {}, ...rows.map((values) => row("td", values)), ...offered.map((name) => row("td", [name, "on disk", "", "", "", "", ""])));
  return make("section", { class: "card", "aria-label": "Models" }, make("h2", {}, "Models"), gauges,
    table("All models", head, body));
}

function model(m, status) {
  const used = m.cache.used / Math.max(m.cache.positions, 1);
  const gauges = make("div", { class: "gauges" },
    gauge(`${m.running} of ${status.parallel}`, "streams running", m.running / status.parallel),
    gauge(`${m.waiting} of ${status.queue}`, "requests waiting", m.waiting / Math.max(status.queue, 1)),
    gauge(`${(100 * used).toFixed(0)} %`, `of ${m.cache.positions.toLocaleString("en")} cache positions`, used),
    ...(m.states ? [states(m.states)] : []),
    gauge(m.tokens_per_second.toFixed(1), "tokens/s now"));
  const parts = [make("h2", {}, m.id, " ", make("small", {}, m.loaded ? `${bytes(m.bytes)} in memory` : "on disk, not loaded")), gauges];
  if (m.streams.length) {
    const head = make("thead", {}, row("th", ["state", "prompt, tokens", "cached, tokens", "answer, tokens", "age, s", "tokens/s"]));
    const body = make("tbody", {}, ...m.streams.map((s) => row("td", [
      s.state, `${s.prompt_tokens}`, `${s.cached_tokens}`, `${s.tokens}`, s.seconds.toFixed(1), s.tokens_per_second.toFixed(1)])));
    parts.push(table("Streams", head, body));
  } else parts.push(make("p", { class: "note" }, m.loaded ? "No stream is running." : "It is loaded by the first request."));
  return make("section", { class: "card", "aria-label": m.id }, ...parts);
}

const age = (s) => (s < 60 ? `${Math.floor(s)} s` : s < 7200 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h`);

async function ask() {
  try {
    const status = await get("/v1/status");
    speeds.push(status.models.reduce((sum, m) => sum + m.tokens_per_second, 0));
    while (speeds.length > KEPT) speeds.shift();
    $("server-note").textContent = `assay ${status.version}, up for ${age(status.uptime_s)}, ${status.requests.toLocaleString("en")} requests`;
    $("curve").replaceChildren(make("h2", {}, "Speed, tokens per second"), curve(Math.max($("curve").clientWidth, 280)));
    const kept = $("server-models").querySelector(".scroll")?.scrollLeft ?? 0;
    const own = status.models.filter((m) => m.loaded && !m.engine_of);
    $("server-models").replaceChildren(overview(status), ...own.map((m) => model(m, status)));
    const scroll = $("server-models").querySelector(".scroll");
    if (scroll) scroll.scrollLeft = kept;
  } catch (error) {
    $("server-note").textContent = error.message;
  }
}

export function show() {
  hide();
  ask();
  timer = setInterval(() => { if (!document.hidden) ask(); }, 1000);
}

export function hide() { clearInterval(timer); }
