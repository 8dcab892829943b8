/** The most probable subwords of a text by a unigram model, as SentencePiece finds them. */

// What an unknown character has less than the worst subword, and the score of a subword
// that is always chosen.
const UNKNOWN_PENALTY = 10;
const USER_DEFINED_SCORE = -0.1;
// The smallest positive normal number of float32, from which SentencePiece begins to
// look for the largest score.
const SMALLEST = 2 ** -126;

/** A subword of the model. */
export interface Entry {
  id: number;
  score: number;
  isUserDefined: boolean;
  /** Whether it is known, but no text is split into it. */
  isUnused: boolean;
}

/** The best subwords of the beginning of a text: its last one, and its score. */
interface Best {
  begin: number;
  id?: number;
  score: number;
}

/**
 * A unigram model: the score of a text is the sum of those of its subwords, and the
 * subwords with the best score are found by the Viterbi algorithm.
 *
 * Sums are rounded to float32, so that ties are broken as SentencePiece breaks them.
 *
 * Reference: [Kudo, 2018](https://arxiv.org/abs/1804.10959), section 3.2.
 */
export class Unigram {
  private readonly unknown: number;
  private readonly largest: number;
  private readonly longest: number;

  /** `scores` are those of normal subwords. */
  constructor(
    private readonly entries: Map<string, Entry>,
    scores: number[],
  ) {
    const smallest = scores.reduce((x, y) => Math.min(x, y), Infinity);
    this.unknown = Math.fround(smallest - UNKNOWN_PENALTY);
    this.largest = scores.reduce((x, y) => Math.max(x, y), SMALLEST);
    this.longest = 0;
    for (const text of entries.keys()) this.longest = Math.max(this.longest, text.length);
  }

  /** Return the subwords of a text with their ids; an unknown character has none. */
  split(text: string): { id?: number; text: string }[] {
    const best: (Best | undefined)[] = Array(text.length + 1);
    best[0] = { begin: 0, score: 0 };
    const offer = (end: number, begin: number, score: number, id?: number) => {
      const known = best[end];
      if (known && !(score > known.score)) return;
      best[end] = { begin, id, score: Math.fround(score) };
    };
    for (let begin = 0; begin < text.length; ) {
      const { score } = best[begin]!;
      const first = begin + characterSize(text, begin);
      const last = Math.min(text.length, begin + this.longest);
      let isKnown = false;
      for (let end = first; end <= last; end += characterSize(text, end)) {
        const entry = this.entries.get(text.slice(begin, end));
        if (!entry || entry.isUnused) continue;
        offer(end, begin, score + this.scoreOf(entry, text, begin, end), entry.id);
        isKnown ||= end === first;
      }
      if (!isKnown) offer(first, begin, Math.fround(score + this.unknown));
      begin = first;
    }
    const subwords: { id?: number; text: string }[] = [];
    for (let end = text.length; end > 0; ) {
      const { begin, id } = best[end]!;
      subwords.push({ id, text: text.slice(begin, end) });
      end = begin;
    }
    return subwords.reverse();
  }

  private scoreOf(entry: Entry, text: string, begin: number, end: number): number {
    if (!entry.isUserDefined) return entry.score;
    const bytes = new TextEncoder().encode(text.slice(begin, end)).length;
    return bytes * this.largest + USER_DEFINED_SCORE;
  }
}

/** Return the number of units of UTF-16 of the character at a place of a text. */
const characterSize = (text: string, place: number) =>
  (text.codePointAt(place) ?? 0) > 0xffff ? 2 : 1;
