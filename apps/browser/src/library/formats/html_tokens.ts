/**
 * Tokens of HTML 5 and XML with their places in the source: as in
 * `nmt/formats/html.py`.
 */

import { decodeHTMLStrict, DecodingMode, HtmlEntityDecoder } from "entities/decode";
import { Tokenizer, TokenizerMode } from "parse5";
import { SaxesParser } from "saxes";

/** A piece of a source: a tag, a text, or something else, such as a comment. */
export interface Token {
  kind: "text" | "open" | "close" | "cdata" | "other";
  start: number;
  end: number;
  /** The decoded text. */
  text: string;
  /** The name of an element, in lower case. */
  name: string;
  /** Whether an opening tag ends with a slash. */
  isEmpty: boolean;
}

function token(
  kind: Token["kind"],
  start: number,
  end: number,
  more: Partial<Token> = {},
): Token {
  return { kind, start, end, text: "", name: "", isEmpty: false, ...more };
}

// The state of the tokenizer in the content of some elements.
const MODES: Record<string, (typeof TokenizerMode)[keyof typeof TokenizerMode]> = {
  title: TokenizerMode.RCDATA,
  textarea: TokenizerMode.RCDATA,
  script: TokenizerMode.SCRIPT_DATA,
  plaintext: TokenizerMode.PLAINTEXT,
};
for (const name of "iframe noembed noframes noscript style xmp".split(" ")) {
  MODES[name] = TokenizerMode.RAWTEXT;
}
// Elements whose content is no markup where scripts run, and is read as markup.
const FALLBACKS = new Set(["noframes", "noscript"]);

