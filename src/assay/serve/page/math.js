// A part of TeX as MathML: fractions, roots, scripts, Greek, sums, matrices, operators. An unknown command is shown as it
// was written. Each character is read once, and nesting ends at DEPTH: what is deeper is shown as source.

import { ACCENTS, FUNCTIONS, LETTERS, LIMITS, SPACES, SYMBOLS, alphabet } from "./math-symbols.js";
import { node as made } from "./tree.js";

const DEPTH = 24;
const TOKEN = /\\[a-zA-Z]+\*?|\\[\s\S]|[ \t\r\n]+|\d+(?:\.\d+)?|[\s\S]/gu;
// Signs around a matrix. Those with a class are borders, which are as high as it in every font.
const BRACKETS = { matrix: [], pmatrix: ["", "", "parens"], bmatrix: ["", "", "brackets"], Bmatrix: ["{", "}"], vmatrix: ["", "", "bars"],
  Vmatrix: ["‖", "‖"], smallmatrix: [], cases: ["{", "", "cases"], array: [] };
const LINES = new Set(["aligned", "align", "align*", "split", "gathered", "gather", "gather*", "equation", "equation*", "alignat", "alignat*"]);
const FENCES = { "\\{": "{", "\\}": "}", "\\langle": "⟨", "\\rangle": "⟩", "\\lvert": "|", "\\rvert": "|", "\\|": "‖", "\\lVert": "‖",
  "\\rVert": "‖", "\\lfloor": "⌊", "\\rfloor": "⌋", "\\lceil": "⌈", "\\rceil": "⌉", "\\vert": "|", "\\Vert": "‖", ".": "" };
const SIZES = new Set(["\\big", "\\Big", "\\bigg", "\\Bigg", "\\bigl", "\\bigr", "\\Bigl", "\\Bigr", "\\biggl", "\\biggr",
  "\\displaystyle", "\\textstyle", "\\limits", "\\nolimits", "\\nonumber", "\\notag", "\\hline"]);
const ALPHABETS = { "\\mathbb": "bb", "\\mathcal": "cal", "\\mathscr": "cal", "\\mathfrak": "frak" };
const UPRIGHT = new Set(["\\text", "\\textrm", "\\textbf", "\\textit", "\\mbox", "\\mathrm", "\\operatorname", "\\operatorname*", "\\mathsf", "\\mathtt", "\\texttt", "\\textsf"]);

const node = (tag, kids = [], attrs = {}) => made(tag, attrs, kids);
const row = (kids) => (kids.length === 1 ? kids[0] : node("mrow", kids));
const fence = (text) => node("mo", [text], { stretchy: "true" });

class TooDeep extends Error {}

class Parser {
  constructor(source, display) {
    this.tokens = source.match(TOKEN) ?? [];
    Object.assign(this, { at: 0, depth: 0, display });
  }

  get token() { return this.tokens[this.at]; }
  skip() { while (this.token !== undefined && /^\s/.test(this.token)) this.at += 1; }
  take() { this.skip(); return this.tokens[this.at++]; }

  // Atoms up to a stop, which is left to the caller.
  row(stops) {
    if (++this.depth > DEPTH) throw new TooDeep();
    const kids = [];
    for (this.skip(); this.token !== undefined && !stops.includes(this.token); this.skip()) {
      const name = this.token.slice(1);
      const atom = this.scripted();
      if (atom) kids.push(atom);
      this.skip();
      if (FUNCTIONS.has(name) && /^[\p{L}\d\\]/u.test(this.token ?? "")) kids.push(node("mspace", [], { width: "0.17em" }));
    }
    this.depth -= 1;
    return kids;
  }

  // An argument: a group in braces, or one atom.
  argument() {
    this.skip();
    if (this.token === undefined || this.token === "}" || this.token === "&") return node("mrow");
    if (this.token !== "{") return this.nested(() => this.atom()) ?? node("mrow");
    this.at += 1;
    const kids = this.row(["}"]);
    this.at += 1;
    return row(kids);
  }

  nested(work) {
    if (++this.depth > DEPTH) throw new TooDeep();
    const found = work();
    this.depth -= 1;
    return found;
  }

  // The text of an argument, with its spaces.
  words() {
    this.skip();
    if (this.token !== "{") return this.take() ?? "";
    let text = "", open = 1;
    for (this.at += 1; this.token !== undefined; this.at += 1) {
      if (this.token === "{") open += 1;
      else if (this.token === "}" && --open === 0) break;
      else text += this.token;
    }
    this.at += 1;
    return text;
  }

  scripted() {
    const base = this.atom();
    const lower = [], upper = [];
    for (this.skip(); this.token === "_" || this.token === "^" || this.token === "'"; this.skip()) {
      const kind = this.take();
      if (kind === "'") upper.push(node("mo", ["′"]));
      else (kind === "_" ? lower : upper).push(this.argument());
    }
    if (!lower.length && !upper.length) return base;
    const [below, above] = [lower.length && row(lower), upper.length && row(upper)];
    const inner = base ?? node("mrow");
    const stacked = inner.limits && (this.display || inner.limits === "always");
    const [under, over, both] = stacked ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    return below && above ? node(both, [inner, below, above]) : below ? node(under, [inner, below]) : node(over, [inner, above]);
  }

  atom() {
    const token = this.take();
    if (token === undefined) return null;
    if (token === "{") { const kids = this.row(["}"]); this.at += 1; return node("mrow", kids); }
    if (token[0] === "\\") return this.command(token);
    if (/^\d/.test(token)) return node("mn", [token]);
    if (/^\p{L}$/u.test(token)) return node("mi", [token]);
    if (token === "~") return node("mspace", [], { width: "0.28em" });
    if (token === "&" || token === "}") return null;
    if (token === "%") return node("mo", ["%"]);
    return node("mo", [{ "-": "−", "*": "∗" }[token] ?? token], "()[]|/".includes(token) ? { stretchy: "false" } : {});
  }

