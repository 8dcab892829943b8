/** When a model is unsure: the rules of `common/confidence.py`. */

import { Confidence } from "./confidence";
import type { Features } from "./confidence";
import { isCount } from "./model_file";
import type { Metadata } from "./model_file";
import { ModelError } from "./types";

// Without a fitted threshold, a model is unsure below this quantile.
const UNSURE_LEVEL = 0.02;
const DIGITS = 4;

/** What a model says of the quality of a result. */
export interface Mark {
  /** Probability that it is usable; absent in files of earlier versions. */
  confidence?: number;
  /** Whether it is probably not usable; absent without a calibration. */
  unsure?: boolean;
}

/** Marks results as the calibration in a file says. */
export class Marker {
  readonly confidence?: Confidence;
  private readonly limit?: number;

  constructor(metadata: Metadata) {
    if (metadata.confidence != null) this.confidence = new Confidence(metadata.confidence);
    this.limit = limitOf(metadata.calibration);
  }

  /** Return the mark of a result; without features, there was nothing to compute. */
  mark(meanLogProbability: number, features?: Features): Mark {
    if (this.confidence) {
      const confidence = features ? this.confidence.probability(features) : 1;
      return { confidence, unsure: confidence < this.confidence.threshold };
    }
    if (this.limit === undefined) return {};
    return { unsure: Number(meanLogProbability.toFixed(DIGITS)) < this.limit };
  }
}

/** Return the mean log-probability below which a model is unsure, if it is known. */
function limitOf(calibration: any): number | undefined {
  if (calibration == null) return undefined;
  const { count, levels, quantiles, threshold } = calibration;
  const isValid = isCount(count) && levels?.length && levels.length === quantiles?.length;
  if (!isValid) throw new ModelError("The file has no valid calibration.");
  if (threshold != null) return threshold;
  const above = levels.findIndex((level: number) => level >= UNSURE_LEVEL);
  if (above < 0) return quantiles[levels.length - 1];
  if (above === 0) return quantiles[0];
  const [low, high] = [levels[above - 1], levels[above]];
  const share = (UNSURE_LEVEL - low) / (high - low);
  return quantiles[above - 1] + share * (quantiles[above] - quantiles[above - 1]);
}
