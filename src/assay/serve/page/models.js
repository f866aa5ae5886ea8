// The served models: their cards, the chosen one, and how fast it is on this machine.

import { get, post } from "./api.js";
import { $, make, remember } from "./dom.js";

const MEASURED = 16; // tokens
const PATIENCE = 4000; // milliseconds; a slower model is known by its first answer
let cards = [];

export const cardOf = (id) => cards.find((card) => card.id === id);
export const chosen = () => cards.find((card) => card.id === $("model").value) ?? cards[0];
export const modelName = () => $("model").value || undefined;
export const isRaw = () => chosen()?.template === false;

const key = (id) => `assay.speed.${id}`;
export const knownSpeed = (id) => Number(remember(key(id))) || 0;
export const keepSpeed = (id, speed) => { if (id && speed > 0) remember(key(id), speed.toFixed(1)); };

export async function load() {
  const { data } = await get("/v1/models");
  cards = data;
  $("model").replaceChildren(...data.map((m) => make("option", { value: m.id, title: `${m.context_length} positions` }, m.id)));
}

// Tokens per second of a loaded model that nobody uses; 0 if it is busy, on disk, or slower than patience.
export async function measure(card) {
  try {
    const status = await get("/v1/status");
    const found = status.models.find((m) => m.id === card.id);
    if (!found?.loaded || found.running || found.waiting) return 0;
    const reply = await post("/completion", { model: card.id, prompt: "The", max_tokens: MEASURED, ignore_eos: true, temperature: 0 }, AbortSignal.timeout(PATIENCE));
    keepSpeed(card.id, reply.timings.predicted_per_second);
    return reply.timings.predicted_per_second;
  } catch {
    return 0;
  }
}

const scaled = (n, units) => { let i = 0; for (; n >= 999.5 && i < units.length - 1; i += 1) n /= 1000; return `${n >= 99.5 || Number.isInteger(n) ? n.toFixed(0) : n.toPrecision(2)}${units[i]}`; };
export const parameters = (n) => scaled(n, ["", " K", " M", " B", " T"]);
export const bytes = (n) => scaled(n, [" B", " kB", " MB", " GB", " TB"]);
