/**
 * Encodings of files: bytes to a text and back, without a loss. As
 * `nmt/formats/encoding.py`, for the encodings that browsers can write.
 */

import { ModelError } from "./types";

/** A text, and the function that writes it in the encoding of its file. */
export interface Decoded {
  text: string;
  encode: (text: string) => Uint8Array<ArrayBuffer>;
}

// The bytes of a character in UTF-8, or one that belongs to none, as characters.
const UTF8 =
  /([\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})|[\x80-\xff]/g;
// Characters that stand for bytes that are no character.
const ESCAPED = /[\udc80-\udcff]/;
// The encoding that a file declares, in its first bytes.
const DECLARED = /(?:charset|<\?xml[^>]*?\sencoding)\s*=\s*["']?\s*([\w.:-]+)/i;
const SEARCHED = 4096;
// Encodings with one byte for each character; other declarations are not followed.
const SINGLE_BYTES = /^(?:windows-125\d|windows-874|iso-8859-.+|koi8-.|ibm866|macintosh|x-mac-cyrillic)$/;
const GUESS = "windows-1252";
const MAX_BYTES = 64 * 2 ** 20;

/** Return the text of a file, and how to encode its translation. */
export function decoded(bytes: Uint8Array<ArrayBuffer>): Decoded {
  if (bytes.length > MAX_BYTES) {
    throw new ModelError(
      `This file is too large: expected at most ${MAX_BYTES} bytes, got ${bytes.length}.`,
    );
  }
  const [first, second] = bytes;
  if (first === 0xff && second === 0xfe) return utf16(bytes, true);
  if (first === 0xfe && second === 0xff) return utf16(bytes, false);
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    return { text, encode: encodedUtf8 };
  } catch {
    // It is in another encoding, or damaged.
  }
  const declared = declaredIn(characters(bytes.subarray(0, SEARCHED)));
  if (declared) return singleBytes(bytes, declared);
  const text = decodedUtf8(characters(bytes));
  const invalid = text.match(/[\udc80-\udcff]/g)?.length ?? 0;
  const others = text.match(/[^\0-\x7f]/gu)?.length ?? 0;
  if (2 * invalid < others) return { text, encode: encodedUtf8 };
  return singleBytes(bytes, GUESS);
}

/** Return bytes as characters of the same numbers. */
function characters(bytes: Uint8Array): string {
  let text = "";
  for (let i = 0; i < bytes.length; i += 4096) {
    text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  }
  return text;
}

/** Return the text of bytes of UTF-8; those that are no character are escaped. */
function decodedUtf8(bytes: string): string {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  return bytes.replace(UTF8, (x, valid) =>
    valid
      ? decoder.decode(Uint8Array.from(x, (y) => y.charCodeAt(0)))
      : String.fromCharCode(0xdc00 + x.charCodeAt(0)),
  );
}

function encodedUtf8(text: string): Uint8Array<ArrayBuffer> {
  const encoder = new TextEncoder();
  const parts: Uint8Array[] = [];
  let place = 0;
  for (let i = 0; i < text.length; i++) {
    // A low surrogate after a high one is a part of a character.
    if (!ESCAPED.test(text[i]) || /[\ud800-\udbff]/.test(text[i - 1] ?? "")) continue;
    parts.push(encoder.encode(text.slice(place, i)));
    parts.push(Uint8Array.of(text.charCodeAt(i) - 0xdc00));
    place = i + 1;
  }
  parts.push(encoder.encode(text.slice(place)));
  const bytes = new Uint8Array(parts.reduce((sum, x) => sum + x.length, 0));
  let offset = 0;
  for (const part of parts) {
    bytes.set(part, offset);
    offset += part.length;
  }
  return bytes;
}

function utf16(bytes: Uint8Array<ArrayBuffer>, isLittle: boolean): Decoded {
  if (bytes.length % 2) {
    throw new ModelError("The file begins like UTF-16, but is not in this encoding.");
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let text = "";
  for (let i = 0; i < bytes.length; i += 2) {
    text += String.fromCharCode(view.getUint16(i, isLittle));
  }
  const encode = (text: string) => {
    const view = new DataView(new ArrayBuffer(2 * text.length));
    for (let i = 0; i < text.length; i++) view.setUint16(2 * i, text.charCodeAt(i), isLittle);
    return new Uint8Array(view.buffer);
  };
  return { text, encode };
}

/** Return the name of the encoding with single bytes that a file declares. */
function declaredIn(beginning: string): string | undefined {
  const label = DECLARED.exec(beginning)?.[1];
  try {
    const { encoding } = new TextDecoder(label);
    if (SINGLE_BYTES.test(encoding)) return encoding;
    if (label === undefined || encoding.startsWith("utf-")) return undefined;
  } catch {
    return undefined;
  }
  throw new ModelError(`Save the file as UTF-8 first: it is in ${label}.`);
}

function singleBytes(bytes: Uint8Array<ArrayBuffer>, encoding: string): Decoded {
  const decoder = new TextDecoder(encoding);
  const all = Array.from({ length: 256 }, (_, i) => decoder.decode(Uint8Array.of(i)));
  // Bytes without a character stand for themselves.
  const table = all.map((x, i) => (x === "\ufffd" ? String.fromCharCode(0xdc00 + i) : x));
  const numbers = new Map(table.map((x, i) => [x, i]));
  let text = "";
  for (const byte of bytes) text += table[byte];
  const encode = (text: string) => {
    const encoded: number[] = [];
    for (const character of text) {
      const number = numbers.get(character);
      if (number !== undefined) encoded.push(number);
      // Characters that the encoding lacks are written as references.
      else for (const x of `&#${character.codePointAt(0)};`) encoded.push(x.charCodeAt(0));
    }
    return Uint8Array.from(encoded);
  };
  return { text, encode };
}
