/**
 * A LiteRT model with its tokenizer and metadata, in one file: a ZIP archive is appended
 * to the model. Written by `captioner export` and `nmt export`.
 */

import { ModelError } from "./types";

// Version of the metadata; files of a later one are refused.
const VERSION = 1;
const METADATA = "metadata.json";
// Contents of the archive may have this many bytes.
const MAX_BYTES = 2 ** 28;

export type Metadata = Record<string, any>;

export interface ModelFile {
  metadata: Metadata;
  /** The model itself, without the archive. */
  model: Uint8Array<ArrayBuffer>;
  /** The other files of the archive. */
  files: Map<string, Uint8Array>;
}

/** Read the bytes of a file, and check that it is complete. */
export async function readModelFile(
  bytes: Uint8Array<ArrayBuffer>,
): Promise<ModelFile> {
  if (latin(bytes.subarray(4, 8)) !== "TFL3") {
    throw new ModelError(
      "This is no LiteRT model: expected a .tflite file that captioner export or " +
        "nmt export has written.",
    );
  }
  let files, metadata;
  try {
    files = await readArchive(bytes);
    metadata = JSON.parse(new TextDecoder().decode(files.get(METADATA)));
  } catch {
    throw new ModelError(
      "This LiteRT model has no readable metadata: it is incomplete, or captioner " +
        "export or nmt export did not write it.",
    );
  }
  files.delete(METADATA);
  if (metadata.version > VERSION) {
    throw new ModelError(
      `This file has metadata of version ${metadata.version}, and this page reads ` +
        `those up to version ${VERSION}: it needs a later version of the page.`,
    );
  }
  const model = bytes.subarray(0, metadata.model_bytes);
  if (crc32(model) !== metadata.model_crc32) {
    throw new ModelError("This file is damaged: its checksum differs.");
  }
  return { metadata, model, files };
}

/** Return the value of an entry of the metadata, checked by a function. */
export function entry<T>(
  metadata: Metadata,
  name: string,
  isValid: (value: any) => boolean,
): T {
  if (!isValid(metadata[name])) {
    const found = JSON.stringify(metadata[name]) ?? "nothing";
    throw new ModelError(`The file has no valid ${name}. It has ${found}.`);
  }
  return metadata[name];
}

export const isCount = (value: any) => Number.isInteger(value) && value >= 0;

/** Read the files of a ZIP archive that is at the end of some bytes. */
async function readArchive(bytes: Uint8Array<ArrayBuffer>) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let end = bytes.length - 22;
  while (view.getUint32(end, true) !== 0x06054b50) end -= 1;
  const count = view.getUint16(end + 10, true);
  const size = view.getUint32(end + 12, true);
  // The archive may have been written before the model was put in front of it.
  const shift = end - size - view.getUint32(end + 16, true);
  let place = end - size;
  let sum = 0;
  const files = new Map<string, Uint8Array>();
  for (let i = 0; i < count; i++) {
    if (view.getUint32(place, true) !== 0x02014b50) throw new Error("no entry");
    const method = view.getUint16(place + 10, true);
    const checksum = view.getUint32(place + 16, true);
    const packedSize = view.getUint32(place + 20, true);
    const lengths = [28, 30, 32].map((x) => view.getUint16(place + x, true));
    sum += view.getUint32(place + 24, true);
    if (sum > MAX_BYTES) throw new Error("too large");
    const name = bytes.subarray(place + 46, place + 46 + lengths[0]);
    const local = shift + view.getUint32(place + 42, true);
    const begin =
      local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const packed = bytes.subarray(begin, begin + packedSize);
    const content = method === 8 ? await decompress(packed, "deflate-raw") : packed;
    if (crc32(content) !== checksum) throw new Error("damaged");
    files.set(new TextDecoder().decode(name), content);
    place += 46 + lengths[0] + lengths[1] + lengths[2];
  }
  return files;
}

async function decompress(bytes: Uint8Array<ArrayBuffer>, format: CompressionFormat) {
  const stream = new Blob([bytes]).stream();
  const unpacked = stream.pipeThrough(new DecompressionStream(format));
  return new Uint8Array(await new Response(unpacked).arrayBuffer());
}

const latin = (bytes: Uint8Array) => String.fromCharCode(...bytes);

const TABLE = Int32Array.from({ length: 256 }, (_, value) => {
  for (let bit = 0; bit < 8; bit++) {
    value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  }
  return value;
});

function crc32(bytes: Uint8Array): number {
  let value = -1;
  for (let i = 0; i < bytes.length; i++) {
    value = TABLE[(value ^ bytes[i]) & 255] ^ (value >>> 8);
  }
  return ~value >>> 0;
}
