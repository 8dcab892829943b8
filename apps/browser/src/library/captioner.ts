/** Captions of images; see `captioner/captions.py`. */

import { marker } from "./calibration";
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
  private readonly mark: ReturnType<typeof marker>;

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
    this.mark = marker(metadata);
  }

  async caption(image: Blob | ImageBitmap, nBest: number): Promise<Caption[]> {
    const bitmap = await decodeImage(image);
    const array = imageToArray(bitmap, this.size);
    bitmap.close();
    const shape = [1, this.size, this.size, 3];
    const found = await this.search.run("weights", "images", array, shape, nBest);
    return found.map((hypothesis) => this.captionOf(hypothesis));
  }

  private captionOf(hypothesis: Hypothesis): Caption {
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
    return this.mark({
      text: detokenize(words),
      words,
      score: hypothesis.score,
      logProbability: hypothesis.logProbability,
      meanLogProbability: hypothesis.logProbability / Math.max(hypothesis.length, 1),
      probabilities: words.map((_, i) => Math.exp(hypothesis.tokenLogProbabilities[i])),
      maps: words.map((_, i) => weights.slice(i * positions, (i + 1) * positions)),
    });
  }
}
