// Codes of 4 bits that name an int8 of a book of 16, which the weights' buffer cannot hold: four words of `par`.
const CODE_CHUNKS = 8u;
fn book(n : u32) -> u32 {
  let word = select(select(par.book0, par.book1, n >= 4u), select(par.book2, par.book3, n >= 12u), n >= 8u);
  return (word >> (8u * (n & 3u))) & 255u;
}
fn booked(v : u32) -> u32 {
  return book(v & 15u) | (book((v >> 8u) & 15u) << 8u) | (book((v >> 16u) & 15u) << 16u) | (book((v >> 24u) & 15u) << 24u);
}
fn named(v : vec4<u32>) -> vec4<u32> { return vec4<u32>(booked(v.x), booked(v.y), booked(v.z), booked(v.w)); }
struct Codes { chunk : vec4<u32> }
fn codes(base : u32, b : u32) -> Codes { return Codes(w[base + 32u * b]); }
fn low(c : Codes) -> vec4<u32> { return named(c.chunk); }
fn high(c : Codes) -> vec4<u32> { return named(c.chunk >> vec4<u32>(4u)); }
