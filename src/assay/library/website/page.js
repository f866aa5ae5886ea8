// The page of an exported site: shows what the worker says, and compares it with a server's answer.
import { askServer, verdict } from "./compare.js";

const find = (id) => document.getElementById(id);
find("unserved").remove();
const worker = new Worker("worker.js", { type: "module" });
let begun = 0;
let served; // the model's name on the server of this page, if assay serves it
let comparing = "";  // address of the server that answers the same prompt
let converses = false;  // whether the model's template has been read well enough for several turns
let turns = [];  // texts of the user and the model in turn
const ENDS = {
  limit: ({ ids }) => `; cut at ${ids.length} tokens`,
  context: ({ context }) => `; cut: the context of ${context} tokens is full`,
  stopped: () => "; stopped",
  text: () => "",
};
const SETTINGS = ["temp", "top_k", "top_p", "min_p", "repeat_penalty"];

function busy(on) {
  find("send").disabled = on;
  find("compare").disabled = on;
  find("cancel").disabled = !on;
}

worker.onmessage = ({ data }) => {
  if (data.plan) {
    const size = data.plan.files.reduce((sum, file) => sum + file.bytes, 0);
    find("wanted").textContent = `${data.plan.files.map((file) => file.own).join(", ")} (${Math.round(size / 1e6)} MB)`;
    find("source").hidden = false;
  }
  if (data.total) {
    find("progress").value = data.loaded / data.total;
    find("facts").textContent = `${Math.round(data.loaded / 1e6)} of ${Math.round(data.total / 1e6)} MB`;
  }
  if (data.missing) {
    find("model").textContent = "Open the model";
    find("progress").hidden = true;
    find("facts").textContent = `${data.missing}.`;
  }
  if (data.doing) {
    find("facts").textContent = data.doing;
    find("progress").removeAttribute("value");  // how long this takes is unknown
  }
  if (data.ready) {
    const { model, adapter, tier, bytes, seconds } = data.ready;
    converses = data.ready.turns;
    const spent = Object.entries(seconds).map(([part, s]) => `${part} ${s.toFixed(1)} s`).join(", ");
    find("model").textContent = document.title = model;
    find("progress").hidden = true;
    find("source").hidden = true;
    if (data.ready.served) {
      served = data.ready.served;
      find("server").value = location.origin;
      find("how").textContent = "Runs the prompt here and on the server of this page, and compares the text and the hash of the logits of every token.";
      find("server").closest("details").open = true;
    }
    find("facts").textContent = `${adapter || "WebGPU"}, tier ${tier} of arithmetic, ${Math.round(bytes / 1e6)} MB on the GPU; opened: ${spent}. Nothing leaves this machine.`;
    busy(false);
  }
  if (data.text) find("answer").textContent += data.text;
  if (data.done) {
    const seconds = (performance.now() - begun) / 1000;
    if (converses) turns.push(find("answer").textContent);
    find("fresh").hidden = !turns.length;
    find("facts").textContent = `${data.reused ? `${data.reused} of ${data.prompt.length} tokens of the prompt were in the cache; ` : ""}${data.ids.length} tokens in ${seconds.toFixed(1)} s, the first after ${data.first.toFixed(2)} s, then ${data.rate.toFixed(1)} a second; hash of all logits ${data.hash}${ENDS[data.ended](data)}`;
    if (comparing) compare(data);
    else busy(false);
  }
  if (data.failed) {
    find("model").textContent = "It cannot run here";
    find("progress").hidden = true;
    find("source").hidden = true;
    find("facts").textContent = `${data.failed}.`;
    find("facts").className = "failed";
    find("form").hidden = true;
  }
  if (data.error) {
    if (turns.length % 2) find("prompt").value = turns.pop();  // a question without an answer
    showTurns();
    find("facts").textContent = `${data.error}.`;
    busy(false);
  }
};

worker.onerror = ({ message }) => worker.onmessage({ data: { failed: `worker.js cannot run (${message || "it could not be loaded"})` } });

async function compare({ prompt, tokens, rows }) {
  let found;
  try {
    const said = await askServer(comparing, prompt, rows.length, settings(), served);
    found = verdict({ text: find("answer").textContent, tokens, rows }, said);
  } catch (error) {
    found = { equal: false, words: error.message };
  }
  find("verdict").textContent = found.words;
  find("verdict").className = found.equal ? "equal" : "different";
  busy(false);
}

function settings() {
  const given = Object.fromEntries(SETTINGS.map((name) => [name, Number(find(name).value)]));
  return { ...given, seed: find("seed").value };
}

/** Earlier turns, and the question that is asked now; its answer stands below them. */
function showTurns() {
  const shown = turns.map((text, i) => {
    const part = document.createElement(i % 2 ? "pre" : "p");
    if (i % 2 === 0) part.className = "asked";
    part.textContent = text;
    return part;
  });
  find("turns").replaceChildren(...shown);
}

function ask(server) {
  const prompt = find("prompt").value;
  if (converses) {
    turns.push(prompt);
    showTurns();
    find("prompt").value = "";
  }
  find("answer").textContent = "";
  find("facts").textContent = "reading the prompt";
  find("verdict").textContent = "";
  comparing = server;
  begun = performance.now();
  busy(true);
  const messages = converses ? turns : [prompt];
  worker.postMessage({ messages, maxTokens: Number(find("most").value), params: settings(), rows: Boolean(server) });
}

find("file").onchange = () => {
  find("model").textContent = "Loading…";
  find("progress").hidden = false;
  worker.postMessage({ files: [...find("file").files] });
};
find("origin").textContent = location.origin;
find("form").onsubmit = (event) => {
  event.preventDefault();
  ask("");
};
find("compare").onclick = () => find("form").reportValidity() && ask(find("server").value);
find("fresh").onclick = () => {
  turns = [];
  showTurns();
  find("answer").textContent = "";
  find("fresh").hidden = true;
};
find("cancel").onclick = () => worker.postMessage({ cancel: true });
