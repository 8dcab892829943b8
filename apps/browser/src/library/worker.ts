/** The worker that loads models and runs them, so that the page stays responsive. */

import { CaptionModel } from "./captioner";
import { readModelFile } from "./model_file";
import { download, loadRuntime, Search } from "./search";
import { TranslationModel } from "./translator";
import { ModelError } from "./types";
import type { Description, Progress } from "./types";

/** What the page asks for; the answer has the same `id`. */
export type Request =
  | { id: number; kind: "load"; source: string | Blob | Uint8Array<ArrayBuffer> }
  | { id: number; kind: "run"; model: number; input: any; nBest: number }
  | { id: number; kind: "close"; model: number };

interface Loaded {
  model: CaptionModel | TranslationModel;
  search: Search;
  beamSize: number;
}

const models = new Map<number, Loaded>();
// Requests are answered one after the other.
let last: Promise<unknown> = Promise.resolve();

self.onmessage = ({ data: request }: MessageEvent<Request>) => {
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
    ...(model instanceof CaptionModel && { grid: model.grid }),
  };
  return { id, description };
}

async function bytesOf(
  source: string | Blob | Uint8Array<ArrayBuffer>,
  report: (progress: Progress) => void,
): Promise<Uint8Array<ArrayBuffer>> {
  if (typeof source === "string") return download(source, report);
  if (source instanceof Blob) return new Uint8Array(await source.arrayBuffer());
  return source;
}

async function run(request: Exclude<Request, { kind: "load" }>) {
  const loaded = models.get(request.model);
  if (!loaded) throw new ModelError("This model has been closed.");
  if (request.kind === "close") {
    models.delete(request.model);
    loaded.search.delete();
    return;
  }
  const { input, nBest } = request;
  if (!(nBest >= 1 && nBest <= loaded.beamSize)) {
    throw new ModelError(
      `nBest must be between 1 and the beam width of the file, ${loaded.beamSize}. ` +
        `Received: ${nBest}.`,
    );
  }
  return loaded.model instanceof CaptionModel
    ? loaded.model.caption(input, nBest)
    : loaded.model.translate(input, nBest);
}
