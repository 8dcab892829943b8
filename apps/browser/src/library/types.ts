/** What a model returns, see `schema.ts`, and what it says about itself. */

import type { RunOptions } from "./schema";

export type { Caption, RunOptions, Translation } from "./schema";

/** Options of a translation. */
export interface TranslationOptions extends RunOptions {
  /** One of the `targetLanguages` of a multilingual model. */
  targetLanguage?: string;
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
  /** Codes of the source and the target language of a translator, if they are known. */
  languages?: [string | undefined, string | undefined];
  /** Target languages of a multilingual translator, as its vocabulary spells them. */
  targetLanguages?: string[];
  /** Maximum number of results: the beam width with which the file was exported. */
  beamSize: number;
  /** Rows and columns of the attention maps of a captioner. */
  grid?: [number, number];
}

/** A translated page. */
export interface TranslatedFile {
  /** Its text. */
  text: string;
  /** Number of the stretches of language. */
  runs: number;
  /** Those whose translation is unsure: where, the source text, and why. */
  doubts: { place: string; text: string; reason: string }[];
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
