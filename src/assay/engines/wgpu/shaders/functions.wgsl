// exp, tanh and the activations of docs/reference/arithmetic.md.
fn minus(x : u32, y : u32) -> u32 { return add(x, negated(y)); }

const EXP = array<u32, 7>(  // 0x1.6850e4p-10 0x1.123bccp-7 0x1.555b98p-5 0x1.55548ep-3 0x1.fffff8p-2 1 1
  0x3ab42872u, 0x3c091de6u, 0x3d2aadccu, 0x3e2aaa47u, 0x3efffffcu, ONE, ONE);
fn exp_of(x : u32) -> u32 {
  if (is_nan(x)) { return NAN; }
  if (less(x, 0xc2aea8f6u)) { return 0u; }  // below -87.33
  let c = select(x, 0x42b0999au, less(0x42b0999au, x));  // 88.3
  if (QUICK) {  // no step can leave the normal range, and a subnormal x gives 1 even where it is flushed
    let y = bitcast<f32>(c);
    let z = quick_fma(y, bitcast<f32>(0x3fb8aa3bu), 12582912.0);
    let n = quick_add(z, -12582912.0);
    let r = quick_fma(n, bitcast<f32>(0xb5bfbe8eu), quick_fma(n, bitcast<f32>(0xbf317200u), y));
    var p = quick_fma(bitcast<f32>(0x3ab42872u), r, bitcast<f32>(0x3c091de6u));
    p = quick_fma(p, r, bitcast<f32>(0x3d2aadccu));
    p = quick_fma(p, r, bitcast<f32>(0x3e2aaa47u));
    p = quick_fma(p, r, bitcast<f32>(0x3efffffcu));
    p = quick_fma(quick_fma(p, r, 1.0), r, 1.0);
    return bitcast<u32>(p) + (bitcast<u32>(z) << 23u);
  }
  let z = fused(c, 0x3fb8aa3bu, 0x4b400000u);
  let n = add(z, 0xcb400000u);
  var r = c;
  for (var k = 0u; k < 2u; k++) { r = fused(n, select(0xb5bfbe8eu, 0xbf317200u, k == 0u), r); }
  var p = EXP[0];
  for (var k = 1u; k < 7u; k++) { p = fused(p, r, EXP[k]); }
  return p + (z << 23u);
}
fn logistic_of(x : u32, u : u32) -> u32 { return div(x, add(ONE, exp_of(negated(u)))); }  // x / (1 + exp(-u))
// -0x1.75e1a8p-8 0x1.522692p-6 -0x1.b83c58p-5 0x1.110726p-3 -0x1.555532p-2
const TANH = array<u32, 5>(0xbbbaf0d4u, 0x3ca91349u, 0xbd5c1e2cu, 0x3e088393u, 0xbeaaaa99u);
fn tanh_of(x : u32) -> u32 {
  let a = magnitude(x);
  if (a < 0x3f200000u) {  // 0.625
    let s = mul(x, x);
    var p = TANH[0];
    for (var k = 1u; k < 5u; k++) { p = fused(p, s, TANH[k]); }
    return fused(mul(x, s), p, x);
  }
  let y = minus(ONE, div(0x40000000u, add(exp_of(add(a, a)), ONE)));
  return (y & 0x7fffffffu) | (x & SIGN);
}
// erf below 1, then the exponent of 1 - erf from 1 on
const ERF = array<u32, 14>(
  0x38a4b50fu, 0xba51fb7cu, 0x3baa02d8u, 0xbcdbfc86u, 0x3de7167cu, 0xbec0939fu, 0x3e0375d4u,
  0xb9436f06u, 0x3b412da4u, 0xbcb2e5cfu, 0x3dd329abu, 0x3f235d74u, 0x3f904476u, 0x39b30d0bu);
fn erf_of(x : u32) -> u32 {
  let a = magnitude(x);
  let small = a < ONE;
  let t = select(select(a, 0x40800000u, less(0x40800000u, a)), mul(x, x), small);
  let first = select(7u, 0u, small);
  var p = ERF[first];
  for (var k = 1u; k < 7u; k++) { p = fused(p, t, ERF[first + k]); }
  if (small) { return fused(x, p, x); }
  return (minus(ONE, exp_of(negated(p))) & 0x7fffffffu) | (x & SIGN);
}
fn relu(x : u32) -> u32 { return select(x, 0u, less(x, 0u)); }
fn silu(x : u32) -> u32 { return logistic_of(x, x); }
fn sigmoid(x : u32) -> u32 { return logistic_of(ONE, x); }
fn gelu_tanh(x : u32) -> u32 {
  return logistic_of(x, mul(0x3fcc422au, fused(mul(mul(0x3d372713u, x), x), x, x)));
}
fn gelu_erf(x : u32) -> u32 { return mul(mul(0x3f000000u, x), add(ONE, erf_of(mul(x, 0x3f3504f3u)))); }
fn relu_sqr(x : u32) -> u32 { let r = relu(x); return mul(r, r); }
fn clamp_of(x : u32, lo : u32, hi : u32) -> u32 { return select(select(x, hi, less(hi, x)), lo, less(x, lo)); }
fn glu_oai(gate : u32, up : u32, alpha : u32, limit : u32) -> u32 {
  let g = select(gate, limit, less(limit, gate));
  let v = clamp_of(up, negated(limit), limit);
  return mul(logistic_of(g, mul(alpha, g)), add(v, ONE));
}
// 1/17, 1/15, ... 1/3
const LOG = array<u32, 8>(0x3d70f0f1u, 0x3d888889u, 0x3d9d89d9u, 0x3dba2e8cu, 0x3de38e39u, 0x3e124925u, 0x3e4ccccdu, 0x3eaaaaabu);
fn softplus(x : u32) -> u32 {
  let e = exp_of(magnitude(x) | SIGN);
  let s = div(e, add(e, 0x40000000u));
  let z = mul(s, s);
  let t = add(s, s);
  var p = LOG[0];
  for (var k = 1u; k < 8u; k++) { p = fused(p, z, LOG[k]); }
  let l = fused(mul(t, z), p, t);
  return select(l, add(x, l), less(0u, x));
}
