/** Translations of texts; see `nmt/translations.py`. */

import { Marker } from "./calibration";
import type { Features } from "./confidence";
import { Copying } from "./copying";
import { doubts, translationFeatures, translationReason } from "./confidence_features";
import { LEXICON, Lexicon, stem } from "./lexicon";
import type { SentenceTranslator } from "./markup";
import { entry, isCount } from "./model_file";
import type { ModelFile } from "./model_file";
import type { Hypothesis, Search } from "./search";
import { Layout, LONGEST_ABBREVIATION, Prepared } from "./parts";
import type { Part } from "./parts";
import { END, FILE_NAME, PAD, Subwords, WORD_BEGIN } from "./subwords";
import type { Languages } from "./symbols";
import { clean } from "./text";
import { ModelError } from "./types";
import type { Translation } from "./types";

// Maximum number of sentences of a text.
const MAX_SENTENCES = 100;
// A name has at least so many letters and subwords, of at most so many letters each.
const [NAME_LENGTH, NAME_PIECES, NAME_PIECE_LENGTH] = [4, 3, 2.5];
// A first word before these is a verb.
const AFTER_VERB =
  /^ (?:du|ihr|dich|dir|euch|mich|mir|uns|sich|er|sie|es|wir)(?![\p{L}\p{N}_])/u;
// Target language at the beginning of a text, such as `>>deu<<`.
const TARGET_LANGUAGE = /^\s*>>([^<>]+)<<\s*/u;
// An n-gram of up to so many tokens that follows itself so many times is a loop.
const [LOOP_TOKENS, LOOP] = [4, 4];

const EMPTY: Translation = {
  text: "",
  sourceWords: [],
  words: [],
  score: 0,
  logProbability: 0,
  meanLogProbability: 0,
  weights: [],
  endWeights: [],
  alignment: [],
  subwords: [],
  probabilities: [],
  cut: false,
  wordProbabilities: [],
  doubtful: [],
  untranslated: [],
};

export class TranslationModel implements SentenceTranslator {
  readonly maxLength: number;
  readonly hasSymbols: boolean;
  readonly lexicon?: Lexicon;
  /** Codes of the languages of the source and the target, if they are known. */
  readonly languages: Languages;
  private readonly subwords: Subwords;
  private readonly copying?: Copying;
  private readonly lengths: number[];
  private readonly attends: boolean;
  private readonly pieces: Set<string>;
  private readonly marker: Marker;

  constructor(
    { metadata, files }: ModelFile,
    private readonly search: Search,
  ) {
    const model = files.get(FILE_NAME);
    if (!model) throw new ModelError(`The file has no ${FILE_NAME}.`);
    this.subwords = new Subwords(model);
    if (metadata.extra_ids) this.copying = new Copying(this.subwords);
    this.maxLength = entry(metadata, "max_length", isCount);
    this.lengths = entry(
      metadata,
      "lengths",
      (lengths) => lengths?.every?.(isCount) && lengths.includes(this.maxLength),
    );
    this.attends = entry(metadata, "attends", (x) => typeof x === "boolean");
    this.marker = new Marker(metadata);
    const lexicon = files.get(LEXICON);
    if (lexicon) this.lexicon = new Lexicon(lexicon);
    this.languages = languagesOf(metadata.pair ?? metadata.name);
    this.pieces = new Set(this.subwords.pieces);
    this.hasSymbols = this.pieces.has(`${WORD_BEGIN}\ue000`);
  }

  /**
   * Return a translation with what the model says of its quality; it is always unsure if
   * it is not complete. Without features, there was nothing to translate.
   */
  private marked(
    translation: Translation,
    features?: Features,
    isComplete = true,
  ): Translation {
    const marked = {
      ...translation,
      ...this.marker.mark(translation.meanLogProbability, features),
      ...doubts(translation, this.marker.confidence, this.lexicon),
    };
    if (!isComplete) marked.unsure = true;
    if (marked.unsure) marked.reason = translationReason(marked, isComplete);
    return marked;
  }

