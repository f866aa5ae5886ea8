// Numbers and words for people, and elements whose text only ever enters as text. The report is drawn with these.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

// --- numbers and words for people

const NAMES = [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"]];
const SUPER = { "-": "⁻", "+": "", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

// Two digits: 67360.88 is 67,000; 220000000 is 220 million; 0.00000022 is 2.2 × 10⁻⁷.
export function rounded(x, digits = 2) {
  if (x == null || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  if (size >= 1e15 || (size > 0 && size < 1e-4)) {
    const [mantissa, exponent] = x.toExponential(digits - 1).split("e");
    return `${mantissa} × 10${[...exponent].map((c) => SUPER[c]).join("")}`;
  }
  const [unit, name] = NAMES.find(([least]) => size >= least) ?? [1, ""];
  const text = Number((x / unit).toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 12 });
  return name ? `${text} ${name}` : text;
}

export const times = (x) => `${rounded(x)}×`;

export const percent = (share) => {
  const p = 100 * share;
  return p > 99.99 && p < 100 ? "more than 99.99 %" : p > 99 && p < 100 ? `${p.toFixed(2)} %` : `${rounded(p)} %`;
};

// How far values are off, from the mean square of the error over that of the values.
export function off(nmse) {
  if (nmse == null) return "off by more than can be said";
  const r = Math.sqrt(nmse);
  if (r === 0) return "equal";
  if (r < 1e-6) return `off by 1 part in ${rounded(1 / r)}`;
  return r >= 10 ? `off by ${times(r)}` : `off by ${percent(r)}`;
}

// As many digits as it takes to see that two values differ, and two more.
export function digits(a, b) {
  const size = Math.max(Math.abs(a), Math.abs(b));
  const gap = Math.abs(a - b);
  return gap === 0 || size === 0 ? 5 : Math.min(8, Math.max(4, Math.ceil(Math.log10(size / gap)) + 2));
}

export const value = (x, n) => (x == null ? "–" : Number(x).toPrecision(n).replace(/\.?0+(e|$)/, "$1").replace("e-", " × 10^-").replace("e+", " × 10^"));

// Words between backticks are code. A long name may break behind a dot or an underscore, not in a word.
const pieces = (text) => text.split(/(?<=[A-Za-z][._])(?=[A-Za-z])/).flatMap((piece, i) => (i ? [make("wbr"), piece] : [piece]));
export const words = (text) => String(text ?? "").split("`").flatMap((part, i) => (i % 2 ? make("code", {}, ...pieces(part)) : pieces(part)));

export const some = (names, most = 8) => names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
export const count = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
