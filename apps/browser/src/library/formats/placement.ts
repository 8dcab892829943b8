/**
 * Places of tags and units in a translation, from the alignment of its words: as
 * `nmt/formats/placement.py`.
 */

import { lexicalCues, symmetric } from "./lexical_cues";
import type { LexicalCues } from "./lexical_cues";
import { argmax, bisect, escapeRegExp, isSpace, WORD_CHARACTER, strip } from "../characters";
import type { Lexicon } from "../lexicon";
import type { Translation } from "../types";
import type { Piece } from "./runs";

/** A translation with too few words for all of its parts. */
export class UnplacedDivisionError extends Error {}

// Weight of the evidence for and against a word beside its share of attention, and the
// smallest gain of a function word at an end of a range without a known pair.
const [SUPPORT, SURE_GAIN] = [0.3, 0.3];

/** A unit of which the translator sees a text. */
export interface Shown {
  piece: Piece;
  text: string;
}

/** What the source has of an atom: characters, or a unit. */
export type Spelled = string | Shown;

/** A tag around some atoms, or a unit between two of them. */
export interface Mark {
  /** The opening tag, or the unit; absent for the whole run. */
  piece?: Piece;
  begin: number;
  end: number;
  children: Mark[];
  close?: Piece;
  isUnit: boolean;
  /** Its places in the translation. */
  start: number;
  stop: number;
  isAligned: boolean;
}

export const newMark = (place: number, piece?: Piece): Mark => ({
  piece,
  begin: place,
  end: place,
  children: [],
  isUnit: false,
  start: 0,
  stop: 0,
  isAligned: false,
});

/** A sentence of a run, with the range of atoms of each character but spaces. */
export interface Sentence {
  text: string;
  begin: number;
  end: number;
  spans: [number, number][];
}

/** The characters of a run, and what the translator sees of each. */
export interface AtomList {
  shown: string[];
  spelled: Spelled[];
  root: Mark;
  marks: Mark[];
}

/** A piece of a translation: a source text, or the piece that is copied. */
export type Placed = ["text", string] | ["open" | "close" | "unit", Piece];

interface Word {
  start: number;
  end: number;
  /** Place of its letters, without punctuation around them. */
  coreStart: number;
  coreEnd: number;
}

type Range = [number, number];

function placedWord(word: string, starts: number[], ends: number[]): Word {
  const indices: number[] = [];
  let place = 0;
  for (const character of word) {
    if (WORD_CHARACTER.test(character)) {
      for (let i = 0; i < character.length; i++) indices.push(place + i);
    }
    place += character.length;
  }
  const [first, last] = indices.length
    ? [indices[0], indices[indices.length - 1]]
    : [0, word.length - 1];
  return {
    start: starts[0],
    end: ends[ends.length - 1],
    coreStart: starts[first],
    coreEnd: ends.at(last)!,
  };
}

/** The words of a sentence and of its translation, and which belong together. */
class Alignment {
  readonly begin: number;
  readonly end: number;
  readonly stop: number;
  readonly sources: Word[] = [];
  readonly targets: Word[] = [];
  readonly weights: number[][];
  private readonly totals: number[];
  private readonly shares: number[][];
  private readonly cues: LexicalCues;

