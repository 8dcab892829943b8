"""Names of languages."""

import re

# English names of languages, by their codes.
NAMES = dict(
    re.findall(
        r"(\w+) (\w+)",
        """
        ar Arabic bg Bulgarian bn Bengali ca Catalan cs Czech da Danish de German
        el Greek en English eo Esperanto es Spanish et Estonian eu Basque fa Persian
        fi Finnish fr French ga Irish gl Galician he Hebrew hi Hindi hr Croatian
        hu Hungarian id Indonesian is Icelandic it Italian ja Japanese ko Korean
        lt Lithuanian lv Latvian ms Malay nl Dutch no Norwegian pl Polish
        pt Portuguese ro Romanian ru Russian sk Slovak sl Slovenian sq Albanian
        sr Serbian sv Swedish sw Swahili th Thai tl Tagalog tr Turkish uk Ukrainian
        ur Urdu vi Vietnamese zh Chinese
        """,
    )
)
