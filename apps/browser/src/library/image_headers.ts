/**
 * The size of an image, read from the headers of its file before it is decoded, and
 * limits like those of `captioner/images.py` and `image_headers.py`.
 */

import { ModelError } from "./types";

// Fewer than in Python, since browsers decode images at their whole size: a gigabyte.
const MAX_PIXELS = 100_000_000;
const MAX_SIDE = 65_535;
// For images of more pixels, the number of pixels for each byte of the file is limited.
const FEW_PIXELS = 2 ** 24;
const MAX_PIXELS_PER_BYTE = 10_000;
const MAX_FILE_BYTES = 256_000_000;
// Limits of a JPEG; a scan with arithmetic coding counts as several.
const MAX_SCANS = 100;
const MAX_SEGMENTS = 1_000;
const MAX_SCANNED_PIXELS = 2 ** 31;
const ARITHMETIC_SCANS = 12;
// Maximum number of boxes, tags or entries that are looked at.
const MAX_PARTS = 10_000;

export interface Size {
  width: number;
  height: number;
}

/** Check a file before it is decoded; throws a `ModelError` if it is too large. */
export async function checkImage(image: Blob) {
  if (image.size > MAX_FILE_BYTES) {
    throw new ModelError(
      `This image is too large: expected a file of at most ${MAX_FILE_BYTES} bytes, ` +
        `got ${image.size}.`,
    );
  }
  const bytes = new Uint8Array(await image.arrayBuffer());
  let size: Size | undefined;
  try {
    size = sizeOf(bytes);
  } catch (error) {
    // Outside of the bytes: the file is truncated.
    if (!(error instanceof RangeError)) throw error;
  }
  if (!size || !size.width || !size.height) {
    throw new ModelError(
      "This image cannot be read: expected one that the browser shows, such as a JPEG, " +
        "PNG or WebP file.",
    );
  }
  checkSize(size, bytes.length);
}

/** Check the size of an image, in a file of a length if there is one. */
export function checkSize({ width, height }: Size, length?: number) {
  const pixels = width * height;
  const actual = `got ${width} x ${height}.`;
  let expected;
  if (pixels > MAX_PIXELS) expected = `at most ${MAX_PIXELS} pixels`;
  else if (Math.max(width, height) > MAX_SIDE) {
    expected = `sides of at most ${MAX_SIDE} pixels`;
  } else if (
    length !== undefined &&
    pixels > FEW_PIXELS &&
    pixels > MAX_PIXELS_PER_BYTE * length
  ) {
    expected = `at most ${MAX_PIXELS_PER_BYTE} pixels for each byte of the file`;
  }
  if (expected) {
    throw new ModelError(`This image is too large: expected ${expected}, ${actual}`);
  }
}

/**
 * Return the largest size that the headers of a file declare, or nothing for an unknown
 * format. Throws a `RangeError` for a truncated file.
 */
export function sizeOf(bytes: Uint8Array): Size | undefined {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const text = (at: number, length: number) =>
    String.fromCharCode(...bytes.subarray(at, at + length));
  if (text(0, 2) === "\xff\xd8") return jpeg(view);
  if (text(0, 8) === "\x89PNG\r\n\x1a\n") {
    return { width: view.getUint32(16), height: view.getUint32(20) };
  }
  if (/^GIF8[79]a/.test(text(0, 6))) return gif(view);
  if (text(0, 4) === "RIFF" && text(8, 4) === "WEBP") return webp(view, text(12, 4));
  if (text(0, 2) === "BM") return bitmap(view, 14);
  if (text(0, 4) === "\0\0\x01\0") return icons(view);
  if (text(4, 8) === "ftypjxl " || text(4, 4) === "JXL ") return jpegXlInBoxes(view);
  // HEIC files have the same boxes as AVIF.
  if (text(4, 4) === "ftyp") return isoImage(view, 0, bytes.length);
  if (text(0, 2) === "\xff\x0a") return jpegXl(bytes.subarray(2));
  if (text(4, 4) === "jP  " || text(0, 4) === "\xff\x4f\xff\x51") {
    return jpeg2000(view);
  }
  if (["II*\0", "MM\0*"].includes(text(0, 4))) return tiff(view, text(0, 1) === "I");
  return undefined;
}

