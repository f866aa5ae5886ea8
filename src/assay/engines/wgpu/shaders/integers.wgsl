// IEEE binary32 out of u32 operations, which WGSL defines exactly. A float is the u32 of its bits everywhere in these
// shaders. Round to nearest even, subnormals kept; a NaN result is 0x7fc00000.
const NAN = 0x7fc00000u;
const INFINITY = 0x7f800000u;
const ONE = 0x3f800000u;
const SIGN = 0x80000000u;

struct U64 { hi : u32, lo : u32 }
fn shl64(x : U64, n : u32) -> U64 {  // n < 64
  if (n == 0u) { return x; }
  if (n < 32u) { return U64((x.hi << n) | (x.lo >> (32u - n)), x.lo << n); }
  return U64(x.lo << (n - 32u), 0u);
}
fn jam64(x : U64, n : u32) -> U64 {  // to the right; any lost bit sets the last one
  if (n == 0u) { return x; }
  if (n < 32u) { return U64(x.hi >> n, (x.hi << (32u - n)) | (x.lo >> n) | u32((x.lo << (32u - n)) != 0u)); }
  if (n == 32u) { return U64(0u, x.hi | u32(x.lo != 0u)); }
  if (n < 64u) { return U64(0u, (x.hi >> (n - 32u)) | u32((x.lo | (x.hi << (64u - n))) != 0u)); }
  return U64(0u, u32((x.hi | x.lo) != 0u));
}
fn add64(x : U64, y : U64) -> U64 { let lo = x.lo + y.lo; return U64(x.hi + y.hi + u32(lo < x.lo), lo); }
fn sub64(x : U64, y : U64) -> U64 { return U64(x.hi - y.hi - u32(x.lo < y.lo), x.lo - y.lo); }
fn jam32(x : u32, n : u32) -> u32 {
  if (n == 0u) { return x; }
  if (n < 32u) { return (x >> n) | u32((x << (32u - n)) != 0u); }
  return u32(x != 0u);
}

// Rounds a significand whose first bit is bit 30, of biased exponent e.
fn pack(s : u32, e : i32, m : u32) -> u32 {
  var mm = m;
  var ee = e;
  if (ee <= 0) { mm = jam32(mm, min(u32(1 - ee), 31u)); ee = 0; }
  let rest = mm & 0x7fu;
  var r = mm >> 7u;
  r += u32(rest > 0x40u || (rest == 0x40u && (r & 1u) == 1u));
  if (ee == 0) { return s | r; }  // subnormal; a carry into the exponent is right
  let q = (u32(ee) << 23u) + (r - 0x800000u);
  return select(s | q, s | INFINITY, ee >= 255 || q >= INFINITY);
}
fn parts(x : u32) -> vec2<i32> {  // significand with bit 23 set, biased exponent; x is not 0
  let e = i32((x >> 23u) & 0xffu);
  let m = x & 0x7fffffu;
  if (e != 0) { return vec2<i32>(i32(m | 0x800000u), e); }
  let n = countLeadingZeros(m) - 8u;
  return vec2<i32>(i32(m << n), 1 - i32(n));
}
fn magnitude(x : u32) -> u32 { return x & 0x7fffffffu; }
fn is_nan(x : u32) -> bool { return magnitude(x) > INFINITY; }
fn negated(x : u32) -> u32 { return x ^ SIGN; }