  /** Target languages of a multilingual model, as its vocabulary spells them. */
  get targetLanguages(): string[] {
    return [...this.subwords.languages.keys()];
  }

  /**
   * Translate a text of one sentence or several; see `joined_best` of Python.
   *
   * Of a multilingual model, every sentence begins with the target language, which is
   * that of the text if it begins with one.
   */
  async translate(
    text: string,
    nBest: number,
    targetLanguage?: string,
  ): Promise<Translation[]> {
    const [language, rest] = this.addressed(text, targetLanguage);
    const layout = new Layout(rest, this.languages[0], this.hasSymbols, true, this.languages[1]);
    return this.translateParts(layout, nBest, language);
  }

  /** Translate a text as one sentence. */
  async translateSentence(sentence: string, targetLanguage?: string): Promise<Translation> {
    const [language, rest] = this.addressed(sentence, targetLanguage);
    return (await this.translateParts(this.whole(rest), 1, language))[0];
  }

  /** Return the target language of a text, and the text without its token. */
  private addressed(text: string, language?: string): [string | undefined, string] {
    const known = this.subwords.languages;
    if (language !== undefined && !known.has(language)) {
      const expected = known.size
        ? `one of ${this.targetLanguages.join(", ")}`
        : "none, because the model has one target language";
      throw new ModelError(
        `Expected as target language ${expected}. Received: ${language}.`,
      );
    }
    const match = TARGET_LANGUAGE.exec(text);
    return match && known.has(match[1])
      ? [match[1], text.slice(match[0].length)]
      : [language, text];
  }

  /** Return the number of subwords of a sentence, or of its longest part. */
  tokenCount(sentence: string): number {
    // One more for the target language.
    const more = this.subwords.languages.size ? 1 : 0;
    const counts = this.whole(sentence).parts.map(
      (part) => this.subwords.encode(this.prepared(part).text).length + more,
    );
    return Math.max(...counts);
  }

  private whole(sentence: string): Layout {
    return new Layout(sentence, this.languages[0], this.hasSymbols, false);
  }

  private async translateParts(
    layout: Layout,
    nBest: number,
    language?: string,
  ): Promise<Translation[]> {
    const isCut = layout.parts.length > MAX_SENTENCES;
    let best: Translation[][] = [[]];
    for (const part of layout.parts.slice(0, MAX_SENTENCES)) {
      const translations = await this.translatePart(part, nBest, language);
      best = best
        .flatMap((chosen, place) =>
          // Combinations that are worse than `nBest` others are left out.
          translations
            .slice(0, Math.floor(nBest / (place + 1)))
            .map((translation) => [...chosen, translation]),
        )
        .map((chosen) => ({ chosen, sum: sumOf(chosen, "score") }))
        .sort((first, second) => second.sum - first.sum)
        .slice(0, nBest)
        .map(({ chosen }) => chosen);
    }
    return best.map((chosen) => {
      const translation = joined(chosen, layout);
      return isCut ? { ...translation, cut: true } : translation;
    });
  }

  /** Return whether a word is probably a name to copy; see `_is_name` of Python. */
  private isName(word: string, text: string): boolean {
    const lexicon = this.lexicon!;
    const length = Array.from(word).length;
    if (!/^\p{Lu}/u.test(word)) return false;
    if (length === 1) return word !== "I" && !/\p{L}{2}/u.test(text);
    // Most words are known, and need not be encoded.
    const isKnown = lexicon.has(word);
    if (!/\p{Ll}/u.test(word)) {
      const isCopied = !isKnown || lexicon.translates(stem(word), stem(word));
      const isShort = isCopied && length <= LONGEST_ABBREVIATION;
      return isShort && this.subwordCount(word) - 1 > 1;
    }
    if (length < NAME_LENGTH || isKnown) return false;
    const count = this.subwordCount(word) - 1;
    return count >= NAME_PIECES && length <= NAME_PIECE_LENGTH * count;
  }

