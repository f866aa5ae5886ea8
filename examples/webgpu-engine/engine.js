// A small WebGPU engine for llamas in float32, one prompt without a cache, and the dump of its buffers.
import { GpuDump } from "../../docs/emitters/emit_webgpu.js";
import { FAULTS, KERNELS } from "./kernels.js";

/** Metadata and float32 tensors of a GGUF file. */
function gguf(bytes) {
  const view = new DataView(bytes);
  let at = 8;
  const u32 = () => view.getUint32((at += 4) - 4, true);
  const u64 = () => Number(view.getBigUint64((at += 8) - 8, true));
  const string = () => {
    const length = u64();
    return new TextDecoder().decode(new Uint8Array(bytes, (at += length) - length, length));
  };
  const sizes = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
  const value = (kind) => {
    if (kind === 8) return string();
    if (kind === 9) {
      const inner = u32();
      return Array.from({ length: u64() }, () => value(inner));
    }
    const place = (at += sizes[kind]) - sizes[kind];
    return kind === 6 ? view.getFloat32(place, true) : kind === 4 || kind === 5 ? view.getUint32(place, true) : null;
  };
  const [tensors, keys] = [u64(), u64()];
  const metadata = {};
  for (let i = 0; i < keys; i++) {
    const key = string();
    metadata[key] = value(u32());
  }
  const found = {};
  for (let i = 0; i < tensors; i++) {
    const name = string();
    const shape = Array.from({ length: u32() }, u64);
    if (u32() !== 0) throw new Error(`${name} is not float32; use a file in F32`);
    found[name] = { shape, at: u64() };
  }
  const start = Math.ceil(at / 32) * 32; // general.alignment is 32 unless a key says otherwise
  for (const tensor of Object.values(found)) {
    tensor.data = new Float32Array(bytes, start + tensor.at, tensor.shape.reduce((a, b) => a * b, 1));
  }
  return { metadata, tensors: found };
}

