// Tier 0: the device's own fma(), where it rounds once. Near the ends of the range, where devices flush subnormals,
// integers compute. `hide` keeps a rounding: the compiler does not know that zero() is 0.
fn hide(x : f32) -> u32 { return bitcast<u32>(x) ^ zero(); }
fn exponent(x : u32) -> u32 { return (x >> 23u) & 255u; }
fn add(x : u32, y : u32) -> u32 {
  let top = max(exponent(x), exponent(y));
  if (top >= 26u && top <= 252u) { return hide(bitcast<f32>(x) + bitcast<f32>(y)); }
  return int_add(x, y);
}
fn mul(x : u32, y : u32) -> u32 {
  let p = exponent(x);
  let q = exponent(y);
  let zeros = (magnitude(x) == 0u) | (magnitude(y) == 0u);
  let normal = (p >= 1u) & (q >= 1u) & (p + q >= 130u) & (p + q <= 378u);
  if ((zeros | normal) & (p < 255u) & (q < 255u)) { return hide(bitcast<f32>(x) * bitcast<f32>(y)); }
  return int_mul(x, y);
}
fn fused(x : u32, y : u32, z : u32) -> u32 {
  let p = exponent(x);
  let q = exponent(y);
  let r = exponent(z);
  let zeros = (magnitude(x) == 0u) | (magnitude(y) == 0u);
  let normal = (p >= 1u) & (q >= 1u) & (p + q >= 180u) & (p + q <= 378u);
  let plain = (zeros | normal) & (p < 255u) & (q < 255u);
  if (plain & ((magnitude(z) == 0u) | ((r >= 1u) & (r <= 252u)))) {
    return hide(fma(bitcast<f32>(x), bitcast<f32>(y), bitcast<f32>(z)));
  }
  return int_fma(x, y, z);
}
// The same without tests, for operands that are not `wild` (integers.wgsl).
const QUICK = true;
const SUMS = 2048u;  // words of workgroup memory for partial sums
fn quick_add(x : f32, y : f32) -> f32 { return bitcast<f32>(hide(x + y)); }
fn halves(word : u32) -> vec2<f32> { return unpack2x16float(word); }  // the probe finds a device that flushes them
fn quick_mul(x : f32, y : f32) -> f32 { return bitcast<f32>(hide(x * y)); }
fn quick_fma(x : f32, y : f32, z : f32) -> f32 { return bitcast<f32>(hide(fma(x, y, z))); }
fn exact_mul(x : u32, y : u32) -> u32 { return hide(bitcast<f32>(x) * bitcast<f32>(y)); }  // of normal floats