  /** Return whether a word in capital letters is no abbreviation; see Python. */
  private isOrdinary(word: string): boolean {
    const lower = word.toLowerCase();
    const capitalised = lower[0].toUpperCase() + lower.slice(1);
    const count = Math.min(this.subwordCount(lower), this.subwordCount(capitalised));
    return this.knows(lower) && count < this.subwordCount(word);
  }

  /** Return whether a capitalised word is usually in lower case; see Python. */
  private isCommon(word: string): boolean {
    const lower = word.toLowerCase();
    return this.knows(lower) && this.subwordCount(lower) <= this.subwordCount(word);
  }

  /** Return whether a word is one subword, or in the training text. */
  private knows(word: string): boolean {
    return this.pieces.has(WORD_BEGIN + word) || (this.lexicon?.has(word) ?? false);
  }

  /** Return the number of subwords of a word, END included. */
  private subwordCount(word: string): number {
    return this.subwords.encode(word).length;
  }

  private prepared(part: Part): Prepared {
    const isWord = (word: string) => this.pieces.has(WORD_BEGIN + word);
    const isOrdinary = (word: string) => this.isOrdinary(word);
    const isCommon = (word: string) => this.isCommon(word);
    const isName =
      this.lexicon &&
      ((word: string) =>
        this.isName(word, part.text) && !AFTER_VERB.test(part.text.replace(word, "")));
    const { languages, hasSymbols } = this;
    const known = [isWord, isOrdinary, isCommon] as const;
    return new Prepared(part, languages, hasSymbols, ...known, isName);
  }

  private async translatePart(part: Part, nBest: number, language?: string) {
    const prepared = this.prepared(part);
    let source = this.subwords.encode(prepared.text);
    if (source.length === 1) return [this.marked(EMPTY)];
    const first = language === undefined ? 0 : 1;
    if (language !== undefined) {
      source = [this.subwords.languages.get(language)!, ...source];
    }
    const cut = source.length > this.maxLength;
    if (cut) source = [...source.slice(0, this.maxLength - 1), END];
    if (prepared.hasOnlySymbols) return [this.marked(copied(prepared))];
    const columns = this.lengths.find((length) => length >= source.length)!;
    const padded = new Int32Array(columns).fill(PAD);
    padded.set(source);
    const name = `length_${columns}`;
    const ranked = await this.search.run(name, "source", padded, [1, columns]);
    return ranked
      .slice(0, nBest)
      .map((one) => this.translation(prepared, source, first, cut, one, ranked));
  }

