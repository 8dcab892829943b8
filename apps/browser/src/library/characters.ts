/** Classes of characters as Python has them. */

const SPACES =
  "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const ONLY_SPACES = new RegExp(`^[${SPACES}]+$`, "u");
const OUTER_SPACES = new RegExp(`^[${SPACES}]+|[${SPACES}]+$`, "gu");
/** A white space in a regular expression. */
export const SPACE = `[${SPACES}]`;
/** No white space in a regular expression. */
export const NO_SPACE = `[^${SPACES}]`;
/** Pattern of a letter, a combining mark or a number. */
export const WORD_CHARACTER = /[\p{L}\p{M}\p{N}]/u;
const LETTER = /\p{L}/u;

export const hasLetter = (text: string) => LETTER.test(text);
export const isSpace = (text: string) => ONLY_SPACES.test(text);
export const strip = (text: string) => text.replace(OUTER_SPACES, "");
/** Return the words between white space. */
export const wordsOf = (text: string) =>
  strip(text).split(new RegExp(`${SPACE}+`, "u")).filter((x) => x);
/** Return a text as a part of a regular expression. */
export const escapeRegExp = (text: string) => text.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&");

/** Return the first index of the largest number. */
export const argmax = (numbers: number[]) =>
  numbers.reduce((best, x, i) => (x > numbers[best] ? i : best), 0);

/** Return the first index from which on a condition holds for all values in order. */
export function bisect<T>(values: T[], holds: (value: T) => boolean): number {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(values[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}