  command(name) {
    const bare = name.slice(1);
    if (Object.hasOwn(LETTERS, bare)) return node("mi", [LETTERS[bare]], bare[0] < "a" && LETTERS[bare] > "Α" ? { mathvariant: "normal" } : {});
    if (Object.hasOwn(LIMITS, bare)) return this.large(LIMITS[bare], bare);
    if (Object.hasOwn(SYMBOLS, bare)) return node("mo", [SYMBOLS[bare]]);
    if (FUNCTIONS.has(bare)) return Object.assign(node("mi", [bare]), /^(?:lim|max|min|sup|inf|det|gcd|argmax|argmin|Pr)/.test(bare) ? { limits: "display" } : {});
    if (Object.hasOwn(SPACES, bare)) return node("mspace", [], { width: SPACES[bare] });
    if (Object.hasOwn(ACCENTS, bare)) return this.accent(...ACCENTS[bare]);
    if (Object.hasOwn(FENCES, name)) return node("mo", [FENCES[name]], { stretchy: "false" });
    if (UPRIGHT.has(name)) return node("mtext", [this.words()]);
    if (Object.hasOwn(ALPHABETS, name)) return node("mi", [alphabet(this.words(), ALPHABETS[name])]);
    if (SIZES.has(name)) return null;
    return this.structure(name);
  }

  large(text, name) {
    return Object.assign(node("mo", [text], { largeop: "true" }), name.endsWith("int") ? {} : { limits: "display" });
  }

  accent(mark, where, stretch) {
    const inner = this.argument();
    const kids = [inner, node("mo", [mark], { stretchy: String(stretch) })];
    return Object.assign(node(where, kids, where === "mover" ? { accent: "true" } : {}), mark === "⏟" || mark === "⏞" ? { limits: "always" } : {});
  }

  structure(name) {
    switch (name) {
      case "\\frac": case "\\dfrac": case "\\tfrac": case "\\cfrac": return node("mfrac", [this.argument(), this.argument()]);
      case "\\binom": case "\\dbinom": case "\\tbinom":
        return node("mrow", [fence("("), node("mfrac", [this.argument(), this.argument()], { linethickness: "0" }), fence(")")]);
      case "\\sqrt": return this.root();
      case "\\left": return this.fenced();
      case "\\right": case "\\middle": return fence(this.mark());
      case "\\begin": return this.environment();
      case "\\end": this.words(); return null;
      case "\\mathbf": case "\\boldsymbol": case "\\bm": case "\\mathit": return node("mrow", [this.argument()], name === "\\mathit" ? {} : { class: "bold" });
      case "\\boxed": return node("mrow", [this.argument()], { class: "boxed" });
      case "\\overset": case "\\stackrel": { const over = this.argument(); return node("mover", [this.argument(), over]); }
      case "\\underset": { const under = this.argument(); return node("munder", [this.argument(), under]); }
      case "\\pmod": return node("mrow", [node("mo", ["("]), node("mi", ["mod"]), node("mspace", [], { width: "0.3em" }), this.argument(), node("mo", [")"])]);
      case "\\\\": return node("mspace", [], { linebreak: "newline" });
      default: return /^\\[{}%$#_& ]$/.test(name) ? node("mo", [name[1]], { stretchy: "false" }) : node("mtext", [name], { class: "source" });
    }
  }

  root() {
    this.skip();
    if (this.token !== "[") return node("msqrt", [this.argument()]);
    this.at += 1;
    const index = this.row(["]"]);
    this.at += 1;
    return node("mroot", [this.argument(), row(index)]);
  }

  mark() {
    const token = this.take() ?? "";
    if (Object.hasOwn(FENCES, token)) return FENCES[token];
    return token[0] !== "\\" ? token : Object.hasOwn(SYMBOLS, token.slice(1)) ? SYMBOLS[token.slice(1)] : "";
  }

  fenced() {
    const open = this.mark();
    const kids = this.row(["\\right", "}", "&", "\\end"]);
    const close = this.token === "\\right" ? (this.at += 1, this.mark()) : "";
    return node("mrow", [fence(open), ...kids, fence(close)]);
  }

  environment() {
    const name = this.words();
    if (!LINES.has(name) && !Object.hasOwn(BRACKETS, name)) return node("mtext", [`\\begin{${name}}`], { class: "source" });
    if (name === "array" || name.startsWith("alignat")) this.words(); // its columns
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(node("mtd", this.row(["&", "\\\\", "\\end"])));
      const stop = this.take();
      if (stop === "\\\\") rows.push([]);
      else if (stop !== "&") break;
    }
    this.words();
    if (rows.at(-1).length === 1 && !rows.at(-1)[0].kids.length) rows.pop();
    const [open, close, style] = LINES.has(name) ? ["", "", "lines"] : BRACKETS[name];
    const table = node("mtable", rows.map((cells) => node("mtr", cells)), style ? { class: style } : {});
    return node("mrow", [...(open ? [fence(open)] : []), table, ...(close ? [fence(close)] : [])]);
  }
}

export function tex(source, display) {
  try {
    const parser = new Parser(source, display);
    const kids = [];
    while (parser.at < parser.tokens.length) kids.push(...parser.row([]));
    const attrs = { alttext: source.trim().slice(0, 500) };
    if (display) attrs.display = "block";
    return node("math", [node("mrow", kids)], attrs);
  } catch (error) {
    if (!(error instanceof TooDeep)) throw error;
    return node("code", [source]);
  }
}
