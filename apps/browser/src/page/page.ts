/** The page: two tools, each with its model. */

import { Captioner, load, Translator } from "../library/index";
import { languageCode } from "../library/languages";
import { takePhotograph } from "./camera";
import { captionView } from "./caption_view";
import { alert, element, find } from "./dom";
import { fileView, progressView, translatedName } from "./file_view";
import { translationView } from "./translation_view";

/** Whether there is a model for the other direction; the build says so. */
declare const HAS_REVERSE: boolean;

type Model = Captioner | Translator;
type Kind = Model["description"]["kind"];

// Results in the list.
const N_BEST = 3;
// Milliseconds without a key before a sentence is translated, and before it is read out.
const PAUSE = 120;
const LONG_PAUSE = 1200;
// Milliseconds that a first visit waits for the service worker, which keeps the files.
const WORKER_PATIENCE = 2000;

// Names of pages whose text is translated.
const PAGE = /\.x?html?$/i;

const status = find("#status");

/** One tool: its panel, its model, and its latest input. */
class Tool<M extends Model, Input> {
  model?: M;
  readonly panel: HTMLElement;
  readonly tab: HTMLButtonElement;
  private readonly result: HTMLElement;
  private readonly about: HTMLElement;
  private loading?: Promise<void>;
  private input?: Input;
  private running = false;
  private isIncluded = true;
  /** Name of the included model. */
  private file: string;

  constructor(
    readonly kind: Kind,
    /** Runs the model on an input, and returns what to show and what to read out. */
    private readonly run: (model: M, input: Input) => Promise<[Node[], string]>,
    /** Shows what the user can choose of a model. */
    private readonly onModel: (model: M) => void = () => {},
  ) {
    this.file = kind;
    this.panel = find(`#${kind}`);
    this.tab = find<HTMLButtonElement>(`#${kind}-tab`);
    this.result = find(".result", this.panel);
    this.about = find(".model", this.panel);
  }

  /** Load the included model, unless one has been loaded. */
  start(): Promise<void> {
    this.loading ??= this.open(`models/${this.file}.tflite`).catch((error) => {
      this.loading = undefined;
      throw error;
    });
    return this.loading;
  }

  private async open(source: string) {
    const text = element("p", {}, "Loading the model …");
    const bar = element("progress", { "aria-label": "Download" });
    this.about.replaceChildren(text, bar);
    try {
      await prepared;
      const onProgress = ({ loaded, total }: { loaded: number; total: number }) => {
        text.textContent = `Loading the model: ${megabytes(loaded)} of ${megabytes(total)}`;
        bar.max = total;
        bar.value = loaded;
        if (loaded === total) text.textContent = "Starting the model …";
      };
      this.use((await load(source, { onProgress })) as M, true);
    } catch (error) {
      const again = element("button", {}, "Try again");
      again.addEventListener("click", () => this.start().catch(() => {}));
      const buttons = element("div", { class: "buttons" }, again, openButton());
      this.about.replaceChildren(alert(String((error as Error).message)), buttons);
      throw error;
    }
  }

  /** Use another included model from now on. */
  include(file: string): Promise<void> {
    this.file = file;
    this.loading = undefined;
    return this.start();
  }

  /** The name of the included model that is used. */
  get included(): string {
    return this.file;
  }

  /** Use a model, and run it on the latest input. */
  use(model: M, isIncluded: boolean) {
    void this.model?.close();
    this.model = model;
    this.isIncluded = isIncluded;
    this.loading ??= Promise.resolve();
    this.describe();
    this.onModel(model);
    announce(`The model ${model.description.name} is ready.`);
    if (this.input !== undefined) void this.process(this.input);
  }

  private describe() {
    const { name, purpose, bytes, threads } = this.model!.description;
    const facts = [purpose, megabytes(bytes), threads > 1 && `${threads} threads`];
    const text = facts.filter(Boolean).map((fact) => ` · ${fact}`);
    const buttons = element("div", { class: "buttons" }, openButton());
    if (!this.isIncluded) {
      const back = element("button", {}, "Back to the included model");
      back.addEventListener("click", () => {
        this.include(this.file).catch(() => {});
      });
      buttons.append(back);
    }
    this.about.replaceChildren(
      element("p", {}, element("b", {}, name), ...text),
      buttons,
    );
  }

  /** Set the input that the next model processes. */
  wait(input: Input) {
    this.input = input;
  }

  /** Show something in the place of the result, until there is one. */
  show(nodes: Node[]) {
    this.result.replaceChildren(...nodes);
  }

  /** Show the results of an input. While one is computed, only the latest waits. */
  async process(input: Input) {
    this.input = input;
    if (this.running) return;
    this.running = true;
    this.result.setAttribute("aria-busy", "true");
    try {
      for (let done: Input | undefined; done !== this.input; ) {
        done = this.input!;
        await this.start();
        try {
          const [nodes, text] = await this.run(this.model!, done);
          if (done === this.input) {
            this.result.replaceChildren(...nodes);
            this.reveal();
            announce(text);
          }
        } catch (error) {
          this.result.replaceChildren(alert(String((error as Error).message)));
        }
      }
    } catch {
      // The panel says why the model cannot be loaded.
    } finally {
      this.running = false;
      this.result.removeAttribute("aria-busy");
    }
  }

