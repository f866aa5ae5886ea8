// Q4_K's own 16 bytes: float16 scale and minimum of the unit, then 6-bit scales and minima of its 8 blocks.
const SCALE_CHUNKS = 1u;
fn byte_of(v : vec4<u32>, i : u32) -> u32 { return (v[i / 4u] >> (8u * (i % 4u))) & 255u; }
fn six_bits(v : vec4<u32>, b : u32, part : u32) -> u32 {  // part 0: scales, 4: minima
  if (b < 4u) { return byte_of(v, 4u + part + b) & 63u; }
  let shift = part;  // the low four bits: low nibbles are scales', high ones minima's
  return ((byte_of(v, 8u + b) >> shift) & 15u) | ((byte_of(v, part + b) >> 6u) << 4u);
}
fn unit_half(v : vec4<u32>, shift : u32) -> u32 {
  let d = from_half((v.x >> shift) & 0xffffu);
  return select(d, NAN, magnitude(d) == INFINITY);
}
fn scale(base : u32, b : u32, half : u32) -> u32 {
  let v = w[base + 32u * CODE_CHUNKS];
  return exact_mul(unit_half(v, 0u), bitcast<u32>(f32(six_bits(v, b, 0u))));
}
fn minimum(base : u32, b : u32, half : u32) -> u32 {
  let v = w[base + 32u * CODE_CHUNKS];
  return exact_mul(negated(unit_half(v, 16u)), bitcast<u32>(f32(six_bits(v, b, 4u))));
}
