/**
 * Runs of language in a source text, and their translations in the same places: as
 * `nmt/formats/runs.py`.
 */

import {
  bisect,
  hasLetter,
  isSpace,
  NO_SPACE,
  SPACE,
  strip,
} from "../characters";
import type { Lexicon } from "../lexicon";
import { BLANKS, clean } from "../text";
import type { Translation } from "../types";
import { newMark, Placement, UnplacedDivisionError } from "./placement";
import type { AtomList, Mark, Placed, Sentence, Spelled } from "./placement";

/** Text, tags around text, things that stay as they are, and such between sentences. */
export type PieceKind = "text" | "open" | "close" | "unit" | "break";

/** A piece of a run; the attributes are those of Python. */
export interface Piece {
  kind: PieceKind;
  start: number;
  end: number;
  text: string;
  name: string;
  isWord?: boolean;
  joins?: boolean;
  divides?: boolean;
}

export function newPiece(
  kind: PieceKind,
  start: number,
  end: number,
  more: Partial<Piece> = {},
): Piece {
  return { kind, start, end, text: "", name: "", ...more };
}

/** The pieces of a translated run: kinds and source texts. */
export type Written = [kind: string, text: string][];

/** A stretch of a source that is translated; the attributes are those of Python. */
export interface Run {
  pieces: Piece[];
  spell: (character: string) => string;
  finish?: (pieces: Written) => string | undefined;
  tag?: number;
  alternative?: Run[];
  keepsUnsure?: boolean;
  sentences: string[];
}

export const startOf = ({ pieces }: Run) => pieces[0].start;
export const endOf = ({ pieces }: Run) => pieces[pieces.length - 1].end;

/** Return the text of a run that a reader sees. */
export const textOf = ({ pieces }: Run) =>
  clean(pieces.map((x) => (x.kind === "break" ? " " : x.text)).join(""));

/** The text of a file in a format, and its runs. */
export interface Document {
  source: string;
  runs: Run[];
  /** Begins, ends and texts of further replacements. */
  edits: [number, number, string][];
  /** Return the name of a place in the source for people; by default its line. */
  placeOf?: (place: number) => string;
  /** Return the text of the translated file. */
  finish?: (translation: string, unsure: Run[]) => string;
}

/** Return a function from a place in a source to its line. */
export function lineOf(source: string): (place: number) => string {
  const ends = Array.from(source.matchAll(/\r\n?|\n/g), (x) => x.index + x[0].length);
  return (place) => `line ${bisect(ends, (x) => x > place) + 1}`;
}

export const hasLetters = (pieces: Piece[]) =>
  pieces.some((x) => x.kind === "text" && hasLetter(x.text));

// Punctuation that belongs to the word before it.
const CLOSING = /^[.,;:!?)\]}\u2026\u201d\u00bb]/;
const NO_BLANKS = new RegExp(BLANKS.source.replace("[", "[^"), "gu");
// Signs between the entries of a list.
const SEPARATOR = new RegExp(
  `\\|+|(?<=${SPACE})[\\u00b7\\u2022\\u2027\\u2219](?=${SPACE}|$)|^[\\u00b7\\u2022]`,
  "gu",
);

const W = "\\p{L}\\p{N}_";
// Texts of a link that are an address, a name on a network, or have no letters.
const ADDRESS = new RegExp(
  `^(?:(?:[a-z]+://|www\\.|mailto:)${NO_SPACE}+|[${W}.+\\-]+@[${W}\\-]+(?:\\.[${W}\\-]+)+` +
    `|[@#][${W}.\\-]+|(?:[${W}\\-]+\\.)+[a-z]{2,}(?:/${NO_SPACE}*)?|[^a-z]*)$`,
  "iu",
);
const FOOTNOTE = new RegExp(
  `^(?:\\[(?:(?!\\])${NO_SPACE}){1,3}\\]|[*\\u2020\\u2021\\u00a7\\u00b6\\u00b9\\u00b2\\u00b3]+)$`,
  "u",
);
const SUPERSCRIPT = new RegExp(`^[^${W}]*[${W}]{1,3}[^${W}]*$`, "u");
// Maximum number of pieces of a tag that can be a unit.
const SMALL = 8;
// What may stand between two units that move together.
const BETWEEN = new RegExp(`^${SPACE}*[-+/,&|\\u2013\\u2192>]?${SPACE}*$`, "u");

