/**
 * Writes the folder `build/browser`: the page, the library, the runtime and three models.
 *
 *   npm run build -- [--captioner FILE.tflite] [--translator FILE.tflite]
 *                    [--reverse FILE.tflite]
 */

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import * as fs from "node:fs";
import * as path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = path.dirname(fileURLToPath(import.meta.url));
const root = path.resolve(here, "../..");
const target = path.join(root, "build/browser");
const runtime = path.join(here, "node_modules/@litertjs/core/wasm");
// Runtimes for browsers with fewer instructions, for most, and with threads.
const VARIANTS = ["_compat", "", "_threaded"];

const { values: models } = parseArgs({
  options: {
    captioner: {
      type: "string",
      default: path.join(root, "apps/keras_attention_apps/captioner/presets/flickr8k-coco-ensemble/model.tflite"),
    },
    translator: {
      type: "string",
      default: path.join(root, "apps/keras_attention_apps/nmt/presets/tatoeba-multi30k-en-de/model.tflite"),
    },
    reverse: {
      type: "string",
      default: path.join(root, "apps/keras_attention_apps/nmt/presets/tatoeba-multi30k-de-en/model.tflite"),
    },
  },
});

// The folder is replaced when everything has been written.
const folder = `${target}.new`;
fs.rmSync(folder, { recursive: true, force: true });
for (const part of ["models", "runtime"]) {
  fs.mkdirSync(path.join(folder, part), { recursive: true });
}
const copy = (from, to) => fs.copyFileSync(from, path.join(folder, to));
const write = (to, content) => fs.writeFileSync(path.join(folder, to), content);
const page = (name) => path.join(here, "src/page", name);

// Without a model for the other direction, the page has no button that swaps them.
const hasReverse = fs.existsSync(models.reverse);
if (!hasReverse) delete models.reverse;
for (const [kind, file] of Object.entries(models)) copy(file, `models/${kind}.tflite`);
for (const variant of VARIANTS) {
  const name = `litert_wasm${variant}_internal`;
  copy(path.join(runtime, `${name}.js`), `runtime/${name}.js`);
  const wasm = fs.readFileSync(path.join(runtime, `${name}.wasm`));
  write(`runtime/${name}.wasm.gz`, gzipSync(wasm, { level: 9 }));
}
for (const name of ["index.html", "icon.svg", "manifest.webmanifest"]) {
  copy(page(name), name);
}
copy(path.join(root, "apps/keras_attention_apps/captioner/sample.jpg"), "sample.jpg");
const read = (...parts) => fs.readFileSync(path.join(...parts), "utf8");
const licences = ["parse5", "entities", "xmlchars"].map(
  (name) => `${name}\n\n${read(here, "node_modules", name, "LICENSE")}\n`,
);
write(
  "LICENSES.txt",
  [read(here, "LICENSES.txt"), ...licences, read(root, "LICENSE")].join("\n"),
);

const options = {
  bundle: true,
  minify: true,
  outdir: folder,
  target: ["chrome111", "firefox121", "safari16.4"],
  logLevel: "warning",
};
await build({
  ...options,
  entryPoints: {
    page: page("page.ts"),
    style: page("style.css"),
    "keras-attention": path.join(here, "src/library/index.ts"),
  },
  format: "esm",
  define: { HAS_REVERSE: String(hasReverse) },
});
// The runtime loads its scripts as only classic workers can.
await build({
  ...options,
  entryPoints: { worker: path.join(here, "src/library/worker.ts") },
  format: "iife",
});

const types = path.join(folder, "types");
const typescript = path.join(here, "node_modules/typescript/bin/tsc");
const emit = "--noEmit false --declaration --emitDeclarationOnly --stripInternal";
execFileSync(
  process.execPath,
  [typescript, "--project", here, ...emit.split(" "), "--outDir", types],
  { stdio: "inherit" },
);
fs.renameSync(
  path.join(types, "library/index.d.ts"),
  path.join(folder, "keras-attention.d.ts"),
);
for (const name of ["types.d.ts", "schema.d.ts"]) {
  fs.renameSync(path.join(types, "library", name), path.join(folder, name));
}
fs.rmSync(types, { recursive: true });

// The service worker fetches a file again when its hash has changed.
const files = fs
  .readdirSync(folder, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map((entry) => path.relative(folder, path.join(entry.parentPath, entry.name)))
  .map((name) => name.split(path.sep).join("/"))
  .sort();
const hash = (name) => {
  const content = fs.readFileSync(path.join(folder, name));
  return createHash("sha256").update(content).digest("hex").slice(0, 16);
};
const isFirst = (name) => !/^(models|runtime)\/|^keras-attention|\.d\.ts$/.test(name);
await build({
  ...options,
  entryPoints: { service_worker: page("service_worker.ts") },
  format: "iife",
  define: {
    FILES: JSON.stringify(Object.fromEntries(files.map((name) => [name, hash(name)]))),
    FIRST: JSON.stringify(files.filter(isFirst)),
  },
});

fs.rmSync(target, { recursive: true, force: true });
fs.renameSync(folder, target);
const size = files.reduce((sum, x) => sum + fs.statSync(path.join(target, x)).size, 0);
console.log(`Wrote ${path.relative(process.cwd(), target)}, ${(size / 1e6).toFixed(0)} MB`);
