/** Files with markup, of which the language is translated: as `nmt/markup.py`. */

import { wordsOf } from "./characters";
import { escapedValue, read } from "./formats/html";
import { lineOf, replaced, startOf, textOf, translateRuns } from "./formats/runs";
import type { Run } from "./formats/runs";
import type { Lexicon } from "./lexicon";
import { splitSentences } from "./sentences";
import { hold, release } from "./symbols";
import type { TranslatedFile, Translation } from "./types";

// Addresses are not looked for in texts with longer words, since that takes long.
const LONGEST_WORD = 2000;

/** What the translation of a file needs of a translator. */
export interface SentenceTranslator {
  readonly maxLength: number;
  readonly hasSymbols: boolean;
  readonly lexicon?: Lexicon;
  /** Return the number of subwords of a sentence. */
  tokenCount(sentence: string): number;
  /** Translate a text as one sentence, into a target language of the model. */
  translateSentence(sentence: string, targetLanguage?: string): Promise<Translation>;
}

/** How a file is translated. */
export interface FileOptions {
  /** Code of the target language, which a page then declares. */
  language?: string;
  /** Target language of a multilingual model. */
  targetLanguage?: string;
  /** Whether elements with an unsure translation get the attribute `data-unsure`. */
  marksUnsure?: boolean;
  /** Called with the number of translated sentences and that of all. */
  report?: (translated: number, total: number) => void;
  /** Throws an error if the translation is to end. */
  check?: () => Promise<void>;
}

/** Translate the text of a page in HTML or XHTML, or of a part of one. */
export async function translateHtml(
  translator: SentenceTranslator,
  text: string,
  { language, targetLanguage, marksUnsure, report, check }: FileOptions = {},
): Promise<TranslatedFile> {
  const document = read(text, language);
  const placeOf = document.placeOf ?? lineOf(document.source);
  const reasons = new Map<string, string>();

  const translate = async (sentences: string[]) => {
    const translations: Translation[] = [];
    for (const sentence of sentences) {
      await check?.();
      const result = await translator.translateSentence(sentence, targetLanguage);
      const reason = doubtOf(result);
      if (reason) reasons.set(sentence, reason);
      translations.push(result);
      report?.(translations.length, sentences.length);
    }
    return translations;
  };

  const translated = await translateRuns(
    document.source,
    document.runs,
    translate,
    (paragraph) => sentencesOf(paragraph, translator),
    translator.hasSymbols,
    translator.lexicon,
  );
  const doubts: TranslatedFile["doubts"] = [];
  const unsure: Run[] = [];
  const marks = new Map<number, string>();
  const runs = translated.map(([run]) => run);
  for (const run of runs.sort((first, second) => startOf(first) - startOf(second))) {
    const sentence = run.sentences.find((x) => reasons.has(x));
    if (sentence === undefined) continue;
    const reason = reasons.get(sentence)!;
    unsure.push(run);
    doubts.push({ place: placeOf(startOf(run)), text: textOf(run), reason });
    if (marksUnsure && run.tag !== undefined && !marks.has(run.tag)) {
      marks.set(run.tag, reason);
    }
  }
  const edits = Array.from(marks, ([tag, reason]): [number, number, string] => [
    tag,
    tag,
    ` data-unsure="${escapedValue(reason)}"`,
  ]);
  const result = replaced(document.source, translated, [...document.edits, ...edits]);
  return {
    text: document.finish?.(result, unsure) ?? result,
    runs: translated.length,
    doubts,
  };
}

/** Return the sentences of a paragraph, none of which is too long for a model. */
function sentencesOf(paragraph: string, translator: SentenceTranslator): string[] {
  const isLong = wordsOf(paragraph).some((x) => x.length > LONGEST_WORD);
  // No sentence ends within an address.
  const { text, parts } = isLong ? { text: paragraph, parts: [] } : hold(paragraph);
  return splitSentences(text).flatMap((x) => fittingParts(release(x, parts), translator));
}

/** Return parts of a sentence that are not too long for a model. */
function fittingParts(sentence: string, translator: SentenceTranslator): string[] {
  const words = wordsOf(sentence);
  const half = Math.floor(words.length / 2);
  if (!half || translator.tokenCount(sentence) <= translator.maxLength) return [sentence];
  return [words.slice(0, half), words.slice(half)].flatMap((part) =>
    fittingParts(part.join(" "), translator),
  );
}

/** Return why a translation is unsure, or an empty string. */
function doubtOf({ cut, words, unsure, reason }: Translation): string {
  if (cut) return "too long to translate";
  if (!words.length) return "no translation";
  return unsure ? reason || "unsure of the translation" : "";
}
