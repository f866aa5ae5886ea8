// The same prompt on a server of assay: its receipt has a hash of the logits of every token (docs/reference/receipts.md).

const KEY = new TextEncoder().encode("assay receipt 3\n");
const hex = (bytes) => Array.from(new Uint8Array(bytes), (b) => b.toString(16).padStart(2, "0")).join("");

/** The hash of a row of logits in a receipt: AES-128-GMAC. */
export async function rowHash(floats) {
  const key = await crypto.subtle.importKey("raw", KEY, "AES-GCM", false, ["encrypt"]);
  const additionalData = new Uint8Array(floats.buffer, floats.byteOffset, floats.byteLength);
  return hex(await crypto.subtle.encrypt({ name: "AES-GCM", iv: new Uint8Array(12), additionalData }, key, new Uint8Array()));
}

/** The server's greedy answer to the ids of a prompt. Throws an error that says what to do. */
export async function askServer(server, prompt, maxTokens) {
  let reply;
  try {
    const body = JSON.stringify({ prompt, max_tokens: maxTokens, temperature: 0 });
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
    return { equal: false, words: `The text is ${text ? "the same" : "different"}. The server sends no hashes of logits; start it with --receipts KEY.` };
  }
  const count = Math.max(mine.rows.length, receipt.rows.length);
  let same = 0;
  while (same < count && mine.rows[same] === receipt.rows[same] && mine.tokens[same] === receipt.tokens[same]) same++;
  if (same === count && text) return { equal: true, words: `Equal: the text, and the logits of all ${count} tokens, to the bit.` };
  if (same === count) return { equal: false, words: `The logits of all ${count} tokens are equal, but the text is different.` };
  const what = mine.rows[same] !== receipt.rows[same] ? "logits" : "token";
  return {
    equal: false,
    words: `Different from token ${same + 1} of ${count} on: the ${what}. The text is ${text ? "the same" : "different"}. The server's arithmetic: ${receipt.header.arithmetic.join(" ")}; is its file the exported one?`,
  };
}
