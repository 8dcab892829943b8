/** Runs of language in HTML and XHTML: as `nmt/formats/html.py`. */

import { bisect, strip } from "../characters";
import { decode, htmlTokens, isXml, TEMPLATE, xmlTokens } from "./html_tokens";
import type { Token } from "./html_tokens";
import { collapsed, hasLetters, merged, newPiece } from "./runs";
import type { Document, Piece, Run, Written } from "./runs";

const names = (text: string) => new Set(text.split(" "));

// Elements that end a sentence before and after them.
const BLOCKS = names(
  "address article aside base blockquote body caption center col colgroup dd details " +
    "dialog dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 " +
    "h3 h4 h5 h6 head header hgroup hr html legend li main menu nav noframes ol " +
    "optgroup option p pre search section summary table tbody td tfoot th thead title " +
    "tr ul",
);
// Elements of SVG that are parts of a sentence; the others are blocks.
const INLINE_IN_SVG = names("a tspan textpath");
// Elements without an end tag.
const VOID = names(
  "area base br col embed frame hr img input keygen link meta param source track wbr",
);
// Elements whose content stays as it is.
const KEPT = names(
  "code iframe kbd math noembed plaintext pre rp rt ruby samp script style textarea " +
    "tt var xmp",
);
// Elements whose content is no markup.
const RAW = names("iframe math noembed plaintext script style textarea xmp");
// Elements that nobody sees.
const HIDDEN = names("link meta param script source style template track");
// Elements in a sentence whose content is translated on its own.
const NESTED = names(
  "audio canvas datalist map meter noscript object picture progress select svg " +
    "template video",
);
// Void elements that may be inside of a word.
const JOINING = names("wbr link meta param source track");
// Elements that an opening tag closes, and those beyond which it closes none.
const [CELLS, ROWS] = [names("td th"), names("tbody tfoot thead")];
const IMPLIED_ENDS: Record<string, [Set<string>, Set<string>]> = {
  li: [names("li"), names("ul ol menu dir")],
  dd: [names("dd dt"), names("dl")],
  dt: [names("dd dt"), names("dl")],
  option: [names("option"), names("select datalist optgroup")],
  optgroup: [names("option optgroup"), names("select")],
  td: [CELLS, names("tr table")],
  th: [CELLS, names("tr table")],
  tr: [new Set([...CELLS, "tr"]), names("table")],
};
for (const name of ROWS) {
  IMPLIED_ENDS[name] = [new Set([...CELLS, ...ROWS, "tr"]), names("table")];
}
const IN_PARAGRAPHS = names("caption col colgroup option optgroup summary tbody td tfoot");
const PARAGRAPH_BARRIERS = names("button table object td th");

// Attributes that people read or hear.
const ATTRIBUTES = names(
  "abbr alt aria-description aria-label aria-placeholder aria-roledescription " +
    "aria-valuetext label placeholder summary title",
);
const DESCRIPTIONS = names(
  "dc.description dcterms.description description og:description og:image:alt " +
    "og:title twitter:description twitter:image:alt twitter:title",
);
const BUTTONS = names("button reset submit");

const PAGE = /<(?:\w+:)?(?:html|svg)\b/i;
const TAG_IN_TITLE = /<\/?[A-Za-z]/;
const NAME = /<([^\s/>]+)/y;
const ATTRIBUTE =
  /[\s/]*([^\s/>=][^\s/>=]*)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>][^\s>]*)))?/dy;
