// TeX's names for letters and signs.

const named = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => { const [sign, ...names] = [...pair.split(":")]; return names.map((name) => [name, sign]); }).flat());

export const LETTERS = named(`
  α:alpha β:beta γ:gamma δ:delta ϵ:epsilon ε:varepsilon ζ:zeta η:eta θ:theta ϑ:vartheta ι:iota κ:kappa λ:lambda μ:mu ν:nu ξ:xi
  π:pi ϖ:varpi ρ:rho ϱ:varrho σ:sigma ς:varsigma τ:tau υ:upsilon ϕ:phi φ:varphi χ:chi ψ:psi ω:omega
  Γ:Gamma Δ:Delta Θ:Theta Λ:Lambda Ξ:Xi Π:Pi Σ:Sigma Υ:Upsilon Φ:Phi Ψ:Psi Ω:Omega
  ℓ:ell ℏ:hbar ı:imath ȷ:jmath ℜ:Re ℑ:Im ∂:partial ∇:nabla ∞:infty ∅:emptyset:varnothing ℵ:aleph ⊤:top ⊥:bot`);

export const SYMBOLS = named(`
  ×:times ÷:div ·:cdot ±:pm ∓:mp ∗:ast ⋆:star ∘:circ ∙:bullet ⊕:oplus ⊗:otimes ⊙:odot ⊖:ominus ∪:cup ∩:cap ∖:setminus ∧:wedge:land
  ∨:vee:lor ¬:neg:lnot ≤:le:leq:leqslant ≥:ge:geq:geqslant ≠:ne:neq ≈:approx ≡:equiv ∼:sim ≃:simeq ≅:cong ∝:propto ≪:ll ≫:gg ≺:prec
  ≻:succ ∈:in ∉:notin ∋:ni ⊂:subset ⊃:supset ⊆:subseteq ⊇:supseteq ⊄:nsubset ∣:mid ∤:nmid ∥:parallel ⟂:perp ⊢:vdash ⊨:models ∀:forall ∃:exists
  ∄:nexists →:to:rightarrow ←:gets:leftarrow ↔:leftrightarrow ⇒:Rightarrow ⇐:Leftarrow ⇔:Leftrightarrow:iff ⟹:implies:Longrightarrow
  ⟸:impliedby ⟶:longrightarrow ↦:mapsto ⟼:longmapsto ↑:uparrow ↓:downarrow ↗:nearrow ↘:searrow ⇌:rightleftharpoons ↪:hookrightarrow
  …:ldots:dots:dotsc ⋯:cdots:dotsb ⋮:vdots ⋱:ddots ∴:therefore ∵:because ∠:angle △:triangle □:square:Box ■:blacksquare:qed ◇:diamond †:dagger ′:prime
  °:degree √:surd ∝:varpropto ≜:triangleq ≔:coloneqq :::colon`.replace(" :::colon", ""));
SYMBOLS.colon = ":";
SYMBOLS.backslash = "\\";

export const LIMITS = named(`
  ∑:sum ∏:prod ∐:coprod ∫:int ∬:iint ∭:iiint ∮:oint ⋃:bigcup ⋂:bigcap ⨁:bigoplus ⨂:bigotimes ⋁:bigvee ⋀:bigwedge`);

export const FUNCTIONS = new Set(("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp lim limsup liminf max min sup inf " +
  "det dim ker deg gcd arg argmax argmin Pr hom mod bmod softmax sgn tr rank").split(" "));

export const SPACES = { ",": "0.17em", ":": "0.22em", ";": "0.28em", "!": "-0.17em", " ": "0.28em", quad: "1em", qquad: "2em", thinspace: "0.17em", enspace: "0.5em" };

// [mark, element, whether it stretches]
export const ACCENTS = {
  hat: ["^", "mover", false], widehat: ["^", "mover", true], bar: ["¯", "mover", false], overline: ["¯", "mover", true], vec: ["→", "mover", false],
  overrightarrow: ["→", "mover", true], tilde: ["~", "mover", false], widetilde: ["~", "mover", true], dot: ["˙", "mover", false], ddot: ["¨", "mover", false],
  check: ["ˇ", "mover", false], underline: ["_", "munder", true], overbrace: ["⏞", "mover", true], underbrace: ["⏟", "munder", true],
};

const STARTS = { bb: [0x1d538, 0x1d552], cal: [0x1d49c, 0x1d4b6], frak: [0x1d504, 0x1d51e] };
const ODD = { bb: { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }, frak: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" },
  cal: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" } };

// Letters of another alphabet: blackboard bold, script, fraktur.
export function alphabet(text, kind) {
  const [upper, lower] = STARTS[kind];
  return [...text].map((c) => {
    if (ODD[kind][c]) return ODD[kind][c];
    if (c >= "A" && c <= "Z") return String.fromCodePoint(upper + c.charCodeAt(0) - 65);
    if (c >= "a" && c <= "z") return String.fromCodePoint(lower + c.charCodeAt(0) - 97);
    return c;
  }).join("");
}