fn int_add(x : u32, y : u32) -> u32 {
  let ax = magnitude(x);
  let ay = magnitude(y);
  if (ax > INFINITY || ay > INFINITY) { return NAN; }
  if (ax == INFINITY) { return select(x, NAN, ay == INFINITY && x != y); }
  if (ay == INFINITY) { return y; }
  if (ay == 0u) { return select(x, select(0u, x, x == y), ax == 0u); }
  if (ax == 0u) { return y; }
  var big = x;
  var little = y;
  if (ay > ax) { big = y; little = x; }
  let p = parts(big);
  let q = parts(little);
  let m = u32(p.x) << 6u;
  let t = jam32(u32(q.x) << 6u, u32(min(p.y - q.y, 31)));
  let sum = select(m - t, m + t, ((x ^ y) >> 31u) == 0u);
  if (sum == 0u) { return 0u; }
  let n = countLeadingZeros(sum) - 1u;
  return pack(big & SIGN, p.y + 1 - i32(n), sum << n);
}
fn product(x : u32, y : u32) -> U64 {  // 24 bits by 24
  let xl = x & 0xfffu; let xh = x >> 12u;
  let yl = y & 0xfffu; let yh = y >> 12u;
  let mid = xl * yh + xh * yl;  // < 2^25
  let high = xh * yh;
  let part = (mid & 0xfffffu) << 12u;
  let low = xl * yl + part;
  let lo = low + (high << 24u);
  return U64((high >> 8u) + (mid >> 20u) + u32(low < part) + u32(lo < low), lo);
}
fn int_mul(x : u32, y : u32) -> u32 {
  let ax = magnitude(x);
  let ay = magnitude(y);
  let s = (x ^ y) & SIGN;
  if (ax > INFINITY || ay > INFINITY) { return NAN; }
  if (ax == INFINITY || ay == INFINITY) { return select(s | INFINITY, NAN, ax == 0u || ay == 0u); }
  if (ax == 0u || ay == 0u) { return s; }
  let p = parts(x);
  let q = parts(y);
  let m = product(u32(p.x), u32(q.x));  // first bit 46 or 47
  let n = countLeadingZeros(m.hi) - 16u;
  let k = shl64(m, 15u + n);  // first bit at 62
  return pack(s, p.y + q.y - 126 - i32(n), k.hi | u32(k.lo != 0u));
}
fn int_fma(x : u32, y : u32, z : u32) -> u32 {
  let ax = magnitude(x);
  let ay = magnitude(y);
  let az = magnitude(z);
  let s = (x ^ y) & SIGN;
  if (ax > INFINITY || ay > INFINITY || az > INFINITY) { return NAN; }
  if (ax == INFINITY || ay == INFINITY) {
    if (ax == 0u || ay == 0u) { return NAN; }
    return select(s | INFINITY, NAN, az == INFINITY && (z & SIGN) != s);
  }
  if (az == INFINITY) { return z; }
  if (ax == 0u || ay == 0u) {
    if (az == 0u) { return select(0u, s, s == (z & SIGN)); }
    return z;
  }
  let p = parts(x);
  let q = parts(y);
  let m = product(u32(p.x), u32(q.x));
  let n = countLeadingZeros(m.hi) - 16u;
  var k = shl64(m, 14u + n);  // first bit at 61
  var e = p.y + q.y - 126 - i32(n);  // its biased exponent
  var sign = s;
  if (az != 0u) {
    let t = parts(z);
    var v = U64(u32(t.x) << 6u, 0u);  // first bit at 61
    let zs = z & SIGN;
    if (t.y > e) { k = jam64(k, u32(min(t.y - e, 64))); e = t.y; } else { v = jam64(v, u32(min(e - t.y, 64))); }
    if (zs == s) {
      k = add64(k, v);
    } else {
      if (k.hi < v.hi || (k.hi == v.hi && k.lo < v.lo)) { k = sub64(v, k); sign = zs; } else { k = sub64(k, v); }
      if ((k.hi | k.lo) == 0u) { return 0u; }
    }
  }
  var zeros = countLeadingZeros(k.hi);
  if (k.hi == 0u) { zeros = 32u + countLeadingZeros(k.lo); }
  let u = shl64(k, zeros - 1u);  // first bit at 62
  return pack(sign, e + 2 - i32(zeros), u.hi | u32(u.lo != 0u));
}
// Division and square root. Devices round both in their own ways, so the device's result is only a first guess of the
// 24 bits, and the integer remainder corrects it. Tier 2, or a guess that is far away, finds one bit of the result a step.
fn rest_bits(twice : u32, whole : u32, rest : u32) -> u32 {  // what follows the 24 bits: below, at or above a half
  return select(select(1u, 0x40u, twice == whole), 0x41u, twice > whole) * u32(rest != 0u);
}
fn div(x : u32, y : u32) -> u32 {
  let ax = magnitude(x);
  let ay = magnitude(y);
  let s = (x ^ y) & SIGN;
  if (ax > INFINITY || ay > INFINITY) { return NAN; }
  if (ax == INFINITY) { return select(s | INFINITY, NAN, ay == INFINITY); }
  if (ay == INFINITY) { return s; }
  if (ay == 0u) { return select(s | INFINITY, NAN, ax == 0u); }
  if (ax == 0u) { return s; }
  let p = parts(x);
  let q = parts(y);
  var e = p.y - q.y + 127;
  var r = u32(p.x);
  let d = u32(q.x);
  if (r < d) { r = r << 1u; e = e - 1; }
  if (QUICK) {
    let inverse = 1.0 / f32(d);
    var quotient = u32(f32(r) * inverse * 8388608.0);
    var rest = i32((r << 23u) - quotient * d);  // small, so that the low 32 bits are all of it
    let off = i32(floor(f32(rest) * inverse));
    quotient += u32(off);
    rest -= off * i32(d);
    let over = i32(rest >= i32(d)) - i32(rest < 0);
    quotient += u32(over);
    rest -= over * i32(d);
    if (u32(rest) < d) { return pack(s, e, (quotient << 7u) | rest_bits(2u * u32(rest), d, u32(rest))); }
  }
  var m = 0u;
  for (var k = 0u; k < 27u; k++) {
    m = m << 1u;
    if (r >= d) { r -= d; m |= 1u; }
    r = r << 1u;
  }
  return pack(s, e, (m << 4u) | u32(r != 0u));
}
fn root(x : u32) -> u32 {
  if (magnitude(x) == 0u || x == INFINITY) { return x; }
  if (x > INFINITY) { return NAN; }
  let p = parts(x);
  var e = p.y - 127;
  if (QUICK) {
    let odd = u32(e) & 1u;
    let v = u32(p.x) << odd;
    var found = u32(sqrt(f32(v) * 0x1p-23) * 8388608.0);
    var rest = i32((v << 23u) - found * found);  // small, as in a division
    let off = i32(floor(f32(rest) / f32(2u * found)));
    rest -= off * (2 * i32(found) + off);
    found += u32(off);
    if (rest < 0) { found -= 1u; rest += 2 * i32(found) + 1; }
    if (rest > 2 * i32(found)) { rest -= 2 * i32(found) + 1; found += 1u; }
    if (u32(rest) <= 2u * found) {  // a square root is never halfway between two floats
      return pack(0u, ((e - i32(odd)) >> 1u) + 127, (found << 7u) | rest_bits(2u * u32(rest), 2u * found + 1u, u32(rest)));
    }
  }
  var rest = u32(p.x) << 7u;
  if ((e & 1) != 0) { rest = rest << 1u; e = e - 1; }
  var found = 0u;
  var left = 0u;
  for (var k = 0u; k < 26u; k++) {
    left = (left << 2u) | (rest >> 30u);
    rest = rest << 2u;
    let t = (found << 2u) | 1u;
    found = found << 1u;
    if (left >= t) { left -= t; found |= 1u; }
  }
  return pack(0u, (e >> 1u) + 127, (found << 5u) | u32(left != 0u));
}

