// The worker of an exported site: loads plan and weights, then answers prompts one at a time.
// In:  {prompt, raw, maxTokens} · {cancel: true}
// Out: {loaded, total} · {doing} · {ready} · {text} · {done, ids, hash} · {error}
import { Runner, best, sha256 } from "./runner.js";
import { Detokenizer, Tokenizer } from "./tokenizer.js";

const say = (message) => postMessage(message);
let cancelled = false;

async function open() {
  const plan = await (await fetch("plan.json")).json();
  const { body } = await fetch("weights.bin");
  const runner = await Runner.open(plan, body, say);
  say({ ready: { model: plan.model, adapter: runner.adapter, tier: runner.tier, failures: runner.failures, bytes: runner.bytes, context: plan.context } });
  return { plan, runner, tokenizer: new Tokenizer(plan.tokenizer) };
}

/** The prompt as ids: inside the frame of the chat template, or as it is. */
function encode({ plan, tokenizer }, prompt, raw) {
  if (raw || !plan.frame) return tokenizer.encode(prompt);
  return tokenizer.encodeChat(plan.frame.before + (plan.frame.trimmed ? prompt.trim() : prompt) + plan.frame.after);
}

/** Greedy answer. `hash` is over the hashes of the logits of every step. */
async function answer(model, { prompt, raw, maxTokens = 64 }) {
  const { plan, runner, tokenizer } = model;
  const detokenizer = new Detokenizer(tokenizer);
  const ids = encode(model, prompt, raw);
  const answered = [];
  const hashes = [];
  let next = ids;
  let start = 0;
  cancelled = false;
  while (answered.length < maxTokens && !cancelled && start + next.length <= plan.context) {
    const logits = await runner.forward(next, start);
    hashes.push(await sha256(logits));
    start += next.length;
    const id = best(logits);
    if (plan.tokenizer.eog.includes(id)) break;
    answered.push(id);
    say({ text: detokenizer.push(id) });
    next = [id];
  }
  say({ text: detokenizer.flush() });
  const all = new TextEncoder().encode(hashes.join(" "));
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", all));
  say({ done: true, prompt: ids, ids: answered, hash: Array.from(digest, (b) => b.toString(16).padStart(2, "0")).join("") });
}

const opened = open();
opened.catch((error) => say({ error: error.message }));
let turn = opened;
onmessage = ({ data }) => {
  if (data.cancel) {
    cancelled = true;
    return;
  }
  turn = turn.then(async () => answer(await opened, data)).catch((error) => say({ error: error.message }));
};
