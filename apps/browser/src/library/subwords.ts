/** Subwords of a SentencePiece model, BPE or unigram; see `nmt/subwords.py`. */

import { Normalizer, WORD_BEGIN } from "./normalizer";
import { fields, float } from "./protocol_buffers";
import { beginsUnspaced, clean, hasUnspaced } from "./text";
import { ModelError } from "./types";
import { Unigram } from "./unigram";
import type { Entry } from "./unigram";

export const [PAD, START, END, UNKNOWN] = [0, 1, 2, 3];
export const FILE_NAME = "subwords.model";
export { WORD_BEGIN };

// Longer texts are cut before they are tokenized.
const MAX_CHARACTERS = 1_000_000;
const MAX_UTF_8_BYTES = 4;

// Types of pieces, fields, and the type of model in SentencePiece's protocol buffers.
const [NORMAL, UNKNOWN_TYPE, CONTROL, USER_DEFINED, UNUSED, BYTE] = [1, 2, 3, 4, 5, 6];
const [UNIGRAM, BPE] = [1, 2];
// Token of a target language, such as `>>deu<<`.
const LANGUAGE = new RegExp(`^${WORD_BEGIN}>>([^<>]+)<<$`, "u");

/** A part of the text, in a doubly linked list. */
interface Symbol {
  text: string;
  previous: number;
  next: number;
  /** Whether it is never merged with others. */
  isFixed: boolean;
}

interface Pair {
  left: number;
  right: number;
  score: number;
  length: number;
}

export class Subwords {
  /** The subwords in the order of their ids. */
  readonly pieces: string[] = [];
  /** The bytes of the ids that stand for one. */
  readonly bytes = new Map<number, number>();
  /** The ids of the target languages of a multilingual model, by their names there. */
  readonly languages = new Map<string, number>();
  private readonly types: number[] = [];
  private readonly scores: number[] = [];
  private readonly ids = new Map<string, number>();
  private readonly byteIds: number[] = [];
  private normalizer = new Normalizer();
  /** Subwords that a text is always split into, the longest first. */
  private readonly userDefined: string[] = [];
  private kind = UNIGRAM;
  private spellsUnknown = false;
  private readonly unigram?: Unigram;

  constructor(model: Uint8Array) {
    try {
      this.read(model);
    } catch (error) {
      if (error instanceof ModelError) throw error;
      throw new ModelError("The subwords of this file are damaged.");
    }
    const special = [CONTROL, CONTROL, CONTROL, UNKNOWN_TYPE];
    if (special.some((type, id) => this.types[id] !== type)) {
      throw new ModelError("The subwords of this file lack the special tokens.");
    }
    this.userDefined.sort((one, other) => other.length - one.length);
    if (this.kind === UNIGRAM) this.unigram = this.unigramModel();
  }

  private unigramModel(): Unigram {
    const entries = new Map<string, Entry>();
    for (const [text, id] of this.ids) {
      const [isUserDefined, isUnused] = [USER_DEFINED, UNUSED].map(
        (type) => this.types[id] === type,
      );
      entries.set(text, { id, score: this.scores[id], isUserDefined, isUnused });
    }
    const scores = this.scores.filter((_, id) => this.types[id] === NORMAL);
    return new Unigram(entries, scores);
  }

  private read(model: Uint8Array) {
    for (const [field, content] of fields(model)) {
      if (field === 1) this.addPiece(content as Uint8Array);
      if (field === 2) {
        const trainer = new Map(fields(content as Uint8Array));
        this.kind = (trainer.get(3) as number | undefined) ?? UNIGRAM;
        this.spellsUnknown = Boolean(trainer.get(35));
        if ((this.kind !== UNIGRAM && this.kind !== BPE) || trainer.get(24)) {
          throw new ModelError(
            "The subwords of this file are of another kind: expected a unigram model " +
              "or byte-pair encoding, with a mark at the beginning of words.",
          );
        }
      }
      if (field === 3) this.normalizer = new Normalizer(content as Uint8Array);
    }
  }