// The order of floats as the order of u32; +0 above -0. NaN must be excluded before.
fn order(x : u32) -> u32 { return select(x | SIGN, ~x, (x >> 31u) == 1u); }
fn from_order(k : u32) -> u32 { return select(~k, k & 0x7fffffffu, (k >> 31u) == 1u); }
fn less(a : u32, b : u32) -> bool {  // a < b: false with a NaN, and +0 is not above -0
  if (is_nan(a) || is_nan(b) || (magnitude(a) | magnitude(b)) == 0u) { return false; }
  return order(a) < order(b);
}

fn from_half(h : u32) -> u32 {  // a float16 as float32, exactly
  let a = h & 0x7fffu;
  let normal = (a << 13u) + 0x38000000u;
  let subnormal = bitcast<u32>(f32(a) * 0x1p-24);  // both are exact
  let found = select(normal, select(subnormal, INFINITY, a == 0x7c00u), (a < 1024u) | (a == 0x7c00u));
  return select(found | ((h & 0x8000u) << 16u), NAN, a > 0x7c00u);
}
fn to_half(x : u32) -> u32 {  // nearest even; beyond 65504, infinities too, 65504 of the sign; a NaN stays one
  let s = (x >> 16u) & 0x8000u;
  let a = magnitude(x);
  if (a > INFINITY) { return s | 0x7e00u; }
  if (a >= 0x477ff000u) { return s | 0x7bffu; }
  let e = i32(a >> 23u) - 112;
  var m = a & 0x7fffffu;
  if (a >= 0x00800000u) { m |= 0x800000u; }
  let shift = u32(select(13, min(14 - e, 31), e <= 0));
  let rest = m & ((1u << shift) - 1u);
  let tie = 1u << (shift - 1u);
  var r = m >> shift;
  r += u32(rest > tie || (rest == tie && (r & 1u) == 1u));
  return s | select(u32(e - 1) * 1024u + r, r, e <= 0);
}
// A factor is wild unless it is 0 or between 2^-30 and 2^30. Products of two tame factors, one of them rounded once by a
// product with an integer below 2^24, are multiples of 2^-106, so no sum of them is subnormal or infinite.
fn wild(x : u32) -> bool { return (((x >> 23u) & 255u) - 97u > 59u) & (magnitude(x) != 0u); }