  /**
   * Return the translation of one of the `ranked` hypotheses of a sentence.
   *
   * The sentence begins at the token `first` of the source, after the target language.
   */
  private translation(
    prepared: Prepared,
    source: number[],
    first: number,
    cut: boolean,
    hypothesis: Hypothesis,
    ranked: Hypothesis[],
  ): Translation {
    const { length, weights, positions } = hypothesis;
    const { words: encoded, places: sourcePlaces } = this.subwords.words(
      source.slice(first),
    );
    let tokenIds = Array.from(hypothesis.tokenIds);
    let origins = tokenIds.map((_, i) => i);
    if (this.copying) {
      ({ tokenIds, origins } = this.copying.expand(tokenIds, source));
    }
    const unknown = tokenIds.find((id) => this.subwords.pieces[id] === undefined);
    if (unknown !== undefined) {
      throw new ModelError(`The subwords of the file have no token ${unknown}.`);
    }
    const { words: decoded, places } = this.subwords.words(tokenIds);
    // A word that was copied is one subword.
    const subwords: string[] = Array(hypothesis.tokenIds.length).fill("");
    tokenIds.forEach((id, i) => (subwords[origins[i]] += this.piece(id, prepared)));
    // The weight of a source word is the sum over its subwords, that of a word the mean
    // over its subwords. The end token is one more source word.
    const columns = [...sourcePlaces, encoded.length];
    const merged = decoded.map(() => Array<number>(encoded.length + 1).fill(0));
    const counts = decoded.map(() => 0);
    const logProbabilities = decoded.map(() => 0);
    places.forEach((place, i) => {
      // Several subwords of a copied word come from one token.
      if (i === 0 || origins[i] !== origins[i - 1]) {
        logProbabilities[place] += hypothesis.tokenLogProbabilities[origins[i]];
      }
      counts[place] += 1;
      columns.forEach((column, j) => {
        // Without attention, the only weight is that of the summary vector.
        if (!this.attends) return;
        merged[place][column] += weights[origins[i] * positions + first + j];
      });
      // The attention to the target language counts as that to the end.
      if (this.attends && first) {
        merged[place][encoded.length] += weights[origins[i] * positions];
      }
    });
    const rows = merged.map((row, i) =>
      row.map((weight) => Math.min(weight / Math.max(counts[i], 1), 1)),
    );
    const spaced = this.subwords.decode(tokenIds).split(" ");
    const { words, members } = prepared.fillSymbols(prepared.matchForm(decoded));
    const { words: sourceWords, members: sourceMembers } = prepared.fillSymbols(
      encoded,
      true,
    );
    // In a script without spaces, words are subwords.
    const isSpaced = spaced.join(" ") === decoded.join(" ");
    const texts = prepared.matchForm(spaced.filter((x) => x));
    const text = isSpaced ? words.join(" ") : prepared.fillSymbols(texts).words.join(" ");
    const sourceWeights = shared(
      rows.map((row) => row.slice(0, -1)),
      members,
      words.length,
      sourceMembers,
      sourceWords.length,
    );
    const ends = rows.map((row) => [row[row.length - 1]]);
    const endWeights = shared(ends, members, words.length, [[0]], 1).flat();
    const ofWords = logProbabilities.map((x) => [x]);
    const wordLogProbabilities = shared(ofWords, members, words.length, [[0]], 1).flat();
    const tokens = Array.from(hypothesis.tokenIds.slice(0, length));
    const isComplete =
      tokens[tokens.length - 1] === END &&
      prepared.isKept(decoded) &&
      longestLoop(tokens) <= Math.max(longestLoop(source), LOOP - 1);
    const translation: Translation = {
      text,
      sourceWords,
      words,
      score: hypothesis.score,
      logProbability: hypothesis.logProbability,
      meanLogProbability: hypothesis.logProbability / Math.max(length, 1),
      weights: sourceWeights,
      endWeights,
      alignment: alignmentOf(sourceWeights, endWeights),
      subwords: subwords.slice(0, length),
      probabilities: Array.from(hypothesis.tokenLogProbabilities.slice(0, length), Math.exp),
      cut,
      wordProbabilities: wordLogProbabilities.map(Math.exp),
      doubtful: [],
      untranslated: [],
    };
    const features = translationFeatures(
      translation,
      Array.from(sourcePlaces),
      hypothesis,
      ranked,
      this.lexicon,
    );
    return this.marked(translation, features, isComplete);
  }

  /** Return the subword of a token, or what a symbol stands for. */
  private piece(id: number, prepared: Prepared): string {
    const piece = this.subwords.pieces[id];
    const original = prepared.originals.get(piece.replace(WORD_BEGIN, ""));
    return original ? WORD_BEGIN + original.target : piece;
  }
}

/** Return the codes of the languages at the end of a name, such as `en-de`. */
function languagesOf(name: unknown): Languages {
  const match = /(?:^|-)([a-z]{2,3})-([a-z]{2,3})$/.exec(String(name ?? ""));
  return match ? [match[1], match[2]] : [undefined, undefined];
}

/** Return the translation of a sentence without words: its symbols. */
function copied(prepared: Prepared): Translation {
  const encoded = clean(prepared.text).split(" ").filter((word) => word);
  const { words: sourceWords } = prepared.fillSymbols(encoded, true);
  const { words } = prepared.fillSymbols(encoded);
  const weights = words.map((_, i) =>
    sourceWords.map((_, j) =>
      j === Math.floor((i * sourceWords.length) / words.length) ? 1 : 0,
    ),
  );
  const endWeights = words.map(() => 0);
  const alignment = alignmentOf(weights, endWeights);
  return { ...EMPTY, text: words.join(" "), sourceWords, words, weights, endWeights, alignment };
}

