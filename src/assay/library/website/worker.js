// The worker of an exported site: loads plan and weights, then answers prompts one at a time.
// In:  {files} · {messages, raw, maxTokens, params, rows} · {cancel: true}
// Out: {plan} · {loaded, total} · {doing} · {missing} · {failed} · {ready}
//      {doing} · {text} · {error} · {done, ended, context, prompt, reused, ids, hash, tokens, rows, rate, first}
import { rowHashes } from "./compare.js";
import { Runner, sha256 } from "./runner.js";
import { penalises, sample } from "./sampler.js";
import { Detokenizer, Tokenizer } from "./tokenizer.js";
import { Ascending, WrongFile, localFile, remoteFile } from "./weights.js";

const AHEAD = 4;  // steps submitted before the results of their predecessors are read; none in software, which gains nothing
const say = (message) => postMessage(message);
let cancelled = false;

/** The plan, from this page's own folder. */
async function fetchPlan() {
  say({ doing: "reading the plan; a server makes it when it is first asked for, which takes a while" });
  const reply = await fetch("plan.json");
  if (!reply.ok) throw new Error(`plan.json: ${(await reply.json().catch(() => null))?.error?.message ?? `the host answers ${reply.status}`}`);
  return reply.json();
}

/** Load the model: from the files that the user chose, or from this page's host. */
async function open(chosen, signal) {
  const plan = await planned;
  say({ plan: { model: plan.model, files: plan.files.filter((file) => file.header) } });
  const sources = plan.files.map((file) => {
    const mine = chosen && file.header ? pick(chosen, plan, file) : null;
    return mine ? new Ascending(mine.name, localFile(mine)) : new Ascending(file.name, remoteFile(file.name, file.bytes, signal));
  });
  const runner = await Runner.open(plan, sources, (message) => {
    signal.throwIfAborted();
    say(message);
  });
  say({ ready: { model: plan.model, adapter: runner.adapter, tier: runner.tier, failures: runner.failures, bytes: runner.bytes, context: plan.context, served: plan.served, turns: Boolean(plan.frame && plan.frame.next !== null), seconds: runner.seconds } });
  return { plan, runner, tokenizer: new Tokenizer(plan.tokenizer), cached: [] };
}

/** Of the chosen files the one that the plan means. Its header is checked when it is read. */
function pick(chosen, plan, { own, bytes }) {
  const parts = plan.files.filter((file) => file.header).length;
  const found = parts === 1 ? chosen[0] : chosen.find(({ name }) => name === own);
  if (!found) throw new WrongFile(`${own} is missing; choose all ${parts} parts of the model together`);
  if (found.size !== bytes) throw new WrongFile(`${found.name} has ${found.size} bytes; this page needs ${own}, which has ${bytes}`);
  return found;
}

/**
 * The ids of a conversation: user's and model's messages in turn, the last one the user's, inside the frame of the chat
 * template. `raw`, or a model without a template, takes the only message as it is.
 */
function encode({ plan, tokenizer }, messages, raw) {
  const { frame } = plan;
  if (raw || !frame) return tokenizer.encode(messages.at(-1));
  const shown = messages.map((text, i) => (frame.trimmed[i % 2] ? text.trim() : text));
  const turns = shown.slice(0, -1).map((text, i) => text + (i % 2 ? frame.next : frame.asked));
  return tokenizer.encodeChat(frame.before + turns.join("") + shown.at(-1) + frame.after);
}

/** How many ids at the start are in the cache already. At least one id is always computed, whose logits are read. */
function shared(cached, ids) {
  let n = 0;
  while (n < Math.min(cached.length, ids.length - 1) && cached[n] === ids[n]) n++;
  return n;
}