  private addPiece(message: Uint8Array) {
    const piece = new Map(fields(message));
    const text = new TextDecoder().decode(piece.get(1) as Uint8Array);
    const score = piece.get(2) as Uint8Array | undefined;
    const type = (piece.get(3) as number | undefined) ?? NORMAL;
    const id = this.pieces.push(text) - 1;
    this.types.push(type);
    this.scores.push(score ? float(score) : 0);
    if (type === NORMAL || type === USER_DEFINED || type === UNUSED) {
      this.ids.set(text, id);
    }
    if (type === USER_DEFINED) this.userDefined.push(text);
    const language = LANGUAGE.exec(text)?.[1];
    if (language !== undefined) this.languages.set(language, id);
    if (type === BYTE) {
      const byte = parseInt(text.slice(3, 5), 16);
      this.bytes.set(id, byte);
      this.byteIds[byte] = id;
    }
  }

  get length() {
    return this.pieces.length;
  }

  /** Return the token ids of a text, ending with END. */
  encode(text: string): number[] {
    const cleaned = clean(text.slice(0, MAX_CHARACTERS));
    // No text that is cleaned has a mark.
    const kept = this.userDefined.filter((piece) => !piece.includes(WORD_BEGIN));
    const normalized = this.normalizer.normalize(cleaned, kept);
    const subwords =
      this.unigram?.split(normalized) ??
      this.merged(normalized).map((text) => ({ text, id: this.ids.get(text) }));
    const ids: number[] = [];
    for (const { id, text } of subwords) {
      if (id !== undefined) ids.push(id);
      else if (this.spellsUnknown) {
        for (const byte of new TextEncoder().encode(text)) ids.push(this.byteIds[byte]);
      }
      // Unknown characters one after the other are one token.
      else if (ids.at(-1) !== UNKNOWN) ids.push(UNKNOWN);
    }
    return [...ids, END];
  }

  /** Return the characters of a text, and its subwords that are always chosen. */
  private symbols(text: string): Symbol[] {
    const symbols: Symbol[] = [];
    for (let place = 0; place < text.length; ) {
      const fixed = this.userDefined.find((piece) => text.startsWith(piece, place));
      const part = fixed ?? String.fromCodePoint(text.codePointAt(place)!);
      const i = symbols.length;
      const isFixed = fixed !== undefined;
      symbols.push({ text: part, previous: i - 1, next: i + 1, isFixed });
      place += part.length;
    }
    if (symbols.length) symbols[symbols.length - 1].next = -1;
    return symbols;
  }

  /** Merge characters to subwords, the pair of the best score first. */
  private merged(text: string): string[] {
    const symbols = this.symbols(text);
    const queue = new Queue();
    // How an unused piece is split again.
    const parts = new Map<string, [string, string]>();
    const add = (left: number, right: number) => {
      if (left < 0 || right < 0) return;
      if (symbols[left].isFixed || symbols[right].isFixed) return;
      const pair = [symbols[left].text, symbols[right].text] as [string, string];
      const id = this.ids.get(pair[0] + pair[1]);
      if (id === undefined) return;
      const length = pair[0].length + pair[1].length;
      queue.push({ left, right, score: this.scores[id], length });
      if (this.types[id] === UNUSED) parts.set(pair[0] + pair[1], pair);
    };
    for (let i = 1; i < symbols.length; i++) add(i - 1, i);
    for (let best = queue.pop(); best; best = queue.pop()) {
      const [left, right] = [symbols[best.left], symbols[best.right]];
      // One of the two has been merged with another symbol.
      if (!left.text || !right.text) continue;
      if (left.text.length + right.text.length !== best.length) continue;
      left.text += right.text;
      right.text = "";
      left.next = right.next;
      if (right.next >= 0) symbols[right.next].previous = best.left;
      add(left.previous, best.left);
      add(best.left, left.next);
    }
    const split = (piece: string): string[] =>
      parts.get(piece)?.flatMap(split) ?? [piece];
    return symbols.filter(({ text }) => text).flatMap(({ text }) => split(text));
  }

  /** Return the text of token ids up to END, which is left out. */
  decode(tokenIds: ArrayLike<number>): string {
    return this.betweenBlanks(tokenIds)
      .map((tokens) => this.text(tokens))
      .join(" ");
  }

