/**
 * What a model returns. Written by `python -m keras_attention_apps.common.schema`.
 */

/** One caption of an image. */
export interface Caption {
  /** The caption. */
  text: string;
  /** Score by which the results are ranked. */
  score: number;
  /** Its words. */
  words: string[];
  /** Probability of each word, given those before it. */
  probabilities: number[];
  /** Natural logarithm of the probability of the whole. */
  logProbability: number;
  /** Mean over the words and the end token: the larger, the more confident. */
  meanLogProbability: number;
  /** Attention map of each word: rows of regions. Each map sums to one. */
  weights: number[][][];
  /** Indices of the words that are probably wrong, counted from 0. */
  doubtful: number[];
  /** Probability that it is usable; absent for models without a confidence. */
  confidence?: number;
  /** Whether it is probably not usable; absent without a calibration. */
  unsure?: boolean;
  /** Why the model is unsure, in a few words. */
  reason?: string;
}

/** One translation of a text. */
export interface Translation {
  /** The translation. */
  text: string;
  /** Score by which the results are ranked. */
  score: number;
  /** The words of the source. */
  sourceWords: string[];
  /** The words of the translation; subwords where words have no spaces between them. */
  words: string[];
  /** The subwords of the translation, with the end token of each sentence. */
  subwords: string[];
  /** Probability of each subword, given those before it. */
  probabilities: number[];
  /** Probability of each word, given those before it. */
  wordProbabilities: number[];
  /** Natural logarithm of the probability of the whole. */
  logProbability: number;
  /** Mean over the subwords and the end tokens: the larger, the more confident. */
  meanLogProbability: number;
  /** Pairs of a source word and a word, counted from 0. */
  alignment: [number, number][];
  /** Attention of each word to the source words; zeros for a model without attention. */
  weights: number[][];
  /** Attention of each word to the end of its sentence. */
  endWeights: number[];
  /** Whether the text was too long, and is translated in part. */
  cut: boolean;
  /** Indices of the words that are probably wrong, counted from 0. */
  doubtful: number[];
  /** Indices of the source words that no word seems to translate, counted from 0. */
  untranslated: number[];
  /** Probability that it is usable; absent for models without a confidence. */
  confidence?: number;
  /** Whether it is probably not usable; absent without a calibration. */
  unsure?: boolean;
  /** Why the model is unsure, in a few words. */
  reason?: string;
}

/** Options of a caption or a translation. */
export interface RunOptions {
  /** Number of results, best first, at most the beam width of the file; 1 by default. */
  nBest?: number;
}
