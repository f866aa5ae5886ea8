// dot of arithmetic.md by one invocation: chains of products, then a tree. Fewer than 64 chains where a row is shorter.
var<private> chain : array<u32, 64>;
fn clear_chains() { for (var c = 0u; c < par.chains; c++) { chain[c] = 0u; } }
fn link(i : u32, a : u32, b : u32) { let c = i % par.chains; chain[c] = fused(a, b, chain[c]); }
fn chained() -> u32 {
  for (var h = par.chains / 2u; h > 0u; h = h >> 1u) {
    for (var c = 0u; c < h; c++) { chain[c] = add(chain[c], chain[c + h]); }
  }
  return chain[0];
}
