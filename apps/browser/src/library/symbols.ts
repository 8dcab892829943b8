/** Symbols of the vocabulary for what must survive: the same as `nmt/symbols.py`. */

import { findSpans, inLanguage, NUMBER, TIME, WORD } from "./spans";
import type { Span } from "./spans";

export type Languages = [string | undefined, string | undefined];

// Code points of the symbols of each kind.
const SYMBOLS = new Map([
  [NUMBER, range(0xe000, 0xe006)],
  [TIME, range(0xe010, 0xe014)],
  [WORD, range(0xe020, 0xe026)],
]);
// Characters that hold the place of words and codes until a text is divided.
const HOLDERS = 0xf0000;
const MAX_HOLDERS = 0xfffd;
const HOLDER = /[\u{f0000}-\u{ffffd}]/gu;
const BEFORE = /(?<=\S)([\ue000-\ue02f])/gu;
const AFTER = /([\ue020-\ue02f])(?=\p{L})(?!s(?![\p{L}\p{N}_]))/gu;
// Marks before a word, which may be others in the target language.
const OPENING =
  "([{\"'\u201c\u201e\u201d\u201a\u2018\u2019\u00bb\u00ab\u203a\u2039";

/** What a symbol stands for in both languages, and what is around it in the source. */
export interface Original {
  source: string;
  target: string;
  /** The character before it without a space between them. */
  before: string;
  /** Whether a word follows without a space. */
  isBefore: boolean;
}

export type Originals = Map<string, Original>;

/** Replace words and codes of a text by one character each; return these as well. */
export function hold(text: string, language?: string): { text: string; parts: string[] } {
  const parts: string[] = [];
  let held = "";
  let place = 0;
  for (const { begin, end, kind } of findSpans(text, language)) {
    if (kind !== WORD || parts.length === MAX_HOLDERS) continue;
    held += text.slice(place, begin) + String.fromCodePoint(HOLDERS + parts.length);
    parts.push(text.slice(begin, end));
    place = end;
  }
  return { text: held + text.slice(place), parts };
}

/** Return a text with the parts of `hold` in their places again. */
export function release(text: string, parts: string[]): string {
  return text.replace(HOLDER, (x) => parts[x.codePointAt(0)! - HOLDERS] ?? x);
}

// Words without the "'s" of a genitive.
const WORDS = /\p{L}+(?:[-'\u2019](?!s(?![\p{L}\p{N}_]))\p{L}+)*/gu;

/** Return the spans of a text, and the words that `isName` says should be copied. */
export function allSpans(
  text: string,
  language: string | undefined,
  isName?: (word: string) => boolean,
): Span[] {
  const spans = findSpans(text, language);
  if (!isName) return spans;
  const words = Array.from(text.matchAll(WORDS), ({ 0: word, index }) => ({
    begin: index,
    end: index + word.length,
    kind: WORD,
  })).filter(
    ({ begin, end }) =>
      !spans.some((x) => x.begin < end && begin < x.end) && isName(text.slice(begin, end)),
  );
  // Everything else comes before names where symbols are short.
  const taken = spans.filter(({ kind }) => kind === WORD).length;
  const free = Math.max(SYMBOLS.get(WORD)!.length - taken, 0);
  return [...spans, ...words.slice(0, free)].sort((x, y) => x.begin - y.begin);
}

/** Return the first span for which its kind has no symbol left. */
export function firstExcess(spans: Span[]): Span | undefined {
  const counts = [0, 0, 0];
  return spans.find(({ kind }) => ++counts[kind] > SYMBOLS.get(kind)!.length);
}

/** Return a text with symbols in place of its spans, and what they stand for. */
export function substitute(
  text: string,
  spans: Span[],
  parts: string[],
  languages: Languages,
): { text: string; originals: Originals } {
  const counts = [0, 0, 0];
  const originals: Originals = new Map();
  let substituted = "";
  let place = 0;
  for (const { begin, end, kind } of spans) {
    const code = SYMBOLS.get(kind)![counts[kind]++];
    if (code === undefined) continue;
    const symbol = String.fromCodePoint(code);
    const inner = release(text.slice(begin, end), parts);
    const form = inLanguage(inner, kind, ...languages);
    // A model may lose one of two brackets.
    const isInside = begin > place && text[begin - 1] === "(" && text[end] === ")";
    substituted += text.slice(place, begin - Number(isInside));
    place = end + Number(isInside);
    originals.set(symbol, {
      source: isInside ? `(${inner})` : inner,
      target: isInside ? `(${form})` : form,
      before: (Array.from(substituted).pop() ?? "").trim(),
      isBefore: kind === WORD && /^\p{L}/u.test(text.slice(place)),
    });
    substituted += symbol;
  }
  substituted += text.slice(place);
  return { text: substituted.replace(BEFORE, " $1").replace(AFTER, "$1 "), originals };
}

/**
 * Return words in which each symbol is what it stands for.
 *
 * `members` has for each word the indices of the restored words that it became.
 */
export function restore(
  words: string[],
  originals: Originals,
  isSource = false,
): { words: string[]; members: number[][] } {
  const restored: string[] = [];
  const members: number[][] = [];
  let joins = false;
  words.forEach((word, i) => {
    const original = originals.get(Array.from(word)[0] ?? "");
    let parts = [word];
    let isJoined = joins;
    if (original) {
      let rest = word.slice(1);
      const text = isSource ? original.source : original.target;
      // A point ends an abbreviation and the sentence.
      if (text.endsWith(".") && rest.startsWith(".")) rest = rest.slice(1);
      parts = `${text}${rest}`.split(" ");
      isJoined = joins || follows(original, i ? words[i - 1] : "");
      joins = original.isBefore && !rest;
    } else {
      joins = false;
    }
    let first = restored.length;
    if (isJoined && restored.length) {
      first -= 1;
      restored[first] += parts[0];
      parts = parts.slice(1);
    }
    restored.push(...parts);
    members.push(range(first, restored.length));
  });
  return { words: restored, members };
}

/** Return whether what a symbol stands for follows a word without a space. */
function follows({ before }: Original, word: string): boolean {
  if (!before) return false;
  const last = Array.from(word).pop() ?? "";
  if (OPENING.includes(before)) return last !== "" && OPENING.includes(last);
  return last === before;
}

function range(begin: number, end: number): number[] {
  return Array.from({ length: end - begin }, (_, i) => begin + i);
}
