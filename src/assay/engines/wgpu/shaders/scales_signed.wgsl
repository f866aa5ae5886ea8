// Q6_K's own scales: a chunk of 16 int8, one for each half of a block; then a chunk with the float16 scale of the unit.
const SCALE_CHUNKS = 2u;
fn signed_byte(v : vec4<u32>, i : u32) -> f32 { return f32(i32(v[i / 4u] << (24u - 8u * (i % 4u))) >> 24u); }
fn scale(base : u32, b : u32, half : u32) -> u32 {
  let d = from_half(w[base + 32u * (CODE_CHUNKS + 1u)].x & 0xffffu);
  let s = bitcast<u32>(signed_byte(w[base + 32u * CODE_CHUNKS], 2u * b + half));
  return exact_mul(select(d, NAN, magnitude(d) == INFINITY), s);
}
// A unit's scales at once, for products without tests. TAME: none of them is wild unless it is NaN or infinite.
const TAME = true;
struct Scales { unit : f32, each : vec4<u32> }
fn unit_scales(base : u32) -> Scales {
  return Scales(halves(w[base + 32u * (CODE_CHUNKS + 1u)].x).x, w[base + 32u * CODE_CHUNKS]);
}
fn quick_scale(s : Scales, b : u32, half : u32) -> f32 { return quick_mul(s.unit, signed_byte(s.each, 2u * b + half)); }
