// A text that grows while it is read: blocks that later text cannot change are drawn once, only the last is drawn again.
//
// Work stays linear in the text. A last block below FREE characters is parsed at each push; a longer one only when it has
// grown by a quarter, and what arrives between is appended as plain text.

import { parseLines } from "./blocks.js";

const FREE = 2000; // characters
const GROWTH = 1.25;
const UNSURE = 2; // a block's start may depend on so many lines after it

export class Growing {
  // sink: settle(nodes) draws what stays, tail(nodes) draws what may change, append(text) adds to the tail.
  constructor(sink) { Object.assign(this, { sink, rest: "", drawn: 0, work: 0 }); }

  push(text) {
    this.rest += text;
    if (this.rest.length > FREE && this.rest.length < this.drawn * GROWTH) this.sink.append(text);
    else this.draw();
  }

  draw() {
    const lines = this.rest.split("\n");
    const { nodes, starts } = parseLines(lines);
    this.work += this.rest.length;
    let settled = starts.length - 1;
    while (settled > 0 && starts[settled] > lines.length - 1 - UNSURE) settled -= 1;
    if (settled > 0) {
      let offset = starts[settled];
      for (let i = 0; i < starts[settled]; i += 1) offset += lines[i].length;
      this.sink.settle(nodes.splice(0, settled));
      this.rest = this.rest.slice(offset);
    }
    this.drawn = this.rest.length;
    this.sink.tail(nodes);
  }

  end() {
    this.sink.settle(parseLines(this.rest.split("\n")).nodes);
    this.work += this.rest.length;
    this.rest = "";
  }
}