/** Return pieces in which a tag around an address, number or footnote is a unit. */
export function collapsed(pieces: Piece[]): Piece[] {
  const result: Piece[] = [];
  const opened: number[] = [];
  for (const piece of pieces) {
    result.push(piece);
    if (piece.kind === "open") opened.push(result.length - 1);
    else if (piece.kind === "close" && opened.length) {
      const begin = opened[opened.length - 1];
      const tag = result[begin];
      if (tag.name !== piece.name) continue;
      opened.pop();
      const inner = result.slice(begin + 1, -1);
      if (inner.length > SMALL || inner.some((x) => x.kind === "break")) continue;
      const text = strip(inner.map((x) => x.text).join(""));
      const isFootnote =
        FOOTNOTE.test(text) || (tag.name === "sup" && SUPERSCRIPT.test(text));
      if (text && (isFootnote || isAddress(text))) {
        result.length = begin;
        result.push(
          newPiece("unit", tag.start, piece.end, {
            name: tag.name,
            text: isFootnote ? "" : text,
            joins: isFootnote,
          }),
        );
      }
    }
  }
  return result;
}

function isAddress(text: string): boolean {
  return ADDRESS.test(text) && (/^[\0-\x7f]*$/.test(text) || !hasLetter(text));
}

/** Return pieces in which units with a sign or nothing between them are one unit. */
export function merged(pieces: Piece[]): Piece[] {
  const result: Piece[] = [];
  for (const piece of pieces) {
    result.push(piece);
    if (!isMovable(piece)) continue;
    const isText = result.length > 2 && result[result.length - 2].kind === "text";
    const first = result.length - (isText ? 3 : 2);
    const before = result[first];
    if (first < 0 || !isMovable(before)) continue;
    if (isText && !BETWEEN.test(result[result.length - 2].text)) continue;
    if (before.text && piece.text) continue;
    const isWord = before.isWord || piece.isWord;
    result.length = first;
    result.push(newPiece("unit", before.start, piece.end, { isWord }));
  }
  return result;
}

const isMovable = ({ kind, joins, name }: Piece) =>
  kind === "unit" && !joins && name !== "br";

/** The characters of a run, and what the translator sees of each. */
class Atoms implements AtomList {
  readonly shown: string[] = [];
  readonly spelled: Spelled[] = [];
  readonly root: Mark = newMark(0);
  readonly marks: Mark[] = [];
  private readonly boundaries = new Set<number>();

  constructor(source: string, run: Run, hidden: Set<number>, standIns: boolean) {
    const open = [this.root];
    const counts = new Map<string, number>();
    const count = (name: string, step: number) =>
      counts.set(name, (counts.get(name) ?? 0) + step);
    let afterUnit = false;
    for (const piece of run.pieces) {
      if (piece.kind === "text") {
        if (afterUnit && CLOSING.test(piece.text)) this.hideSpaces();
        afterUnit = afterUnit && !strip(piece.text);
        this.addText(piece, source);
      } else if (piece.kind === "open") {
        open.push(this.mark(piece, open[open.length - 1]));
        count(piece.name, 1);
      } else if (piece.kind === "close" && counts.get(piece.name)) {
        for (;;) {
          const mark = open.pop()!;
          mark.end = this.shown.length;
          count(mark.piece!.name, -1);
          if (mark.piece!.name === piece.name) {
            mark.close = piece;
            break;
          }
        }
      } else {
        const shown = this.shownOf(piece, hidden, standIns);
        if (shown) {
          this.shown.push(shown);
          this.spelled.push({ piece, text: shown });
          afterUnit = false;
          continue;
        }
        if (piece.kind === "break") this.boundaries.add(this.shown.length);
        const joins = piece.joins || piece.kind === "break" || piece.kind === "close";
        const mark = this.mark(piece, open[open.length - 1]);
        mark.isUnit = true;
        if (!joins) {
          this.shown.push(" ");
          this.spelled.push("");
          afterUnit = true;
        }
      }
    }
    for (const mark of open) mark.end = this.shown.length;
  }

  /** Return what the translator sees of a unit, or an empty string. */
  private shownOf(piece: Piece, hidden: Set<number>, standIns: boolean): string {
    if (piece.kind !== "unit" || hidden.has(piece.start)) return "";
    if (piece.text || !(standIns && piece.isWord)) return piece.text;
    return `{${this.spelled.filter((x) => typeof x !== "string").length}}`;
  }

