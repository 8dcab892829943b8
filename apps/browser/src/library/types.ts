/** What a model returns, and what it says about itself. */

/** One caption of an image. */
export interface Caption {
  text: string;
  words: string[];
  /** By which captions are ranked. */
  score: number;
  logProbability: number;
  /** Mean over the words and the end token: the larger, the more confident. */
  meanLogProbability: number;
  /** Probability of each word, given those before it. */
  probabilities: number[];
  /** Attention map of each word, row by row; see `Description.grid`. */
  maps: Float32Array[];
  /** Whether the model is less confident than usual; absent without a calibration. */
  unsure?: boolean;
}

/** One translation of a text. */
export interface Translation {
  text: string;
  sourceWords: string[];
  words: string[];
  score: number;
  logProbability: number;
  /** Mean over the subwords and the end tokens: the larger, the more confident. */
  meanLogProbability: number;
  /** Attention of each word to the source words; zeros for a model without attention. */
  weights: number[][];
  /** Attention of each word to the end of its sentence. */
  endWeights: number[];
  /** Pairs of a source word and a word, counted from 0. */
  alignment: [number, number][];
  subwords: string[];
  subwordLogProbabilities: number[];
  /** Whether the text was too long, and is translated in part. */
  cut: boolean;
  unsure?: boolean;
}

/** What a file says about its model. */
export interface Description {
  kind: "captioner" | "translator";
  /** Name of the preset or folder that it is from. */
  name: string;
  /** What the model is for, such as "everyday photographs". */
  purpose?: string;
  /** `"float16"`, `"int8"` or `"none"`. */
  quantize: string;
  /** Size of the file in bytes. */
  bytes: number;
  /** Number of threads that compute. */
  threads: number;
  /** Maximum number of results: the beam width with which the file was exported. */
  beamSize: number;
  /** Rows and columns of the attention maps of a captioner. */
  grid?: [number, number];
}

/** Bytes of a model or of the runtime that have arrived. */
export interface Progress {
  loaded: number;
  /** 0 if the server does not say. */
  total: number;
}

/** An error whose message is a sentence for the user. */
export class ModelError extends Error {
  name = "ModelError";
}
