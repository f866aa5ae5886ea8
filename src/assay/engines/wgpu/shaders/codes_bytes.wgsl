// Codes of 8 bits: chunks 2b and 2b + 1 of an item are block b.
const CODE_CHUNKS = 16u;
struct Codes { first : vec4<u32>, second : vec4<u32> }
fn codes(base : u32, b : u32) -> Codes { return Codes(w[base + 64u * b], w[base + 64u * b + 32u]); }
fn low(c : Codes) -> vec4<u32> { return c.first; }
fn high(c : Codes) -> vec4<u32> { return c.second; }
