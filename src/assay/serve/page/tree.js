// The tree between Markdown and elements: strings, and {tag, attrs, kids}. What is not listed here never becomes an element.

export const node = (tag, attrs = {}, kids = []) => ({ tag, attrs, kids });

const names = (text) => new Set(text.split(" "));
export const TAGS = names("p h3 h4 h5 h6 hr br em strong s code a ul ol li blockquote table thead tbody tr th td pre span");
export const MATH_TAGS = names("math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd");
export const ATTRIBUTES = names("href start class display alttext stretchy largeop accent mathvariant width linethickness linebreak");
