// The same prompt on a server of assay: its receipt has a hash of the logits of every token (docs/reference/receipts.md).

const hex = (bytes) => Array.from(new Uint8Array(bytes), (b) => b.toString(16).padStart(2, "0")).join("");

/** AES-128-GMAC of a row: the tag of AES-GCM with the row as associated data and no plaintext. */
async function gmac(additionalData) {
  const raw = new TextEncoder().encode("assay receipt 3\n");
  const key = await crypto.subtle.importKey("raw", raw, "AES-GCM", false, ["encrypt"]);
  return hex(await crypto.subtle.encrypt({ name: "AES-GCM", iv: new Uint8Array(12), additionalData }, key, new Uint8Array()));
}

let keys = new Uint32Array();  // of the words of a row

function keysFor(count) {
  if (keys.length >= count) return keys;
  keys = new Uint32Array(count);
  for (let i = 0; i < count; i++) {
    let x = Math.imul(i, 0x9e3779b9) + 0x85ebca6b;
    x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
    x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
    keys[i] = x ^ (x >>> 16);
  }
  return keys;
}

/** Two sums of products of a row's words, modulo 2^64. */
function sumsOfProducts(bytes) {
  const words = new Uint32Array(Math.ceil(bytes.length / 32) * 8);
  new Uint8Array(words.buffer).set(bytes);
  const k = keysFor(words.length + 4);
  const sums = [0n, 0n];
  for (let first = 0; first < words.length; first += 32) {
    for (const [which, low, high] of [[0, 0, 4], [1, 4, 8]]) {
      let upper = 0;  // products by 16-bit halves: sums of 16 stay below 2^53
      let lower = 0;
      for (let group = first; group < Math.min(first + 32, words.length); group += 8) {
        for (let i = group; i < group + 4; i++) {
          const a = (words[i] + k[i + low]) >>> 0;
          const b = (words[i + 4] + k[i + high]) >>> 0;
          upper += (a >>> 16) * b;
          lower += (a & 0xffff) * b;
        }
      }
      sums[which] += (BigInt(upper) << 16n) + BigInt(lower);
    }
  }
  return hex(new BigUint64Array(sums).buffer);  // modulo 2^64; every machine with WebGPU is little-endian
}

const HASHES = { 3: gmac, 4: sumsOfProducts };  // by the version of the receipt

/** The hashes of a row of logits in receipts, by version. */
export async function rowHashes(floats) {
  const bytes = new Uint8Array(floats.buffer, floats.byteOffset, floats.byteLength);
  const made = Object.entries(HASHES).map(async ([version, hash]) => [version, await hash(bytes)]);
  return Object.fromEntries(await Promise.all(made));
}

/** The server's answer to the ids of a prompt, with the sampler's settings. Throws an error that says what to do. */
export async function askServer(server, prompt, maxTokens, { temp, seed, ...settings }, model) {
  let reply;
  try {
    const body = JSON.stringify({ ...settings, model, prompt, max_tokens: maxTokens, temperature: temp, seed: Number(seed), receipt: true });
    reply = await fetch(new URL("/v1/completions", server), { method: "POST", headers: { "content-type": "application/json" }, body });
  } catch {
    throw new Error(`${server} cannot be reached from this page; start it with: assay serve FILE --receipts KEY --cors ${location.origin}`);
  }
  const said = await reply.json();
  if (!reply.ok) throw new Error(`${server} answers ${reply.status}: ${said.error?.message ?? "no message"}`);
  return said;
}

/** Whether the page's answer and the server's are the same, in words. `mine` has text, tokens and rows. */
export function verdict(mine, said) {
  const receipt = said.receipts?.[0];
  const text = said.choices[0].text === mine.text;
  if (!receipt) {
    return { equal: false, words: `The text is ${text ? "the same" : "different"}. The server sends no hashes of logits; start it with --receipts KEY or --browser.` };
  }
  const version = receipt.header.version;
  if (!HASHES[version]) {
    return { equal: false, words: `The text is ${text ? "the same" : "different"}. The server's receipts have version ${version}, which this page does not know; export the model again.` };
  }
  const rows = mine.rows.map((hashes) => hashes[version]);
  const count = Math.max(rows.length, receipt.rows.length);
  let same = 0;
  while (same < count && rows[same] === receipt.rows[same] && mine.tokens[same] === receipt.tokens[same]) same++;
  if (same === count && text) return { equal: true, words: `Equal: the text, and the logits of all ${count} tokens, to the bit.` };
  if (same === count) return { equal: false, words: `The logits of all ${count} tokens are equal, but the text is different.` };
  const what = rows[same] !== receipt.rows[same] ? "logits" : "token";
  return {
    equal: false,
    words: `Different from token ${same + 1} of ${count} on: the ${what}. The text is ${text ? "the same" : "different"}. The server's arithmetic: ${receipt.header.arithmetic.join(" ")}; is its file the exported one?`,
  };
}
