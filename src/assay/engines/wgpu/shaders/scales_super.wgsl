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
// A unit's scales at once, for products without tests. TAME: none of them is wild unless it is NaN or infinite.
const TAME = true;
struct Scales { unit : vec2<f32>, d : vec2<u32>, m : vec2<u32> }  // of the unit, then a byte a block
fn unit_scales(base : u32) -> Scales {
  let v = w[base + 32u * CODE_CHUNKS];
  let low = vec2<u32>(v.y, v.z) & vec2<u32>(0x3f3f3f3fu);
  let high = (vec2<u32>(v.y, v.z) >> vec2<u32>(2u)) & vec2<u32>(0x30303030u);
  let rest = vec2<u32>(v.w, v.w >> 4u) & vec2<u32>(0x0f0f0f0fu);
  let upper = rest | high;
  return Scales(halves(v.x), vec2<u32>(low.x, upper.x), vec2<u32>(low.y, upper.y));
}
fn small(v : vec2<u32>, b : u32) -> f32 { return f32((v[b / 4u] >> (8u * (b % 4u))) & 255u); }
fn quick_scale(s : Scales, b : u32, half : u32) -> f32 { return quick_mul(s.unit.x, small(s.d, b)); }
fn quick_minimum(s : Scales, b : u32, half : u32) -> f32 { return quick_mul(-s.unit.y, small(s.m, b)); }
