/** A translated page: a link to save it, the texts that are unsure, and a preview. */

import type { TranslatedFile } from "../library/index";
import { element, note } from "./dom";

// Before a page with scripts and addresses of its own: nothing is run or fetched.
const POLICY =
  '<meta http-equiv="Content-Security-Policy" content="default-src data: ' +
  "'unsafe-inline'\">";
const DOCTYPE = /^\ufeff?(?:\s|<\?xml.*?\?>|<!--.*?-->)*<!doctype[^>]*>/is;
// The texts that are listed at once.
const LISTED = 100;

/** Return a bar with the progress of a translation, and a button that stops it. */
export function progressView(name: string, stop: () => void) {
  const text = element("p", { class: "note" }, `Reading ${name} …`);
  const bar = element("progress", { "aria-label": "Translated sentences" });
  const button = element("button", {}, "Stop");
  button.addEventListener("click", stop);
  const nodes = [text, bar, element("div", { class: "buttons" }, button)];
  const report = ({ loaded, total }: { loaded: number; total: number }) => {
    text.textContent = `Translating ${name}: ${loaded} of ${total} sentences`;
    bar.max = total;
    bar.value = loaded;
  };
  return { nodes, report };
}

/** Return the elements that show the translation of a file. */
export function fileView(
  { text, runs, doubts, file }: TranslatedFile & { file: Blob },
  name: string,
): Node[] {
  const save = element("a", { class: "button", download: name }, `Save ${name}`);
  save.href = URL.createObjectURL(file);
  const counted = `${runs} ${runs === 1 ? "text" : "texts"}`;
  const facts = doubts.length
    ? note(`Unsure: ${doubts.length} of ${counted}.`, "unsure")
    : note(`Translated: ${counted}.`);
  const frame = element("iframe", { title: "Preview", sandbox: "", class: "preview" });
  const place = DOCTYPE.exec(text)?.[0].length ?? 0;
  frame.srcdoc = text.slice(0, place) + POLICY + text.slice(place);
  const list = doubts
    .slice(0, LISTED)
    .map(({ place, text, reason }) =>
      element("li", {}, element("b", {}, place), ` ${text} (${reason})`),
    );
  const more = doubts.length - list.length;
  if (more > 0) list.push(element("li", {}, `and ${more} more`));
  return [
    element("div", { class: "buttons" }, save),
    facts,
    ...(list.length ? [element("ul", { class: "doubts" }, ...list)] : []),
    element("h3", {}, "Preview, without pictures from elsewhere and scripts"),
    frame,
  ];
}

/** Return the name of a translated file: `page.html` becomes `page.de.html`. */
export function translatedName(name: string, language = "translated"): string {
  const dot = name.lastIndexOf(".");
  return dot > 0 ? `${name.slice(0, dot)}.${language}${name.slice(dot)}` : `${name}.${language}`;
}