  constructor(
    sentence: Sentence,
    result: Translation,
    readonly start: number,
    positions: number[],
    lexicon?: Lexicon,
  ) {
    this.begin = sentence.begin;
    this.end = sentence.end;
    this.stop = positions[positions.length - 1];
    let place = 0;
    const last = sentence.spans.length - 1;
    for (const word of result.sourceWords) {
      const spans = Array.from(
        { length: word.length },
        (_, i) => sentence.spans[Math.min(place + i, last)],
      );
      this.sources.push(
        placedWord(word, spans.map((x) => x[0]), spans.map((x) => x[1])),
      );
      place += word.length;
    }
    place = 0;
    for (const word of result.words) {
      let begin = Math.max(result.text.indexOf(word, place), place);
      place = Math.min(begin + word.length, positions.length - 1);
      begin = Math.min(begin, Math.max(place - 1, 0));
      const end = Math.max(place, begin + 1);
      const starts = positions.slice(begin, end);
      const following = positions.slice(begin + 1, end + 1);
      const ends = (following.length ? following : starts).slice(0, starts.length);
      this.targets.push(placedWord(word.slice(0, starts.length), starts, ends));
    }
    this.cues = lexicalCues(result.sourceWords, result.words, lexicon);
    let weights = result.weights;
    if (!weights.some((row) => row.some((x) => x !== 0))) {
      // Without attention, words are aligned in their order.
      const [rows, columns] = [this.targets.length, this.sources.length];
      weights = this.targets.map((_, j) =>
        this.sources.map((_, i) =>
          Number(i === Math.floor((j * columns) / Math.max(rows, 1))),
        ),
      );
    } else {
      weights = weights.map((row, j) => row.map((x, i) => x + this.cues.weights[j][i]));
    }
    this.weights = symmetric(weights);
    this.totals = this.weights.map((row) => row.reduce((sum, x) => sum + x, 0));
    this.shares = this.weights.map((row, j) => row.map((x) => x / this.totals[j]));
  }

  /** Return the indices of the source words with letters in a range of atoms. */
  sourcesWithin(begin: number, end: number): number[] {
    return this.sources.flatMap((word, i) =>
      word.coreStart < end && word.coreEnd > begin ? [i] : [],
    );
  }

  /** Return which target words are in a tag, and outside of some ranges. */
  free(parent: Mark, taken: Range[]): boolean[] {
    return this.targets.map(
      (x) =>
        x.coreEnd > parent.start &&
        x.coreStart < parent.stop &&
        !taken.some(([start, stop]) => x.coreStart < stop && x.coreEnd > start),
    );
  }

  /** Return the range of free target words that translate some source words. */
  bestWords(sourceIndices: number[], free: boolean[]): Range | undefined {
    const sums = this.weights.map((row) =>
      sourceIndices.reduce((sum, i) => sum + row[i], 0),
    );
    const isSource = new Set(sourceIndices);
    const gains = sums.map((sum, j) => {
      if (!free[j]) return -Infinity;
      let [ours, others] = [0, 0];
      this.cues.support[j].forEach((x, i) => {
        if (isSource.has(i)) ours = Math.max(ours, x);
        else others = Math.max(others, x);
      });
      return sum / this.totals[j] - 0.5 + SUPPORT * (ours - others);
    });
    let [best, total, start] = [0, 0, 0];
    let chosen: Range | undefined;
    gains.forEach((gain, j) => {
      total += gain;
      if (total <= 0) [total, start] = [0, j + 1];
      else if (total > best) [best, chosen] = [total, [start, j + 1]];
    });
    if (!chosen && free.some((x) => x)) {
      const j = argmax(sums.map((x, i) => (free[i] ? x : -1)));
      chosen = [j, j + 1];
    }
    return chosen && this.withoutFunctionWords(sourceIndices, gains, chosen);
  }

  /** Return a range without function words at its ends that translate nothing. */
  private withoutFunctionWords(
    sourceIndices: number[],
    gains: number[],
    [begin, end]: Range,
  ): Range {
    const { isPaired, isListed, isFunction } = this.cues;
    const stays = (j: number) =>
      !isFunction[j] ||
      sourceIndices.some((i) => isPaired[j][i]) ||
      (sourceIndices.some((i) => isListed[j][i]) && gains[j] > SURE_GAIN);
    const inside = gains.flatMap((_, j) => (j >= begin && j < end && stays(j) ? [j] : []));
    return inside.length ? [inside[0], inside[inside.length - 1] + 1] : [begin, end];
  }

