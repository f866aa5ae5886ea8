// The page of an exported site: shows what the worker says.
const find = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });
let begun = 0;

function busy(on) {
  find("send").disabled = on;
  find("cancel").disabled = !on;
}

worker.onmessage = ({ data }) => {
  if (data.total) find("progress").value = data.loaded / data.total;
  if (data.doing) find("facts").textContent = data.doing;
  if (data.ready) {
    const { model, adapter, tier, bytes, seconds } = data.ready;
    const spent = Object.entries(seconds).map(([part, s]) => `${part} ${s.toFixed(1)} s`).join(", ");
    find("model").textContent = model;
    find("progress").hidden = true;
    find("facts").textContent = `${adapter || "WebGPU"}, tier ${tier} of arithmetic, ${Math.round(bytes / 1e6)} MB on the GPU; opened: ${spent}. Nothing leaves this machine.`;
    busy(false);
  }
  if (data.text) find("answer").textContent += data.text;
  if (data.done) {
    const seconds = (performance.now() - begun) / 1000;
    find("facts").textContent = `${data.ids.length} tokens in ${seconds.toFixed(1)} s, the first after ${data.first.toFixed(2)} s, then ${data.rate.toFixed(1)} a second; hash of all logits ${data.hash}`;
    busy(false);
  }
  if (data.error) {
    find("model").textContent = "It cannot run here";
    find("facts").textContent = data.error;
    busy(false);
  }
};
find("form").onsubmit = (event) => {
  event.preventDefault();
  find("answer").textContent = "";
  begun = performance.now();
  busy(true);
  worker.postMessage({ prompt: find("prompt").value, maxTokens: Number(find("most").value) });
};
find("cancel").onclick = () => worker.postMessage({ cancel: true });
