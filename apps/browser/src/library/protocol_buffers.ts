/** Messages in the format of Protocol Buffers. */

/** Yield the fields of a message: their numbers, and integers or bytes. */
export function* fields(
  message: Uint8Array,
): Generator<[number, number | Uint8Array]> {
  let place = 0;
  const integer = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = message[place++];
      if (byte === undefined) throw new Error("a number is damaged");
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  while (place < message.length) {
    const key = integer();
    const kind = key % 8;
    if (kind === 0) {
      yield [Math.floor(key / 8), integer()];
      continue;
    }
    const size = kind === 2 ? integer() : ({ 1: 8, 5: 4 }[kind] ?? NaN);
    if (!(place + size <= message.length)) throw new Error("a field is damaged");
    yield [Math.floor(key / 8), message.subarray(place, (place += size))];
  }
}

/** Return the number in the four bytes of a field. */
export const float = (bytes: Uint8Array) =>
  new DataView(bytes.buffer, bytes.byteOffset).getFloat32(0, true);
