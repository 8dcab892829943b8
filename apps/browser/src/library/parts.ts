/** Cells, bullets and sentences of a text, and their form: as `nmt/sentences.py`. */

import { joinSentences, splitSentences } from "./sentences";
import { findSpans, TIME } from "./spans";
import { allSpans, firstExcess, hold, release, restore, substitute } from "./symbols";
import type { Languages, Originals } from "./symbols";
import { clean } from "./text";

const BULLET =
  /^\s*(?:(?:[-*+\u2022\u25aa\u25e6\u2023\u00b7>\u2013\u2014]|#{1,6}|[0-9]{1,3}[.)]|[a-zA-Z]\)|\([0-9a-zA-Z]{1,3}\)|\[[ xX]\])\s+)+(?=\S)/u;
const FINAL_MARK = /[.!?\u2026]+(?=["'\u201c\u201d\u2019\u00bb)]*$)/u;
const LETTER = /\p{L}/u;
// Words that are written with a capital letter in a text in capital letters, too.
const CAPITALISED: Record<string, RegExp> = {
  en: /\b(?:i(?=\b(?!\.))|(?:january|february|march|april|june|july|august|september|october|november|december|may(?= [0-9])|(?<=[0-9] )may)|(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b/gu,
  de: /(?<![\p{L}\p{N}_])(?:januar|februar|m\u00e4rz|april|mai|juni|juli|august|september|oktober|november|dezember|montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|uhr)(?![\p{L}\p{N}_])/gu,
};
// A word of up to this many capital letters may be an abbreviation.
export const LONGEST_ABBREVIATION = 5;
// Pairs of marks around a whole text, and the quotation marks of languages.
const ENCLOSING = new Set(
  ["()", '""', "\u201c\u201d", "\u201e\u201c", "\u00ab\u00bb", "\u00bb\u00ab"],
);
const QUOTES = new Map<string | undefined, string>([
  ["de", "\u201e\u201c"],
  ["en", '""'],
]);
// Minimum number of capitalised words of a title, and maximum number of letters of its
// words in lower case.
const [TITLE_WORDS, SMALL_WORD] = [3, 4];
const TITLE_WORD = /\p{L}+(?:['\u2019]\p{L}+)*/gu;

/** A sentence, with the parts of the text that `hold` replaced in it. */
export interface Part {
  text: string;
  held: string[];
}

/** A text as sentences, and what stands between them. */
export class Layout {
  readonly parts: Part[];
  private readonly pieces: (string | Part[])[] = [];

  /** With `split`, the text is divided into cells of a table and sentences. */
  constructor(
    text: string,
    language: string | undefined,
    hasSymbols: boolean,
    split = true,
    target?: string,
  ) {
    const held = hasSymbols ? hold(text, language) : { text, parts: [] };
    const cells = split && held.text.trim() ? held.text.split("\t") : [held.text];
    cells.forEach((cell, i) => {
      if (i) this.pieces.push("\t");
      const bullet = split ? bulletOf(cell, language) : "";
      if (bullet) this.pieces.push(release(bullet.trimStart(), held.parts));
      const rest = cell.slice(bullet.length);
      const [opening, inner, closing] = split ? enclosed(rest, target) : ["", rest, ""];
      if (opening) this.pieces.push(opening);
      const texts = split ? splitSentences(inner) : [inner];
      const sentences = texts.flatMap((sentence) =>
        hasSymbols ? withinSymbols(sentence, language) : [sentence],
      );
      this.pieces.push(sentences.map((x) => ({ text: x, held: held.parts })));
      if (closing) this.pieces.push(closing);
    });
    this.parts = this.pieces.flatMap((x) => (typeof x === "string" ? [] : x));
  }

  /** Return the text of the translations of the parts. */
  joined(texts: string[]): string {
    let place = 0;
    return this.pieces
      .map((piece) => {
        if (typeof piece === "string") return piece;
        const parts = piece.map(() => texts[place++] ?? "");
        return joinSentences(parts);
      })
      .join("");
  }
}

/** Return the marks around a whole text in the form of a language, and its text. */
function enclosed(cell: string, target?: string): [string, string, string] {
  const text = cell.trim();
  const inner = text.slice(1, -1);
  let marks = text.slice(0, 1) + text.slice(-1);
  const isEnclosed = ENCLOSING.has(marks) && ![...marks].some((x) => inner.includes(x));
  if (!isEnclosed || !LETTER.test(inner)) return ["", cell, ""];
  if (marks !== "()") marks = QUOTES.get(target) ?? marks;
  return [marks[0], inner, marks[1]];
}

function bulletOf(cell: string, language: string | undefined): string {
  const bullet = BULLET.exec(cell)?.[0] ?? "";
  // "3. Mai" is a date.
  const isDate = findSpans(cell, language).some(
    ({ begin, kind }) => begin < bullet.length && kind === TIME,
  );
  return isDate ? "" : bullet;
}

/** Return parts of a sentence for whose spans there are symbols. */
function withinSymbols(sentence: string, language: string | undefined): string[] {
  const excess = firstExcess(findSpans(sentence, language));
  if (!excess) return [sentence];
  const space = sentence.slice(0, excess.begin).lastIndexOf(" ");
  const cut = space > 0 ? space : excess.begin;
  const trimmed = (text: string) => text.replace(/^ +| +$/g, "");
  return [
    trimmed(sentence.slice(0, cut)),
    ...withinSymbols(trimmed(sentence.slice(cut)), language),
  ];
}

/** A sentence as the model reads it; it gives the translation the form of the source. */
export class Prepared {
  /** The sentence for the model: in sentence case, with symbols. */
  readonly text: string;
  readonly originals: Originals = new Map();
  private readonly isUpper: boolean;
  private readonly hasOtherCase: boolean;

  constructor(
    part: Part,
    private readonly languages: Languages,
    private readonly hasSymbols: boolean,
    private readonly isWord: (word: string) => boolean,
    isOrdinary: (word: string) => boolean,
    isCommon: (word: string) => boolean,
    isName?: (word: string) => boolean,
  ) {
    this.original = release(part.text, part.held);
    this.isUpper = isInCapitals(part.text, isOrdinary);
    this.text = part.text;
    if (this.isUpper) this.text = sentenceCase(part.text, languages[0]);
    else if (languages[0] === "en" && isTitle(part.text, isCommon)) {
      this.text = titleAsSentence(part.text, isCommon);
    }
    this.hasOtherCase = this.text !== part.text;
    if (hasSymbols) {
      const names = this.isUpper ? undefined : isName;
      const spans = allSpans(this.text, languages[0], names);
      const { originals } = substitute(part.text, spans, part.held, languages);
      this.originals = originals;
      this.text = substitute(this.text, spans, part.held, languages).text;
    }
  }

  private readonly original: string;

  /** Whether nothing but symbols and marks is left to translate. */
  get hasOnlySymbols(): boolean {
    return this.hasSymbols && !LETTER.test(this.text);
  }

  /** Return whether the words of a translation have each symbol once. */
  isKept(words: string[]): boolean {
    const text = words.join(" ");
    return [...this.originals.keys()].every((x) => text.split(x).length === 2);
  }

  /** Return the words of a translation in the case of the source, with its mark. */
  matchForm(words: string[]): string[] {
    if (!words.length) return words;
    let formed = [...words];
    const source = clean(this.text);
    formed[formed.length - 1] = withMark(source, formed[formed.length - 1]);
    const first = /^["'\u201c\u201e\u00bb\u00ab(\u00bf\u00a1]*(\p{L})/u.exec(source)?.[1];
    const initial = Array.from(formed[0])[0] ?? "";
    if (first && LETTER.test(initial)) {
      const rest = formed[0].slice(initial.length);
      if (isUpperCase(first) && isLowerCase(initial)) {
        const upper = initial.toUpperCase();
        formed[0] = (Array.from(upper).length === 1 ? upper : initial) + rest;
      } else if (
        isLowerCase(first) &&
        isUpperCase(initial) &&
        this.languages[1] === "en" &&
        formed[0] !== "I" &&
        this.isWord(formed[0].toLowerCase())
      ) {
        formed[0] = initial.toLowerCase() + rest;
      }
    }
    if (this.isUpper) formed = formed.map((word) => word.toUpperCase());
    return formed;
  }

  /** Return words with what the symbols stand for. */
  fillSymbols(words: string[], isSource = false) {
    const restoredWords = restore(words, this.originals, isSource);
    if (isSource && this.hasOtherCase) {
      const original = clean(this.original).split(" ");
      if (original.length === restoredWords.words.length) restoredWords.words = original;
    }
    return restoredWords;
  }
}

const isUpperCase = (text: string) => /\p{Lu}/u.test(text);
const isLowerCase = (text: string) => /\p{Ll}/u.test(text);

/**
 * Return whether a text is in capital letters, and is no abbreviation. A short word alone
 * is an abbreviation unless `isOrdinary` returns true for it.
 */
function isInCapitals(text: string, isOrdinary: (word: string) => boolean): boolean {
  const letters = text.match(/\p{L}/gu) ?? [];
  if (letters.length < 2 || letters.some(isLowerCase)) return false;
  if (!letters.some(isUpperCase) || text.toLowerCase().length !== text.length) {
    return false;
  }
  const words = text.match(/\p{L}+/gu)!;
  if (words.length > 1) return Math.max(...words.map((word) => word.length)) > 2;
  return words[0].length > LONGEST_ABBREVIATION || isOrdinary(words[0]);
}

/**
 * Return whether a text is an English title, such as "The Best Way to Learn".
 *
 * Most words are capitalised, and all of more than four letters. Most of the capitalised
 * words after the first are common: usually in lower case.
 */
function isTitle(text: string, isCommon: (word: string) => boolean): boolean {
  const words = (text.match(TITLE_WORD) ?? []).filter(isLowerCase);
  const capitalised = words.filter((x) => /^\p{Lu}/u.test(x));
  if (capitalised.length < Math.max(TITLE_WORDS, (words.length + 1) / 2)) return false;
  if (words.some((x) => /^\p{Ll}/u.test(x) && x.length > SMALL_WORD)) return false;
  const common = capitalised.slice(1).filter(isCommon).length;
  return common > (capitalised.length - 1) / 2;
}

/** Return a title with its common words in lower case, but for the first. */
function titleAsSentence(text: string, isCommon: (word: string) => boolean): string {
  const first = text.search(TITLE_WORD);
  return text.replace(TITLE_WORD, (word, position: number) => {
    if (position === first || !isLowerCase(word) || /^I['\u2019]/.test(word)) return word;
    const lower = word.toLowerCase();
    return isCommon(word) && lower.length === word.length ? lower : word;
  });
}

/** Return a text in capital letters as a sentence. */
function sentenceCase(text: string, language: string | undefined): string {
  const pattern = language && CAPITALISED[language];
  const capital = (word: string) => word[0].toUpperCase() + word.slice(1);
  const lowered = text.toLowerCase();
  const named = pattern ? lowered.replace(pattern, capital) : lowered;
  return named.replace(LETTER, (letter) => letter.toUpperCase());
}

/** Return the last word of a translation with the final mark of the source. */
function withMark(source: string, word: string): string {
  const [sourceMark, mark] = [FINAL_MARK.exec(source), FINAL_MARK.exec(word)];
  const around = mark && [
    word.slice(0, mark.index),
    word.slice(mark.index + mark[0].length),
  ];
  if (sourceMark && !around) {
    // After a quotation mark, its place is not certain.
    return /[\p{L}\p{N}]$/u.test(word) ? word + sourceMark[0] : word;
  }
  if (around && !sourceMark) {
    const without = around.join("");
    const isShort = without.length < 2 || without.includes(".");
    return isShort || /[:;,]$/.test(source) ? word : without;
  }
  if (sourceMark && around && [sourceMark[0], mark![0]].sort().join("") === ".?") {
    return around.join(sourceMark[0]);
  }
  return word;
}
