/**
 * What must survive a translation: the same rules as `nmt/spans.py` and `nmt/locales.py`.
 *
 * The patterns in `spans.json` are those of Python; a test compares both.
 */

import patterns from "./spans.json";

/** Kinds of spans. */
export const [NUMBER, TIME, WORD] = [0, 1, 2];

/** A part of a text that must survive. */
export interface Span {
  begin: number;
  end: number;
  kind: number;
}

type Pattern = [string, number[]];
const compiled = new Map<string, { pattern: RegExp; kinds: number[] }>();

function patternOf(language: string | undefined) {
  const all = patterns as unknown as Record<string, Pattern>;
  const name = language && all[language] ? language : "";
  if (!compiled.has(name)) {
    const [pattern, kinds] = all[name];
    compiled.set(name, { pattern: new RegExp(pattern, "gu"), kinds });
  }
  return compiled.get(name)!;
}

/** Return what must survive a translation of a text, in order. */
export function findSpans(text: string, language?: string): Span[] {
  const { pattern, kinds } = patternOf(language);
  return Array.from(text.matchAll(pattern), (match) => ({
    begin: match.index,
    end: match.index + match[0].length,
    kind: kinds[match.findIndex((x, i) => i > 0 && x !== undefined) - 1],
  })).filter(({ begin, end }) => end > begin);
}

/** Return the text of a span as another language writes it. */
export function inLanguage(
  text: string,
  kind: number,
  source: string | undefined,
  target: string | undefined,
): string {
  if (kind === WORD) return text;
  if (source === "en" && target === "de") {
    return kind === NUMBER ? germanNumber(text) : germanTime(text);
  }
  if (source === "de" && target === "en") {
    return kind === NUMBER ? englishNumber(text) : englishTime(text);
  }
  return text;
}