  /** Return the words of token ids up to END, and for each token the index of its word. */
  words(tokenIds: ArrayLike<number>): { words: string[]; places: number[] } {
    const words: string[] = [];
    const places: number[] = [];
    for (const tokens of this.betweenBlanks(tokenIds)) {
      const parts = hasUnspaced(this.text(tokens)) ? this.split(tokens) : [tokens];
      for (const part of parts) {
        places.push(...part.map(() => words.length));
        words.push(this.text(part));
      }
    }
    return { words, places };
  }

  /** Return lists of the tokens between two spaces, up to END. */
  private betweenBlanks(tokenIds: ArrayLike<number>): number[][] {
    const groups: number[][] = [];
    let begun = false;
    for (const token of Array.from(tokenIds)) {
      if (token === END) break;
      const piece = this.pieces[token];
      // A subword that is only the mark joins the word after it.
      if (!groups.length || (piece.startsWith(WORD_BEGIN) && begun)) {
        groups.push([]);
        begun = false;
      }
      begun ||= piece !== WORD_BEGIN;
      groups[groups.length - 1].push(token);
    }
    if (groups.length && !this.text(groups[groups.length - 1])) {
      // The last group is a mark without a word after it.
      const mark = groups.pop()!;
      if (groups.length) groups[groups.length - 1].push(...mark);
    }
    return groups;
  }

  /** Return lists of the tokens of each word, in a script without spaces. */
  private split(tokens: number[]): number[][] {
    const words: number[][] = [];
    let begun = false;
    let isUnspaced = false;
    tokens.forEach((token, place) => {
      const character = this.firstCharacter(
        tokens.slice(place, place + MAX_UTF_8_BYTES),
      );
      const unspaced = beginsUnspaced(character);
      // Punctuation and accents belong to the word before them.
      const begins = /^[\p{L}\p{N}]/u.test(character) && (unspaced || isUnspaced);
      if (!words.length || (begins && begun)) {
        words.push([]);
        begun = false;
      }
      if (!begun) isUnspaced = unspaced;
      begun ||= character !== "";
      words[words.length - 1].push(token);
    });
    return words;
  }

  /** Return the first character of tokens; U+FFFD if their bytes are invalid. */
  private firstCharacter(tokens: number[]): string {
    if (!this.bytes.has(tokens[0])) {
      return Array.from(this.pieces[tokens[0]].replace(/^\u2581+/, ""))[0] ?? "";
    }
    const after = tokens.findIndex((token) => !this.bytes.has(token));
    const spelt = after < 0 ? tokens : tokens.slice(0, after);
    const bytes = Uint8Array.from(spelt, (token) => this.bytes.get(token)!);
    return Array.from(new TextDecoder().decode(bytes))[0];
  }

  private text(tokens: number[]): string {
    const encoder = new TextEncoder();
    const bytes = tokens.flatMap((token) => {
      if (this.bytes.has(token)) return [this.bytes.get(token)!];
      if (this.types[token] === CONTROL) return [];
      if (this.types[token] === UNKNOWN_TYPE) return [...encoder.encode("\u2047")];
      return [...encoder.encode(this.pieces[token])];
    });
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(
      Uint8Array.from(bytes),
    );
    return clean(text).replaceAll(" ", "");
  }
}

/** Pairs of symbols as a heap: the best score first, then the leftmost. */
class Queue {
  private readonly pairs: Pair[] = [];

  push(pair: Pair) {
    let place = this.pairs.push(pair) - 1;
    while (place > 0) {
      const parent = (place - 1) >> 1;
      if (!isBefore(pair, this.pairs[parent])) break;
      this.pairs[place] = this.pairs[parent];
      place = parent;
    }
    this.pairs[place] = pair;
  }

  pop(): Pair | undefined {
    const best = this.pairs[0];
    const last = this.pairs.pop();
    if (!last || last === best) return best;
    let place = 0;
    for (;;) {
      let child = 2 * place + 1;
      if (child >= this.pairs.length) break;
      const other = child + 1;
      if (other < this.pairs.length && isBefore(this.pairs[other], this.pairs[child])) {
        child = other;
      }
      if (!isBefore(this.pairs[child], last)) break;
      this.pairs[place] = this.pairs[child];
      place = child;
    }
    this.pairs[place] = last;
    return best;
  }
}

function isBefore(one: Pair, other: Pair): boolean {
  return one.score > other.score || (one.score === other.score && one.left < other.left);
}
