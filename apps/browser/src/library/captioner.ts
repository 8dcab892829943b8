/** Captions of images; see `captioner/captions.py`. */

import { Marker } from "./calibration";
import type { Features } from "./confidence";
import { captionFeatures, captionReason, imageFeatures } from "./confidence_features";
import { decodeImage, imageToArray } from "./image";
import { entry, isCount } from "./model_file";
import type { ModelFile } from "./model_file";
import type { Hypothesis, Search } from "./search";
import { END } from "./subwords";
import { detokenize } from "./text";
import { ModelError } from "./types";
import type { Caption } from "./types";

const SPECIAL = ["<pad>", "<start>", "<end>", "<unk>"];
const VOCABULARY = "vocabulary.json";

export class CaptionModel {
  readonly grid: [number, number];
  private readonly words: string[];
  private readonly size: number;
  private readonly maxLength: number;
  private readonly marker: Marker;

  constructor(
    { metadata, files }: ModelFile,
    private readonly search: Search,
  ) {
    const words = JSON.parse(new TextDecoder().decode(files.get(VOCABULARY)) || "null");
    if (!Array.isArray(words) || !words.every((word) => typeof word === "string")) {
      throw new ModelError(`The file has no valid ${VOCABULARY}.`);
    }
    this.words = [...SPECIAL, ...words];
    this.size = entry(metadata, "image_size", isCount);
    this.maxLength = entry(metadata, "max_length", isCount);
    this.grid = entry(
      metadata,
      "grid",
      (grid) => grid?.length === 2 && grid.every((x: any) => isCount(x) && x > 0),
    );
    this.marker = new Marker(metadata);
  }

  async caption(image: Blob | ImageBitmap, nBest: number): Promise<Caption[]> {
    const array = await this.read(image);
    const shape = [1, this.size, this.size, 3];
    const ranked = await this.search.run("weights", "images", array, shape);
    const ofImage = imageFeatures(array, this.size);
    return ranked
      .slice(0, nBest)
      .map((hypothesis) => this.captionOf(hypothesis, ranked, ofImage));
  }

  /** Read an image as an array; all copies of its pixels are freed. */
  private async read(image: Blob | ImageBitmap) {
    let bitmap;
    try {
      bitmap = await decodeImage(image);
      return imageToArray(bitmap, this.size);
    } finally {
      bitmap?.close();
      if (image instanceof ImageBitmap) image.close();
    }
  }

  /** Return the caption of one of the `ranked` hypotheses of an image. */
  private captionOf(
    hypothesis: Hypothesis,
    ranked: Hypothesis[],
    ofImage: Features,
  ): Caption {
    const { weights, positions } = hypothesis;
    // The last position has room for END alone.
    const tokenIds = Array.from(hypothesis.tokenIds).slice(0, this.maxLength - 1);
    const end = tokenIds.indexOf(END);
    const words = tokenIds.slice(0, end < 0 ? undefined : end).map((id) => {
      if (this.words[id] === undefined) {
        throw new ModelError(`The vocabulary of the file has no token ${id}.`);
      }
      return this.words[id];
    });
    const regions = this.grid[0] * this.grid[1];
    if (positions !== regions) {
      throw new ModelError(
        `The attention maps of the model have ${positions} regions, and its file says ` +
          `${this.grid.join(" x ")}.`,
      );
    }
    const probabilities = words.map((_, i) =>
      Math.exp(hypothesis.tokenLogProbabilities[i]),
    );
    const features = {
      ...captionFeatures(tokenIds.slice(0, words.length), hypothesis, ranked),
      ...ofImage,
    };
    const threshold = this.marker.confidence?.doubtfulBelow ?? 0;
    const caption: Caption = {
      text: detokenize(words),
      words,
      score: hypothesis.score,
      logProbability: hypothesis.logProbability,
      meanLogProbability: hypothesis.logProbability / Math.max(hypothesis.length, 1),
      probabilities,
      weights: words.map((_, i) =>
        Array.from({ length: this.grid[0] }, (_, row) => {
          const begin = i * positions + row * this.grid[1];
          return Array.from(weights.slice(begin, begin + this.grid[1]));
        }),
      ),
      doubtful: probabilities.flatMap((x, i) => (x < threshold ? [i] : [])),
      ...this.marker.mark(features.mean_log_probability, features),
    };
    if (caption.unsure) {
      caption.reason = captionReason(caption, features, this.marker.confidence);
    }
    return caption;
  }
}
