/** Cleaning of texts: the same rules as `nmt/subwords.py` and
 * `common/characters.py`. */

export const BLANKS =
  /[\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u2581\u2800\u3000]+/gu;
const SURROGATES = /[\ud800-\udfff]/gu;

// Invisible characters that no text needs.
const NEVER_NEEDED =
  "\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u200b\\u200e\\u200f\\u202a-\\u202e" +
  "\\u2060-\\u206f\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb\\u{1bca0}-\\u{1bca3}" +
  "\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e001f}\\u{e0080}-\\u{e0fff}";
// Those that some texts need: joiners, Mongolian selectors, and tags.
const JOINERS = "\\u200c\\u200d";
const SELECTORS = "\\u180b-\\u180f";
const TAGS = "\\u{e0020}-\\u{e007f}";

const EMOJI =
  "[\\u2190-\\u21ff\\u2300-\\u23ff\\u2600-\\u27bf\\u2b00-\\u2bff\\u{1f000}-\\u{1faff}]";
// Scripts whose letters change their form before a joiner.
const SHAPED =
  "[\\u0600-\\u0dff\\u1000-\\u109f\\u1780-\\u180a\\u1810-\\u18af\\u1a20-\\u1aaf\\u1b00-\\u1c7f" +
  "\\u1cd0-\\u1cff\\ua800-\\ua8ff\\ua980-\\uaa7f\\uabc0-\\uabff\\ufb50-\\ufdff\\ufe70-\\ufefc" +
  "\\u{10a00}-\\u{10aff}\\u{10d00}-\\u{11fff}\\u{1e900}-\\u{1e95f}]";
const NEEDED = [
  `${EMOJI}(?:\\u200d${EMOJI})+`,
  `[\\u1800-\\u180a\\u1810-\\u18af][${SELECTORS}${JOINERS}]+`,
  `${SHAPED}[${JOINERS}]`,
  `\\u{1f3f4}[${TAGS}]+`,
].join("|");
const REMOVED = new RegExp(`[${NEVER_NEEDED}]+`, "gu");
const KEPT = new RegExp(`(${NEEDED})|[${JOINERS}${SELECTORS}${TAGS}]+`, "gu");

/** Normalise a text: NFC, single spaces between words, no invisible characters. */
export function clean(text: string): string {
  const visible = text
    .replace(SURROGATES, "\ufffd")
    .replace(REMOVED, "")
    .replace(KEPT, (_, needed) => needed ?? "");
  return visible.normalize("NFC").replace(BLANKS, " ").replace(/^ +| +$/g, "");
}

// Writing systems without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han.
const UNSPACED =
  "[\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u3005-\\u30ff\\u31f0-\\u31ff" +
  "\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{3ffff}]";
const ANY_UNSPACED = new RegExp(UNSPACED, "u");
const BEGINS_UNSPACED = new RegExp(`^${UNSPACED}`, "u");
const BETWEEN_UNSPACED = new RegExp(`(${UNSPACED}) (?=${UNSPACED})`, "gu");

export const hasUnspaced = (text: string) => ANY_UNSPACED.test(text);
export const beginsUnspaced = (text: string) => BEGINS_UNSPACED.test(text);

/** Join the words of a caption, as `detokenize` in `captioner/vocabulary.py`. */
export function detokenize(words: string[]): string {
  return words.join(" ").replaceAll(" 's", "'s").replace(BETWEEN_UNSPACED, "$1");
}
