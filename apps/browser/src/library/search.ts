/** The runtime, and the beam search that a file contains. */

import { loadAndCompile, loadLiteRt, supportsFeature, Tensor } from "@litertjs/core";
import type { CompiledModel } from "@litertjs/core";
import { ModelError } from "./types";
import type { Progress } from "./types";

// Lower bound of the scores of possible hypotheses; a search gives impossible ones -1e9.
const MIN_SCORE = -1e8;
// Milliseconds between two reports of a download.
const REPORT_INTERVAL = 100;

/** One sequence that a search has found; padded with END after the last token. */
export interface Hypothesis {
  tokenIds: Int32Array;
  score: number;
  logProbability: number;
  tokenLogProbabilities: Float32Array;
  /** Number of tokens, END included. */
  length: number;
  /** Attention weights, `T x S`, one row after the other. */
  weights: Float32Array;
  /** Number of positions that each token attends to, `S`. */
  positions: number;
}

let runtime: Promise<number> | undefined;

/** Load the runtime once; the result is the number of threads. */
export function loadRuntime(report: (progress: Progress) => void): Promise<number> {
  runtime ??= startRuntime(report).catch((error) => {
    runtime = undefined;
    throw error;
  });
  return runtime;
}

async function startRuntime(report: (progress: Progress) => void): Promise<number> {
  const isFast = await supportsFeature("relaxedSimd");
  const isThreaded = self.crossOriginIsolated && navigator.hardwareConcurrency > 1;
  const variant = !isFast ? "_compat" : isThreaded ? "_threaded" : "";
  const script = new URL(`runtime/litert_wasm${variant}_internal.js`, self.location.href);
  const packed = await download(script.href.replace(/js$/, "wasm.gz"), report);
  // Options of Emscripten's scripts, which the runtime reads.
  (self as any).Module = {
    mainScriptUrlOrBlob: script.href,
    print: () => {},
    printErr: () => {},
    instantiateWasm: (
      imports: WebAssembly.Imports,
      done: (instance: WebAssembly.Instance, module: WebAssembly.Module) => void,
    ) => {
      const unpacked = new Response(unzipped(packed), {
        headers: { "Content-Type": "application/wasm" },
      });
      WebAssembly.instantiateStreaming(unpacked, imports).then(
        ({ instance, module }) => done(instance, module),
        failed,
      );
      return {};
    },
  };
  let failed: (error: unknown) => void = () => {};
  const failure = new Promise<never>((_, reject) => (failed = reject));
  const options = { threads: variant === "_threaded" };
  await Promise.race([loadLiteRt(new URL(".", script.href).href, options), failure]);
  return options.threads ? navigator.hardwareConcurrency : 1;
}

/** Unzip a file, unless the server has already done so. */
function unzipped(bytes: Uint8Array<ArrayBuffer>): ReadableStream {
  const stream = new Blob([bytes]).stream();
  const isPacked = bytes[0] === 0x1f && bytes[1] === 0x8b;
  return isPacked ? stream.pipeThrough(new DecompressionStream("gzip")) : stream;
}

/** Download a file, and report the bytes that have arrived. */
export async function download(
  address: string,
  report: (progress: Progress) => void,
): Promise<Uint8Array<ArrayBuffer>> {
  let response;
  try {
    response = await fetch(address);
  } catch {
    throw new ModelError(
      `Cannot load ${address}: the browser is offline, or the server does not answer.`,
    );
  }
  if (!response.ok || !response.body) {
    throw new ModelError(`Cannot load ${address}: the server says ${response.status}.`);
  }
  const total = Number(response.headers.get("Content-Length") ?? 0);
  const chunks: Uint8Array<ArrayBuffer>[] = [];
  let loaded = 0;
  let reported = 0;
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    chunks.push(value as Uint8Array<ArrayBuffer>);
    loaded += value.length;
    if (performance.now() - reported > REPORT_INTERVAL) {
      reported = performance.now();
      report({ loaded, total: Math.max(total, loaded) });
    }
  }
  report({ loaded, total: loaded });
  const bytes = new Uint8Array(loaded);
  let place = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, place);
    place += chunk.length;
  }
  return bytes;
}

/** The searches of a model: one signature for each. */
export class Search {
  private constructor(
    private readonly compiled: CompiledModel,
  ) {}

  static async compile(model: Uint8Array): Promise<Search> {
    try {
      return new Search(await loadAndCompile(model, { accelerator: "wasm" }));
    } catch (error) {
      if (/BOOL/.test(String(error))) {
        throw new ModelError(
          "This file was exported by an earlier version, with a type of output that " +
            "browsers do not read: export it again.",
        );
      }
      throw new ModelError(`The runtime cannot load this model: ${reason(error)}`);
    }
  }

  /** Run a search on one input, and return its hypotheses, best first. */
  async run(
    signature: string,
    name: string,
    values: Uint8Array<ArrayBuffer> | Int32Array<ArrayBuffer>,
    shape: number[],
  ): Promise<Hypothesis[]> {
    const runner = this.compiled.signatures[signature];
    if (!runner) throw new ModelError(`The model has no signature ${signature}.`);
    const input = new Tensor(values, shape);
    let outputs: Record<string, Tensor>;
    try {
      outputs = await runner.run({ [name]: input });
    } catch (error) {
      throw new ModelError(`The runtime cannot run this model: ${reason(error)}`);
    } finally {
      input.delete();
    }
    const arrays: Record<string, any> = {};
    for (const [key, tensor] of Object.entries(outputs)) {
      arrays[key] = tensor.toTypedArray();
      tensor.delete();
    }
    if (!(arrays.scores[0] > MIN_SCORE)) {
      throw new ModelError(
        "The model computes no finite scores: its weights are NaN or infinite.",
      );
    }
    const hypotheses = [];
    const beams = arrays.scores.length;
    const row = (values: any, rank: number) => {
      const size = values.length / beams;
      return values.slice(rank * size, (rank + 1) * size);
    };
    for (let rank = 0; rank < beams; rank++) {
      if (rank && !arrays.lengths[rank]) continue;
      const tokenIds = row(arrays.token_ids, rank);
      const weights = row(arrays.weights, rank);
      hypotheses.push({
        tokenIds,
        score: arrays.scores[rank],
        logProbability: arrays.log_probs[rank],
        tokenLogProbabilities: row(arrays.token_log_probs, rank),
        length: arrays.lengths[rank],
        weights,
        positions: weights.length / tokenIds.length,
      });
    }
    return hypotheses;
  }

  delete() {
    this.compiled.delete();
  }
}

const reason = (error: unknown) => (error instanceof Error ? error.message : error);