  private mark(piece: Piece, parent: Mark): Mark {
    const mark = newMark(this.shown.length, piece);
    parent.children.push(mark);
    this.marks.push(mark);
    return mark;
  }

  private addText(piece: Piece, source: string) {
    const spelled = source.slice(piece.start, piece.end);
    if (spelled === piece.text) {
      for (const character of spelled) {
        this.shown.push(character);
        this.spelled.push(character);
      }
    } else {
      this.shown.push(piece.text);
      this.spelled.push(spelled);
    }
  }

  /** Hide the spaces before a closing punctuation mark from the translator. */
  private hideSpaces() {
    for (let i = this.shown.length - 1; i >= 0 && isSpace(this.shown[i]); i--) {
      this.shown[i] = "";
    }
  }

  /** Return the ranges of atoms between boundaries of sentences. */
  private chunks(): [number, number][] {
    const borders = new Set([0, ...this.boundaries, this.shown.length]);
    const text = this.shown.join("");
    const matches = [...text.matchAll(SEPARATOR)];
    if (matches.length) {
      const owners = this.shown.flatMap((x, i) => Array<number>(x.length).fill(i));
      for (const { 0: sign, index } of matches) {
        const [first, last] = [owners[index], owners[index + sign.length - 1]];
        if (typeof this.spelled[first] === "string") borders.add(first).add(last + 1);
      }
    }
    const cuts = [...borders].sort((first, second) => first - second);
    return cuts.slice(1).map((cut, i) => [cuts[i], cut]);
  }

  /** Return the sentences that have words to translate. */
  sentences(split: (text: string) => string[]): Sentence[] {
    const translatable: Sentence[] = [];
    for (const [begin, end] of this.chunks()) {
      const { text, firsts, lasts } = this.cleaned(begin, end);
      let place = 0;
      for (const part of text ? split(text) : []) {
        const start = text.indexOf(part, place);
        if (start < 0 || !part) continue;
        place = start + part.length;
        const [first, last] = [firsts[start], lasts[place - 1]];
        const isLanguage = this.shown
          .slice(first, last)
          .some((x, i) => typeof this.spelled[first + i] === "string" && hasLetter(x));
        if (!isLanguage) continue;
        const spans: [number, number][] = [];
        for (let i = start; i < place; i++) {
          if (text[i] !== " ") spans.push([firsts[i], lasts[i]]);
        }
        translatable.push({ text: part, begin: first, end: last, spans });
      }
    }
    return translatable;
  }

  /** Return the clean text of atoms, and for each character its range of atoms. */
  private cleaned(begin: number, end: number) {
    const shown = this.shown.slice(begin, end);
    const text = shown.join("");
    const owners = shown.flatMap((x, i) => Array<number>(x.length).fill(begin + i));
    const words: string[] = [];
    const firsts: number[] = [];
    const lasts: number[] = [];
    for (const { 0: match, index } of text.matchAll(NO_BLANKS)) {
      const word = clean(match);
      if (!word) continue;
      if (words.length) {
        firsts.push(owners[index]);
        lasts.push(owners[index]);
      }
      words.push(word);
      for (let i = 0; i < word.length; i++) {
        const place = owners[index + Math.min(i, match.length - 1)];
        firsts.push(place);
        lasts.push(place + 1);
      }
      lasts[lasts.length - 1] = owners[index + match.length - 1] + 1;
    }
    return { text: words.join(" "), firsts, lasts };
  }
}

/** Translations of sentences; nothing leaves a sentence as it is. */
export type Results = Map<string, Translation | undefined>;
type Split = (text: string) => string[];

/** Units whose text did not survive the translation. */
class HiddenUnits extends Error {
  constructor(readonly starts: Set<number>) {
    super();
  }
}

/** A run on its way to its translation. */
class State {
  readonly sentences: Sentence[];
  private readonly atoms: Atoms;

  constructor(
    source: string,
    readonly run: Run,
    split: Split,
    standIns: boolean,
    private readonly hidden = new Set<number>(),
  ) {
    this.atoms = new Atoms(source, run, hidden, standIns);
    this.sentences = this.atoms.sentences(split);
  }

