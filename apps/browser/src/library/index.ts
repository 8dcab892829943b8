/**
 * Captions and translations in a web page: the files of `captioner export` and
 * `nmt export` run in a worker, and nothing is sent anywhere.
 */

import { decoded } from "./encoding";
import type {
  Caption,
  Description,
  Progress,
  RunOptions,
  TranslatedFile,
  Translation,
  TranslationOptions,
} from "./types";
import { ModelError } from "./types";

export { ModelError };
export type {
  Caption,
  Description,
  Progress,
  RunOptions,
  TranslatedFile,
  Translation,
  TranslationOptions,
};

export interface LoadOptions {
  /** Called while the runtime and the model are downloaded. */
  onProgress?: (progress: Progress) => void;
}

/** Options of the translation of a page. */
export interface HtmlOptions {
  /** Code of the language that the page declares; by default that of the model. */
  language?: string;
  /** One of the `targetLanguages` of a multilingual model. */
  targetLanguage?: string;
  /** Whether elements with an unsure translation get the attribute `data-unsure`. */
  marksUnsure?: boolean;
  /** Called with the number of sentences that are translated, `loaded` of `total`. */
  onProgress?: (progress: Progress) => void;
  /** Ends the translation. */
  signal?: AbortSignal;
}

/** A captioner that has been loaded. */
export class Captioner {
  /** @internal */
  constructor(
    private readonly id: number,
    readonly description: Description,
  ) {}

  /**
   * Caption an image; the result is a list, best first.
   *
   * @param image A `Blob` such as a file, or an element such as `<img>` or `<canvas>`.
   */
  async caption(image: ImageBitmapSource, options: RunOptions = {}): Promise<Caption[]> {
    const isBlob = image instanceof Blob;
    const input = isBlob ? image : await createImageBitmap(image);
    return ask(
      { kind: "run", model: this.id, input, nBest: options.nBest ?? 1 },
      { transfer: input instanceof ImageBitmap ? [input] : [] },
    );
  }

  /** Free the memory of the model. */
  close(): Promise<void> {
    return ask({ kind: "close", model: this.id });
  }
}

/** A translator that has been loaded. */
export class Translator {
  /** @internal */
  constructor(
    private readonly id: number,
    readonly description: Description,
  ) {}

  /**
   * Translate a text of one sentence or several; the result is a list, best first.
   *
   * @throws ModelError If the model does not have the target language.
   */
  translate(text: string, options: TranslationOptions = {}): Promise<Translation[]> {
    const { nBest = 1, targetLanguage } = options;
    return ask({ kind: "run", model: this.id, input: text, nBest, targetLanguage });
  }

  /**
   * Translate a page in HTML or XHTML, or a part of one. Tags enclose the words that are
   * aligned with theirs; everything that is no language stays as it is.
   *
   * @throws ModelError If the signal ends it.
   */
  translateHtml(
    text: string,
    { onProgress, signal, ...options }: HtmlOptions = {},
  ): Promise<TranslatedFile> {
    return ask(
      { kind: "file", model: this.id, text, options },
      { onProgress, signal },
    );
  }

  /** Translate the file of a page in its encoding; see `translateHtml`. */
  async translateFile(
    file: Blob,
    options: HtmlOptions = {},
  ): Promise<TranslatedFile & { file: Blob }> {
    const { text, encode } = decoded(new Uint8Array(await file.arrayBuffer()));
    const translated = await this.translateHtml(text, options);
    const { type } = file;
    return { ...translated, file: new Blob([encode(translated.text)], { type }) };
  }

  /** Free the memory of the model. */
  close(): Promise<void> {
    return ask({ kind: "close", model: this.id });
  }
}

/**
 * Load a `.tflite` file that `captioner export` or `nmt export` has written.
 *
 * @param source Its address, a `Blob` such as a dropped file, or its bytes.
 * @throws ModelError If it is none, is damaged, or cannot be loaded.
 */
export async function load(
  source: string | URL | Blob | ArrayBuffer | Uint8Array<ArrayBuffer>,
  options: LoadOptions = {},
): Promise<Captioner | Translator> {
  const address = typeof source === "string" || source instanceof URL;
  const loaded: { id: number; description: Description } = await ask(
    {
      kind: "load",
      source: address
        ? new URL(source, document.baseURI).href
        : source instanceof ArrayBuffer
          ? new Uint8Array(source)
          : source,
    },
    { onProgress: options.onProgress },
  );
  const type = loaded.description.kind === "captioner" ? Captioner : Translator;
  return new type(loaded.id, loaded.description);
}

interface Waiting {
  resolve: (result: any) => void;
  reject: (error: Error) => void;
  onProgress?: (progress: Progress) => void;
}

let worker: Worker | undefined;
let count = 0;
const waiting = new Map<number, Waiting>();

/** Send a request to the worker, which starts with the first one. */
function ask(
  request: Record<string, unknown>,
  {
    transfer = [],
    onProgress,
    signal,
  }: { transfer?: Transferable[]; signal?: AbortSignal } & LoadOptions = {},
): Promise<any> {
  worker ??= start();
  const id = ++count;
  const stop = () => worker?.postMessage({ id: ++count, kind: "stop", request: id });
  const answer = new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject, onProgress });
    worker!.postMessage({ id, ...request }, transfer);
  });
  if (signal?.aborted) stop();
  signal?.addEventListener("abort", stop);
  return answer.finally(() => signal?.removeEventListener("abort", stop));
}

function start(): Worker {
  const started = new Worker(new URL("worker.js", import.meta.url));
  started.onmessage = ({ data: { id, result, error, progress } }) => {
    const { resolve, reject, onProgress } = waiting.get(id)!;
    if (progress) {
      onProgress?.(progress);
      return;
    }
    waiting.delete(id);
    if (error !== undefined) reject(new ModelError(error));
    else resolve(result);
  };
  started.onerror = (event) => {
    const error = new ModelError(`The worker has failed: ${event.message}`);
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
    started.terminate();
    worker = undefined;
  };
  return started;
}
