/** Normalisation of texts as SentencePiece does it, by the table of a model. */

import { fields } from "./protocol_buffers";
import { ModelError } from "./types";

export const WORD_BEGIN = "\u2581";

const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** The normaliser of a SentencePiece model, read from its message `NormalizerSpec`. */
export class Normalizer {
  private table?: Table;
  private addsPrefix = true;
  private removesSpaces = true;
  private space = WORD_BEGIN;

  constructor(message: Uint8Array = new Uint8Array()) {
    for (const [field, value] of fields(message)) {
      if (field === 2 && (value as Uint8Array).length) {
        this.table = new Table(value as Uint8Array);
      }
      if (field === 3) this.addsPrefix = value !== 0;
      if (field === 4) this.removesSpaces = value !== 0;
      if (field === 5) this.space = value === 0 ? " " : WORD_BEGIN;
    }
  }

  /** Return a text as its subwords spell it; `kept` are texts that no rule changes. */
  normalize(text: string, kept: string[]): string {
    if (!text) return "";
    const parts = this.table?.replaced(text, kept) ?? Array.from(text);
    let normalized = "";
    let isAfterSpace = this.removesSpaces;
    for (const given of parts) {
      const part = isAfterSpace ? given.replace(/^ +/, "") : given;
      if (!part) continue;
      normalized += part.replaceAll(" ", this.space);
      isAfterSpace = this.removesSpaces && part.endsWith(" ");
    }
    if (this.removesSpaces) {
      while (normalized.endsWith(this.space)) {
        normalized = normalized.slice(0, -this.space.length);
      }
      if (!normalized) return "";
    }
    return this.addsPrefix ? this.space + normalized : normalized;
  }
}

/**
 * Rules that replace a text by another one: a double-array trie of the old texts, and
 * the new ones.
 *
 * Reference: [Aoe, 1989](https://doi.org/10.1109/32.31365), as Darts stores it.
 */
class Table {
  private readonly units: DataView;
  private readonly texts: Uint8Array;

  constructor(content: Uint8Array) {
    const begin = content.byteOffset;
    const size = new DataView(content.buffer, begin, content.length).getUint32(0, true);
    if (size % 4 || 4 + size > content.length) throw damaged();
    this.units = new DataView(content.buffer, begin + 4, size);
    this.texts = content.subarray(4 + size);
  }

  /** Return the parts of a text after the longest rule that fits at each place. */
  replaced(text: string, kept: string[]): string[] {
    const bytes = new TextEncoder().encode(text);
    const fixed = kept.map((x) => new TextEncoder().encode(x));
    const parts: string[] = [];
    for (let place = 0; place < bytes.length; ) {
      const lengths = fixed
        .filter((x) => x.every((byte, i) => byte === bytes[place + i]))
        .map((x) => x.length);
      const rule = lengths.length ? undefined : this.longest(bytes, place);
      const length = rule?.length ?? Math.max(characterLength(bytes[place]), ...lengths);
      parts.push(rule?.text ?? decoder.decode(bytes.subarray(place, place + length)));
      place += length;
    }
    return parts;
  }

  /** Return the length of the longest rule for bytes from a place on, and its new text. */
  private longest(bytes: Uint8Array, place: number) {
    let rule: { length: number; value: number } | undefined;
    let node = offsetOf(this.unit(0));
    for (let i = place; i < bytes.length; i++) {
      node ^= bytes[i];
      const unit = this.unit(node);
      // The label of a unit is a byte, unless the unit is the value of a rule.
      if ((unit & 0x800000ff) !== bytes[i]) break;
      node ^= offsetOf(unit);
      const hasValue = (unit >>> 8) & 1;
      if (hasValue) rule = { length: i + 1 - place, value: this.unit(node) & 0x7fffffff };
    }
    if (!rule) return undefined;
    const end = this.texts.indexOf(0, rule.value);
    if (end < 0) throw damaged();
    const text = decoder.decode(this.texts.subarray(rule.value, end));
    return { length: rule.length, text };
  }

  private unit(node: number): number {
    if (node < 0 || 4 * node >= this.units.byteLength) throw damaged();
    return this.units.getUint32(4 * node, true);
  }
}

const damaged = () => new ModelError("The subwords of this file are damaged.");

const offsetOf = (unit: number) => (unit >>> 10) << ((unit & 0x200) >>> 6);

/** Return the number of bytes of a character in UTF-8 by the first one. */
function characterLength(byte: number): number {
  if (byte < 0x80) return 1;
  if (byte < 0xe0) return 2;
  return byte < 0xf0 ? 3 : 4;
}
