// The sampler of the package (runtime/sampler.py, runtime/draws.py): the same settings and seed choose the same tokens.
// Penalties, top-k, top-p, min-p, temperature and a draw, in this order. Arithmetic is float64.

const WORD = (1n << 64n) - 1n;
const MULTIPLY = [0xd2e7470ee14c6c93n, 0xca5a826395121157n];
const WEYL = [0x9e3779b97f4a7c15n, 0xbb67ae8584caa73bn];
const ROUNDS = 10;
const BLOCK = 64;

/** A random number in [0, 1) as a function of seed and position: the first word of Philox4x64-10. */
export function draw(seed, position) {
  let [k0, k1] = [BigInt(seed), 0n];
  let [a, b, c, d] = [BigInt(position), 0n, 0n, 0n];
  for (let round = 0; round < ROUNDS; round++) {
    const x = a * MULTIPLY[0];
    const y = c * MULTIPLY[1];
    [a, b, c, d] = [(y >> 64n) ^ b ^ k0, y & WORD, (x >> 64n) ^ d ^ k1, x & WORD];
    k0 = (k0 + WEYL[0]) & WORD;
    k1 = (k1 + WEYL[1]) & WORD;
  }
  return Number(a >> 11n) / 2 ** 53;
}

/** The id of the next token. `ids` are the tokens so far; a field of `params` that is missing switches its stage off. */
export function sample(logits, ids, params) {
  const values = penalised(logits, ids, params);
  let found = largest(values, params.temp > 0 ? (params.top_k > 0 ? params.top_k : values.length) : 1);
  if (!(params.temp > 0)) return found[0].id;
  found = nucleus(found, params.top_p ?? 1);
  if (params.min_p > 0) found = found.filter(({ logit }) => logit >= found[0].logit + Math.log(params.min_p));
  return drawn(found, params.temp, draw(params.seed, ids.length));
}

/** Whether the settings change a logit. */
export function penalises({ repeat_penalty: r = 1, frequency_penalty: f = 0, presence_penalty: p = 0 }) {
  return Boolean(r !== 1 || f || p);
}

/** For a token seen c > 0 times in the last n: y = (x / r if x > 0 else x r) - c frequency - presence. */
function penalised(logits, ids, params) {
  const out = Float64Array.from(logits);
  if (!penalises(params)) return out;
  const { repeat_penalty: r = 1, repeat_last_n: n = 64, frequency_penalty: f = 0, presence_penalty: p = 0 } = params;
  const counts = new Map();
  for (const id of ids.slice(n < 0 ? 0 : Math.max(0, ids.length - n))) counts.set(id, (counts.get(id) ?? 0) + 1);
  for (const [id, count] of counts) out[id] = (out[id] > 0 ? out[id] / r : out[id] * r) - count * f - p;
  return out;
}

/** The k largest by descending logit; of equal logits the lower id comes first. */
function largest(values, k) {
  const bound = k < values.length ? reached(values, k) : -Infinity;
  const kept = [];
  values.forEach((logit, id) => logit >= bound && logit > -Infinity && kept.push({ id, logit }));
  return kept.sort((a, b) => b.logit - a.logit || a.id - b.id).slice(0, k);
}

/** A lower bound that at least k values reach, and few more: the k-th largest value, or of maxima of blocks. */
function reached(values, k) {
  let some = Float64Array.from(values);
  if (k * BLOCK * 4 <= values.length) {
    some = new Float64Array(Math.ceil(values.length / BLOCK)).fill(-Infinity);
    values.forEach((value, i) => (some[Math.floor(i / BLOCK)] = Math.max(some[Math.floor(i / BLOCK)], value)));
  }
  return some.sort()[some.length - k];
}

/** The fewest of the most probable whose mass reaches p; the one that crosses p stays. `found` is sorted. */
function nucleus(found, p) {
  if (p >= 1) return found;
  const weights = found.map(({ logit }) => Math.exp(logit - found[0].logit));
  const wanted = p * weights.reduce((sum, w) => sum + w, 0);
  let sum = 0;
  const count = weights.findIndex((w) => (sum += w) >= wanted) + 1;
  return count ? found.slice(0, count) : found;
}

/** One of the candidates, which are sorted, for a number u in [0, 1). */
function drawn(found, temp, u) {
  const finite = Number.isFinite(found[0].logit / temp);  // a very low temperature: only the differences matter
  const scaled = found.map(({ logit }) => (finite ? logit : logit - found[0].logit) / temp);
  const weights = scaled.map((x) => Math.exp(x - scaled[0]));
  const total = weights.reduce((sum, w) => sum + w, 0);
  let sum = 0;
  const cumulative = weights.map((w) => (sum += w / total));
  const place = cumulative.findIndex((c) => c > u * sum);
  const last = cumulative.findIndex((c) => c >= sum);  // the last candidate with a probability above 0
  return found[place < 0 ? last : Math.min(place, last)].id;
}
