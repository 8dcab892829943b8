/** Reading of images: the same steps as `captioner/images.py`. */

import { checkImage, checkSize } from "./image_headers";
import { ModelError } from "./types";

// Pixels that are drawn at the same time. Telephones limit the size of a canvas.
const STRIP_PIXELS = 2 ** 22;
// Bits after the binary point of the weights, as in Pillow.
const BITS = 22;

/**
 * Decode an image, upright, as all browsers do, and with its colours unchanged.
 *
 * An image that is too large is refused before it is decoded.
 */
export async function decodeImage(image: Blob | ImageBitmap): Promise<ImageBitmap> {
  if (image instanceof Blob) await checkImage(image);
  else checkSize(image);
  try {
    return await createImageBitmap(image, {
      colorSpaceConversion: "none",
      premultiplyAlpha: "none",
    });
  } catch {
    throw new ModelError(
      "This image cannot be read: expected one that the browser shows, such as a JPEG, " +
        "PNG or WebP file.",
    );
  }
}

/**
 * Resize an image to a square, as Pillow does: bilinear, the longer side first, each
 * side rounded.
 *
 * Returns bytes of the shape `(size, size, 3)`.
 */
export function imageToArray(image: ImageBitmap, size: number): Uint8Array<ArrayBuffer> {
  const { width, height } = image;
  const isTall = height > width;
  const [longer, shorter] = isTall ? [height, width] : [width, height];
  const first = bilinearWeights(longer, size);
  // The longer side has been resized: rows of `size` pixels, one for each of `shorter`.
  const resized = new Uint8Array(shorter * size * 3);
  const strip = Math.max(Math.floor(STRIP_PIXELS / longer), 1);
  for (let begin = 0; begin < shorter; begin += strip) {
    const count = Math.min(strip, shorter - begin);
    const pixels = isTall
      ? drawn(image, begin, 0, count, height)
      : drawn(image, 0, begin, width, count);
    for (let line = 0; line < count; line++) {
      const offset = 4 * (isTall ? line : line * width);
      resample(first, pixels, offset, isTall ? 4 * count : 4);
      resized.set(first.line, (begin + line) * size * 3);
    }
  }
  const second = bilinearWeights(shorter, size);
  const array = new Uint8Array(size * size * 3);
  for (let line = 0; line < size; line++) {
    resample(second, resized, 3 * line, 3 * size);
    for (let i = 0; i < size; i++) {
      // Of a tall image, the lines are rows; of a wide one, columns.
      const place = isTall ? line * size + i : i * size + line;
      for (let k = 0; k < 3; k++) array[3 * place + k] = second.line[3 * i + k];
    }
  }
  return array;
}

/** Return the RGBA values of a rectangle of an image, on white. */
function drawn(image: ImageBitmap, x: number, y: number, width: number, height: number) {
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true })!;
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(image, -x, -y);
  return context.getImageData(0, 0, width, height).data;
}

interface Weights {
  starts: Int32Array;
  values: Int32Array[];
  /** The line that was resized last, RGB. */
  line: Uint8Array;
}

/** Return for each pixel of the result the first pixel that it reads, and the weights. */
function bilinearWeights(length: number, size: number): Weights {
  const scale = length / size;
  const support = Math.max(scale, 1);
  const starts = new Int32Array(size);
  const values = [];
  for (let i = 0; i < size; i++) {
    const centre = (i + 0.5) * scale;
    const begin = Math.max(Math.trunc(centre - support + 0.5), 0);
    const end = Math.min(Math.trunc(centre + support + 0.5), length);
    const weights = Array.from({ length: end - begin }, (_, j) =>
      Math.max(1 - Math.abs((begin + j - centre + 0.5) * (1 / support)), 0),
    );
    const sum = weights.reduce((x, y) => x + y, 0);
    starts[i] = begin;
    values.push(
      Int32Array.from(weights, (x) => Math.trunc(0.5 + (x / sum) * 2 ** BITS)),
    );
  }
  return { starts, values, line: new Uint8Array(3 * size) };
}

/** Resize a line of pixels; `step` is the distance between two of them. */
function resample(
  { starts, values, line }: Weights,
  pixels: Uint8Array | Uint8ClampedArray,
  offset: number,
  step: number,
) {
  for (let i = 0; i < values.length; i++) {
    const weights = values[i];
    let red = 1 << (BITS - 1);
    let green = red;
    let blue = red;
    for (let j = 0, at = offset + starts[i] * step; j < weights.length; j++, at += step) {
      const weight = weights[j];
      red += weight * pixels[at];
      green += weight * pixels[at + 1];
      blue += weight * pixels[at + 2];
    }
    line[3 * i] = red >> BITS;
    line[3 * i + 1] = green >> BITS;
    line[3 * i + 2] = blue >> BITS;
  }
}
