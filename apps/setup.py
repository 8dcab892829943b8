"""The programs have the version of the layers, and require this version.

It stands in keras_attention/version.py, and in PKG-INFO of a source distribution.
"""

import configparser
import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def version():
    source, pattern = HERE / "PKG-INFO", r"(?m)^Version: (.+)$"
    if not source.exists():
        source = HERE.parent / "keras_attention" / "version.py"
        pattern = r'__version__ = "(.+)"'
    return re.search(pattern, source.read_text(encoding="utf-8"))[1]


def requirements():
    configuration = configparser.ConfigParser()
    configuration.read(HERE / "setup.cfg", encoding="utf-8")
    lines = configuration["options"]["install_requires"].split("\n")
    return [line for line in lines if line and not line.startswith("#")]


setup(
    version=version(),
    install_requires=[f"keras-attention-layers=={version()}", *requirements()],
)