  /** Return a score of each gap between the target words of a tag, and the first word. */
  gapScores(place: number, parent: Mark, taken: Range[]): [number[], number] {
    const sourceIndices = this.sourcesWithin(parent.begin, parent.end);
    const before = sourceIndices.filter((i) => this.sources[i].coreEnd <= place);
    const after = sourceIndices.filter((i) => this.sources[i].coreStart >= place);
    const inside = this.free(parent, []).flatMap((x, j) => (x ? [j] : []));
    if (!inside.length) return [[0], 0];
    const [begin, end] = [inside[0], inside[inside.length - 1] + 1];
    const shares = this.shares.slice(begin, end);
    const scores = [0];
    for (const row of shares) {
      const balance =
        before.reduce((sum, i) => sum + row[i], 0) -
        after.reduce((sum, i) => sum + row[i], 0);
      scores.push(scores[scores.length - 1] + balance);
    }
    // The neighbours of the place count most.
    shares.forEach((row, j) => {
      if (before.length) scores[j + 1] += 2 * row[before[before.length - 1]];
      if (after.length) scores[j] += 2 * row[after[0]];
    });
    if (before.length && after.length && end - begin > 1) {
      // There are words on both sides, as in the source.
      scores[0] = scores[scores.length - 1] = -Infinity;
    }
    for (const [start, stop] of taken) {
      for (let gap = 1; gap < end - begin; gap++) {
        const [left, right] = this.targets.slice(begin + gap - 1, begin + gap + 1);
        if (left.coreEnd > start && right.coreStart < stop) scores[gap] = -Infinity;
      }
    }
    return [scores, begin];
  }
}

/** The translation of a run: its text, and the places of its tags and units. */
export class Placement {
  private readonly target: Spelled[] = [];
  private copied = 0;
  // Stretches of copied atoms: begin, and how far the translation is behind.
  private readonly begins = [0];
  private readonly shifts = [0];
  private readonly alignments: Alignment[] = [];
  private readonly references = new Map<string, string>();

  constructor(
    private readonly atoms: AtomList,
    private readonly spell: (character: string) => string,
    private readonly lexicon?: Lexicon,
  ) {
    // Characters are written as references where the run has such references.
    atoms.shown.forEach((shown, i) => {
      const spelled = atoms.spelled[i];
      if (typeof spelled !== "string" || isSpace(shown)) return;
      const [count, written] = [Array.from(shown).length, Array.from(spelled).length];
      if (count === 1 && written > 1) this.references.set(shown, spelled);
    });
  }

  get isChanged(): boolean {
    return this.alignments.length > 0;
  }

  /** Add the next sentence; return whether its units are in its translation. */
  add(sentence: Sentence, result: Translation): boolean {
    if (!result.words.length || result.cut || result.text === sentence.text) return true;
    const units = this.units(sentence, result.text);
    if (!units) return false;
    this.copy(sentence.begin);
    const start = this.target.length;
    const positions: number[] = [];
    for (let i = 0; i < result.text.length; ) {
      const unit = units.get(i);
      const character = String.fromCodePoint(result.text.codePointAt(i)!);
      const end = unit ? unit.end : i + character.length;
      for (; i < end; i++) positions.push(this.target.length);
      this.target.push(
        unit ? unit.unit : (this.references.get(character) ?? this.spell(character)),
      );
    }
    positions.push(this.target.length);
    this.alignments.push(new Alignment(sentence, result, start, positions, this.lexicon));
    this.copied = sentence.end;
    this.begins.push(sentence.end);
    this.shifts.push(this.target.length - sentence.end);
    return true;
  }

  /** Return the units in a translation, or nothing if one is missing or doubled. */
  private units(sentence: Sentence, text: string) {
    const byText = new Map<string, Shown[]>();
    for (const unit of this.atoms.spelled.slice(sentence.begin, sentence.end)) {
      if (typeof unit === "string") continue;
      byText.set(unit.text, [...(byText.get(unit.text) ?? []), unit]);
    }
    const units = new Map<number, { unit: Shown; end: number }>();
    for (const [shown, sameText] of byText) {
      const word = "[\\p{L}\\p{N}_]";
      const pattern = new RegExp(`(?<!${word})${escapeRegExp(shown)}(?!${word})`, "gu");
      const matches = [...text.matchAll(pattern)];
      if (matches.length !== sameText.length) return undefined;
      matches.forEach((match, i) =>
        units.set(match.index, { unit: sameText[i], end: match.index + shown.length }),
      );
    }
    const begins = [...units.keys()].sort((first, second) => first - second);
    const overlap = begins.some((x, i) => i > 0 && units.get(begins[i - 1])!.end > x);
    return overlap ? undefined : units;
  }

