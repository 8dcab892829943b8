/** Translations of texts; see `nmt/translations.py`. */

import { marker } from "./calibration";
import { Copying } from "./copying";
import { entry, isCount } from "./model_file";
import type { ModelFile } from "./model_file";
import type { Hypothesis, Search } from "./search";
import { joinSentences, splitSentences } from "./sentences";
import { END, FILE_NAME, PAD, Subwords } from "./subwords";
import { ModelError } from "./types";
import type { Translation } from "./types";

// Maximum number of sentences of a text.
const MAX_SENTENCES = 100;

const EMPTY: Translation = {
  text: "",
  sourceWords: [],
  words: [],
  score: 0,
  logProbability: 0,
  meanLogProbability: 0,
  weights: [],
  endWeights: [],
  alignment: [],
  subwords: [],
  subwordLogProbabilities: [],
  cut: false,
};

export class TranslationModel {
  private readonly subwords: Subwords;
  private readonly copying?: Copying;
  private readonly lengths: number[];
  private readonly maxLength: number;
  private readonly attends: boolean;
  private readonly mark: ReturnType<typeof marker>;

  constructor(
    { metadata, files }: ModelFile,
    private readonly search: Search,
  ) {
    const model = files.get(FILE_NAME);
    if (!model) throw new ModelError(`The file has no ${FILE_NAME}.`);
    this.subwords = new Subwords(model);
    if (metadata.extra_ids) this.copying = new Copying(this.subwords);
    this.maxLength = entry(metadata, "max_length", isCount);
    this.lengths = entry(
      metadata,
      "lengths",
      (lengths) => lengths?.every?.(isCount) && lengths.includes(this.maxLength),
    );
    this.attends = entry(metadata, "attends", (x) => typeof x === "boolean");
    this.mark = marker(metadata);
  }

  /** Translate a text of one sentence or several; see `joined_best` of Python. */
  async translate(text: string, nBest: number): Promise<Translation[]> {
    const sentences = splitSentences(text);
    const isCut = sentences.length > MAX_SENTENCES;
    let best: Translation[][] = [[]];
    for (const sentence of sentences.slice(0, MAX_SENTENCES)) {
      const found = await this.translateSentence(sentence, nBest);
      best = best
        .flatMap((chosen, place) =>
          // Combinations that are worse than `nBest` others are left out.
          found.slice(0, Math.floor(nBest / (place + 1))).map((one) => [...chosen, one]),
        )
        .map((chosen) => ({ chosen, sum: sumOf(chosen, "score") }))
        .sort((one, other) => other.sum - one.sum)
        .slice(0, nBest)
        .map(({ chosen }) => chosen);
    }
    return best.map((chosen) => {
      const one = joined(chosen);
      return isCut ? { ...one, cut: true } : one;
    });
  }

  private async translateSentence(sentence: string, nBest: number) {
    let source = this.subwords.encode(sentence);
    const cut = source.length > this.maxLength;
    if (cut) source = [...source.slice(0, this.maxLength - 1), END];
    if (source.length === 1) return [this.mark(EMPTY)];
    const columns = this.lengths.find((length) => length >= source.length)!;
    const padded = new Int32Array(columns).fill(PAD);
    padded.set(source);
    const name = `length_${columns}`;
    const found = await this.search.run(name, "source", padded, [1, columns], nBest);
    return found.map((hypothesis) => this.translation(source, cut, hypothesis));
  }

  private translation(source: number[], cut: boolean, hypothesis: Hypothesis) {
    const { length, weights, positions } = hypothesis;
    const { words: sourceWords, places: sourcePlaces } = this.subwords.words(source);
    let tokenIds = Array.from(hypothesis.tokenIds);
    let origins = tokenIds.map((_, i) => i);
    if (this.copying) {
      ({ tokenIds, origins } = this.copying.expand(tokenIds, source));
    }
    const unknown = tokenIds.find((id) => this.subwords.pieces[id] === undefined);
    if (unknown !== undefined) {
      throw new ModelError(`The subwords of the file have no token ${unknown}.`);
    }
    const { words, places } = this.subwords.words(tokenIds);
    // A word that was copied is one subword.
    const subwords: string[] = Array(hypothesis.tokenIds.length).fill("");
    tokenIds.forEach((id, i) => (subwords[origins[i]] += this.subwords.pieces[id]));
    // The weight of a source word is the sum over its subwords, that of a word the mean
    // over its subwords. The end token is one more source word.
    const columns = [...sourcePlaces, sourceWords.length];
    const merged = words.map(() => Array<number>(sourceWords.length + 1).fill(0));
    const counts = words.map(() => 0);
    places.forEach((place, i) => {
      counts[place] += 1;
      columns.forEach((column, j) => {
        // Without attention, the only weight is that of the summary vector.
        if (this.attends) merged[place][column] += weights[origins[i] * positions + j];
      });
    });
    const rows = merged.map((row, i) =>
      row.map((weight) => Math.min(weight / Math.max(counts[i], 1), 1)),
    );
    const sourceWeights = rows.map((row) => row.slice(0, -1));
    const endWeights = rows.map((row) => row[row.length - 1]);
    return this.mark<Translation>({
      text: this.subwords.decode(tokenIds),
      sourceWords,
      words,
      score: hypothesis.score,
      logProbability: hypothesis.logProbability,
      meanLogProbability: hypothesis.logProbability / Math.max(length, 1),
      weights: sourceWeights,
      endWeights,
      alignment: alignmentOf(sourceWeights, endWeights),
      subwords: subwords.slice(0, length),
      subwordLogProbabilities: Array.from(
        hypothesis.tokenLogProbabilities.slice(0, length),
      ),
      cut,
    });
  }
}

/** Align each word with the source word of the largest weight, unless that is the end. */
function alignmentOf(weights: number[][], endWeights: number[]): [number, number][] {
  return weights.flatMap((row, target) => {
    const largest = Math.max(...row);
    const isAligned = largest > 0 && largest >= endWeights[target];
    return isAligned ? [[row.indexOf(largest), target] as [number, number]] : [];
  });
}

/** Return the translation of a text from those of its sentences. */
function joined(translations: Translation[]): Translation {
  if (translations.length === 1) return translations[0];
  const sourceWords = translations.flatMap((one) => one.sourceWords);
  const endWeights = translations.flatMap((one) => one.endWeights);
  const subwords = translations.flatMap((one) => one.subwords);
  const logProbability = sumOf(translations, "logProbability");
  // Words attend to words of the same sentence alone.
  let column = 0;
  const weights = translations.flatMap((one) => {
    const before = Array<number>(column).fill(0);
    column += one.sourceWords.length;
    const after = Array<number>(sourceWords.length - column).fill(0);
    return one.weights.map((row) => [...before, ...row, ...after]);
  });
  return {
    text: joinSentences(translations.map((one) => one.text)),
    sourceWords,
    words: translations.flatMap((one) => one.words),
    score: sumOf(translations, "score") / translations.length,
    logProbability,
    meanLogProbability: logProbability / Math.max(subwords.length, 1),
    weights,
    endWeights,
    alignment: alignmentOf(weights, endWeights),
    subwords,
    subwordLogProbabilities: translations.flatMap((one) => one.subwordLogProbabilities),
    cut: translations.some((one) => one.cut),
    ...(translations[0].unsure !== undefined && {
      unsure: translations.some((one) => one.unsure),
    }),
  };
}

function sumOf(translations: Translation[], name: "score" | "logProbability"): number {
  return translations.reduce((sum, one) => sum + one[name], 0);
}
