/** Extended ids of the words of a source; see `Copying` in `nmt/subwords.py`. */

import { WORD_BEGIN } from "./subwords";
import type { Subwords } from "./subwords";
import { hasUnspaced } from "./text";

type Kind = "outside" | "within" | "beginning";

/** Replaces extended ids, which stand for words of the source, by their subwords. */
export class Copying {
  private readonly kinds: Kind[];

  constructor(subwords: Subwords) {
    this.kinds = subwords.pieces.map((piece, id) => kindOf(piece, subwords.bytes.get(id)));
  }

  /** Return token ids, and for each of them the index of the token it comes from. */
  expand(tokenIds: number[], source: number[]): { tokenIds: number[]; origins: number[] } {
    const numbers = this.numbers(source);
    const expanded: number[] = [];
    const origins: number[] = [];
    tokenIds.forEach((token, place) => {
      const number = token - this.kinds.length;
      const spelt = number < 0 ? [token] : source.filter((_, i) => numbers[i] === number);
      expanded.push(...spelt);
      origins.push(...spelt.map(() => place));
    });
    return { tokenIds: expanded, origins };
  }

  /** Return the number of the word of several subwords of each subword, or -1. */
  private numbers(source: number[]): number[] {
    const kinds = source.map((token) => this.kinds[token]);
    const continues = kinds.map(
      (kind, i) => kind === "within" && (kinds[i - 1] ?? "outside") !== "outside",
    );
    let count = 0;
    return kinds.map((kind, i) => {
      const begins = kind !== "outside" && !continues[i];
      if (begins && continues[i + 1]) count += 1;
      return continues[i] || (begins && continues[i + 1]) ? count - 1 : -1;
    });
  }
}

function kindOf(piece: string, byte: number | undefined): Kind {
  if (byte !== undefined) {
    // A byte from 128 on is a part of a character.
    return byte >= 128 || /[0-9A-Za-z]/.test(String.fromCharCode(byte))
      ? "within"
      : "outside";
  }
  const begins = piece.startsWith(WORD_BEGIN);
  const word = begins ? piece.slice(1) : piece;
  // Letters, marks and numbers; or a space in front of characters that are bytes.
  if (!/^[\p{L}\p{M}\p{N}]*$/u.test(word) || hasUnspaced(word)) return "outside";
  return begins ? "beginning" : "within";
}