  private copy(end: number) {
    for (; this.copied < end; this.copied++) {
      this.target.push(this.atoms.spelled[this.copied]);
    }
  }

  /** Return the pieces of the translation. */
  pieces(): Placed[] {
    this.copy(this.atoms.spelled.length);
    const { root, marks } = this.atoms;
    root.stop = this.target.length;
    for (const parent of [root, ...marks]) {
      if (parent.children.length) this.placeChildren(parent);
    }
    return this.emitted(root);
  }

  /** Return the place of an atom that is not within a translated sentence. */
  private exact(place: number): number {
    return place + this.shifts[bisect(this.begins, (x) => x > place) - 1];
  }

  /** Return the alignment of the translated sentence around a place. */
  private around(place: number): Alignment | undefined {
    const alignment = this.alignments[bisect(this.alignments, (x) => x.begin >= place) - 1];
    return alignment && place < alignment.end ? alignment : undefined;
  }

  private placeChildren(parent: Mark) {
    const taken = new Map<Alignment, Range[]>();
    const divisions = new Map<Alignment, Mark[]>();
    for (const tag of parent.children) {
      if (tag.isUnit) continue;
      const alignment = this.placeTag(tag, parent, taken);
      if (alignment && tag.start < tag.stop) {
        taken.set(alignment, [...(taken.get(alignment) ?? []), [tag.start, tag.stop]]);
      }
    }
    for (const unit of parent.children) {
      if (!unit.isUnit) continue;
      const alignment = this.around(unit.begin);
      if (unit.piece!.divides && alignment) {
        divisions.set(alignment, [...(divisions.get(alignment) ?? []), unit]);
        continue;
      }
      unit.start = unit.stop = this.placeInGap(unit, parent, alignment, taken);
    }
    for (const [alignment, units] of divisions) {
      this.divide(units, parent, alignment, taken.get(alignment) ?? []);
    }
  }

  /** Return the place of a unit, or of a tag around nothing. */
  private placeInGap(
    mark: Mark,
    parent: Mark,
    alignment: Alignment | undefined,
    taken: Map<Alignment, Range[]>,
  ): number {
    if (!alignment) return clamped(this.exact(mark.begin), parent.start, parent.stop);
    mark.isAligned = true;
    const isWithin = alignment.sources.some(
      (x) => x.start < mark.begin && mark.begin < x.end,
    );
    const sources = alignment
      .sourcesWithin(parent.begin, parent.end)
      .map((i) => alignment.sources[i]);
    if (!isWithin && !sources.some((x) => x.coreEnd <= mark.begin)) {
      return Math.max(parent.start, alignment.start);
    }
    if (!isWithin && !sources.some((x) => x.coreStart >= mark.begin)) {
      return Math.min(parent.stop, alignment.stop);
    }
    const [scores, first] = alignment.gapScores(
      mark.begin,
      parent,
      taken.get(alignment) ?? [],
    );
    const gap = argmax(scores);
    return this.ofGap(mark, alignment, first, gap, scores.length, isWithin, parent);
  }

  /** Return the place of a gap between the words of an alignment. */
  private ofGap(
    mark: Mark,
    { targets }: Alignment,
    first: number,
    gap: number,
    count: number,
    isWithin: boolean,
    parent: Mark,
  ): number {
    let place;
    if (isWithin && gap) place = targets[first + gap - 1].coreEnd;
    else if (gap + 1 < count && (this.spaced(mark)[0] || !gap)) {
      place = targets[first + gap].start;
    } else place = targets.at(first + gap - 1)!.end;
    return clamped(place, parent.start, parent.stop);
  }

