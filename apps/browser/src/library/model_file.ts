/**
 * A LiteRT model with its tokenizer and metadata, in one file: a ZIP archive is appended
 * to the model. Written by `captioner export` and `nmt export`.
 */

import { ModelError } from "./types";

// Version of the metadata; files of a later one are refused.
const VERSION = 1;
const METADATA = "metadata.json";
// The files of the archive that each kind of model reads. Others are not unpacked.
const FILES: Record<string, string[]> = {
  captioner: ["vocabulary.json"],
  translator: ["subwords.model", "lexicon.txt"],
};
// Maximum bytes of a file with its model, as in Python, and of what is unpacked from it.
export const MAX_FILE_BYTES = 256_000_000;
const MAX_UNPACKED_BYTES = 2 ** 26;
// Maximum distance of the end record of an archive from its end: a comment.
const MAX_END_BYTES = 22 + 65_535;

export type Metadata = Record<string, any>;

export interface ModelFile {
  metadata: Metadata;
  /** The model itself, without the archive. */
  model: Uint8Array<ArrayBuffer>;
  /** The other files of the archive that this kind of model reads. */
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
  const files = new Map<string, Uint8Array>();
  let metadata;
  try {
    const archive = readArchive(bytes);
    metadata = JSON.parse(new TextDecoder().decode(await archive(METADATA)));
    for (const name of FILES[metadata.kind] ?? []) {
      const content = await archive(name);
      if (content) files.set(name, content);
    }
  } catch (error) {
    if (error instanceof ModelError) throw error;
    throw new ModelError(
      "This LiteRT model has no readable metadata: it is incomplete, or captioner " +
        "export or nmt export did not write it.",
    );
  }
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
    const value = JSON.stringify(metadata[name]) ?? "nothing";
    throw new ModelError(`The file has no valid ${name}. It has ${value}.`);
  }
  return metadata[name];
}

export const isCount = (value: any) => Number.isInteger(value) && value >= 0;

/**
 * Return a function that unpacks a file of a ZIP archive, which is at the end of some
 * bytes. All files together may have `MAX_UNPACKED_BYTES`, whatever the archive declares.
 */
function readArchive(bytes: Uint8Array<ArrayBuffer>) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let end = bytes.length - 22;
  const first = Math.max(bytes.length - MAX_END_BYTES, 0);
  while (end >= first && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < first) throw new Error("no archive");
  const count = view.getUint16(end + 10, true);
  const size = view.getUint32(end + 12, true);
  // The archive may have been written before the model was put in front of it.
  const shift = end - size - view.getUint32(end + 16, true);
  // The position of the entry of each file.
  const entries = new Map<string, number>();
  for (let place = end - size, i = 0; i < count; i++) {
    if (view.getUint32(place, true) !== 0x02014b50) throw new Error("no entry");
    const lengths = [28, 30, 32].map((x) => view.getUint16(place + x, true));
    const name = bytes.subarray(place + 46, place + 46 + lengths[0]);
    entries.set(new TextDecoder().decode(name), place);
    place += 46 + lengths[0] + lengths[1] + lengths[2];
  }
  let left = MAX_UNPACKED_BYTES;
  return async (name: string) => {
    const place = entries.get(name);
    if (place === undefined) return undefined;
    const declared = view.getUint32(place + 24, true);
    if (declared > left) {
      throw new ModelError(
        `This file is too large: expected at most ${MAX_UNPACKED_BYTES} bytes in its ` +
          `archive, and ${name} has ${declared}.`,
      );
    }
    const local = shift + view.getUint32(place + 42, true);
    const begin =
      local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const packed = bytes.subarray(begin, begin + view.getUint32(place + 20, true));
    const isPacked = view.getUint16(place + 10, true) === 8;
    const content = isPacked ? await inflate(packed, declared) : packed;
    if (content?.length !== declared) {
      throw new ModelError(
        `This file is damaged: ${name} has another size than its archive declares, ` +
          `${declared} bytes.`,
      );
    }
    if (crc32(content) !== view.getUint32(place + 16, true)) throw new Error("damaged");
    left -= declared;
    return content;
  };
}

/** Unpack bytes; the result is undefined as soon as they become more than `size`. */
async function inflate(packed: Uint8Array<ArrayBuffer>, size: number) {
  const stream = new Blob([packed]).stream();
  const reader = stream.pipeThrough(new DecompressionStream("deflate-raw")).getReader();
  const content = new Uint8Array(size);
  let length = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return content.subarray(0, length);
    if (length + value.length > size) {
      await reader.cancel();
      return undefined;
    }
    content.set(value, length);
    length += value.length;
  }
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