  /** Scroll to a result that is below the window, unless somebody is typing. */
  private reveal() {
    const isBelow = this.result.getBoundingClientRect().top > 0.6 * innerHeight;
    const isTyping = document.activeElement instanceof HTMLTextAreaElement;
    if (isBelow && !isTyping) this.result.scrollIntoView({ block: "nearest" });
  }

  /** Show that something that was dropped or pasted cannot be used. */
  fail(error: unknown) {
    this.select();
    find(".alert", this.result)?.remove();
    this.result.prepend(alert(String((error as Error).message)));
    this.reveal();
  }

  select() {
    for (const tool of tools) {
      const isThis = tool.kind === this.kind;
      tool.panel.hidden = !isThis;
      tool.tab.setAttribute("aria-selected", String(isThis));
      tool.tab.tabIndex = isThis ? 0 : -1;
    }
    // When a frame opens, a new address would scroll the page around it.
    if (!started) return;
    history.replaceState(null, "", `#${this.kind}`);
    this.start().catch(() => {});
  }
}

const captioner = new Tool<Captioner, Blob>("captioner", async (model, photo) => {
  const captions = await model.caption(photo, { nBest: nBest(model) });
  const address = URL.createObjectURL(photo);
  if (shownPhoto) URL.revokeObjectURL(shownPhoto);
  shownPhoto = address;
  const image = new Image();
  image.src = address;
  await image.decode();
  const ratio = image.naturalWidth / image.naturalHeight;
  const nodes = captionView(address, ratio, captions);
  return [nodes, `Caption: ${captions[0].text}.`];
});
let shownPhoto: string | undefined;

/** What is translated: a sentence, or the file of a page. */
interface Source {
  text: string | File;
}

const translator = new Tool<Translator, Source>(
  "translator",
  async (model, { text }) => {
    if (text instanceof File) return translateFile(model, text);
    const options = { nBest: nBest(model), targetLanguage: targetLanguage() };
    const translations = await model.translate(text, options);
    translation = translations[0].text;
    return [translationView(translations), translation && `Translation: ${translation}`];
  },
  showLanguages,
);

/** Show the target languages of a multilingual model. */
function showLanguages({ description }: Translator) {
  const languages = description.targetLanguages ?? [];
  const menu = find<HTMLSelectElement>("#target-language");
  const chosen = menu.value;
  menu.replaceChildren(
    ...languages.map((x) => element("option", { value: x }, languageName(x))),
  );
  if (languages.includes(chosen)) menu.value = chosen;
  menu.parentElement!.hidden = !languages.length;
}

function languageName(language: string): string {
  try {
    const names = new Intl.DisplayNames("en", { type: "language" });
    return names.of(languageCode(language)) ?? language;
  } catch {
    return language;
  }
}

/** Return the target language that is chosen, if the model has several. */
function targetLanguage(): string | undefined {
  return find<HTMLSelectElement>("#target-language").value || undefined;
}

// The latest translation, which becomes the sentence when the directions are swapped.
let translation = "";
// Ends the translation of a file when another input waits.
let stopping = new AbortController();

/** Translate a page, and show its progress. */
async function translateFile(model: Translator, file: File): Promise<[Node[], string]> {
  stopping = new AbortController();
  const { signal } = stopping;
  const { nodes, report } = progressView(file.name, () => stopping.abort());
  translator.show(nodes);
  const language = targetLanguage();
  const options = {
    marksUnsure: true,
    onProgress: report,
    signal,
    targetLanguage: language,
  };
  const translated = await model.translateFile(file, options);
  const code = language ? languageCode(language) : model.description.languages?.[1];
  const name = translatedName(file.name, code);
  return [fileView(translated, name), `${file.name} is translated.`];
}

/** Translate a sentence or a file in the place of what is translated now. */
function translate(text: string | File): Promise<void> {
  stopping.abort();
  latest = { text };
  return translator.process(latest);
}
let latest: Source | undefined;

const tools: Tool<any, any>[] = [captioner, translator];

const nBest = (model: Model) => Math.min(N_BEST, model.description.beamSize);
const megabytes = (bytes: number) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

/** Read a text out, when it has not changed for a while. */
function announce(text: string) {
  clearTimeout(announcing);
  announcing = window.setTimeout(() => (status.textContent = text), LONG_PAUSE);
}
let announcing = 0;

/** Use a file that was chosen, dropped or pasted: a model, or a photograph. */
async function receive(file: File | Blob) {
  const current = tools.find((tool) => !tool.panel.hidden)!;
  if (file.type.startsWith("image/")) {
    captioner.select();
    await captioner.process(file);
    return;
  }
  try {
    const name = file instanceof File ? file.name : file.type;
    if (file instanceof File && PAGE.test(name)) {
      translator.select();
      await translate(file);
      return;
    }
    if (!/\.tflite$/i.test(name)) {
      const expected =
        "a photograph that this browser shows, a page such as .html, or a .tflite file";
      throw new Error(`Expected ${expected}. Received: ${name}.`);
    }
    const model = await load(file);
    const tool = tools.find(({ kind }) => kind === model.description.kind)!;
    tool.use(model, false);
    tool.select();
  } catch (error) {
    current.fail(error);
  }
}

