// Runs an exported plan on WebGPU: the dispatches that the Python package compiled, on the weights of the model's file.
// One sequence over one cache. The arithmetic is the cpu engine's, to the bit, in the tier that `chooseTier` finds.
import { loadWeights } from "./weights.js";

const ALIGNMENT = 256;
const PAGE = 32;
const HEADER = 16;
const RECORD = 8;
const KEY_BLOCK = 256;

const mega = (bytes) => `${Math.ceil(bytes / 1e6)} MB`;
const named = ({ info }) => [info?.vendor, info?.architecture, info?.description].filter(Boolean).join(" ");

export class Runner {
  /** Open the device, load the weights from `sources` and choose a tier. `report(text)` is told what is being done. */
  static async open(plan, sources, report = () => {}) {
    if (!isSecureContext) throw new Error(`browsers offer WebGPU to pages from https:// and from localhost alone; this one is from ${location.origin}`);
    if (!navigator.gpu) throw new Error("this browser has no WebGPU; use a recent Chrome, Edge, Safari or Firefox");
    const adapter = await navigator.gpu.requestAdapter();
    if (!adapter) throw new Error("WebGPU found no GPU here: chrome://gpu says why. On Linux, start Chrome with --enable-unsafe-webgpu --enable-features=Vulkan; without a GPU, use `assay run`");
    const sizes = [...plan.programs.map((program) => program.sizes), plan.buffers].flatMap((named) => Object.values(named));
    const largest = Math.max(...sizes, ...plan.weights.map((w) => w.bytes));
    const limits = { maxStorageBufferBindingSize: adapter.limits.maxStorageBufferBindingSize, maxBufferSize: adapter.limits.maxBufferSize };
    if (largest > limits.maxStorageBufferBindingSize) {
      throw new Error(`a buffer of ${mega(largest)} is too large for this GPU (${named(adapter) || "it has no name"}), which binds at most ${mega(limits.maxStorageBufferBindingSize)}; export with a smaller --ctx-size`);
    }
    const device = await adapter.requestDevice({ requiredLimits: limits });
    const runner = new Runner(plan, device);
    runner.software = adapter.info?.architecture === "swiftshader" || adapter.info?.isFallbackAdapter === true;
    runner.adapter = named(adapter);
    try {
      await runner.timed("weights", () => runner.load(sources, report));
      await runner.chooseTier(report);
    } catch (error) {
      device.destroy();
      throw error;
    }
    return runner;
  }

  constructor(plan, device) {
    this.plan = plan;
    this.device = device;
    this.lost = null;
    const gone = (why) => (this.lost ??= `the GPU gave up (${why || "no reason given"}); reload the page, and close others that use the GPU`);
    device.lost.then((info) => gone(info.message));
    device.onuncapturederror = ({ error }) => gone(error.message);
    this.buffers = new Map();
    for (const [name, bytes] of Object.entries(plan.buffers)) this.buffers.set(name, this.buffer(bytes));
    this.programs = [];
    this.part = Math.max(...plan.programs.map((p) => p.rows)); // most tokens of a step
    this.landings = [];
    this.seconds = { weights: 0, kernels: 0, check: 0 };
  }

  /** Run a part of the opening and add its time to `seconds`. */
  async timed(part, run) {
    const began = performance.now();
    try {
      return await run();
    } finally {
      this.seconds[part] += (performance.now() - began) / 1000;
    }
  }

  buffer(bytes) {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const size = Math.max(16, Math.ceil(bytes / 16) * 16);
    this.bytes = (this.bytes || 0) + size;
    return this.device.createBuffer({ size, usage });
  }

  /** Read the weights from the plan's files (`weights.js`) into buffers. */
  async load(sources, report) {
    const found = await loadWeights(this.plan, sources, this.device, (bytes) => this.buffer(bytes), report);
    for (const [name, buffer] of found) this.buffers.set(name, buffer);
    this.ropes = this.plan.ropes.map((rope) => this.buffers.get(rope.name));
  }