/** Compute the logits of `tokens` with the model, and post the buffers of every step. `fault` is a key of FAULTS, or "". */
export async function run(model, tokens, fault, post) {
  const { metadata, tensors } = gguf(model);
  const [width, heads, kvHeads, layers] = ["embedding_length", "attention.head_count", "attention.head_count_kv", "block_count"]
    .map((key) => metadata[`llama.${key}`]);
  const head = width / heads;
  const T = tokens.length;
  const planted = FAULTS[fault] ?? {};
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  device.onuncapturederror = ({ error }) => console.error(error.message);
  const dump = new GpuDump(device, "webgpu-engine", tokens);
  const pipelines = {};

  const pipeline = (name) => {
    if (pipelines[name]) return pipelines[name];
    let code = KERNELS[name];
    for (const [kernel, find, put] of planted.edits ?? []) if (kernel === name) code = code.replace(find, put);
    const module = device.createShaderModule({ code });
    return (pipelines[name] = device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: "main" } }));
  };
  const buffer = (data, usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC) => {
    const size = Math.max(16, data.byteLength ?? 4 * data);
    const made = device.createBuffer({ size, usage: usage | GPUBufferUsage.COPY_DST });
    if (data.byteLength) device.queue.writeBuffer(made, 0, data);
    return made;
  };
  const weights = {};
  const weight = (name) => (weights[name] ??= buffer(tensors[`${name}.weight`].data));

  /** One dispatch over `size` values of each token; gives the buffer that it writes, with `values` of each token. */
  const dispatch = (name, [size, columns = 0, values = size], reads, { uniform, over = size, deep = 1 } = {}) => {
    const inPlace = planted.inPlace === name;
    const written = inPlace ? reads[0] : buffer(values * T);
    const par = buffer(uniform ?? Uint32Array.of(size, columns, heads, kvHeads, T, 0, 0, 0), GPUBufferUsage.UNIFORM);
    const bound = [par, ...reads, written];
    const entries = bound.map((b, binding) => ({ binding, resource: { buffer: b } })).filter((e) => !(inPlace && e.binding === 1));
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline(name));
    pass.setBindGroup(0, device.createBindGroup({ layout: pipeline(name).getBindGroupLayout(0), entries }));
    pass.dispatchWorkgroups(planted.roundsDown === name ? Math.floor(over / 64) : Math.ceil(over / 64), T, deep);
    pass.end();
    device.queue.submit([encoder.finish()]);
    return written;
  };
  const product = (x, w) => {
    const [columns, rows] = tensors[`${w}.weight`].shape;
    return dispatch("product", [rows, columns], [x, weight(w)]);
  };
  const norm = (x, w) => dispatch("norm", [width], [x, weight(w)], { over: 64 });
  const add = (a, b) => dispatch("add", [width], [a, b]);
  const rope = (x, n) => dispatch("rope", [n * head, head], [x, table], { over: (n * head) / 2 });
  const keep = (name, shape, from) => (dump.copy(name, shape, from), from);

  /** The uniform struct of softmax: keys at byte 0, limits at 8, scale at 16. */
  const limits = () => {
    const made = new DataView(new ArrayBuffer(32));
    made.setUint32(0, T, true);
    [-1e30, 1e30, 1 / Math.sqrt(head)].forEach((value, i) => made.setFloat32((planted.packs ? 4 : 8) + 4 * i, value, true));
    return made.buffer;
  };

  /** The cosine and sine of each position and pair. */
  const table = buffer(Float32Array.from({ length: T * head }, (_, i) => {
    const angle = Math.floor(i / head) * 10000 ** (-(((i % head) >> 1) * 2) / head);
    return i % 2 ? Math.sin(angle) : Math.cos(angle);
  }));
  const ids = buffer(Uint32Array.from(tokens));
  let x = keep("embd", [T, width], dispatch("embed", [width], [ids, weight("token_embd")]));
  for (let i = 0; i < layers; i++) {
    const block = `blk.${i}`;
    const n = keep(`attn_norm-${i}`, [T, width], norm(x, `${block}.attn_norm`));
    const q = keep(`Qcur-${i}`, [T, heads, head], rope(product(n, `${block}.attn_q`), heads));
    const k = keep(`Kcur-${i}`, [T, kvHeads, head], rope(product(n, `${block}.attn_k`), kvHeads));
    const v = keep(`Vcur-${i}`, [T, kvHeads * head], product(n, `${block}.attn_v`));
    const kq = dispatch("scores", [T, head, heads * T], [q, k], { deep: heads });
    keep(`kq-${i}`, [heads, T, T], kq);
    const p = dispatch("softmax", [T, 0, heads * T], [kq], { uniform: limits(), deep: heads });
    keep(`kq_soft_max-${i}`, [heads, T, T], p);
    const mixed = keep(`kqv_out-${i}`, [T, width], dispatch("weighted", [width, head], [p, v]));
    const inner = keep(`ffn_inp-${i}`, [T, width], add(product(mixed, `${block}.attn_output`), x));
    const m = keep(`ffn_norm-${i}`, [T, width], norm(inner, `${block}.ffn_norm`));
    const ff = tensors[`${block}.ffn_up.weight`].shape[1];
    const [gate, up] = [product(m, `${block}.ffn_gate`), product(m, `${block}.ffn_up`)];
    const both = keep(`ffn_swiglu-${i}`, [T, ff], dispatch("gated", [ff], [gate, up]));
    const out = keep(`ffn_out-${i}`, [T, width], product(both, `${block}.ffn_down`));
    x = keep(`l_out-${i}`, [T, width], add(out, inner));
  }
  const last = keep("result_norm", [T, width], norm(x, "output_norm"));
  const output = tensors["output.weight"] ? "output" : "token_embd";
  keep("result_output", [T, tensors[`${output}.weight`].shape[1]], product(last, output));
  if (post) await dump.post(post);
  return dump;
}
