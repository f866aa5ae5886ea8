// rms_norm, layer_norm or l2_norm of a row or of each of its parts (heads); with `quantised` also as int8 blocks. Each
// workgroup has 256 columns and computes the row's sum itself.
struct Par { zero : u32, n : u32, count : u32, eps : u32, x_at : u32, x_stride : u32, out_stride : u32, w_stride : u32,
             acts_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> x : array<u32>;
@group(0) @binding(2) var<storage, read> w : array<u32>;
@group(0) @binding(3) var<storage, read> bias : array<u32>;
@group(0) @binding(4) var<storage, read_write> out : array<u32>;
//#if quantised
@group(0) @binding(5) var<storage, read_write> acts : array<u32>;
//#end
//#include arithmetic
//#if quantised
//#include quantise
//#end
var<workgroup> chains : array<u32, 64>;
fn tree(l : u32) -> u32 {  // of 64 chains; all invocations call it
  workgroupBarrier();
  for (var h = 32u; h > 0u; h = h >> 1u) {
    if (l < h) { chains[l] = add(chains[l], chains[l + h]); }
    workgroupBarrier();
  }
  let sum = chains[0];
  workgroupBarrier();
  return sum;
}
fn centred(v : u32, mean : u32) -> u32 {
//#if layer
  return add(v, negated(mean));
//#end
  return v;
}
// The sum of squares without tests: 2048 values at a time are loaded by all invocations, then 64 of these walk their
// chains. All invocations call it. `any_wild` says whether it may be wrong.
var<workgroup> loaded : array<f32, 2048>;
var<workgroup> sixteen : array<f32, 16>;
var<workgroup> any_wild : atomic<u32>;
fn load(base : u32, i : u32, at : u32, mean : u32) -> bool {
  let v = select(0u, centred(x[base + min(i, par.n - 1u)], mean), i < par.n);
  loaded[at] = bitcast<f32>(v);
  return wild(v);
}
fn at_chain(l : u32, k : u32) -> f32 { return bitcast<f32>(chains[l + 16u * k]); }
fn quick_squares(base : u32, l : u32, mean : u32) -> u32 {
  var s = 0.0;
  if (l == 0u) { atomicStore(&any_wild, 0u); }  // memory of workgroups is not zeroed everywhere
  workgroupBarrier();
  for (var first = 0u; first < par.n; first += 2048u) {
    let count = min(2048u, par.n - first);
    var out = false;
    if (count == 2048u) {
      for (var k = 0u; k < 8u; k++) { out = load(base, first + 256u * k + l, 256u * k + l, mean) | out; }
    } else {
      for (var i = l; i < count; i += 256u) { out = load(base, first + i, i, mean) | out; }
    }
    if (out) { atomicOr(&any_wild, 1u); }
    workgroupBarrier();
    if (l < 64u) {
      if (count == 2048u) {
        for (var k = 0u; k < 32u; k++) { s = quick_fma(loaded[l + 64u * k], loaded[l + 64u * k], s); }
      } else {
        for (var i = l; i < count; i += 64u) { s = quick_fma(loaded[i], loaded[i], s); }
      }
    }
    workgroupBarrier();
  }
  if (l < 64u) { chains[l] = bitcast<u32>(s); }
  workgroupBarrier();
  if (l < 16u) {  // the first two levels of the tree, then the others in every invocation
    sixteen[l] = quick_add(quick_add(at_chain(l, 0u), at_chain(l, 2u)), quick_add(at_chain(l, 1u), at_chain(l, 3u)));
  }
  workgroupBarrier();
  var four : vec4<f32>;
  for (var k = 0u; k < 4u; k++) {
    four[k] = quick_add(quick_add(sixteen[k], sixteen[k + 8u]), quick_add(sixteen[k + 4u], sixteen[k + 12u]));
  }
  return bitcast<u32>(quick_add(quick_add(four.x, four.z), quick_add(four.y, four.w)));
}
fn squares(base : u32, l : u32, mean : u32) -> u32 {
  if (l < 64u) {
    var sum = 0u;
    for (var i = l; i < par.n; i += 64u) {
      let v = centred(x[base + i], mean);
      sum = fused(v, v, sum);
    }
    chains[l] = sum;
  }
  return tree(l);
}
fn squares_alone(base : u32, mean : u32) -> u32 {  // by one invocation, where few need it
  var sums : array<u32, 64>;
  for (var i = 0u; i < par.n; i++) {
    let v = centred(x[base + i], mean);
    sums[i % 64u] = fused(v, v, sums[i % 64u]);
  }
  for (var h = 32u; h > 0u; h = h >> 1u) {
    for (var i = 0u; i < h; i++) { sums[i] = add(sums[i], sums[i + h]); }
  }
  return sums[0];
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_index) l : u32) {
  let base = par.x_at + group.y * par.x_stride + group.x * par.n;
  let n = par.n;
  var mean = 0u;
//#if layer
  if (l < 64u) {
    var s = 0u;
    for (var i = l; i < n; i += 64u) { s = add(s, x[base + i]); }
    chains[l] = s;
  }
  mean = div(tree(l), par.count);
//#end
  var sum = 0u;
  if (QUICK) {
    sum = quick_squares(base, l, mean);
    if (atomicLoad(&any_wild) != 0u) { sum = squares_alone(base, mean); }
  } else {
    sum = squares(base, l, mean);
  }
//#if l2
  var f = div(ONE, root(add(sum, par.eps)));
//#end
//#if floored
  let length = root(sum);
  var f = div(ONE, select(length, par.eps, less(length, par.eps)));
//#end
//#if mean
  var f = div(ONE, root(add(div(sum, par.count), par.eps)));
//#end
  let first = group.z * 256u;
  let i = first + l;
  if (i < n) {
    var v = mul(centred(x[base + i], mean), f);
//#if weighted
    v = mul(v, w[group.x * par.w_stride + i]);
//#end
//#if biased
    v = add(v, bias[group.x * par.w_stride + i]);
//#end
    out[group.y * par.out_stride + group.x * n + i] = v;
//#if quantised
    shown[l] = v;
//#end
  }
//#if quantised
  workgroupBarrier();
  quantise(l, min(256u, n - first), group.y * par.acts_stride + first / 4u,
           group.y * par.acts_stride + n / 4u + first / 32u, n / 32u);
//#end
}
