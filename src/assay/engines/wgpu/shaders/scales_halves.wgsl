// One chunk of 8 float16 scales, one a block; another with minima. An infinite one counts as NaN.
//#if minima
const SCALE_CHUNKS = 2u;
//#end
//#if plain
const SCALE_CHUNKS = 1u;
//#end
fn half_of(chunk : u32, b : u32) -> u32 {
  let d = from_half((w[chunk][b / 2u] >> (16u * (b & 1u))) & 0xffffu);
  return select(d, NAN, magnitude(d) == INFINITY);
}
fn scale(base : u32, b : u32, half : u32) -> u32 { return half_of(base + 32u * CODE_CHUNKS, b); }
fn minimum(base : u32, b : u32, half : u32) -> u32 { return half_of(base + 32u * (CODE_CHUNKS + 1u), b); }