const MONTHS: Record<string, string[]> = {
  en: (
    "January February March April May June July August September October November " +
    "December"
  ).split(" "),
  de: (
    "Januar Februar M\u00e4rz April Mai Juni Juli August September Oktober November " +
    "Dezember"
  ).split(" "),
};
const NUMERALS = /[0-9]+(?:[.,'\u2019\u00a0\u202f][0-9]+)*/gu;
const GROUPED: Record<string, RegExp> = {
  en: /^(?:[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+\.[0-9]+)$/u,
  de: /^(?:[0-9]{1,3}(?:\.[0-9]{3})+(?:,[0-9]+)?|[0-9]+,[0-9]+)$/u,
};
const CURRENCY = "[$\u20ac\u00a3\u00a5\u20b9\u20bd\u20ba]";
const CURRENCIES = "USD|EUR|GBP|CHF|JPY|CNY|AUD|CAD|SEK|NOK|DKK|PLN";
const LEADING_MONEY = new RegExp(
  `^([-+\u2212]?)((?:US|A|C|NZ)?${CURRENCY}|(?:${CURRENCIES})) ?([0-9].*?)([kKMm]?)$`,
  "u",
);
const TRAILING_MONEY = new RegExp(
  `^([-+\u2212]?)([0-9].*?)(?:,[-\u2013])?[ \u00a0\u202f]?(${CURRENCY})$`,
  "u",
);
const PERCENT = /[ \u00a0\u202f]?(%|\u2030)/gu;
const DEGREES = /(?<=[0-9])(\u00b0[CFK])/gu;
const ORDINAL = "(?:st|nd|rd|th)";
const ORDINAL_NUMBER = new RegExp(`^([0-9][0-9,]*)${ORDINAL}$`, "u");
const DECADE = /^'?([0-9]+)['\u2019]?s$/u;
const ENGLISH_CLOCK =
  /^([0-9]{1,2})(?::([0-9]{2}))?(?::([0-9]{2}))? ?([AaPp])\.?[Mm]\.?$/u;
const GERMAN_CLOCK = /^([0-9]{1,2})(?:[:.]([0-9]{2}))? ?(?:Uhr|h)(?: ([0-9]{1,2}))?$/u;
const ENGLISH_DATES = [
  new RegExp(
    `^(?:the )?(?<day>[0-9]{1,2})${ORDINAL}? (?:of )?(?<month>[A-Z][a-z]+)\\.?` +
      "(?:,? (?<year>[0-9]{4}))?$",
    "u",
  ),
  new RegExp(
    `^(?<month>[A-Z][a-z]+)\\.? (?<day>[0-9]{1,2})${ORDINAL}?(?:,? (?<year>[0-9]{4}))?$`,
    "u",
  ),
  /^(?<month>[A-Z][a-z]+)\.? (?<day>)(?<year>[0-9]{4})$/u,
];
const GERMAN_DATES = [
  /^(?<day>[0-9]{1,2})\. ?(?<month>[A-Z][a-z\u00e4]+)(?: (?<year>[0-9]{4}))?$/u,
  /^(?<month>[A-Z][a-z\u00e4]+) (?<day>)(?<year>[0-9]{4})$/u,
  /^(?<day>[0-9]{1,2})\.(?<month>[0-9]{1,2})(?:\.(?<year>[0-9]{4}|[0-9]{2})?)?$/u,
];
const SLASHED = /^([0-9]{1,2})\/([0-9]{1,2})\/([0-9]{4}|[0-9]{2})$/u;

/** Return a text whose numerals have the separators of the other language. */
function withSeparators(text: string, language: string): string {
  const other: Record<string, string> = { ".": ",", ",": "." };
  return text.replace(NUMERALS, (numeral) =>
    GROUPED[language].test(numeral) ? numeral.replace(/[.,]/g, (x) => other[x]) : numeral,
  );
}

function germanNumber(text: string): string {
  const ordinal = ORDINAL_NUMBER.exec(text);
  if (ordinal) return `${withSeparators(ordinal[1], "en")}.`;
  const decade = DECADE.exec(text);
  if (decade) return `${decade[1]}er`;
  const number = withSeparators(text, "en");
  const money = LEADING_MONEY.exec(number);
  if (money) {
    const [, sign, currency, amount, suffix] = money;
    const suffixes: Record<string, string> = { m: " Mio.", k: " Tsd." };
    return `${sign}${amount}${suffixes[suffix.toLowerCase()] ?? ""} ${currency}`;
  }
  return number.replace(PERCENT, " $1").replace(DEGREES, " $1");
}

function englishNumber(text: string): string {
  if (/^[0-9]+\.$/u.test(text)) {
    const number = parseInt(text, 10);
    const isTeen = number % 100 > 10 && number % 100 < 14;
    return `${number}${(!isTeen && ["", "st", "nd", "rd"][number % 10]) || "th"}`;
  }
  if (/^[0-9]+er$/u.test(text)) return `${text.slice(0, -2)}s`;
  const number = withSeparators(text, "de");
  const money = TRAILING_MONEY.exec(number);
  if (money) return `${money[1]}${money[3]}${money[2]}`;
  return number.replace(PERCENT, "$1");
}

function germanTime(text: string): string {
  const clock = ENGLISH_CLOCK.exec(text);
  if (clock) {
    const [, hour, minute, second, half] = clock;
    let number = parseInt(hour, 10);
    if ("Pp".includes(half) && number < 12) number += 12;
    if ("Aa".includes(half) && number === 12) number = 0;
    return `${[String(number), minute, second].filter((x) => x).join(":")} Uhr`;
  }
  if (text.includes("clock")) return `${text.split(" ")[0]} Uhr`;
  const slashed = SLASHED.exec(text);
  if (slashed) {
    let [first, other] = [parseInt(slashed[1], 10), parseInt(slashed[2], 10)];
    if (first > 12) [first, other] = [other, first];
    const isClear = other > 12 || slashed[1] === slashed[2];
    if (!isClear || first < 1 || first > 12 || other > 31) return text;
    return `${other}.${first}.${slashed[3]}`;
  }
  for (const pattern of ENGLISH_DATES) {
    const groups = pattern.exec(text)?.groups;
    if (!groups) continue;
    const month = monthOf(groups.month, "en");
    if (month === undefined) return text;
    const day = groups.day && `${parseInt(groups.day, 10)}.`;
    return [day, MONTHS.de[month], groups.year].filter((x) => x).join(" ");
  }
  return text;
}

function englishTime(text: string): string {
  const clock = GERMAN_CLOCK.exec(text);
  if (clock) {
    const [hour, minute] = [parseInt(clock[1], 10), clock[2] ?? clock[3]];
    if (hour > 24 || (minute && parseInt(minute, 10) > 59)) return text;
    if (!minute && hour > 0 && hour <= 12) return `${hour} o'clock`;
    const half = hour >= 12 && hour < 24 ? "p.m." : "a.m.";
    const short = ((hour + 11) % 12) + 1;
    return minute ? `${short}:${minute.padStart(2, "0")} ${half}` : `${short} ${half}`;
  }
  for (const pattern of GERMAN_DATES) {
    const groups = pattern.exec(text)?.groups;
    if (!groups) continue;
    const day = groups.day && parseInt(groups.day, 10);
    const month = monthOf(groups.month, "de");
    if (month === undefined || (groups.day && !(+day > 0 && +day <= 31))) return text;
    const name = MONTHS.en[month];
    let year = groups.year;
    if (!groups.day) return `${name} ${year}`;
    if (year?.length === 2) year = `${parseInt(year, 10) < 50 ? 20 : 19}${year}`;
    return `${name} ${day}${year ? `, ${year}` : ""}`;
  }
  return text;
}

/** Return the index of a month from its name, abbreviation or number. */
function monthOf(name: string, language: string): number | undefined {
  if (/^[0-9]+$/u.test(name)) {
    const number = parseInt(name, 10);
    return number > 0 && number <= 12 ? number - 1 : undefined;
  }
  const usual: Record<string, string> = {
    "J\u00e4nner": "Januar",
    Feber: "Februar",
    Sept: "Sep",
  };
  const begin = usual[name] ?? name;
  const index = MONTHS[language].findIndex(
    (month) => begin.length > 2 && month.startsWith(begin),
  );
  return index < 0 ? undefined : index;
}
