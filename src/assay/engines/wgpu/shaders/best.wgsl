// The largest logit of each output row and its index: a NaN first, ties to the lower index.
struct Par { zero : u32, width : u32, x_at : u32, x_stride : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> x : array<u32>;
@group(0) @binding(2) var<storage, read_write> chosen : array<u32>;  // index and logit of each row
var<workgroup> value : array<u32, 256>;
var<workgroup> index : array<u32, 256>;
//#include arithmetic
fn rank(v : u32) -> u32 {  // -0 counts as +0
  if (is_nan(v)) { return 0xffffffffu; }
  return order(select(v, 0u, magnitude(v) == 0u));
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_index) l : u32) {
  let row = par.x_at + group.x * par.x_stride;
  var best = 0u;
  var at = 0xffffffffu;
  for (var first = l; first < par.width; first += 2048u) {
    for (var k = 0u; k < 8u; k++) {  // the loads of eight values are in flight together
      let i = first + 256u * k;
      let r = rank(x[row + min(i, par.width - 1u)]);
      if (i < par.width && (at == 0xffffffffu || r > best)) { best = r; at = i; }
    }
  }
  value[l] = best;
  index[l] = at;
  workgroupBarrier();
  for (var n = 128u; n > 0u; n = n >> 1u) {
    if (l < n) {
      let other = index[l + n];
      if (other != 0xffffffffu && (value[l + n] > value[l] || (value[l + n] == value[l] && other < index[l]))) {
        value[l] = value[l + n];
        index[l] = other;
      }
    }
    workgroupBarrier();
  }
  if (l == 0u) {
    chosen[2u * group.x] = index[0];
    chosen[2u * group.x + 1u] = x[row + index[0]];
  }
}
