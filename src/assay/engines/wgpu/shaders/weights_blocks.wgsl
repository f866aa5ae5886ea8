// Quantised weights: an item's codes, then its scales.
//#include codes
//#include scales
const CHUNKS = CODE_CHUNKS + SCALE_CHUNKS;
fn weight_at(base : u32, i : u32) -> u32 {
  let b = i / 32u;
  let half = (i / 16u) % 2u;
  var v : vec4<u32>;
  if (half == 0u) { v = low(codes(base, b)); } else { v = high(codes(base, b)); }
  let q = f32(i32(v[(i / 4u) % 4u] << (24u - 8u * (i % 4u))) >> 24u);
//#if minima
  return fused(scale(base, b, half), bitcast<u32>(q), minimum(base, b, half));
//#end
//#if plain
  return fused(scale(base, b, half), bitcast<u32>(q), 0u);
//#end
}