  /** Return the pieces of the translation, or nothing if it equals the source. */
  pieces(results: Results, lexicon?: Lexicon): Placed[] | undefined {
    const translations = this.sentences.map(({ text }) => results.get(text));
    if (this.run.keepsUnsure && translations.some((x) => x?.unsure)) return undefined;
    const placement = new Placement(this.atoms, this.run.spell, lexicon);
    const failures = new Set<number>();
    this.sentences.forEach((sentence, i) => {
      const result = translations[i];
      if (!result || placement.add(sentence, result)) return;
      for (const x of this.atoms.spelled.slice(sentence.begin, sentence.end)) {
        if (typeof x !== "string") failures.add(x.piece.start);
      }
    });
    if (failures.size) throw new HiddenUnits(new Set([...this.hidden, ...failures]));
    return placement.isChanged ? placement.pieces() : undefined;
  }
}

/** A run and the pieces of its translation, absent if it equals the source. */
export type Translated = [run: Run, pieces: Placed[] | undefined];

/** Translate the runs of a source; see `translate_runs` of Python. */
export async function translateRuns(
  source: string,
  runs: Run[],
  translate: (texts: string[]) => Promise<(Translation | undefined)[]>,
  split: Split,
  standIns: boolean,
  lexicon?: Lexicon,
): Promise<Translated[]> {
  let waiting = runs.map((run) => new State(source, run, split, standIns));
  const results: Results = new Map();
  const translated: Translated[] = [];
  while (waiting.length) {
    const seen = new Set(waiting.flatMap((x) => x.sentences.map(({ text }) => text)));
    const texts = [...seen].filter((text) => !results.has(text));
    if (texts.length) {
      const translations = await translate(texts);
      texts.forEach((text, i) => results.set(text, translations[i]));
    }
    const again: State[] = [];
    for (const state of waiting) {
      const { run } = state;
      let pieces;
      try {
        pieces = state.pieces(results, lexicon);
      } catch (error) {
        if (error instanceof HiddenUnits) {
          again.push(new State(source, run, split, standIns, error.starts));
        } else if (error instanceof UnplacedDivisionError) {
          const others = run.alternative ?? [];
          again.push(...others.map((x) => new State(source, x, split, standIns)));
        } else throw error;
        continue;
      }
      run.sentences = state.sentences.map(({ text }) => text);
      translated.push([run, pieces]);
    }
    waiting = again;
  }
  return translated;
}

type Replacement = [start: number, end: number, text: string];

/** Return a source with the results of `translateRuns` in the places of the runs. */
export function replaced(
  source: string,
  translated: Translated[],
  edits: Replacement[] = [],
): string {
  // Runs inside of others come first: the stack has the last ones of the source.
  const stack: Replacement[] = [];
  const items: [number, number, string | Translated][] = [
    ...translated.map((x): [number, number, Translated] => [startOf(x[0]), endOf(x[0]), x]),
    ...edits,
  ];
  items.sort((first, second) => second[0] - first[0] || first[1] - second[1]);
  for (const [start, end, item] of items) {
    if (typeof item === "string") {
      stack.push([start, end, item]);
      continue;
    }
    const [run, pieces] = item;
    const inner: Replacement[] = [];
    while (stack.length && stack[stack.length - 1][1] <= end) inner.push(stack.pop()!);
    let text: string | undefined;
    if (pieces) {
      const written = pieces.map(([kind, content]): [string, string] => [
        kind,
        typeof content === "string"
          ? content
          : withReplacements(source, content.start, content.end, inner),
      ]);
      text = run.finish ? run.finish(written) : written.map((x) => x[1]).join("");
    }
    stack.push([start, end, text ?? withReplacements(source, start, end, inner)]);
  }
  return withReplacements(source, 0, source.length, stack.reverse());
}

/** Return a part of a source with the replacements in it, which are in order. */
function withReplacements(
  source: string,
  begin: number,
  end: number,
  replacements: Replacement[],
): string {
  const parts: string[] = [];
  for (let i = bisect(replacements, (x) => x[0] >= begin); i < replacements.length; i++) {
    const [start, stop, text] = replacements[i];
    if (stop > end) break;
    parts.push(source.slice(begin, start), text);
    begin = stop;
  }
  return parts.join("") + source.slice(begin, end);
}
