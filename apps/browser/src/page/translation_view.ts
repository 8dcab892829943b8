/** A translation as an alignment of its words with those of the sentence. */

import type { Translation } from "../library/index";
import {
  bestList,
  choices,
  confidence,
  element,
  headline,
  note,
  wordAttributes,
} from "./dom";

// Name of the end of the sentence among the words that are attended to.
const END_LABEL = "end";
// Width of the widest line in pixels.
const MAX_WIDTH = 7;
// Columns of an alignment in percent: source words, lines, target words.
const [LEFT, RIGHT] = [40, 60];
// Weights below this are invisible, and left out.
const MIN_WEIGHT = 0.02;

/** Return the elements that show the best translations of a text. */
export function translationView(translations: Translation[]): Node[] {
  if (!translations[0].words.length) return [note("There is nothing to translate.")];
  const shown = element("div");
  const show = (index: number) => shown.replaceChildren(...figure(translations[index]));
  show(0);
  return [shown, ...bestList("Best translations", translations, show)];
}

function figure(translation: Translation): Node[] {
  const { words, sourceWords, weights, endWeights, doubtful, untranslated } =
    translation;
  const made: Node[] = [
    headline(translation.text),
    confidence(translation, "subword"),
  ];
  if (translation.cut) made.push(note("The text is too long and was cut."));
  if (!weights.flat().some((weight) => weight > 0)) return made;
  const sources = sourceWords.length + 1;
  const rows = Math.max(sources, words.length);
  // The shorter side is centred.
  const firstSource = (rows - sources) / 2;
  const firstTarget = (rows - words.length) / 2;
  const layers = weights.map((row, i) =>
    lines([...row, endWeights[i]], firstSource + 0.5, firstTarget + 0.5 + i, rows),
  );
  const show = (index: number) =>
    layers.forEach((layer, i) => layer.classList.toggle("shown", i === index));
  const peaks = weights.map((row) => Math.max(...row));
  const chosen = peaks.indexOf(Math.max(...peaks));
  show(chosen);
  const targets = choices(
    words.map((word, i) => [element("span", wordAttributes(doubtful, i), word)]),
    {
      name: "Words of the translation: choose one to see where it comes from",
      kind: "words",
      chosen,
      onChoose: show,
      onHover: show,
    },
  );
  const items = sourceWords.map((word, i) =>
    element("li", wordAttributes(untranslated, i), word),
  );
  const source = element(
    "ol",
    { "aria-label": "Words of the sentence" },
    ...items,
    element("li", { class: "end" }, END_LABEL),
  );
  const style = `--rows:${rows};--source:${firstSource};--target:${firstTarget}`;
  made.push(
    element(
      "figure",
      { class: "alignment", style },
      element("div", { class: "rows" }, ...layers, source, targets),
      element("figcaption", {}, "The wider a line, the more a word looked there"),
    ),
  );
  return made;
}

/** Return the lines and bars from one target word to the source words. */
function lines(row: number[], firstSource: number, target: number, rows: number) {
  const svg = drawn("svg", { viewBox: `0 0 100 ${rows}`, preserveAspectRatio: "none" });
  svg.setAttribute("aria-hidden", "true");
  row.forEach((weight, i) => {
    if (weight < MIN_WEIGHT) return;
    const [source, share] = [firstSource + i, Math.min(weight, 1)];
    svg.append(
      drawn("rect", {
        x: LEFT * (1 - share),
        y: source - 0.45,
        width: LEFT * share,
        height: 0.9,
      }),
      drawn("line", {
        x1: LEFT,
        y1: source,
        x2: RIGHT,
        y2: target,
        "stroke-width": MAX_WIDTH * share,
      }),
    );
  });
  return svg;
}

function drawn(name: string, attributes: Record<string, string | number>) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, String(value));
  }
  return made;
}