const REFERENCE = /&(?:#[0-9]+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);/;
const REFERENCE_OR_TEMPLATE = new RegExp(`${REFERENCE.source}|${TEMPLATE.source}`, "g");
// The end of a sentence or of an entry.
const ENDS = /[.!?:;\u2026\u3002\uff01\uff1f]["'\u201d\u2019\u00bb)\]]*\s*$/;
const BEGINS =
  /^\s*["'\u201e\u201c\u00ab\u00bb(\[\u00bf\u00a1\u2022*\u2013-]*\s*([\p{L}\p{N}_])/u;

/** An open element; the attributes are those of Python. */
interface Element {
  name: string;
  start: number;
  tag: number;
  isBlock: boolean;
  isKept: boolean;
  context?: Context;
}

/** The pieces of a run that an element interrupts; absent if its text is kept. */
interface Context {
  pieces?: Piece[];
  isUnit: boolean;
  joins: boolean;
}

/** Finds the runs of a source text, token by token. */
class Reader {
  readonly runs: Run[] = [];
  readonly edits: [number, number, string][] = [];
  private readonly stack: Element[] = [];
  private readonly counts = new Map<string, number>();
  private pieces: Piece[] | undefined = [];
  private foreign = 0;
  private place = 0;
  private sourceLanguage?: string;
  private readonly isXml: boolean;
  private readonly isPage: boolean;

  constructor(
    private readonly text: string,
    private readonly language?: string,
  ) {
    this.isXml = isXml(text);
    // In XML of other kinds, every element is a block.
    this.isPage = !this.isXml || PAGE.test(text);
  }

  read() {
    for (const token of this.isXml ? xmlTokens(this.text) : htmlTokens(this.text)) {
      this.place = token.start;
      if (token.kind === "text") this.addText(token);
      else if (token.kind === "open") this.open(token);
      else if (token.kind === "close") this.close(token.name, token);
      else if (token.kind === "cdata") this.addData(token);
      else this.add(newPiece("unit", token.start, token.end, { joins: true }));
    }
    this.place = this.text.length;
    this.popTo(0);
    this.flush();
  }

  private add(piece: Piece) {
    this.pieces?.push(piece);
  }

  private addText({ start, end, text }: Token) {
    if (!this.pieces) return;
    if (end - start !== text.length) {
      this.add(newPiece("text", start, end, { text }));
      return;
    }
    const source = this.text.slice(start, end);
    let place = 0;
    for (const { 0: template, index } of source.matchAll(TEMPLATE)) {
      this.addPlain(start + place, start + index);
      place = index + template.length;
      this.add(newPiece("unit", start + index, start + place, { isWord: true }));
    }
    this.addPlain(start + place, end);
  }

  private addPlain(start: number, end: number) {
    if (start < end) {
      this.add(newPiece("text", start, end, { text: this.text.slice(start, end) }));
    }
  }

  /** Add a section of character data, which is a run of its own. */
  private addData(token: Token) {
    if (!this.pieces || !(this.isXml || this.foreign)) {
      this.add(newPiece("unit", token.start, token.end, { joins: true }));
      return;
    }
    const start = token.start + "<![CDATA[".length;
    const end = token.end - "]]>".length;
    const piece = newPiece("text", start, end, { text: this.text.slice(start, end) });
    this.addRun([piece], (x) => x, characterData);
    this.add(newPiece("unit", token.start, token.end));
  }

  /** End the current run. */
  private flush() {
    if (!this.pieces?.length) return;
    const pieces = broken(this.pieces);
    this.pieces = [];
    const isTitle = this.stack.at(-1)?.name === "title";
    // A title that nothing ends takes in the tags of the page.
    if (isTitle && pieces.some((x) => TAG_IN_TITLE.test(x.text))) return;
    this.addRun(merged(collapsed(pieces)), escaped);
  }

  private addRun(pieces: Piece[], spell: Run["spell"], finish?: Run["finish"]) {
    if (!hasLetters(pieces)) return;
    // The innermost element around the whole run.
    const around = this.stack.findLast((x) => x.isBlock || x.context);
    this.runs.push({ pieces, spell, finish, tag: around?.tag, sentences: [] });
  }

  private open(token: Token) {
    const { name, start, end } = token;
    const attributes = attributesOf(this.text, start, end);
    const values = new Map(attributes.map((x) => [x.name, this.text.slice(x.start, x.end)]));
    if (!this.isXml && !this.foreign) this.closeImplied(name);
    const isKept = this.isKept(name, values);
    const wasKept = !this.pieces;
    if (!(isKept && (wasKept || !isCode(name, values)))) {
      this.translateAttributes(name, attributes, values, token);
    }
    if (!wasKept || !isKept) this.setLanguage(name, attributes, values, token);
    const isBlock = this.isBlock(name);
    let hasEnd = !(VOID.has(name) && !this.isXml && !this.foreign);
    if (this.isXml || this.foreign || name === "svg" || name === "math") {
      hasEnd &&= !token.isEmpty;
    }
    if (isBlock && !wasKept) this.flush();
    if (!hasEnd) {
      const joins = JOINING.has(name) || HIDDEN.has(name);
      if (!isBlock) this.add(newPiece("unit", start, end, { name, joins }));
      return;
    }
    const element: Element = { name, start, tag: nameEnd(this.text, start), isBlock, isKept };
    if (isKept !== wasKept || (NESTED.has(name) && !isKept)) {
      element.context = { pieces: this.pieces, isUnit: !isBlock, joins: HIDDEN.has(name) };
      this.pieces = isKept ? undefined : [];
    } else if (!isBlock) this.add(newPiece("open", start, end, { name }));
    this.stack.push(element);
    this.count(name, 1);
  }

  private count(name: string, step: number) {
    this.counts.set(name, (this.counts.get(name) ?? 0) + step);
    if (name === "svg" || name === "math") this.foreign += step;
  }

  /** Return whether the content of an element stays as it is. */
  private isKept(name: string, values: Map<string, string>): boolean {
    const translate = translateOf(values);
    if (isMarked(values) || translate === "no") return true;
    if (values.has("translate") && ["", "yes"].includes(translate) && !RAW.has(name)) {
      return false;
    }
    return KEPT.has(name) || !this.pieces;
  }

  private isBlock(name: string): boolean {
    if (this.foreign) return !INLINE_IN_SVG.has(name);
    return BLOCKS.has(name) || !this.isPage;
  }

  /** Close the elements that an opening tag closes. */
  private closeImplied(name: string) {
    if (BLOCKS.has(name) && !IN_PARAGRAPHS.has(name) && this.counts.get("p")) {
      for (let i = this.stack.length - 1; i >= 0; i--) {
        if (this.stack[i].name === "p") {
          this.popTo(i);
          break;
        }
        if (PARAGRAPH_BARRIERS.has(this.stack[i].name)) break;
      }
    }
    const [closed, barriers] = IMPLIED_ENDS[name] ?? [new Set<string>(), new Set<string>()];
    if (![...closed].some((x) => this.counts.get(x))) return;
    let first = -1;
    for (let i = this.stack.length - 1; i >= 0; i--) {
      if (barriers.has(this.stack[i].name)) break;
      if (closed.has(this.stack[i].name)) first = i;
    }
    if (first >= 0) this.popTo(first);
  }

  private close(name: string, token: Token) {
    const piece = newPiece("close", token.start, token.end, { name, joins: true });
    const isBlock = this.isBlock(name);
    if (!this.counts.get(name)) {
      if (isBlock && this.pieces) this.flush();
      else if (!isBlock) this.add(piece);
      return;
    }
    const i = this.stack.findLastIndex((x) => x.name === name);
    const isOwn = isBlock || this.isXml || this.stack[i].context !== undefined;
    if (isOwn || !this.stack.slice(i + 1).some((x) => x.isBlock || x.context)) {
      this.popTo(i, token);
      return;
    }
    // The end of an inline element does not end the blocks in it.
    this.add(piece);
    this.stack.splice(i, 1);
    this.counts.set(name, this.counts.get(name)! - 1);
  }

  /** Close the open elements from one on; the token is the end tag of this one. */
  private popTo(first: number, token?: Token) {
    while (this.stack.length > first) {
      const element = this.stack[this.stack.length - 1];
      const { name, context } = element;
      if (this.pieces && (element.isBlock || context)) this.flush();
      this.stack.pop();
      this.count(name, -1);
      const ownEnd = this.stack.length === first ? token : undefined;
      if (context) {
        this.pieces = context.pieces;
        if (context.isUnit) {
          const { joins } = context;
          const end = ownEnd ? ownEnd.end : this.place;
          const isWord = element.isKept && !joins;
          this.add(newPiece("unit", element.start, end, { name, joins, isWord }));
        } else if (context.pieces) this.pieces = [];
      } else if (ownEnd && !element.isBlock) {
        this.add(newPiece("close", ownEnd.start, ownEnd.end, { name, joins: true }));
      }
    }
  }

  private translateAttributes(
    name: string,
    attributes: Attribute[],
    values: Map<string, string>,
    token: Token,
  ) {
    const meta = (values.get("name") ?? values.get("property") ?? "").toLowerCase();
    const type = (values.get("type") ?? "").toLowerCase();
    for (const { name: key, start, end, quote } of attributes) {
      const isRead =
        ATTRIBUTES.has(key) ||
        (key === "content" && name === "meta" && DESCRIPTIONS.has(meta)) ||
        (key === "value" && name === "input" && BUTTONS.has(type));
      if (!isRead || (key === "title" && (name === "link" || name === "style"))) continue;
      if (start === end) continue;
      const pieces = references(this.text, start, end);
      if (!hasLetters(pieces)) continue;
      this.runs.push({
        pieces,
        spell: inQuotes(quote || '"'),
        finish: quote ? undefined : quoted,
        tag: nameEnd(this.text, token.start),
        sentences: [],
      });
    }
  }

  /** Edit the language of the page, and of elements with the same one. */
  private setLanguage(
    name: string,
    attributes: Attribute[],
    values: Map<string, string>,
    token: Token,
  ) {
    if (this.language === undefined) return;
    const language = escapedValue(this.language);
    const isLanguage = (x: Attribute) => x.name === "lang" || x.name === "xml:lang";
    const languageAttributes = attributes.filter(isLanguage);
    if (name === "html") {
      const code = languageAttributes.map((x) => values.get(x.name)!).find((x) => x);
      this.sourceLanguage = code === undefined ? undefined : primary(code);
      if (!languageAttributes.length) {
        const tag = nameEnd(this.text, token.start);
        this.edits.push([tag, tag, ` lang="${language}"`]);
      }
    }
    for (const { name: key, start, end, quote } of languageAttributes) {
      const value = values.get(key)!;
      const isSame = name === "html" || primary(value) === this.sourceLanguage;
      if (isSame && (quote || value)) this.edits.push([start, end, language]);
    }
  }
}

const translateOf = (values: Map<string, string>) =>
  strip(values.get("translate") ?? "").toLowerCase();
const isMarked = (values: Map<string, string>) =>
  (values.get("class") ?? "").split(/\s+/).includes("notranslate");
/** Return whether an element is kept for its name alone. */
const isCode = (name: string, values: Map<string, string>) =>
  KEPT.has(name) && translateOf(values) !== "no" && !isMarked(values);
const primary = (language: string) => strip(language).toLowerCase().split(/[-_]/)[0];

/** Return the end of the name of the tag that begins at a place. */
function nameEnd(text: string, start: number): number {
  NAME.lastIndex = start;
  const match = NAME.exec(text);
  return match ? NAME.lastIndex : start + 1;
}

/** The place of the value of an attribute, without its quotation marks. */
interface Attribute {
  name: string;
  start: number;
  end: number;
  quote: string;
}

/** Return the attributes of an opening tag; of equal names, the first one. */
function attributesOf(text: string, start: number, end: number): Attribute[] {
  const attributes: Attribute[] = [];
  const seen = new Set<string>();
  const tag = text.slice(start, end - 1);
  for (let place = nameEnd(text, start) - start; place < tag.length; ) {
    ATTRIBUTE.lastIndex = place;
    const match = ATTRIBUTE.exec(tag);
    if (!match) {
      place += 1;
      continue;
    }
    place = ATTRIBUTE.lastIndex;
    const name = match[1].toLowerCase();
    if (seen.has(name)) continue;
    seen.add(name);
    const group = [2, 3, 4].find((i) => match[i] !== undefined);
    const [from, to] = (group && match.indices![group]) || [place, place];
    const quote = { 2: '"', 3: "'" }[group ?? 0] ?? "";
    attributes.push({ name, start: start + from, end: start + to, quote });
  }
  return attributes;
}

/** Return the pieces of a text with references to characters, and templates. */
function references(text: string, start: number, end: number): Piece[] {
  const pieces: Piece[] = [];
  let place = start;
  const addPlain = (to: number) => {
    if (place < to) pieces.push(newPiece("text", place, to, { text: text.slice(place, to) }));
  };
  for (const { 0: match, index } of text.slice(start, end).matchAll(REFERENCE_OR_TEMPLATE)) {
    const isReference = match.startsWith("&");
    const decoded = decode(match);
    if (isReference && decoded === match) continue;
    const [from, to] = [start + index, start + index + match.length];
    addPlain(from);
    pieces.push(
      isReference
        ? newPiece("text", from, to, { text: decoded })
        : newPiece("unit", from, to, { isWord: true }),
    );
    place = to;
  }
  addPlain(end);
  return pieces;
}

/** Return a character as it is written in the text of an element. */
export const escaped = (character: string) =>
  ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[character] ?? character;

/** Return a text as the value of an attribute. */
export const escapedValue = (text: string) =>
  text.replace(/[&<>"']/g, (x) => ({ '"': "&quot;", "'": "&#x27;" })[x] ?? escaped(x));

function inQuotes(quote: string): (character: string) => string {
  const entity = quote === '"' ? "&quot;" : "&#39;";
  return (character) => (character === quote ? entity : escaped(character));
}

const joinedText = (pieces: Written) => pieces.map(([, text]) => text).join("");
const quoted = (pieces: Written) => `"${joinedText(pieces)}"`;
const characterData = (pieces: Written) =>
  joinedText(pieces).replaceAll("]]>", "]]]]><![CDATA[>");

/** Return pieces in which the line breaks and gaps that end a sentence are breaks. */
export function broken(pieces: Piece[]): Piece[] {
  const isWord = (x: Piece) => x.kind === "text" && strip(x.text) !== "";
  const words = pieces.flatMap((x, i) => (isWord(x) ? [i] : []));
  const result: Piece[] = [];
  pieces.forEach((piece, i) => {
    const place = bisect(words, (x) => x > i);
    const [before, after] = [pieces[words[place - 1]], pieces[words[place]]];
    const begin = after && BEGINS.exec(after.text)?.[1];
    const isBreak = (x: Piece) => x.kind === "unit" && x.name === "br";
    if (isBreak(piece)) {
      if (
        untilText(pieces, i, 1).some(isBreak) ||
        untilText(pieces, i, -1).some(isBreak) ||
        !before ||
        !begin ||
        /[\p{Lu}\p{Nd}]/u.test(begin) ||
        ENDS.test(before.text)
      ) {
        piece = { ...piece, kind: "break" };
      }
    } else if (piece.kind === "open" && isEntry(pieces, i)) {
      if (before && begin && /\p{Lu}/u.test(begin)) {
        result.push(newPiece("break", piece.start, piece.start));
      }
    }
    result.push(piece);
  });
  return result;
}

/** Return the pieces around one, up to the next text that is not blank. */
function untilText(pieces: Piece[], i: number, step: number): Piece[] {
  const around: Piece[] = [];
  for (i += step; i >= 0 && i < pieces.length; i += step) {
    if (pieces[i].kind === "text" && strip(pieces[i].text)) break;
    around.push(pieces[i]);
  }
  return around;
}

// Elements of which several in a row are entries of a list, even with spaces between; a
// button after a label is another one.
const ENTRIES = names("a button label");
const CONTROLS = names("button label");

/** Return whether an opening tag follows the end of an element of the same kind. */
function isEntry(pieces: Piece[], i: number): boolean {
  const before = pieces.slice(0, i).findLastIndex((x) => x.kind !== "text" || hasText(x));
  if (before < 0 || pieces[before].kind !== "close") return false;
  const [closed, opened] = [pieces[before].name, pieces[i].name];
  const isSame = closed === opened || (CONTROLS.has(closed) && CONTROLS.has(opened));
  return isSame && (before === i - 1 || ENTRIES.has(pieces[i].name));
}

const hasText = ({ text }: Piece) => strip(text) !== "";

/** Return a page, or a part of one, which then declares a language. */
export function read(text: string, language?: string): Document {
  const reader = new Reader(text, language);
  reader.read();
  return { source: text, runs: reader.runs, edits: reader.edits };
}
