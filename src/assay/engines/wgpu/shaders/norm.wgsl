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
// Chain l of the squares. Eight values are loaded before they are added, so that the loads are in flight together; a
// loop over them would not be unrolled by every driver.
fn at_or_0(base : u32, i : u32, mean : u32) -> u32 { return select(0u, centred(x[base + i], mean), i < par.n); }
fn four(base : u32, i : u32, mean : u32) -> vec4<u32> {
  return vec4<u32>(at_or_0(base, i, mean), at_or_0(base, i + 64u, mean), at_or_0(base, i + 128u, mean),
                   at_or_0(base, i + 192u, mean));
}
fn any_wild(v : vec4<u32>) -> bool { return wild(v.x) | wild(v.y) | wild(v.z) | wild(v.w); }
fn add_squares(v : vec4<f32>, sum : f32) -> f32 {
  return quick_fma(v.w, v.w, quick_fma(v.z, v.z, quick_fma(v.y, v.y, quick_fma(v.x, v.x, sum))));
}
fn squared(base : u32, l : u32, mean : u32) -> u32 {
  var s = 0.0;
  var out = !QUICK;
  for (var i = l; i < par.n; i += 512u) {
    let a = four(base, i, mean);
    let b = four(base, i + 256u, mean);
    out = out | any_wild(a) | any_wild(b);
    s = add_squares(bitcast<vec4<f32>>(b), add_squares(bitcast<vec4<f32>>(a), s));
  }
  if (!out) { return bitcast<u32>(s); }
  var sum = 0u;
  for (var i = l; i < par.n; i += 64u) {
    let v = centred(x[base + i], mean);
    sum = fused(v, v, sum);
  }
  return sum;
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
  if (l < 64u) { chains[l] = squared(base, l, mean); }
  let squares = tree(l);
//#if l2
  var f = div(ONE, root(add(squares, par.eps)));
//#end
//#if floored
  let length = root(squares);
  var f = div(ONE, select(length, par.eps, less(length, par.eps)));
//#end
//#if mean
  var f = div(ONE, root(add(div(squares, par.count), par.eps)));
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
           group.y * par.acts_stride + n / 4u + first / 32u);
//#end
}
