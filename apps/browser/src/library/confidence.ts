/** The probability that an output is usable; see `common/confidence.py`. */

import { entry } from "./model_file";
import type { Metadata } from "./model_file";

export type Features = Record<string, number>;

// An image or a sentence is unfamiliar below this probability.
const THRESHOLD = 0.5;
// Largest linear term of a probability.
const MAX_LOGIT = 30;
// Probabilities are rounded to this share.
const DIGITS = 1e4;

/** A logistic model of whether an output is usable, and one of its input. */
export class Confidence {
  readonly threshold: number;
  /** A word is doubtful if its probability is smaller. */
  readonly doubtfulBelow: number;
  private readonly bias: number;
  private readonly weights: Features;
  private readonly domainBias: number | null;
  private readonly domainWeights: Features | null;

  constructor(content: Metadata) {
    this.threshold = entry(content, "threshold", isNumber);
    this.doubtfulBelow = entry(content, "doubtful_below", isNumber);
    this.bias = entry(content, "bias", isNumber);
    this.weights = entry(content, "weights", areNumbers);
    const isOptional = (isValid: (x: any) => boolean) => (x: any) =>
      x == null || isValid(x);
    this.domainBias = entry(content, "domain_bias", isOptional(isNumber));
    this.domainWeights = entry(content, "domain_weights", isOptional(areNumbers));
  }

  /** Return the probability that an output with these features is usable. */
  probability(features: Features): number {
    const usable = probability(this.bias, this.weights, features);
    return Math.round(Math.min(usable, this.familiarity(features)) * DIGITS) / DIGITS;
  }

  /** Return whether a model is probably not for the input of these features. */
  isUnfamiliar(features: Features): boolean {
    return this.familiarity(features) < THRESHOLD;
  }

  private familiarity(features: Features): number {
    if (this.domainBias === null || this.domainWeights === null) return 1;
    return probability(this.domainBias, this.domainWeights, features);
  }
}

const isNumber = (value: any) => typeof value === "number" && Number.isFinite(value);
const areNumbers = (values: any) =>
  typeof values === "object" && values !== null && Object.values(values).every(isNumber);

function probability(bias: number, weights: Features, features: Features): number {
  let logit = bias;
  for (const [name, weight] of Object.entries(weights)) {
    logit += weight * (features[name] ?? 0);
  }
  return 1 / (1 + Math.exp(-Math.max(-MAX_LOGIT, Math.min(MAX_LOGIT, logit))));
}