/** Return how often an n-gram of a few tokens follows itself. */
function longestLoop(tokens: number[]): number {
  let longest = 1;
  for (let n = 1; n <= LOOP_TOKENS; n++) {
    let run = 0;
    for (let i = n; i < tokens.length; i++) {
      run = tokens[i] === tokens[i - n] ? run + 1 : 0;
      longest = Math.max(longest, 1 + Math.floor(run / n));
    }
  }
  return longest;
}

/**
 * Return attention between restored words from that between words with symbols.
 *
 * The weights of a word are the mean of those of the words in it, and the weight of a
 * word of the source is the sum of theirs.
 */
function shared(
  weights: number[][],
  members: number[][],
  count: number,
  sourceMembers: number[][],
  sourceCount: number,
): number[][] {
  const rows = Array.from({ length: count }, () => Array<number>(sourceCount).fill(0));
  const sums = Array<number>(count).fill(0);
  members.forEach((places, i) => {
    for (const place of places) {
      const share = 1 / places.length;
      sums[place] += share;
      sourceMembers.forEach((columns, j) => {
        for (const column of columns) {
          rows[place][column] += (share * weights[i][j]) / columns.length;
        }
      });
    }
  });
  return rows.map((row, i) => row.map((weight) => weight / sums[i]));
}

/** Align each word with the source word of the largest weight, unless that is the end. */
function alignmentOf(weights: number[][], endWeights: number[]): [number, number][] {
  return weights.flatMap((row, target) => {
    const largest = Math.max(...row);
    const isAligned = largest > 0 && largest >= endWeights[target];
    return isAligned ? [[row.indexOf(largest), target] as [number, number]] : [];
  });
}

/** Return the translation of a text from those of its sentences. */
function joined(translations: Translation[], layout: Layout): Translation {
  const text = layout.joined(translations.map((one) => one.text));
  if (translations.length === 1) return { ...translations[0], text };
  const sourceWords = translations.flatMap((one) => one.sourceWords);
  const endWeights = translations.flatMap((one) => one.endWeights);
  const subwords = translations.flatMap((one) => one.subwords);
  const logProbability = sumOf(translations, "logProbability");
  // Words attend to words of the same sentence alone.
  let column = 0;
  const weights = translations.flatMap((one) => {
    const before = Array<number>(column).fill(0);
    column += one.sourceWords.length;
    const after = Array<number>(sourceWords.length - column).fill(0);
    return one.weights.map((row) => [...before, ...row, ...after]);
  });
  const reasons = new Set(translations.flatMap((one) => one.reason ?? []));
  return {
    text,
    sourceWords,
    words: translations.flatMap((one) => one.words),
    score: sumOf(translations, "score") / translations.length,
    logProbability,
    meanLogProbability: logProbability / Math.max(subwords.length, 1),
    weights,
    endWeights,
    alignment: alignmentOf(weights, endWeights),
    subwords,
    probabilities: translations.flatMap((one) => one.probabilities),
    cut: translations.some((one) => one.cut),
    wordProbabilities: translations.flatMap((one) => one.wordProbabilities),
    doubtful: shifted(translations, "doubtful", "words"),
    untranslated: shifted(translations, "untranslated", "sourceWords"),
    ...(translations[0].confidence !== undefined && {
      confidence: Math.min(...translations.map((one) => one.confidence ?? 1)),
    }),
    ...(translations.some((one) => one.unsure !== undefined) && {
      unsure: translations.some((one) => one.unsure),
    }),
    ...(reasons.size > 0 && { reason: [...reasons].join("; ") }),
  };
}

/** Return indices of words of all sentences from those of each. */
function shifted(
  translations: Translation[],
  name: "doubtful" | "untranslated",
  words: "words" | "sourceWords",
): number[] {
  let first = 0;
  return translations.flatMap((one) => {
    const indices = one[name].map((i) => first + i);
    first += one[words].length;
    return indices;
  });
}

function sumOf(translations: Translation[], name: "score" | "logProbability"): number {
  return translations.reduce((sum, one) => sum + one[name], 0);
}