/** Return the larger one of two sizes. */
function larger(a: Size | undefined, b: Size): Size {
  return a && a.width * a.height >= b.width * b.height ? a : b;
}

function jpeg(view: DataView): Size | undefined {
  let size: Size | undefined;
  let scans = 0;
  let cost = 1;
  let place = 2;
  for (let segments = 0; ; segments++) {
    // In the data of a scan, 0xff is followed by 0 or by the mark of a restart.
    while (place + 1 < view.byteLength && !isMark(view, place)) place++;
    if (place + 4 > view.byteLength) break;
    const mark = view.getUint8(place + 1);
    if (mark === 0xd9) break;
    if (mark === 0xda) scans++;
    else if (mark >= 0xc0 && mark <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(mark)) {
      if (mark > 0xc8) cost = ARITHMETIC_SCANS;
      const [height, width] = [view.getUint16(place + 5), view.getUint16(place + 7)];
      size = larger(size, { width, height });
    }
    const pixels = size ? size.width * size.height : 0;
    if (
      scans > MAX_SCANS ||
      segments >= MAX_SEGMENTS ||
      scans * cost * pixels > MAX_SCANNED_PIXELS
    ) {
      throw new ModelError(
        `This image takes too long to decode: expected a JPEG of at most ${MAX_SCANS} ` +
          `scans and ${MAX_SEGMENTS} segments, and of at most ${MAX_SCANNED_PIXELS} ` +
          "pixels in all scans, got more.",
      );
    }
    place += 2 + view.getUint16(place + 2);
  }
  return size;
}

function isMark(view: DataView, place: number) {
  if (view.getUint8(place) !== 0xff) return false;
  const mark = view.getUint8(place + 1);
  return mark !== 0 && mark !== 0xff && !(mark >= 0xd0 && mark <= 0xd7);
}

/** Return the size of the screen, and of the first frame if it is larger. */
function gif(view: DataView): Size | undefined {
  let size = { width: view.getUint16(6, true), height: view.getUint16(8, true) };
  const colours = (flags: number) => (flags & 128 ? 3 * 2 ** ((flags & 7) + 1) : 0);
  let place = 13 + colours(view.getUint8(10));
  for (let blocks = 0; blocks < MAX_PARTS && view.getUint8(place) === 0x21; blocks++) {
    place += 2;
    while (view.getUint8(place)) {
      place += 1 + view.getUint8(place);
      if (++blocks > MAX_PARTS) throw new RangeError("too many blocks");
    }
    place += 1;
  }
  if (view.getUint8(place) === 0x2c) {
    const [left, top, width, height] = [1, 3, 5, 7].map((x) =>
      view.getUint16(place + x, true),
    );
    size = {
      width: Math.max(size.width, left + width),
      height: Math.max(size.height, top + height),
    };
  }
  return size;
}

function webp(view: DataView, kind: string): Size | undefined {
  const three = (at: number) => view.getUint16(at, true) + 65536 * view.getUint8(at + 2);
  if (kind === "VP8X") return { width: 1 + three(24), height: 1 + three(27) };
  if (kind === "VP8L") {
    const bits = view.getUint32(21, true);
    return { width: 1 + (bits & 0x3fff), height: 1 + ((bits >>> 14) & 0x3fff) };
  }
  const [width, height] = [26, 28].map((x) => view.getUint16(x, true) & 0x3fff);
  return kind === "VP8 " ? { width, height } : undefined;
}

function bitmap(view: DataView, place: number): Size {
  if (view.getUint32(place, true) === 12) {
    const [width, height] = [4, 6].map((x) => view.getUint16(place + x, true));
    return { width, height };
  }
  // A negative height is that of rows from top to bottom.
  const [width, height] = [4, 8].map((x) => Math.abs(view.getInt32(place + x, true)));
  return { width, height };
}

function icons(view: DataView): Size | undefined {
  let size: Size | undefined;
  for (let i = 0; i < view.getUint16(4, true); i++) {
    const place = view.getUint32(6 + 16 * i + 12, true);
    const isPng = view.getUint32(place) === 0x89504e47;
    const icon = isPng
      ? { width: view.getUint32(place + 16), height: view.getUint32(place + 20) }
      : bitmap(view, place);
    size = larger(size, icon);
  }
  return size;
}

