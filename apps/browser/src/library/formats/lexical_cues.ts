/** Evidence for the alignment of words beside attention: as `nmt/formats/lexical_cues.py`. */

import functionWords from "./function_words.json";
import type { Lexicon } from "../lexicon";
import { stem } from "../lexicon";

// The values of Python.
const [WEIGHT, DECAY] = [1, 0.9];
const [LEXICON_WEIGHT, LEXICON_DECAY] = [1, 0.3];
const [ALIKE, ALIKE_SHARE] = [4, 0.5];
const [SMALL, ITERATIONS] = [1e-3, 5];

const translations = new Map<string, Set<string>>();
const all = new Set<string>(functionWords.unpaired);
for (const [english, german] of functionWords.pairs) {
  for (const [word, translation] of [
    [english, german],
    [german, english],
  ]) {
    translations.set(word, (translations.get(word) ?? new Set()).add(translation));
    all.add(word);
  }
}

/** Evidence for the alignment of a translation: rows of words, columns of the source. */
export interface LexicalCues {
  weights: number[][];
  support: number[][];
  isPaired: boolean[][];
  isListed: boolean[][];
  isFunction: boolean[];
}

export function lexicalCues(
  sourceWords: string[],
  words: string[],
  lexicon?: Lexicon,
): LexicalCues {
  const [sources, targets] = [sourceWords.map(letters), words.map(letters)];
  const [sourceStems, targetStems] = [sourceWords.map(stem), words.map(stem)];
  const size = Math.max(sources.length, targets.length);
  const made: LexicalCues = {
    weights: [],
    support: [],
    isPaired: [],
    isListed: [],
    isFunction: targets.map((x) => all.has(x)),
  };
  targets.forEach((target, j) => {
    const similar = sources.map((source) => likeness(source, target));
    const listed = sourceStems.map((x) =>
      Number(lexicon?.translates(x, targetStems[j]) ?? false),
    );
    const distances = sources.map(
      (_, i) => Math.abs(j / targets.length - i / sources.length) * size,
    );
    made.weights.push(
      distances.map(
        (x, i) =>
          WEIGHT * similar[i] * Math.exp(-DECAY * x) +
          LEXICON_WEIGHT * listed[i] * Math.exp(-LEXICON_DECAY * x),
      ),
    );
    made.support.push(
      distances.map((x, i) => Math.max(similar[i], listed[i]) * Math.exp(-LEXICON_DECAY * x)),
    );
    made.isPaired.push(similar.map((x) => x > 0));
    made.isListed.push(listed.map((x) => !lexicon || x > 0));
  });
  return made;
}

function letters(word: string): string {
  return (word.toLowerCase().match(/[\p{L}\p{N}]/gu) ?? []).join("");
}

function likeness(word: string, other: string): number {
  if (!word || !other) return 0;
  if (word === other || translations.get(word)?.has(other)) return 1;
  const [first, second] = [Array.from(word), Array.from(other)];
  const isAlike =
    Math.min(first.length, second.length) >= ALIKE &&
    first.slice(0, ALIKE).join("") === second.slice(0, ALIKE).join("");
  return isAlike ? ALIKE_SHARE : 0;
}

/** Return attention as alignment weights of both directions: as `symmetric` of Python. */
export function symmetric(weights: number[][]): number[][] {
  const [targets, sources] = [weights.length, weights[0]?.length ?? 0];
  let rows = weights.map((row, j) =>
    row.map((x, i) => (x + SMALL) * Math.exp(-Math.abs(j / targets - i / sources))),
  );
  for (let n = 0; n < ITERATIONS; n++) {
    const sums = Array.from({ length: sources }, (_, i) =>
      rows.reduce((sum, row) => sum + row[i], 0),
    );
    rows = rows
      .map((row) => row.map((x, i) => x / sums[i]))
      .map((row) => {
        const sum = row.reduce((sum, x) => sum + x, 0);
        return row.map((x) => x / sum);
      });
  }
  return rows.map((row) => row.map((x) => x ** 2));
}
