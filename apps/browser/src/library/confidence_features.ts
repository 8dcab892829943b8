/**
 * What an output shows of its own quality: features of a `Confidence`, and a reason; see
 * `nmt/confidence_features.py` and `captioner/confidence_features.py`.
 */

import type { Confidence, Features } from "./confidence";
import type { Lexicon } from "./lexicon";
import type { Hypothesis } from "./search";
import type { Caption, Translation } from "./types";

const MANY_SUBWORDS = 3;
const UNEXPLAINED_PROBABILITY = 0.5;
const SURE_PROBABILITY = 0.9;
const NAMED_RARITY = 2;
const MAX_NAMED = 3;
// Number of the words with the smallest probabilities whose mean is a feature.
const LEAST = 3;
// Neighbouring pixels differ little, or much, within these numbers of 255.
const [FLAT, EDGE] = [3, 80];

/** Return the features of the translation of one sentence. */
export function translationFeatures(
  translation: Translation,
  sourcePlaces: number[],
  hypothesis: Hypothesis,
  ranked: Hypothesis[],
  lexicon?: Lexicon,
): Features {
  const { words, sourceWords, weights, wordProbabilities } = translation;
  const sizes = new Map<number, number>();
  for (const place of sourcePlaces) sizes.set(place, (sizes.get(place) ?? 0) + 1);
  const coverage = sourceWords.map((_, j) =>
    Math.min(
      weights.reduce((sum, row) => sum + row[j], 0),
      1,
    ),
  );
  const sourceLength = sourcePlaces.length + 1;
  const subwords = Array.from(
    hypothesis.tokenLogProbabilities.slice(0, hypothesis.length),
  );
  const end = hypothesis.tokenLogProbabilities[Math.max(hypothesis.length - 1, 0)];
  const features: Features = {
    mean_log_probability: translation.meanLogProbability,
    least_word_log_probability: Math.min(...wordProbabilities.map(logarithm), end),
    log_source_length: Math.log(sourceLength),
    length_ratio: Math.abs(Math.log(Math.max(hypothesis.length, 1) / sourceLength)),
    character_ratio: Math.abs(Math.log(characters(words) / characters(sourceWords))),
    sure_share: mean(
      subwords.map((x) => (x >= Math.log(SURE_PROBABILITY) ? 1 : 0)),
      0,
    ),
    rare_words: [...sizes.values()].filter((size) => size >= MANY_SUBWORDS).length,
    coverage: mean(coverage, 0),
    agreement: agreement(hypothesis, ranked),
  };
  if (lexicon) {
    const rarities = [...lexicon.untranslated(sourceWords, words).values()];
    const unexplained = lexicon.unexplained(sourceWords, words).length;
    features.untranslated = rarities.reduce((sum, x) => sum + x, 0);
    features.rarest_untranslated = Math.max(0, ...rarities);
    features.unexplained = unexplained;
    features.unexplained_share = unexplained / Math.max(words.length, 1);
    features.mean_rarity = lexicon.meanRarity(sourceWords);
    const copied = [...lexicon.copied(sourceWords, words).values()];
    features.copied = copied.reduce((sum, x) => sum + x, 0);
  }
  return features;
}

/** Return the words of a translation that are probably wrong or lack a translation. */
export function doubts(
  translation: Translation,
  confidence?: Confidence,
  lexicon?: Lexicon,
): { doubtful: number[]; untranslated: number[] } {
  if (!confidence) return { doubtful: [], untranslated: [] };
  const { words, sourceWords, wordProbabilities } = translation;
  const unexplained = new Set(lexicon?.unexplained(sourceWords, words));
  const rarities = [...(lexicon?.untranslated(sourceWords, words) ?? [])];
  return {
    doubtful: wordProbabilities.flatMap((probability, i) =>
      probability < confidence.doubtfulBelow ||
      (unexplained.has(i) && probability < UNEXPLAINED_PROBABILITY)
        ? [i]
        : [],
    ),
    untranslated: rarities.flatMap(([i, rarity]) => (rarity >= NAMED_RARITY ? [i] : [])),
  };
}

/** Return in a few words why a translation is unsure. */
export function translationReason(
  translation: Translation,
  isComplete: boolean,
): string {
  if (!isComplete) return "it repeats itself, has no end, or lacks a part";
  const { words, sourceWords, doubtful, untranslated } = translation;
  if (untranslated.length) {
    return `no translation of ${named(sourceWords, untranslated)} was found in it`;
  }
  if (doubtful.length) return `improbable words: ${named(words, doubtful)}`;
  return "its words are less probable than usual";
}