/** Return the largest size of all items and tracks. */
function isoImage(view: DataView, begin: number, end: number, depth = 0): Size | undefined {
  let size: Size | undefined;
  let parts = 0;
  for (let place = begin; place + 8 <= end; ) {
    if (++parts > MAX_PARTS) throw new RangeError("too many boxes");
    const { kind, content, after } = box(view, place, end);
    // Boxes of others begin behind the version, the number or the sample of theirs.
    const inner = { meta: 4, iprp: 0, ipco: 0, moov: 0, trak: 0, mdia: 0, minf: 0 };
    const skipped = { ...inner, stbl: 0, stsd: 8 } as Record<string, number>;
    let part: Size | undefined;
    if (kind === "ispe") {
      const [width, height] = [4, 8].map((x) => view.getUint32(content + x));
      part = { width, height };
    } else if (["av01", "hvc1", "hev1"].includes(kind)) {
      const [width, height] = [24, 26].map((x) => view.getUint16(content + x));
      part = { width, height };
    } else if (kind in skipped && depth < 10) {
      part = isoImage(view, content + skipped[kind], after, depth + 1);
    }
    if (part) size = larger(size, part);
    place = after;
  }
  return size;
}

function box(view: DataView, place: number, end: number) {
  let size = view.getUint32(place);
  let content = place + 8;
  const kind = [4, 5, 6, 7].map((x) => view.getUint8(place + x));
  if (size === 1) {
    size = Number(view.getBigUint64(content));
    content += 8;
  }
  const after = size === 0 ? end : Math.min(place + size, end);
  if (after < content) throw new RangeError("no box");
  return { kind: String.fromCharCode(...kind), content, after };
}

function jpegXlInBoxes(view: DataView): Size | undefined {
  let place = 0;
  for (let parts = 0; parts < MAX_PARTS && place + 8 <= view.byteLength; parts++) {
    const { kind, content, after } = box(view, place, view.byteLength);
    const start = { jxlc: 2, jxlp: 6 }[kind];
    if (start) return jpegXl(new Uint8Array(view.buffer, view.byteOffset + content + start));
    place = after;
  }
  return undefined;
}

/** Read the size at the beginning of a codestream of JPEG XL. */
function jpegXl(bytes: Uint8Array): Size {
  let place = 0;
  const take = (count: number) => {
    let value = 0;
    for (let i = 0; i < count; i++, place++) {
      if (place >= 8 * bytes.length) throw new RangeError("truncated");
      value += 2 ** i * ((bytes[place >> 3] >> (place & 7)) & 1);
    }
    return value;
  };
  const isSmall = take(1);
  const side = () => (isSmall ? 8 * (1 + take(5)) : 1 + take([9, 13, 18, 30][take(2)]));
  const height = side();
  const ratio = [0, 1, 12 / 10, 4 / 3, 3 / 2, 16 / 9, 5 / 4, 2][take(3)];
  return { height, width: ratio ? Math.floor(height * ratio) : side() };
}

/** Return the size of the largest codestream. */
function jpeg2000(view: DataView): Size | undefined {
  let size: Size | undefined;
  for (let place = 0; place + 24 <= view.byteLength; place++) {
    if (view.getUint8(place) !== 0xff || view.getUint32(place) !== 0xff4fff51) continue;
    const [x1, y1, x0, y0] = [8, 12, 16, 20].map((x) => view.getUint32(place + x));
    const codestream = { width: x1 - x0, height: y1 - y0 };
    if (codestream.width > 0 && codestream.height > 0) size = larger(size, codestream);
  }
  return size;
}

/** Return the size in the first directory. */
function tiff(view: DataView, little: boolean): Size {
  const size = { width: 0, height: 0 };
  const first = view.getUint32(4, little);
  for (let i = 0; i < view.getUint16(first, little); i++) {
    const place = first + 2 + 12 * i;
    const tag = view.getUint16(place, little);
    const isShort = view.getUint16(place + 2, little) === 3;
    const value = isShort
      ? view.getUint16(place + 8, little)
      : view.getUint32(place + 8, little);
    if (tag === 256) size.width = Math.max(size.width, value);
    if (tag === 257) size.height = Math.max(size.height, value);
  }
  return size;
}