  /** Place units that have words before, between and after them. */
  private divide(units: Mark[], parent: Mark, alignment: Alignment, taken: Range[]) {
    const scored = units.map((unit) => alignment.gapScores(unit.begin, parent, taken));
    const first = scored[scored.length - 1][1];
    const tables = scored.map(([scores]) => scores);
    const count = tables[0].length;
    if (count < units.length + 2) throw new UnplacedDivisionError();
    // The best increasing sequence of gaps, from the first unit on.
    const best = units.map(() => Array<number>(count).fill(-Infinity));
    const back = units.map(() => Array<number>(count).fill(0));
    for (let gap = 1; gap < count - 1; gap++) best[0][gap] = tables[0][gap];
    for (let k = 1; k < units.length; k++) {
      for (let gap = k + 1; gap < count - 1; gap++) {
        back[k][gap] = argmax(best[k - 1].slice(0, gap));
        best[k][gap] = best[k - 1][back[k][gap]] + tables[k][gap];
      }
    }
    let gap = argmax(best[units.length - 1]);
    if (!Number.isFinite(best[units.length - 1][gap])) throw new UnplacedDivisionError();
    for (let k = units.length - 1; k >= 0; k--) {
      const unit = units[k];
      unit.isAligned = true;
      unit.start = unit.stop = this.ofGap(unit, alignment, first, gap, count, false, parent);
      gap = back[k][gap];
    }
  }

  /** Place a tag; return the alignment of the only sentence that it is in. */
  private placeTag(tag: Mark, parent: Mark, taken: Map<Alignment, Range[]>) {
    const overlapping = this.overlapping(tag.begin, tag.end).filter((x) => x.sources.length);
    const withWords = overlapping.flatMap((x) => {
      const sourceIndices = x.sourcesWithin(tag.begin, tag.end);
      return sourceIndices.length ? [{ alignment: x, sourceIndices }] : [];
    });
    const around = this.around(tag.begin);
    let [start, stop] = [0, 0];
    if (withWords.length) {
      [start, stop] = this.enclosed(tag, parent, withWords, taken);
    } else if (overlapping.length && tag.begin < tag.end) {
      [start, stop] = aroundPunctuation(tag, overlapping[0]);
    } else if (around) {
      start = stop = this.placeInGap(tag, parent, around, taken);
    } else {
      [start, stop] = [this.exact(tag.begin), this.exact(tag.end)];
    }
    tag.start = clamped(start, parent.start, parent.stop);
    tag.stop = Math.min(Math.max(stop, tag.start), parent.stop);
    return withWords.length === 1 ? withWords[0].alignment : undefined;
  }

  /** Return the alignments of the sentences that overlap a range of atoms. */
  private overlapping(begin: number, end: number): Alignment[] {
    const first = bisect(this.alignments, (x) => x.end > begin);
    const last = bisect(this.alignments, (x) => x.begin >= end);
    return this.alignments.slice(first, last);
  }

  /** Return the begin and the end of the words that a tag encloses. */
  private enclosed(
    tag: Mark,
    parent: Mark,
    withWords: { alignment: Alignment; sourceIndices: number[] }[],
    taken: Map<Alignment, Range[]>,
  ): Range {
    const outer = [withWords[0], withWords[withWords.length - 1]];
    const ranges = outer.map(({ alignment, sourceIndices }): Range | undefined => {
      const { length } = alignment.targets;
      if (sourceIndices.length === alignment.sources.length) return [0, length];
      const free = alignment.free(parent, taken.get(alignment) ?? []);
      return alignment.bestWords(sourceIndices, free);
    });
    const isOne = withWords.length === 1;
    const isWhole = outer.map(
      (x) => x.sourceIndices.length === x.alignment.sources.length,
    );
    let [start, stop] = [0, 0];
    const [{ alignment: first }, { alignment: last }] = outer;
    const [firstIndices, lastIndices] = outer.map((x) => x.sourceIndices);
    const [words, lastWords] = ranges;
    if (
      tag.begin <= first.begin &&
      (isWhole[0] || !(isOne || words) || this.hasAtoms(tag.begin, first.begin))
    ) {
      start = this.exact(tag.begin);
    } else if (!words) start = isOne ? parent.start : first.stop;
    else {
      const [target, source] = [first.targets[words[0]], first.sources[firstIndices[0]]];
      const hasBefore = tag.begin <= source.start && source.start < source.coreStart;
      start = hasBefore ? target.start : target.coreStart;
    }
    if (
      tag.end >= last.end &&
      (isWhole[1] || !(isOne || lastWords) || this.hasAtoms(last.end, tag.end))
    ) {
      stop = this.exact(tag.end);
    } else if (!lastWords) stop = isOne ? start : last.start;
    else {
      const target = last.targets[lastWords[1] - 1];
      const source = last.sources[lastIndices[lastIndices.length - 1]];
      const hasAfter = tag.end >= source.end && source.end > source.coreEnd;
      stop = hasAfter ? target.end : target.coreEnd;
    }
    return [start, stop];
  }

