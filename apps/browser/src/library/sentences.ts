/** Sentences of a text: the same rules as `nmt/sentences.py`. */

import { clean } from "./text";

const CLOSING = "\"'\u201d\u2019\u201c\u2018\u00bb\u00ab\u203a\u2039)\\]}";
const CANDIDATE = new RegExp(
  "(?<![.!?\u2026])(?<marks>[.!?\u2026\u061f\u06d4\u0964\u0965\u0589\u1362]+)" +
    // French has a space before a closing mark of quotation.
    `(?:[${CLOSING}]| \u00bb(?= |$))* ` +
    // Chinese and Japanese have no space between sentences.
    "|(?<unspaced>[\u3002\uff01\uff1f\uff61]+)[\u300d\u300f\uff09\u201d\u2019]* ?",
  "gu",
);
const OPENING =
  /(?:["'\u201c\u201e\u201a\u2018\u00bb\u2039\u203a(\[{\u00bf\u00a1\u300c\u300e\uff08]|[-\u2013\u2014\u2022\u00ab] ?)*/uy;
const WORD = /[\p{L}\p{Nl}\p{No}]+/uy;
const ALPHANUMERIC = /[\p{L}\p{N}]/u;
// Ordinals, Roman numbers, initials, and abbreviations such as U.S.
const SHORT =
  /^(?:\p{Nd}{1,2}|[IVXLC]{2,}|[\p{L}\p{Nl}\p{No}](?:\.[\p{L}\p{Nl}\p{No}]+)*)$/u;
const AFTER_LETTER = /(?:^| )[\p{L}\p{Nl}\p{No}]\. $/u;
const BRACKETS = /[()\u300c\u300d\u300e\u300f\uff08\uff09]/gu;
const OPEN_BRACKETS = "(\u300c\u300e\uff08";

const words = (text: string) => new Set(text.split(" "));

// Abbreviations that another word follows.
const TITLES = words(
  "dr dra drs prof mr mrs ms messrs mx st rev hon gen col lt capt sgt maj cmdr adm " +
    "gov sen rep mt hr hrn fr frl dipl ing mag med phil jur mme mlle mm mgr sra srta " +
    "e.g i.e eg ie cf vs viz approx nr nrn z.b d.h s.o s.u u.\u00e4 o.\u00e4 ca vgl " +
    "bzw ggf evtl inkl exkl zzgl sog bspw geb tel p.ex av",
);
// Abbreviations before numbers.
const BEFORE_NUMBERS = words(
  "no nos art fig figs vol vols p pp sec ch chap eq abb tab kap bd abs ziff anm s " +
    "jan feb apr aug sept sep oct okt nov dec dez",
);
// Abbreviations that may end a sentence.
const AMBIGUOUS = words(
  "etc usw usf ff al inc ltd co corp bros jr sr dept univ ave blvd rd ft oz lb lbs " +
    "min std mio mrd jan feb aug sept sep oct okt nov dec dez",
);
// Words that often begin a sentence, and are no names.
const BEGINNINGS = words(
  "the this that these those there here he she it they we you i my his her its our " +
    "their your and but or so then if when while what who where why how please do does " +
    "did is are was can could would will let in on at for from with after before " +
    "der die das ein eine er sie es wir ihr ich du mein dein sein unser und aber oder " +
    "dann wenn als wie wer was wo warum bitte dies diese dieser dieses dort hier auch " +
    "danke im am bei nach vor mit f\u00fcr ist sind war hat haben " +
    "le la les un une il elle on nous vous ils elles je tu ce cette ces et mais ou " +
    "el los las una ella nosotros ellos yo esto esta y pero",
);

/** Return the sentences of a text, at least one. */
export function splitSentences(text: string): string[] {
  const cleaned = clean(text);
  const begins = [0];
  let depth = 0;
  let counted = 0;
  for (const match of cleaned.matchAll(CANDIDATE)) {
    const { marks, unspaced } = match.groups!;
    const after = match.index + match[0].length;
    // In Japanese, a sentence continues after another one in brackets.
    const end = unspaced ? match.index + unspaced.length : after;
    for (const [bracket] of cleaned.slice(counted, end).matchAll(BRACKETS)) {
      depth = Math.max(depth + (OPEN_BRACKETS.includes(bracket) ? 1 : -1), 0);
    }
    counted = end;
    const begin = begins[begins.length - 1];
    if (!depth && isBoundary(cleaned, begin, match.index, after, marks)) {
      begins.push(after);
    }
  }
  if (begins.length === 1) return [text];
  return begins.map((begin, i) =>
    cleaned.slice(begin, begins[i + 1]).replace(/^ +| +$/g, ""),
  );
}

/** Return one text of the texts of sentences, with spaces where words have them. */
export function joinSentences(texts: string[]): string {
  return texts
    .filter((text) => text)
    .reduce((joined, text) => {
      const spaced = joined && !/[\u3002\uff01\uff1f][\u300d\u300f\uff09\u201d\u2019]*$/.test(joined);
      return joined + (spaced ? ` ${text}` : text);
    }, "");
}

/**
 * Return whether a sentence that begins at `begin` ends with a candidate.
 *
 * The candidate reaches from `start` to `end`; `marks` are its marks, unless they are
 * those of Chinese and Japanese.
 */
function isBoundary(
  text: string,
  begin: number,
  start: number,
  end: number,
  marks: string | undefined,
): boolean {
  const place = end + matchAt(OPENING, text, end).length;
  const following = Array.from(text.slice(place, place + 2))[0] ?? "";
  if (!ALPHANUMERIC.test(following) || /\p{Lowercase}/u.test(following)) return false;
  if (!marks) return true;
  // A sentence has a word.
  if (!ALPHANUMERIC.test(text.slice(begin, start))) return false;
  const followingWord = matchAt(WORD, text, place);
  const wordBegin = Math.max(text.slice(0, start).lastIndexOf(" ") + 1, begin);
  const word = text.slice(wordBegin + matchAt(OPENING, text, wordBegin).length, start);
  if (marks === "\u2026" || marks.startsWith("..")) {
    // After a space, an ellipsis stands for words.
    return word !== "" && followingWord !== "I";
  }
  if (marks !== ".") return true;
  const lowered = word.replace(new RegExp(`[${CLOSING}]+$`, "u"), "").toLowerCase();
  const isNumber = /^\p{Nd}/u.test(following);
  if (TITLES.has(lowered) || (isNumber && lowered.endsWith("str"))) return false;
  if (isNumber && (/^\p{Nd}+$/u.test(lowered) || BEFORE_NUMBERS.has(lowered))) {
    return false;
  }
  if (!AMBIGUOUS.has(lowered) && !SHORT.test(word)) return true;
  // "1. The dog" is one sentence, and so is "z. B. die Katze".
  const before = text.slice(Math.max(begin, wordBegin - 4), wordBegin);
  if (!before || (/^\p{L}+$/u.test(word) && AFTER_LETTER.test(before))) return false;
  return BEGINNINGS.has(followingWord.toLowerCase());
}

/** Return what a sticky pattern matches at a place. */
function matchAt(pattern: RegExp, text: string, place: number): string {
  pattern.lastIndex = place;
  return pattern.exec(text)?.[0] ?? "";
}