/** Return the features of a caption; `tokenIds` are those of its words. */
export function captionFeatures(
  tokenIds: number[],
  hypothesis: Hypothesis,
  ranked: Hypothesis[],
): Features {
  const length = Math.max(hypothesis.length, 1);
  const probabilities = Array.from(hypothesis.tokenLogProbabilities.slice(0, length));
  probabilities.sort((x, y) => x - y);
  const ranks = tokenIds.length ? tokenIds.map((id) => Math.log(id + 1)) : [0];
  const largest = Math.max(...ranked.map((x) => x.logProbability));
  const total = ranked.reduce((sum, x) => sum + Math.exp(x.logProbability - largest), 0);
  return {
    mean_log_probability: hypothesis.logProbability / length,
    least_log_probabilities: mean(probabilities.slice(0, LEAST), 0),
    log_probability_of_all: largest + Math.log(total),
    length,
    rarest_word: Math.max(...ranks),
    rarity_of_words: mean(ranks, 0),
    agreement: agreement(hypothesis, ranked),
  };
}

/** Return the features of an image of `size` x `size` pixels of three bytes. */
export function imageFeatures(pixels: Uint8Array, size: number): Features {
  // Sums over the pairs of neighbours above each other, and beside each other.
  const [down, across] = [3 * size, 3].map((step) => {
    const sums = { equal: 0, flat: 0, contrast: 0, edges: 0 };
    const [rows, columns] = step === 3 ? [size, size - 1] : [size - 1, size];
    for (let y = 0; y < rows; y++) {
      for (let x = 0; x < columns; x++) {
        const place = 3 * (y * size + x);
        let largest = 0;
        let grey = 0;
        for (let channel = place; channel < place + 3; channel++) {
          const difference = pixels[channel + step] - pixels[channel];
          largest = Math.max(largest, Math.abs(difference));
          grey += difference;
        }
        sums.equal += largest === 0 ? 1 : 0;
        sums.flat += largest <= FLAT ? 1 : 0;
        sums.contrast += Math.abs(grey) / 3;
        sums.edges += Math.abs(grey) > 3 * EDGE ? 1 : 0;
      }
    }
    const count = rows * columns;
    return Object.fromEntries(Object.entries(sums).map(([name, x]) => [name, x / count]));
  });
  const contrast = Math.log1p((down.contrast + across.contrast) / 2);
  return {
    image_equal: (down.equal + across.equal) / 2,
    image_flat: (down.flat + across.flat) / 2,
    image_contrast: contrast,
    image_squared_contrast: contrast ** 2,
    image_direction: Math.abs(Math.log((across.contrast + 1) / (down.contrast + 1))),
    image_edges: (down.edges + across.edges) / 2,
  };
}

/** Return in a few words why a caption is unsure. */
export function captionReason(
  caption: Caption,
  features: Features,
  confidence?: Confidence,
): string {
  if (!confidence) return "its words are less probable than usual";
  if (confidence.isUnfamiliar(features)) {
    return "the picture is not of the kind that the model knows";
  }
  const { words, doubtful } = caption;
  if (doubtful.length) return `improbable words: ${named(words, doubtful)}`;
  return "captions like this one are often wrong";
}

/** Return the mean share of tokens that a hypothesis shares with each other one. */
function agreement(hypothesis: Hypothesis, ranked: Hypothesis[]): number {
  const tokenIds = hypothesis.tokenIds.slice(0, hypothesis.length);
  const shares = ranked
    .filter((other) => other !== hypothesis)
    .map((other) => {
      const counts = new Map<number, number>();
      for (const id of tokenIds) counts.set(id, (counts.get(id) ?? 0) + 1);
      const tokens = other.tokenIds.slice(0, other.length);
      let common = 0;
      for (const id of tokens) {
        const left = counts.get(id) ?? 0;
        if (left) {
          common += 1;
          counts.set(id, left - 1);
        }
      }
      return common / Math.max(tokenIds.length, tokens.length, 1);
    });
  return mean(shares, 1);
}

function named(words: string[], indices: number[]): string {
  const chosen = indices
    .slice(0, MAX_NAMED)
    .map((i) => `"${words[i].replace(/^[.,;:!?]+|[.,;:!?]+$/g, "")}"`);
  return chosen.join(", ") + (indices.length > MAX_NAMED ? "..." : "");
}

/** Return the number of characters of some words, at least 1. */
const characters = (words: string[]) => Math.max([...words.join("")].length, 1);

const mean = (values: number[], empty: number) =>
  values.length ? values.reduce((sum, x) => sum + x, 0) / values.length : empty;

const logarithm = (probability: number) => Math.log(Math.max(probability, 1e-30));
