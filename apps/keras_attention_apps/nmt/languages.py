"""Names and codes of languages."""

import re

# English names of languages, by their codes.
NAMES = dict(
    re.findall(
        r"(\w+) (\w+)",
        """
        af Afrikaans am Amharic ar Arabic az Azerbaijani be Belarusian bg Bulgarian
        bn Bengali bs Bosnian ca Catalan cs Czech cy Welsh da Danish de German el Greek
        en English eo Esperanto es Spanish et Estonian eu Basque fa Persian fi Finnish
        fo Faroese fr French ga Irish gl Galician gu Gujarati he Hebrew hi Hindi
        hr Croatian hu Hungarian hy Armenian id Indonesian is Icelandic it Italian
        ja Japanese jv Javanese ka Georgian kk Kazakh km Khmer kn Kannada ko Korean
        la Latin lb Luxembourgish lo Lao lt Lithuanian lv Latvian mk Macedonian
        ml Malayalam mn Mongolian mr Marathi ms Malay mt Maltese nb Norwegian ne Nepali
        nl Dutch no Norwegian oc Occitan pa Punjabi pl Polish ps Pashto pt Portuguese
        ro Romanian ru Russian sa Sanskrit si Sinhala sk Slovak sl Slovenian so Somali
        sq Albanian sr Serbian sv Swedish sw Swahili ta Tamil te Telugu th Thai
        tl Tagalog tr Turkish tt Tatar uk Ukrainian ur Urdu uz Uzbek vi Vietnamese
        xh Xhosa yi Yiddish yo Yoruba zh Chinese zu Zulu
        """,
    )
)
# Codes of languages with two letters (ISO 639-1), by those with three (ISO 639-3). The
# variety that is usually meant counts as its language, and `pob` is that of Brazil.
TWO_LETTERS = dict(
    re.findall(
        r"(\w+) ([\w-]+)",
        """
        aar aa abk ab afr af aka ak als sq amh am ara ar arb ar arg an asm as ava av
        ave ae aym ay aze az azj az bak ba bam bm bel be ben bn bis bi bod bo bos bs
        bre br bul bg cat ca ces cs cha ch che ce chu cu chv cv cmn zh cor kw cos co
        cre cr cym cy dan da deu de div dv dzo dz ekk et ell el eng en epo eo est et
        eus eu ewe ee fao fo fas fa fij fj fil tl fin fi fra fr fry fy ful ff gla gd
        gle ga glg gl glv gv grn gn guj gu hat ht hau ha heb he her hz hin hi hmo ho
        hrv hr hun hu hye hy ibo ig ido io iii ii iku iu ile ie ina ia ind id ipk ik
        isl is ita it jav jv jpn ja kal kl kan kn kas ks kat ka kau kr kaz kk khm km
        kik ki kin rw kir ky kom kv kon kg kor ko kua kj kur ku lao lo lat la lav lv
        lim li lin ln lit lt ltz lb lub lu lug lg lvs lv mah mh mal ml mar mr mkd mk
        mlg mg mlt mt mon mn mri mi msa ms mya my nau na nav nv nbl nr nde nd ndo ng
        nep ne nld nl nno nn nob nb nor no npi ne nya ny oci oc oji oj ori or orm om
        oss os pan pa pes fa pli pi pob pt-BR pol pl por pt pus ps que qu roh rm ron ro
        run rn rus ru sag sg san sa sin si slk sk slv sl sme se smo sm sna sn snd sd
        som so sot st spa es sqi sq srd sc srp sr ssw ss sun su swa sw swe sv swh sw
        tah ty tam ta tat tt tel te tgk tg tgl tl tha th tir ti ton to tsn tn tso ts
        tuk tk tur tr twi tw uig ug ukr uk urd ur uzb uz uzn uz ven ve vie vi vol vo
        wln wa wol wo xho xh yid yi yor yo zha za zho zh zsm ms zul zu
        """,
    )
)


def code_of(token: str) -> str:
    """Return the code of the target language that a multilingual model spells so.

    It has two letters where the language has such a code, and may name a script or a
    region.

    >>> [code_of(x) for x in ("deu", "de", "srp_Cyrl", "pt_br", "nds")]
    ['de', 'de', 'sr-Cyrl', 'pt-BR', 'nds']
    """
    language, *parts = re.split("[-_]", token)
    # A region has two letters, a script four.
    parts = [x.upper() if len(x) == 2 else x.capitalize() for x in parts]
    language = language.lower()
    return "-".join([TWO_LETTERS.get(language, language), *parts])


def language_name(code: str) -> str:
    """Return the English name of a language; of an unknown one, its code.

    >>> language_name("de"), language_name("sr-Cyrl"), language_name("xyz")
    ('German', 'Serbian (Cyrl)', 'xyz')
    """
    language, _, part = code.partition("-")
    if language not in NAMES:
        return code
    return f"{NAMES[language]} ({part})" if part else NAMES[language]
