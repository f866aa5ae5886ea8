// softmax of a row of experts: NaN left out of the largest; sums in 32 chains and a tree.
struct Par { zero : u32, width : u32, x_at : u32, x_stride : u32, out_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> x : array<u32>;
@group(0) @binding(2) var<storage, read_write> out : array<u32>;
//#include arithmetic
//#include functions
var<workgroup> chains : array<u32, 32>;
@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_index) l : u32) {
  let row = par.x_at + group.x * par.x_stride;
  var top = order(0xff800000u);
  for (var i = 0u; i < par.width; i++) {
    let v = x[row + i];
    if (!is_nan(v)) { top = max(top, order(v)); }
  }
  let m = from_order(top);
  var c = 0u;
  for (var i = l; i < par.width; i += 32u) {
    let e = exp_of(minus(x[row + i], m));
    out[group.x * par.out_stride + i] = e;
    c = add(c, e);
  }
  chains[l] = c;
  workgroupBarrier();
  for (var n = 16u; n > 0u; n = n >> 1u) {
    if (l < n) { chains[l] = add(chains[l], chains[l + n]); }
    workgroupBarrier();
  }
  for (var i = l; i < par.width; i += 32u) {
    let at = group.x * par.out_stride + i;
    out[at] = div(out[at], chains[0]);
  }
}
