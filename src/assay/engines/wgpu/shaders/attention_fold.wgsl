// Folds the blocks of a query row, ascending, then a sink; with `quantised` also as int8 blocks.
struct Par { zero : u32, heads : u32, dim : u32, by_output : u32, most_blocks : u32, out_stride : u32, acts_stride : u32,
             width : u32 }
@group(0) @binding(0) var<storage, read> par : Par;
@group(0) @binding(1) var<storage, read> step : array<u32>;
@group(0) @binding(2) var<storage, read> blocks : array<u32>;
@group(0) @binding(3) var<storage, read> sinks : array<u32>;
@group(0) @binding(4) var<storage, read_write> out : array<u32>;
//#if quantised
@group(0) @binding(5) var<storage, read_write> acts : array<u32>;
//#end
//#if traced
@group(0) @binding(5) var<storage, read_write> ends : array<u32>;  // [row][head]: the last m and l
//#end
//#include arithmetic
//#include functions
//#include step
//#if quantised
//#include quantise
//#end
struct State { m : u32, l : u32, acc : u32 }
fn fold(s : State, m : u32, l : u32, acc : u32) -> State {
  let top = select(s.m, m, less(s.m, m));
  var factors = vec2<u32>(s.m, m);
  for (var k = 0u; k < 2u; k++) { factors[k] = exp_of(minus(factors[k], top)); }
  let a = factors.x;
  let b = factors.y;
  return State(top, add(mul(s.l, a), mul(l, b)), add(mul(s.acc, a), mul(acc, b)));
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group : vec3<u32>, @builtin(local_invocation_index) l : u32) {
  let h = group.x;
  let row = group.y;
  var t = row;
  if (par.by_output == 1u) { t = output_token(row); }
  if (l < par.dim) {
    var s = State(0xff800000u, 0u, 0u);
    let count = (key_count(t) + 255u) / 256u;
//#if sinks
    let last = count + 1u;
//#end
//#if plain
    let last = count;
//#end
    for (var b = 0u; b < last; b++) {
      let at = ((row * par.heads + h) * par.most_blocks + b) * (par.dim + 2u);
      var m = 0u;
      var sum = ONE;
      var acc = 0u;
      if (b < count) {
        m = blocks[at];
        sum = blocks[at + 1u];
        acc = blocks[at + 2u + l];
      }
//#if sinks
      if (b == count) { m = sinks[h]; }
//#end
      if (m == 0xff800000u) { continue; }
      if (s.m == 0xff800000u) { s = State(m, sum, acc); } else { s = fold(s, m, sum, acc); }
    }
    let y = mul(s.acc, div(ONE, s.l));
    out[row * par.out_stride + h * par.dim + l] = y;
//#if quantised
    shown[l] = y;
//#end
//#if traced
    if (l == 0u) {
      ends[2u * (row * par.heads + h)] = s.m;
      ends[2u * (row * par.heads + h) + 1u] = s.l;
    }
//#end
  }
//#if quantised
  workgroupBarrier();
  quantise(l, par.dim, row * par.acts_stride + h * par.dim / 4u,
           row * par.acts_stride + par.width / 4u + h * par.dim / 32u, par.width / 32u);
//#end
}