  /** The first tier whose operations and logits have the recorded bits. */
  async chooseTier(report) {
    this.failures = [];
    const check = this.plan.check;
    // Adapters in software compute both sides of a branch, so that integers alone are their fastest tier.
    for (const tier of this.software ? [2, 1, 0] : [0, 1, 2]) {
      report({ doing: `checking the arithmetic of this GPU, tier ${tier}` });
      this.tier = tier;
      this.programs = this.plan.programs.map(() => null);
      this.pipelines = new Map();
      await this.timed("kernels", () => this.compile([this.plan.primitives.kernel]));
      const wrong = await this.timed("check", () => this.wrongPrimitives());
      if (!wrong) {
        await this.timed("kernels", () => this.compile([...this.plan.kernels.keys()], report));
        const before = check.tokens.length - 1; // a prompt and a single token, so that every program is checked
        const { logits } = await this.timed("check", async () => {
          await this.step(check.tokens.slice(0, before), 0);
          return this.step(check.tokens.slice(before), before);
        });
        if ((await sha256(logits)) === check.sha256) return;
      }
      this.failures.push(`tier ${tier}: ${wrong ? `${wrong} operations of recorded numbers differ` : "logits differ"}`);
    }
    throw new Error(`no tier of arithmetic gives the recorded bits here (${this.failures.join("; ")})`);
  }

  async wrongPrimitives() {
    const { kernel, vectors, expected, count } = this.plan.primitives;
    const x = this.buffer(4 * vectors.length);
    const out = this.buffer(4 * expected.length);
    const par = this.buffer(ALIGNMENT);
    this.device.queue.writeBuffer(x, 0, Uint32Array.from(vectors));
    this.device.queue.writeBuffer(par, 0, Uint32Array.of(0, count));
    const { pipeline, layout } = this.pipelines.get(kernel);
    const entries = [par, x, out].map((buffer, binding) => ({ binding, resource: { buffer } }));
    this.submit([{ pipeline, group: this.device.createBindGroup({ layout, entries }), counts: [Math.ceil(count / 64), 1, 1] }]);
    const found = new Uint32Array(await this.read(out, 4 * expected.length));
    const isNan = (word) => (word & 0x7fffffff) > 0x7f800000;
    return expected.reduce((n, word, i) => n + (word !== found[i] && !(isNan(word) && isNan(found[i]))), 0);
  }

