/** A caption as a photograph with a map for every word. */

import type { Caption } from "../library/index";
import { bestList, choices, confidence, element, headline, wordAttributes } from "./dom";

// Pixels of a map on each region; the browser enlarges it smoothly.
const MAP_PIXELS = 8;
// Standard deviation of the smoothing, in regions.
const SMOOTHING = 0.5;
// The first choice, before the words, which shows the image without a map.
const WHOLE = "Whole photograph";

/** Return the elements that show the best captions of a photograph. */
export function captionView(
  address: string,
  ratio: number,
  captions: Caption[],
): Node[] {
  const shown = element("div");
  const show = (index: number) =>
    shown.replaceChildren(...figure(address, ratio, captions[index]));
  show(0);
  return [shown, ...bestList("Best captions", captions, show)];
}

function figure(address: string, ratio: number, caption: Caption): Node[] {
  const layers = caption.weights.map((map) => {
    const style = `--map:url(${mapAddress(map)})`;
    return element("div", { class: "layer", style });
  });
  const show = (index: number) =>
    layers.forEach((layer, i) => layer.classList.toggle("shown", i === index - 1));
  const words = choices(
    [
      [element("span", { class: "whole" }, WHOLE)],
      ...caption.words.map((word, i) => {
        const percent = `${Math.round(100 * caption.probabilities[i])}%`;
        const below = element("small", {}, percent);
        return [element("span", wordAttributes(caption.doubtful, i), word, below)];
      }),
    ],
    {
      name: "Words of the caption: choose one to see where the model looked",
      kind: "words",
      chosen: 0,
      shares: [undefined, ...caption.probabilities],
      onChoose: show,
      onHover: show,
    },
  );
  const picture = element(
    "div",
    { class: "picture" },
    element("img", { src: address, alt: `The photograph: ${caption.text}` }),
    ...layers,
  );
  return [
    headline(caption.text, "caption"),
    confidence(caption, "word"),
    element(
      "figure",
      { class: "photo", style: `--ratio:${ratio};--photo:url(${address})` },
      picture,
      words,
      element("figcaption", {}, "Probability of each word, given those before it"),
    ),
  ];
}

/** Return a map as the address of a picture that is opaque where the word did not look. */
function mapAddress(map: number[][]): string {
  const [rows, columns] = [map.length, map[0].length];
  const [height, width] = [rows * MAP_PIXELS, columns * MAP_PIXELS];
  const [down, across] = [blend(rows, height), blend(columns, width)];
  const smooth = new Float32Array(height * width);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      let sum = 0;
      for (let i = 0; i < rows; i++) {
        for (let j = 0; j < columns; j++) {
          sum += down[y][i] * across[x][j] * map[i][j];
        }
      }
      smooth[y * width + x] = sum;
    }
  }
  const largest = smooth.reduce((x, y) => Math.max(x, y), 1e-12);
  const image = new ImageData(width, height);
  smooth.forEach((value, i) => {
    image.data[4 * i + 3] = Math.round(255 * (1 - value / largest));
  });
  const canvas = element("canvas");
  Object.assign(canvas, { width, height });
  canvas.getContext("2d")!.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

/** Return Gaussian interpolation weights from cells to pixels. */
function blend(cells: number, pixels: number): number[][] {
  return Array.from({ length: pixels }, (_, pixel) => {
    const position = ((pixel + 0.5) * cells) / pixels;
    const weights = Array.from({ length: cells }, (_, cell) =>
      Math.exp(-0.5 * ((position - cell - 0.5) / SMOOTHING) ** 2),
    );
    const sum = weights.reduce((x, y) => x + y, 0);
    return weights.map((weight) => weight / sum);
  });
}