/** Submit the first parts of a prompt, from id `start` on, and leave the last one. Returns the place where that begins. */
async function readPrompt(model, prompt, start) {
  const { runner } = model;
  const submitted = [];
  let at = start;
  while (prompt.length - at > runner.part) {
    runner.fill(prompt.slice(at, at + runner.part), at);
    at += runner.part;
    submitted.push(runner.finished());
    if (submitted.length > AHEAD) await submitted.shift();
    say({ doing: `reading the prompt: ${at} of ${prompt.length} tokens` });
    if (!cancelled) continue;
    await Promise.all(submitted);
    model.cached = prompt.slice(0, at);
    throw new Error("stopped before the answer began");
  }
  return at;
}

/**
 * The answer to `messages`. `params` has the sampler's settings; without a temperature the most probable token is chosen.
 * `hash` is over the hashes of the logits of every step; with `rows`, `tokens` and `rows` have the choice of every step
 * and the hashes of its logits as in receipts.
 */
async function answer(model, { messages, raw, maxTokens = 64, params = {}, rows: wanted = false }) {
  const { plan, runner, tokenizer, cached } = model;
  const detokenizer = new Detokenizer(tokenizer);
  const prompt = encode(model, messages, raw);
  if (prompt.length > plan.context) throw new Error(`the conversation has ${prompt.length} tokens; this page holds ${plan.context}; shorten it${messages.length > 1 ? ", or start a new one" : ""}`);
  const most = Math.min(maxTokens, plan.context - prompt.length + 1);
  const greedy = !(params.temp > 0) && !penalises(params);  // then the device chooses, and steps are submitted ahead
  const ahead = greedy && !runner.software ? AHEAD : 0;
  const ids = [...prompt];
  const answered = [];
  const hashes = [];
  const tokens = [];
  const rows = [];
  const steps = [];
  const times = [performance.now()];
  const reused = shared(cached, prompt);
  model.cached = [];  // what the cache holds is known again when all steps have ended
  let submitted = 0;
  let ended = most < maxTokens ? "context" : "limit";
  cancelled = false;
  const read = await readPrompt(model, prompt, reused);
  for (;;) {
    while (submitted < most && steps.length <= ahead) {
      const at = prompt.length + submitted - 1;
      const step = submitted ? runner.step(greedy ? null : [ids[at]], at) : runner.step(prompt.slice(read), read);
      step.catch(() => {});  // awaited below, unless an earlier one fails
      steps.push(step);
      submitted++;
    }
    if (!steps.length) break;
    const { id: best, logits } = await steps.shift();
    const id = greedy ? best : sample(logits, ids, params);
    hashes.push(await sha256(logits));
    if (wanted) rows.push(await rowHashes(logits));
    tokens.push(id);
    times.push(performance.now());
    if (cancelled || plan.tokenizer.eog.includes(id)) {
      ended = cancelled ? "stopped" : "text";
      break;
    }
    answered.push(id);
    ids.push(id);
    say({ text: detokenizer.push(id) });
  }
  await Promise.all(steps);  // submitted ahead, and not needed
  model.cached = [...prompt, ...answered].slice(0, prompt.length + tokens.length - 1);
  say({ text: detokenizer.flush() });
  const all = new TextEncoder().encode(hashes.join(" "));
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", all));
  const hash = Array.from(digest, (b) => b.toString(16).padStart(2, "0")).join("");
  const rate = times.length > 2 ? ((times.length - 2) * 1000) / (times.at(-1) - times[1]) : 0;
  say({ done: true, ended, context: plan.context, prompt, reused, ids: answered, hash, tokens, rows, rate, first: (times[1] - times[0]) / 1000 });
}

const planned = fetchPlan();
let opening = null; // stops the reading of weights
let opened = null;

function start(files) {
  opening?.abort();
  opening = new AbortController();
  const { signal } = opening;
  opened = open(files, signal);
  opened.catch((error) => signal.aborted || say({ [error instanceof WrongFile ? "missing" : "failed"]: error.message }));
}

start(null);
let turn = Promise.resolve();
onmessage = ({ data }) => {
  if (data.files) {
    start(data.files);
    return;
  }
  if (data.cancel) {
    cancelled = true;
    return;
  }
  turn = turn.then(async () => answer(await opened, data)).catch((error) => say({ error: error.message }));
};