  /** Return whether there is more than white space between two places. */
  private hasAtoms(begin: number, end: number): boolean {
    return this.atoms.spelled
      .slice(begin, end)
      .some((x) => typeof x !== "string" || strip(x) !== "");
  }

  /** Return whether a unit has white space before it, and after it. */
  private spaced({ begin }: Mark): [boolean, boolean] {
    const { spelled } = this.atoms;
    let after = begin;
    // A unit that separates words has an atom of its own.
    while (after < spelled.length && spelled[after] === "") after += 1;
    const isBlank = (x: Spelled | undefined) => typeof x === "string" && isSpace(x);
    return [isBlank(spelled[begin - 1]), isBlank(spelled[after])];
  }

  /** Return the pieces of a part of the text. */
  private texts(begin: number, end: number): Placed[] {
    const placed: Placed[] = [];
    let text = "";
    const flush = () => {
      if (text) placed.push(["text", text]);
      text = "";
    };
    for (const x of this.target.slice(begin, end)) {
      if (typeof x === "string") {
        text += x;
        continue;
      }
      flush();
      placed.push(["unit", x.piece]);
    }
    flush();
    return placed;
  }

  /** Return the pieces of the translation from the places of tags and units. */
  private emitted(root: Mark): Placed[] {
    const placed: Placed[] = [];
    const frames = [{ mark: root, children: ordered(root), next: 0, place: 0 }];
    while (frames.length) {
      const frame = frames[frames.length - 1];
      const { mark } = frame;
      const child = frame.children[frame.next++];
      if (!child) {
        placed.push(...this.texts(frame.place, mark.stop));
        frames.pop();
        if (mark !== root) {
          if (mark.close) placed.push(["close", mark.close]);
          frames[frames.length - 1].place = mark.stop;
        }
        continue;
      }
      child.start = Math.min(Math.max(child.start, frame.place), mark.stop);
      child.stop = Math.min(Math.max(child.stop, child.start), mark.stop);
      placed.push(...this.texts(frame.place, child.start));
      frame.place = child.start;
      const piece = child.piece!;
      if (!child.isUnit) {
        placed.push(["open", piece]);
        frames.push({ mark: child, children: ordered(child), next: 0, place: child.start });
      } else if (child.isAligned) {
        // It has spaces around it where the source has them.
        const [before, after] = this.spaced(child);
        if (before && this.isWord(child.start - 1)) placed.push(["text", " "]);
        placed.push(["unit", piece]);
        if (after && this.isWord(child.start)) placed.push(["text", " "]);
        else if (!(after || before || piece.joins)) {
          // The unit alone separates the words.
          const isBlank = this.target[child.start] === " " && child.start < mark.stop;
          frame.place += Number(isBlank);
        }
      } else placed.push(["unit", piece]);
    }
    return placed;
  }

  /** Return whether there is something else than a space at a place. */
  private isWord(place: number): boolean {
    const x = this.target[place];
    return x !== undefined && (typeof x !== "string" || strip(x) !== "");
  }
}

/** Return the begin and the end of a tag that has punctuation alone. */
function aroundPunctuation(tag: Mark, alignment: Alignment): Range {
  const { sources, targets, weights } = alignment;
  const i = sources.findIndex((x) => tag.begin < x.end);
  const word = targets[argmax(weights.map((row) => row.at(i)!))];
  const source = sources.at(i)!;
  return tag.begin < source.coreStart
    ? [word.start, word.coreStart]
    : [word.coreEnd, word.end];
}

const clamped = (place: number, lower: number, upper: number) =>
  Math.min(Math.max(place, lower), upper);

// The sort is stable: units in one place keep their order.
const ordered = ({ children }: Mark) =>
  [...children].sort(
    (first, second) => first.start - second.start || first.stop - second.stop,
  );