  /** Compile kernels in the tier at hand. All are requested at once: the browser compiles them on several threads. */
  async compile(indices, report = () => {}) {
    const missing = indices.filter((index) => !this.pipelines.has(index));
    let done = 0;
    await Promise.all(missing.map(async (index) => {
      const kernel = this.plan.kernels[index];
      const code = kernel.source.replace("//#include arithmetic", () => this.plan.arithmetic[this.tier]);
      const entries = [false, ...kernel.writes].map((writes, binding) => ({
        binding,
        visibility: GPUShaderStage.COMPUTE,
        buffer: { type: writes ? "storage" : "read-only-storage" },
      }));
      const layout = this.device.createBindGroupLayout({ entries });
      const pipeline = await this.device.createComputePipelineAsync({
        layout: this.device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module: this.device.createShaderModule({ code }), entryPoint: "main" },
      });
      this.pipelines.set(index, { pipeline, layout });
      report({ doing: `compiled ${++done} of ${missing.length} kernels, tier ${this.tier} of arithmetic` });
    }));
  }

  /** A program bound to buffers, once. */
  program(index) {
    if (this.programs[index]) return this.programs[index];
    const { dispatches, sizes } = this.plan.programs[index];
    this.own ??= new Map();
    const own = new Map();
    for (const [name, bytes] of Object.entries(sizes)) {
      const key = `${index} ${name}`;
      if (!this.own.has(key)) this.own.set(key, this.buffer(bytes));
      own.set(name, this.own.get(key));
    }
    const words = new Uint32Array((dispatches.length * ALIGNMENT) / 4);
    dispatches.forEach((d, i) => words.set(d.words, (i * ALIGNMENT) / 4));
    const numbers = this.buffer(words.byteLength);
    this.device.queue.writeBuffer(numbers, 0, words);
    const commands = dispatches.map((d, i) => {
      const { pipeline, layout } = this.pipelines.get(d.kernel);
      const entries = [{ binding: 0, resource: { buffer: numbers, offset: i * ALIGNMENT, size: ALIGNMENT } }];
      d.buffers.forEach((name, b) => entries.push({ binding: b + 1, resource: { buffer: own.get(name) ?? this.buffers.get(name) } }));
      return { pipeline, group: this.device.createBindGroup({ layout, entries }), groups: d.groups };
    });
    return (this.programs[index] = { commands, own, counted: new Map() });
  }

  /** The commands of a step of so many tokens, output rows and blocks of keys; those without workgroups are left out. */
  counted(program, T, R, B) {
    const key = `${T} ${R} ${B}`;
    if (!program.counted.has(key)) {
      const sizes = { T, R, B };
      const count = (c) => {  // a number, "T", "T*4" or "T/8"
        if (typeof c === "number") return c;
        const by = Number(c.slice(2) || 1);
        return c[1] === "/" ? Math.ceil(sizes[c[0]] / by) : sizes[c[0]] * by;
      };
      const commands = program.commands.map((c) => ({ ...c, counts: c.groups.map(count) }));
      program.counted.set(key, commands.filter((c) => c.counts.every(Boolean)));
    }
    return program.counted.get(key);
  }

  /** One submission: copies, the dispatches in one pass, copies. */
  submit(commands, before = [], after = []) {
    const encoder = this.device.createCommandEncoder();
    for (const copy of before) encoder.copyBufferToBuffer(...copy);
    const pass = encoder.beginComputePass();
    for (const { pipeline, group, counts } of commands) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...counts);
    }
    pass.end();
    for (const copy of after) encoder.copyBufferToBuffer(...copy);
    this.device.queue.submit([encoder.finish()]);
  }

  /** The words of a step of one sequence (step_words.py of the package). */
  stepWords(tokens, start, outputs) {
    const n = tokens.length;
    const pages = Math.ceil((start + n) / PAGE);
    const records = HEADER + RECORD * n;
    const widths = this.plan.ropes.map((rope) => rope.width);
    const words = new Uint32Array(records + pages + 1 + widths.reduce((sum, w) => sum + w * n, 0));
    words.set([n, outputs, records + pages]);
    tokens.forEach((token, t) => words.set([token, start + t, start + t, start + n, records], HEADER + RECORD * t));
    for (let page = 0; page < pages; page++) words[records + page] = page;
    words[records + pages] = n - 1;
    let at = records + pages + 1;
    const floats = new Float32Array(words.buffer);
    widths.forEach((width, i) => {
      words[4 + i] = at;
      floats.set(this.ropes[i].subarray(start * width, (start + n) * width), at);
      at += n * width;
    });
    return words;
  }

  /**
   * Submit tokens that follow `start` cached ones, at most `part`; null is the token that the step before chose, which is still on the
   * device. Resolves to the logits of the last token, and the id of the largest.
   */
  async step(tokens, start) {
    const follows = tokens === null;
    const given = tokens ?? [0];
    if (start + given.length > this.plan.context) throw new Error(`the context of ${this.plan.context} tokens is full`);
    const index = this.programFor(given.length);
    const { buffer, at, width } = this.plan.programs[index].logits;
    const landing = this.landings.pop() ?? this.device.createBuffer({
      size: 16 + 4 * width,
      usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    });
    const chosen = this.buffers.get("chosen");
    const before = follows ? [[chosen, 0, this.buffers.get("step"), 4 * HEADER, 4]] : [];
    const logits = this.program(index).own.get(buffer);
    this.submitTokens(given, start, 1, before, [[chosen, 0, landing, 0, 16], [logits, 4 * at, landing, 16, 4 * width]]);
    await landing.mapAsync(GPUMapMode.READ);
    const found = landing.getMappedRange().slice(0);
    landing.unmap();
    this.landings.push(landing);
    if (this.lost) throw new Error(this.lost);
    return { id: new Uint32Array(found, 0, 1)[0], logits: new Float32Array(found, 16) };
  }

  programFor(rows) {
    return this.plan.programs.findIndex((p) => p.rows >= rows);
  }

  /** Submit tokens that follow `start` cached ones, at most `part`, and compute no logits. */
  fill(tokens, start) {
    this.submitTokens(tokens, start, 0);
  }

  /** Resolves when everything submitted has been computed. */
  finished() {
    return this.device.queue.onSubmittedWorkDone();
  }

  /** Submit the tokens of one program. Without outputs it fills the cache alone. */
  submitTokens(tokens, start, outputs, before, after) {
    const program = this.program(this.programFor(tokens.length));
    this.device.queue.writeBuffer(this.buffers.get("step"), 0, this.stepWords(tokens, start, outputs));
    const blocks = Math.ceil((start + tokens.length) / KEY_BLOCK);
    this.submit(this.counted(program, tokens.length, outputs, blocks), before, after);
  }

  async read(buffer, bytes, at = 0) {
    const landing = this.device.createBuffer({ size: bytes, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(buffer, at, landing, 0, bytes);
    this.device.queue.submit([encoder.finish()]);
    await landing.mapAsync(GPUMapMode.READ);
    const found = landing.getMappedRange().slice(0);
    landing.destroy();
    if (this.lost) throw new Error(this.lost);
    return found;
  }
}

export async function sha256(floats) {
  const digest = await crypto.subtle.digest("SHA-256", new Uint8Array(floats.buffer, floats.byteOffset, floats.byteLength));
  return Array.from(new Uint8Array(digest), (b) => b.toString(16).padStart(2, "0")).join("");
}
