/** When a model is unsure: the rule of `common/hypotheses.py`. */

import { isCount } from "./model_file";
import type { Metadata } from "./model_file";
import { ModelError } from "./types";

// Without a fitted threshold, a model is unsure below this quantile.
const UNSURE_LEVEL = 0.02;
const DIGITS = 4;

/** Return a function that marks a result, as the calibration in a file says. */
export function marker(metadata: Metadata) {
  const limit = limitOf(metadata.calibration);
  return <T extends { meanLogProbability: number }>(result: T): T & { unsure?: boolean } =>
    limit === undefined
      ? result
      : { ...result, unsure: Number(result.meanLogProbability.toFixed(DIGITS)) < limit };
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
