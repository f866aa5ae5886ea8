// The page of an exported site: shows what the worker says, and compares it with a server's answer.
import { askServer, verdict } from "./compare.js";

const find = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });
let begun = 0;
let served; // the model's name on the server of this page, if assay serves it
let comparing = "";  // address of the server that answers the same prompt

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
    find("facts").textContent = `${data.missing}.`;
  }
  if (data.doing) find("facts").textContent = data.doing;
  if (data.ready) {
    const { model, adapter, tier, bytes, seconds } = data.ready;
    const spent = Object.entries(seconds).map(([part, s]) => `${part} ${s.toFixed(1)} s`).join(", ");
    find("model").textContent = model;
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
    find("facts").textContent = `${data.ids.length} tokens in ${seconds.toFixed(1)} s, the first after ${data.first.toFixed(2)} s, then ${data.rate.toFixed(1)} a second; hash of all logits ${data.hash}`;
    if (comparing) compare(data);
    else busy(false);
  }
  if (data.error) {
    if (!find("progress").hidden) find("model").textContent = "It cannot run here";
    find("facts").textContent = data.error;
    busy(false);
  }
};

async function compare({ prompt, tokens, rows }) {
  let found;
  try {
    const said = await askServer(comparing, prompt, rows.length, served);
    found = verdict({ text: find("answer").textContent, tokens, rows }, said);
  } catch (error) {
    found = { equal: false, words: error.message };
  }
  find("verdict").textContent = found.words;
  find("verdict").className = found.equal ? "equal" : "different";
  busy(false);
}

function ask(server) {
  find("answer").textContent = "";
  find("verdict").textContent = "";
  comparing = server;
  begun = performance.now();
  busy(true);
  worker.postMessage({ prompt: find("prompt").value, maxTokens: Number(find("most").value), rows: Boolean(server) });
}

find("file").onchange = () => {
  find("model").textContent = "Loading…";
  worker.postMessage({ files: [...find("file").files] });
};
find("origin").textContent = location.origin;
find("form").onsubmit = (event) => {
  event.preventDefault();
  ask("");
};
find("compare").onclick = () => find("form").reportValidity() && ask(find("server").value);
find("cancel").onclick = () => worker.postMessage({ cancel: true });
