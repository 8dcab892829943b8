/** The worker that loads models and runs them, so that the page stays responsive. */

import { CaptionModel } from "./captioner";
import { languageCode } from "./languages";
import { translateHtml } from "./markup";
import type { FileOptions } from "./markup";
import { MAX_FILE_BYTES, readModelFile } from "./model_file";
import { download, loadRuntime, Search } from "./search";
import { TranslationModel } from "./translator";
import { ModelError } from "./types";
import type { Description, Progress } from "./types";

/** What the page asks for; the answer has the same `id`. */
export type Request =
  | { id: number; kind: "load"; source: string | Blob | Uint8Array<ArrayBuffer> }
  | RunRequest
  | { id: number; kind: "file"; model: number; text: string; options: FileRequest }
  | { id: number; kind: "stop"; request: number }
  | { id: number; kind: "close"; model: number };

interface RunRequest {
  id: number;
  kind: "run";
  model: number;
  input: any;
  nBest: number;
  targetLanguage?: string;
}

type FileRequest = Pick<FileOptions, "language" | "targetLanguage" | "marksUnsure">;

interface Loaded {
  model: CaptionModel | TranslationModel;
  search: Search;
  beamSize: number;
}

// Milliseconds between two looks at the messages that have arrived.
const PAUSE = 50;

const models = new Map<number, Loaded>();
// The files whose translation is to end.
const stopped = new Set<number>();
// Requests are answered one after the other.
let last: Promise<unknown> = Promise.resolve();

self.onmessage = ({ data: request }: MessageEvent<Request>) => {
  if (request.kind === "stop") {
    stopped.add(request.request);
    return;
  }
  const answer = request.kind === "load" ? load(request) : last.then(() => run(request));
  last = answer.then(
    (result) => self.postMessage({ id: request.id, result }),
    (error) => {
      const message = error instanceof ModelError ? error.message : String(error);
      self.postMessage({ id: request.id, error: message });
    },
  );
};

async function load({ id, source }: Extract<Request, { kind: "load" }>) {
  // The runtime and the model are downloaded at the same time.
  const parts: Progress[] = [];
  const report = (part: number) => (progress: Progress) => {
    parts[part] = progress;
    const loaded = parts.reduce((sum, x) => sum + (x?.loaded ?? 0), 0);
    const total = parts.reduce((sum, x) => sum + (x?.total ?? 0), 0);
    self.postMessage({ id, progress: { loaded, total } });
  };
  const [threads, file] = await Promise.all([
    loadRuntime(report(0)),
    bytesOf(source, report(1)).then(readModelFile),
  ]);
  const { metadata } = file;
  if (metadata.kind !== "captioner" && metadata.kind !== "translator") {
    throw new ModelError(
      `Expected a captioner or a translator. This file is a ${metadata.kind}.`,
    );
  }
  const search = await Search.compile(file.model);
  let model;
  try {
    const type = metadata.kind === "captioner" ? CaptionModel : TranslationModel;
    model = new type(file, search);
  } catch (error) {
    search.delete();
    throw error;
  }
  const beamSize = metadata.search?.beam_size ?? 1;
  models.set(id, { model, search, beamSize });
  const description: Description = {
    kind: metadata.kind,
    name: metadata.name ?? metadata.kind,
    purpose: metadata.purpose ?? undefined,
    quantize: metadata.quantize,
    bytes: metadata.model_bytes,
    threads,
    beamSize,
    ...(model instanceof CaptionModel
      ? { grid: model.grid }
      : { languages: model.languages, targetLanguages: model.targetLanguages }),
  };
  return { id, description };
}

async function bytesOf(
  source: string | Blob | Uint8Array<ArrayBuffer>,
  report: (progress: Progress) => void,
): Promise<Uint8Array<ArrayBuffer>> {
  if (typeof source === "string") return download(source, report);
  const size = source instanceof Blob ? source.size : source.length;
  if (size > MAX_FILE_BYTES) {
    throw new ModelError(
      `This file is too large: expected at most ${MAX_FILE_BYTES} bytes, got ${size}.`,
    );
  }
  return source instanceof Blob ? new Uint8Array(await source.arrayBuffer()) : source;
}

async function run(request: Exclude<Request, { kind: "load" | "stop" }>) {
  const loaded = models.get(request.model);
  if (!loaded) throw new ModelError("This model has been closed.");
  if (request.kind === "close") {
    models.delete(request.model);
    loaded.search.delete();
    return;
  }
  if (request.kind === "file") return translateFile(loaded.model, request);
  const { input, nBest, targetLanguage } = request;
  if (!(nBest >= 1 && nBest <= loaded.beamSize)) {
    throw new ModelError(
      `nBest must be between 1 and the beam width of the file, ${loaded.beamSize}. ` +
        `Received: ${nBest}.`,
    );
  }
  return loaded.model instanceof CaptionModel
    ? loaded.model.caption(input, nBest)
    : loaded.model.translate(input, nBest, targetLanguage);
}

async function translateFile(
  model: CaptionModel | TranslationModel,
  { id, text, options }: Extract<Request, { kind: "file" }>,
) {
  if (model instanceof CaptionModel) {
    throw new ModelError("A captioner translates no files.");
  }
  let last = 0;
  try {
    return await translateHtml(model, text, {
      language: options.targetLanguage
        ? languageCode(options.targetLanguage)
        : model.languages[1],
      ...options,
      report(loaded, total) {
        self.postMessage({ id, progress: { loaded, total } });
      },
      async check() {
        // Let a request to stop arrive.
        if (performance.now() - last > PAUSE) {
          await new Promise((resolve) => setTimeout(resolve));
          last = performance.now();
        }
        if (stopped.has(id)) throw new ModelError("The translation was stopped.");
      },
    });
  } finally {
    stopped.delete(id);
  }
}
