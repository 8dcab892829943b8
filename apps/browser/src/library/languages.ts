/** Codes of languages. */

/** Return the code of a target language as a vocabulary spells it: `de` of `deu`. */
export function languageCode(language: string): string {
  try {
    return Intl.getCanonicalLocales(language.replaceAll("_", "-"))[0];
  } catch {
    return language;
  }
}
