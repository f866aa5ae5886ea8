// Tier 1: fma out of rounded additions and multiplications and their errors (Dekker; Boldo and Melquiond). Right where
// + and * of normal floats round to nearest even; integers compute where an error could be subnormal.
// `hide` stops contraction and reassociation: the compiler does not know that zero() is 0.
fn hide(x : f32) -> u32 { return bitcast<u32>(x) ^ zero(); }
fn kept(x : f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero()); }
fn exponent(x : u32) -> u32 { return (x >> 23u) & 255u; }
fn add(x : u32, y : u32) -> u32 {
  let top = max(exponent(x), exponent(y));
  if (top >= 26u && top <= 252u) { return hide(bitcast<f32>(x) + bitcast<f32>(y)); }
  return int_add(x, y);
}
fn mul(x : u32, y : u32) -> u32 {
  let p = exponent(x);
  let q = exponent(y);
  if (p >= 1u && q >= 1u && p < 255u && q < 255u && p + q >= 130u && p + q <= 378u) {
    return hide(bitcast<f32>(x) * bitcast<f32>(y));
  }
  return int_mul(x, y);
}
fn two_sum(a : f32, b : f32) -> vec2<f32> {
  let s = kept(a + b);
  let t = kept(s - a);
  let u = kept(s - t);
  return vec2<f32>(s, kept(a - u) + kept(b - t));
}
fn two_product(a : f32, b : f32) -> vec2<f32> {  // split at 12 bits: the four partial products are exact
  let p = kept(a * b);
  let ah = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u);
  let bh = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u);
  let al = kept(a - ah);
  let bl = kept(b - bh);
  var e = kept(kept(ah * bh) - p);
  e = kept(e + kept(ah * bl));
  e = kept(e + kept(al * bh));
  return vec2<f32>(p, kept(e + kept(al * bl)));
}
fn odd_sum(a : f32, b : f32) -> f32 {  // a + b rounded to odd
  let s = two_sum(a, b);
  let bits = bitcast<u32>(s.x);
  if (magnitude(bitcast<u32>(s.y)) == 0u || (bits & 1u) == 1u) { return s.x; }
  let up = ((bitcast<u32>(s.y) ^ bits) >> 31u) == 0u;
  return bitcast<f32>(select(bits - 1u, bits + 1u, up));
}
// The same without tests, for operands that are not `wild` (integers.wgsl).
const QUICK = true;
const SUMS = 2048u;  // words of workgroup memory for partial sums
fn quick_add(x : f32, y : f32) -> f32 { return kept(x + y); }
fn halves(word : u32) -> vec2<f32> { return bitcast<vec2<f32>>(vec2<u32>(from_half(word & 0xffffu), from_half(word >> 16u))); }
fn quick_mul(x : f32, y : f32) -> f32 { return kept(x * y); }
fn quick_fma(x : f32, y : f32, z : f32) -> f32 {
  let u = two_product(x, y);
  let t = two_sum(z, u.y);
  let v = two_sum(u.x, t.x);
  return kept(v.x + odd_sum(t.y, v.y));
}
fn exact_mul(x : u32, y : u32) -> u32 { return hide(bitcast<f32>(x) * bitcast<f32>(y)); }  // of normal floats
fn fused(x : u32, y : u32, z : u32) -> u32 {
  let p = exponent(x);
  let q = exponent(y);
  let r = exponent(z);
  if (p >= 25u && q >= 25u && p < 255u && q < 255u && p + q >= 176u && p + q <= 374u && r >= 26u && r <= 250u) {
    return bitcast<u32>(quick_fma(bitcast<f32>(x), bitcast<f32>(y), bitcast<f32>(z)));
  }
  if (r == 0u && magnitude(z) == 0u && p >= 1u && q >= 1u && p < 255u && q < 255u && p + q >= 130u && p + q <= 378u) {
    return hide(bitcast<f32>(x) * bitcast<f32>(y));  // the first link of a chain
  }
  return int_fma(x, y, z);
}
