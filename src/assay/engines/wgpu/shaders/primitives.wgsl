// The probe's first kernel: every operation of the arithmetic on three recorded numbers.
struct Par { zero : u32, count : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> x : array<u32>;  // three words a case
@group(0) @binding(2) var<storage, read_write> out : array<u32>;  // five words a case
//#include arithmetic
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g : vec3<u32>) {
  if (g.x >= par.count) { return; }
  let a = x[3u * g.x];
  let b = x[3u * g.x + 1u];
  let c = x[3u * g.x + 2u];
  let at = 5u * g.x;
  out[at] = add(a, b);
  out[at + 1u] = mul(a, b);
  out[at + 2u] = fused(a, b, c);
  out[at + 3u] = div(a, b);
  out[at + 4u] = root(magnitude(a));
}
