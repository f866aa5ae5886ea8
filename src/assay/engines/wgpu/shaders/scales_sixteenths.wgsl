// Four chunks of 16 float32 scales, one for each half of a block; four more with minima.
//#if minima
const SCALE_CHUNKS = 8u;
//#end
//#if plain
const SCALE_CHUNKS = 4u;
//#end
fn scale(base : u32, b : u32, half : u32) -> u32 {
  return w[base + 32u * (CODE_CHUNKS + b / 2u)][2u * (b % 2u) + half];
}
fn minimum(base : u32, b : u32, half : u32) -> u32 {
  return w[base + 32u * (CODE_CHUNKS + 4u + b / 2u)][2u * (b % 2u) + half];
}
