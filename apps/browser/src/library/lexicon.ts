/** The words of a training text with their translations; see `nmt/lexicon.py`. */

import { ModelError } from "./types";

export const LEXICON = "lexicon.txt";

// Words are compared by their first letters.
const STEM = 7;
// Rarity of function words, and the largest rarity that counts.
const [FUNCTION_WORD_RARITY, MAX_RARITY] = [4, 12];

// Letters alone, with marks around them.
const WORD = /^[^\p{L}\p{N}]*\p{L}+[^\p{L}\p{N}]*$/u;

/** Return the first letters of a word in lower case, without other characters. */
export function stem(word: string): string {
  const letters = word.toLowerCase().match(/\p{L}/gu) ?? [];
  return letters.slice(0, STEM).join("");
}

export class Lexicon {
  private readonly counts = new Map<string, number>();
  private readonly targets = new Map<string, Set<string>>();
  private readonly sources = new Map<string, Set<string>>();
  private total = 0;

  constructor(content: Uint8Array) {
    const text = new TextDecoder().decode(content).replace(/\n$/, "");
    for (const line of text.split("\n")) {
      const columns = line.split("\t");
      if (columns.length !== 3 || !/^[0-9]{1,15}$/.test(columns[1])) {
        throw new ModelError(`The file has no valid ${LEXICON}.`);
      }
      const [word, count, targets] = columns;
      this.counts.set(word, Number(count));
      this.total += Number(count);
      this.targets.set(word, new Set(targets.split(" ")));
      for (const target of targets.split(" ")) {
        const sources = this.sources.get(target) ?? new Set();
        this.sources.set(target, sources.add(word));
      }
    }
  }

  /** Return whether the training text has a word. */
  has(word: string): boolean {
    return this.counts.has(stem(word));
  }

  /** Return the mean rarity of words; those without letters count as 0. */
  meanRarity(words: string[]): number {
    const rarities = words.map(stem).map((word) => (word ? this.rarity(word) : 0));
    return rarities.reduce((sum, x) => sum + x, 0) / Math.max(words.length, 1);
  }

  /** Return whether a stem is a translation of a stem of the source language. */
  translates(source: string, word: string): boolean {
    return this.targets.get(source)?.has(word) ?? false;
  }

  /** Return the rarity of the source words that no word translates, by index. */
  untranslated(sourceWords: string[], words: string[]): Map<number, number> {
    const stems = new Set(words.map(stem));
    const rarities = new Map<number, number>();
    sourceWords.map(stem).forEach((word, i) => {
      const targets = this.targets.get(word);
      if (word && !stems.has(word) && !intersect(targets, stems)) {
        rarities.set(i, this.rarity(word));
      }
    });
    return rarities;
  }

  /** Return the rarity of the words that were copied, not translated, by index. */
  copied(sourceWords: string[], words: string[]): Map<number, number> {
    const stems = new Set(sourceWords.filter((x) => WORD.test(x)).map(stem));
    const rarities = new Map<number, number>();
    words.forEach((text, i) => {
      const word = stem(text);
      if (WORD.test(text) && stems.has(word) && !this.targets.get(word)?.has(word)) {
        rarities.set(i, this.rarity(word));
      }
    });
    return rarities;
  }

  /** Return the indices of the words that translate no word of the source. */
  unexplained(sourceWords: string[], words: string[]): number[] {
    const stems = new Set(sourceWords.map(stem));
    return words.flatMap((text, i) => {
      const word = stem(text);
      const isExplained = stems.has(word) || intersect(this.sources.get(word), stems);
      return word && !isExplained ? [i] : [];
    });
  }

  private rarity(word: string): number {
    const frequency = Math.max(this.total, 1) / (1 + (this.counts.get(word) ?? 0));
    return Math.max(Math.min(Math.log(frequency), MAX_RARITY) - FUNCTION_WORD_RARITY, 0);
  }
}

function intersect(some: Set<string> | undefined, others: Set<string>): boolean {
  return some !== undefined && [...others].some((x) => some.has(x));
}