/** Return a button that opens a file with a model. */
function openButton(): HTMLElement {
  const input = element("input", { type: "file", accept: ".tflite" });
  input.addEventListener("change", () => receiveChosen(input));
  return element("label", { class: "button" }, "Open a .tflite file", input);
}

function receiveChosen(input: HTMLInputElement) {
  const file = input.files?.[0];
  if (file) void receive(file);
  // The same file may be chosen again.
  input.value = "";
}

function listenToFiles() {
  for (const input of document.querySelectorAll<HTMLInputElement>("[type=file]")) {
    input.addEventListener("change", () => receiveChosen(input));
  }
  find("#sample").addEventListener("click", async () => {
    try {
      await prepared;
      const response = await fetch("sample.jpg");
      await receive(await response.blob());
    } catch {
      captioner.fail(new Error("The sample cannot be loaded: the browser is offline."));
    }
  });
  const overlay = find("#overlay");
  const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    overlay.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) overlay.hidden = true;
  });
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    overlay.hidden = true;
    const file = event.dataTransfer?.files[0];
    if (file) void receive(file);
  });
  addEventListener("paste", (event) => {
    const file = event.clipboardData?.files[0];
    if (!file) return;
    event.preventDefault();
    void receive(file);
  });
  const camera = find("#camera");
  camera.hidden = !navigator.mediaDevices?.getUserMedia;
  camera.addEventListener("click", async () => {
    try {
      const photograph = await takePhotograph();
      if (photograph) await receive(photograph);
    } catch (error) {
      captioner.fail(error);
    }
  });
  const paste = find("#paste");
  paste.hidden = !navigator.clipboard?.read;
  paste.addEventListener("click", async () => {
    try {
      for (const item of await navigator.clipboard.read()) {
        const type = item.types.find((type) => type.startsWith("image/"));
        if (type) return await receive(await item.getType(type));
      }
      throw new Error("There is no picture on the clipboard: copy one first.");
    } catch (error) {
      const isRefused = (error as Error).name === "NotAllowedError";
      const message = "The browser does not let this page read the clipboard.";
      captioner.fail(isRefused ? new Error(message) : error);
    }
  });
}

function listenToText() {
  const sentence = find<HTMLTextAreaElement>("#sentence");
  let pause = 0;
  sentence.addEventListener("input", () => {
    clearTimeout(pause);
    pause = window.setTimeout(() => void translate(sentence.value), PAUSE);
  });
  find("#target-language").addEventListener("change", () => {
    if (latest) void translate(latest.text);
  });
  const swap = find("#swap");
  swap.hidden = !HAS_REVERSE;
  swap.addEventListener("click", () => {
    const isReverse = translator.included === "reverse";
    sentence.value = translation || sentence.value;
    // The model translates it as soon as it is loaded.
    latest = { text: sentence.value };
    translator.wait(latest);
    translator.include(isReverse ? "translator" : "reverse").catch(() => {});
  });
  for (const button of document.querySelectorAll<HTMLElement>("#examples button")) {
    button.addEventListener("click", () => {
      sentence.value = button.textContent!;
      void translate(sentence.value);
    });
  }
}

function listenToTabs() {
  tools.forEach((tool, i) => {
    tool.tab.addEventListener("click", () => tool.select());
    tool.tab.addEventListener("keydown", (event: KeyboardEvent) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const next = tools[(i + 1) % tools.length];
      next.select();
      next.tab.focus();
    });
  });
}

/**
 * Start the service worker, and wait until it keeps what is fetched, so that a first
 * visit fetches nothing twice.
 */
async function prepare() {
  const container = navigator.serviceWorker;
  const offline = find("#offline");
  if (!container) {
    offline.textContent = "This address does not work offline: it is not https.";
    return;
  }
  const controlled = new Promise((resolve) =>
    container.addEventListener("controllerchange", resolve, { once: true }),
  );
  const patience = new Promise((resolve) => setTimeout(resolve, WORKER_PATIENCE));
  try {
    const { installing } = await container.register("service_worker.js");
    offline.textContent = "What has been loaded also works offline.";
    if (installing && !container.controller) await Promise.race([controlled, patience]);
  } catch {
    offline.textContent = "This browser does not keep the page for offline use.";
  }
}

find("#no-server").remove();
const prepared = prepare();
listenToFiles();
listenToText();
listenToTabs();

// Inside of another page, the model is loaded only when somebody uses it.
let started = window.top === window;
if (!started) {
  for (const { panel } of tools) {
    find(".model", panel).append(element("p", {}, "The model is loaded on first use."));
  }
  for (const event of ["pointerdown", "keydown", "dragenter"]) {
    addEventListener(
      event,
      () => {
        started = true;
        tools.find((tool) => !tool.panel.hidden)!.start().catch(() => {});
      },
      { once: true },
    );
  }
}
(location.hash === "#translator" ? translator : captioner).select();