const XML =
  /^\ufeff?\s*(?:<\?xml\b|(?:<!--(?:(?!-->)[^])*-->\s*|<!DOCTYPE[^>\[]*>\s*)*<(?:html|svg)\b[^>]*\sxmlns\s*=)/i;
const XML_TOKEN =
  /(?<comment><!--[^]*?-->)|<!\[CDATA\[(?<cdata>[^]*?)\]\]>|(?<instruction><\?[^]*?\?>)|(?<doctype><!DOCTYPE(?:[^>\["']|"[^"]*"|'[^']*'|\[[^]*?\]\s*(?=>))*>)|<(?<slash>\/?)(?<name>[^\s/>]+)(?:[^"'>]|"[^"]*"|'[^']*')*>|(?<reference>&[^;\s]+;)|(?<text>[^<&]+)/g;
const NAMED_REFERENCE = /&[A-Za-z][\w.-]*;/g;
const FOREIGN_OR_CDATA = /<(?<slash>\/?)(?:svg|math)\b|(?<cdata><!\[CDATA\[)/gi;
const CDATA_BEGIN = "<![CDATA[";
const CDATA_END = "]]>";
/** Marks of templates: Jinja, Handlebars, Vue, ERB, PHP. */
export const TEMPLATE =
  /\{\{[^{}]{0,200}\}\}|\{%[^%]{0,200}%\}|\{#[^#]{0,200}#\}|<%[^]{0,2000}?%>|<\?(?:php|=)[^]{0,2000}?\?>/g;
// The longest name of a character is shorter.
const LONGEST_REFERENCE = 64;

/** Return whether a text is well-formed XHTML or SVG. */
export function isXml(text: string): boolean {
  if (!XML.test(text)) return false;
  const parser = new SaxesParser();
  let isWellFormed = true;
  parser.on("error", () => {
    isWellFormed = false;
  });
  // HTML's named characters need no declaration.
  parser.write(text.replace(NAMED_REFERENCE, (x) => " ".repeat(x.length))).close();
  return isWellFormed;
}

/** Yield the tokens of well-formed XML. */
export function* xmlTokens(text: string): Generator<Token> {
  for (const match of text.matchAll(XML_TOKEN)) {
    const [start, end] = [match.index, match.index + match[0].length];
    const groups = match.groups!;
    if (groups.name) {
      const name = groups.name.toLowerCase().split(":").pop()!;
      const kind = groups.slash ? "close" : "open";
      yield token(kind, start, end, { name, isEmpty: match[0].endsWith("/>") });
    } else if (groups.text !== undefined) {
      yield token("text", start, end, { text: match[0] });
    } else if (groups.reference && decode(match[0]) !== match[0]) {
      yield token("text", start, end, { text: decode(match[0]) });
    } else if (groups.cdata !== undefined) {
      yield token("cdata", start, end);
    } else yield token("other", start, end);
  }
}

/** Return the characters of a reference that ends with a semicolon. */
export const decode = (reference: string) => decodeHTMLStrict(reference);

/** Return the tokens of HTML 5. */
export function htmlTokens(text: string): Token[] {
  // An end tag without a name has no token.
  const masked = text.replace(TEMPLATE, (x) => mask(x)).replaceAll("</>", "<!>");
  const source = withComments(masked);
  const tokens: Token[] = [];
  let content = "";
  // The places of a text: the tokenizer divides it within references.
  let characters: Location | undefined;
  const flush = (end?: number) => {
    if (!characters) return;
    const [start, stop] = [characters.startOffset, end ?? characters.endOffset];
    characters = undefined;
    if (FALLBACKS.has(content)) {
      for (const inner of htmlTokens(text.slice(start, stop))) {
        tokens.push({ ...inner, start: start + inner.start, end: start + inner.end });
      }
    } else tokens.push(...textTokens(source, start, stop));
  };
  const add = (kind: Token["kind"], location: Location | null, more?: Partial<Token>) => {
    const { startOffset: start, endOffset } = location!;
    flush(start);
    // A comment without an end goes beyond the source.
    const end = Math.min(endOffset, text.length);
    tokens.push(token(kind, start, end, more));
  };
  const addText = ({ location }: { location: Location | null }) => {
    const { startOffset } = characters ?? location!;
    characters = { startOffset, endOffset: location!.endOffset };
  };
  const tokenizer: Tokenizer = new Tokenizer(
    { sourceCodeLocationInfo: true },
    {
      onStartTag({ tagName: name, selfClosing: isEmpty, location }) {
        add("open", location, { name, isEmpty });
        content = name;
        if (MODES[name] !== undefined) tokenizer.state = MODES[name];
      },
      onEndTag({ tagName: name, location }) {
        add("close", location, { name });
        content = "";
      },
      onComment({ location }) {
        const start = location!.startOffset;
        const isData = text.startsWith(CDATA_BEGIN, start) && source.startsWith("<!--", start);
        add(isData ? "cdata" : "other", location);
      },
      onDoctype: ({ location }) => void add("other", location),
      onCharacter: addText,
      onNullCharacter: addText,
      onWhitespaceCharacter: addText,
      onEof: () => flush(),
    },
  );
  tokenizer.write(source, true);
  return tokens;
}

interface Location {
  startOffset: number;
  endOffset: number;
}

/** Yield the tokens of a text; references are tokens of their own. */
function* textTokens(source: string, start: number, end: number): Generator<Token> {
  let place = start;
  const plain = (to: number) => token("text", place, to, { text: source.slice(place, to) });
  for (let i = source.indexOf("&", start); i >= 0 && i < end; i = source.indexOf("&", i + 1)) {
    const reference = referenceIn(source.slice(i, Math.min(end, i + LONGEST_REFERENCE)));
    if (!reference) continue;
    if (place < i) yield plain(i);
    place = i + reference.length;
    yield token("text", i, place, { text: reference.text });
  }
  if (place < end) yield plain(end);
}

/** Return the characters of the reference at the beginning of a text, and its length. */
function referenceIn(text: string) {
  let decoded = "";
  const decoder = new HtmlEntityDecoder((x) => {
    decoded += String.fromCodePoint(x);
  });
  decoder.startEntity(DecodingMode.Legacy);
  let length = decoder.write(text, 1);
  if (length < 0) length = decoder.end();
  return decoded ? { text: decoded, length } : undefined;
}

/** Return a source in which sections of character data in SVG are comments. */
function withComments(source: string): string {
  const parts: string[] = [];
  let [place, depth] = [0, 0];
  for (const { 0: match, index, groups } of source.matchAll(FOREIGN_OR_CDATA)) {
    if (index < place) continue;
    if (!groups!.cdata) {
      depth = Math.max(depth + (groups!.slash ? -1 : 1), 0);
      continue;
    }
    const end = source.indexOf(CDATA_END, index + match.length) + CDATA_END.length;
    if (end < index) break;
    if (!depth) continue;
    const section = mask(source.slice(index, end), "<!--", "-->");
    parts.push(source.slice(place, index), section);
    place = end;
  }
  return parts.join("") + source.slice(place);
}

/** Return a text of the same length without characters of markup. */
function mask(text: string, begin = "", end = ""): string {
  return begin + "\ue000".repeat(text.length - begin.length - end.length) + end;
}
