/** Elements that both tools show. */

type Child = Node | string;

/** Return an element with attributes and children; texts are never read as HTML. */
export function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  attributes: Record<string, string> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const find = <T extends Element = HTMLElement>(selector: string, root: ParentNode = document) =>
  root.querySelector<T>(selector)!;

/** Return an error as a sentence, which screen readers read at once. */
export const alert = (message: string) =>
  element("p", { class: "alert", role: "alert" }, message);

export const note = (text: string, kind = "") =>
  element("p", { class: `note ${kind}` }, text);

// Milliseconds for which a button says that it has copied.
const COPIED = 2000;

/** Return a result as a headline, with a button that copies it. */
export function headline(text: string, kind = ""): HTMLElement {
  const made = element("div", { class: "headline" });
  made.append(element("h2", { class: kind, dir: "auto" }, text));
  if (navigator.clipboard?.writeText) {
    const button = element("button", {}, "Copy");
    button.addEventListener("click", async () => {
      const copied = navigator.clipboard.writeText(text);
      button.textContent = await copied.then(
        () => "Copied",
        () => "Not allowed",
      );
      setTimeout(() => (button.textContent = "Copy"), COPIED);
    });
    made.append(button);
  }
  return made;
}

/** Return the attributes of a word, which is grey if its index is doubtful. */
export function wordAttributes(
  doubtful: number[],
  index: number,
): Record<string, string> {
  return { dir: "auto", ...(doubtful.includes(index) && { class: "doubtful" }) };
}

let groups = 0;

/** Return radio buttons that look like their labels; the arrow keys move between them. */
export function choices(
  labels: Child[][],
  options: {
    name: string;
    kind: string;
    chosen?: number;
    /** Length of the bar below each label, between 0 and 1, if it has one. */
    shares?: (number | undefined)[];
    onChoose: (index: number) => void;
    /** Called with the index under the mouse, and with the chosen one afterwards. */
    onHover?: (index: number) => void;
  },
): HTMLElement {
  const group = `group-${groups++}`;
  let chosen = options.chosen ?? 0;
  const made = element("div", {
    class: options.kind,
    role: "radiogroup",
    "aria-label": options.name,
  });
  labels.forEach((children, i) => {
    const input = element("input", { type: "radio", name: group, value: String(i) });
    input.checked = i === chosen;
    const share = options.shares?.[i];
    const label = element("label", {}, input, ...children);
    if (share !== undefined) label.style.setProperty("--share", share.toFixed(3));
    input.addEventListener("change", () => options.onChoose((chosen = i)));
    label.addEventListener("mouseenter", () => options.onHover?.(i));
    label.addEventListener("mouseleave", () => options.onHover?.(chosen));
    made.append(label);
  });
  return made;
}

/** Return the best results as a list to choose from, each with its score. */
export function bestList(
  name: string,
  results: { text: string; score: number; unsure?: boolean }[],
  onChoose: (index: number) => void,
): Node[] {
  if (results.length < 2) return [];
  const labels = results.map(({ text, score, unsure }) => [
    element("span", { dir: "auto" }, text),
    element("small", {}, `${unsure ? "unsure " : ""}${score.toFixed(3)}`),
  ]);
  return [element("h3", {}, `${name}, with their scores`), choices(labels, { name, kind: "best", onChoose })];
}

/** Return how confident the model is, as the calibration in its file says. */
export function confidence(
  result: {
    meanLogProbability: number;
    confidence?: number;
    unsure?: boolean;
    reason?: string;
  },
  unit: string,
): HTMLElement {
  const percent = (share: number) => `${Math.round(100 * share)}%`;
  const text =
    result.confidence === undefined
      ? `${percent(Math.exp(result.meanLogProbability))} per ${unit}`
      : `usable with a probability of ${percent(result.confidence)}`;
  if (result.unsure) return note(`Unsure: ${result.reason} (${text}).`, "unsure");
  return note(`Confidence: ${text}.`);
}
