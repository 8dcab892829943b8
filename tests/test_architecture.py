import ast
import configparser
import graphlib
import importlib.util
import os
import re
import sys
import zlib
from pathlib import Path

import pytest

from attention_testing.repository import ROOT, read

LIBRARY, APPS = "keras_attention", "keras_attention_apps"

# Parts of the library that do not depend on attention.
BASICS = {"backends", "loops", "serialization", "sizes", "typing", "validation"}

# What each part of the library may import of the library, besides itself.
BELOW = {
    "version": set(),
    "typing": set(),
    "validation": {"typing", "sizes"},
    "sizes": {"typing"},
    "serialization": {"typing", "validation", "sizes"},
    "backends": {"typing", "sizes"},
    "distribution": set(),
    "loops": {"backends", "sizes", "typing"},
    "ops": {"loops", "backends", "sizes", "typing"},
    "layers": BASICS | {"ops"},
    "split_cells": BASICS | {"ops", "layers"},
    "encoder": BASICS | {"ops", "layers", "split_cells"},
    "decoder": BASICS | {"ops", "layers", "split_cells"},
    "search": BASICS | {"ops"},
    "losses": BASICS | {"ops"},
    "metrics": BASICS | {"losses"},
    "litert": {"litert_operators", "litert_quantization", "backends", "typing"},
    "litert_operators": {"typing"},
    "litert_quantization": {"litert_operators", "litert_rounding"},
    "litert_rounding": set(),
    "plots": set(),
    "word_vectors": set(),
}

# Where TensorFlow may be imported, and whether at the top of the file.
TENSORFLOW = {
    f"{LIBRARY}.backends": False,
    f"{LIBRARY}.litert": False,
    f"{LIBRARY}.litert_operators": False,
    f"{LIBRARY}.loops": False,
    f"{APPS}.common.export": True,
    f"{APPS}.common.distribution": False,
    f"{APPS}.captioner.commands.export": True,
    f"{APPS}.nmt.commands.export": True,
}


def folder_of(package):
    (folder,) = importlib.util.find_spec(package).submodule_search_locations
    return Path(folder)


def source_files(package):
    """Yield the dotted name and the syntax tree of every module of a package."""
    folder = folder_of(package)
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join([package, *parts]).removesuffix(".__init__")
        yield name, ast.parse(path.read_text(encoding="utf-8"))


def imports_of(node, inside_function=False):
    """Yield every name that is imported below a node, and whether within a function.

    Both `import a.b` and `from a import b` import the name `a.b`.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield alias.name, inside_function
        elif isinstance(child, ast.ImportFrom):
            # A relative import starts with dots, which no rule allows.
            module = "." * child.level + (child.module or "")
            for alias in child.names:
                yield f"{module}.{alias.name}", inside_function
        function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imports_of(child, inside_function or function)


IMPORTS = [
    (module, imported, inside_function)
    for package in (LIBRARY, APPS)
    for module, tree in source_files(package)
    for imported, inside_function in imports_of(tree)
]


def within(name, package):
    return f"{name}.".startswith(f"{package}.")


def part(name, package):
    """Return the part of a package, such as `"layers"`, to which a name belongs."""
    return name.removeprefix(f"{package}.").split(".")[0]


def arrows(start, end):
    """Return the imports from the modules of one package to names of another."""
    return [
        (module, imported)
        for module, imported, _ in IMPORTS
        if within(module, start) and within(imported, end)
    ]


def public_names():
    trees = dict(source_files(LIBRARY))
    (names,) = [
        ast.literal_eval(node.value)
        for node in trees[LIBRARY].body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    ]
    return names


def test_every_part_of_the_library_has_its_place():
    parts = {part(name, LIBRARY) for name, _ in source_files(LIBRARY)} - {LIBRARY}

    assert parts == set(BELOW)


def test_arrows_of_the_library_point_one_way():
    for module, imported in arrows(LIBRARY, LIBRARY):
        if module != LIBRARY:
            start = part(module, LIBRARY)
            # A name that is no part belongs to the public API, which imports all parts.
            assert part(imported, LIBRARY) in {start, *BELOW[start]}, (module, imported)


def test_library_does_not_know_the_programs():
    assert arrows(LIBRARY, APPS) == arrows(LIBRARY, "apps") == []


def test_programs_import_the_public_api_only():
    allowed = {f"{LIBRARY}.{name}" for name in public_names()}

    assert [x for x in arrows(APPS, LIBRARY) if x[1] not in allowed] == []


def test_programs_do_not_know_each_other():
    for module, imported in arrows(APPS, APPS):
        program = part(module, APPS)
        assert part(imported, APPS) in ("common", program), (module, imported)


def test_common_code_imports_no_program():
    common = f"{APPS}.common"

    assert [x for x in arrows(common, APPS) if not within(x[1], common)] == []


def module_of(name):
    """Return the module to which an imported name belongs, or `None`."""
    while name not in MODULES and name:
        name = name.rpartition(".")[0]
    return name or None


MODULES = {name for package in (LIBRARY, APPS) for name, _ in source_files(package)}


def imported_modules(*, inside_functions):
    """Return a dict from every module of ours to those of ours that it imports."""
    imports = {name: set() for name in MODULES}
    for module, imported, inside_function in IMPORTS:
        if inside_functions or not inside_function:
            imports[module].add(module_of(imported))
    return {module: names - {module, None} for module, names in imports.items()}


def test_no_modules_of_the_programs_import_each_other():
    # Imports inside functions count, too: a circle is a circle whenever it closes.
    graph = {
        module: {name for name in names if within(name, APPS)}
        for module, names in imported_modules(inside_functions=True).items()
        if within(module, APPS)
    }

    list(graphlib.TopologicalSorter(graph).static_order())


def test_imports_inside_functions_defer_packages_that_are_not_loaded_yet():
    imported_at_start = imported_modules(inside_functions=False)
    packages = {name: set() for name in MODULES}
    for module, imported, inside_function in IMPORTS:
        if module_of(imported) is None and not inside_function:
            packages[module].add(imported.partition(".")[0])

    def loaded(module):
        """Return the packages of others that the import of a module loads."""
        waiting, seen, modules = [module], set(), set()
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += imported_at_start[name]
                modules |= packages[name]
        return modules - sys.stdlib_module_names

    needless = [
        (module, imported)
        for module, imported, inside_function in IMPORTS
        if inside_function and (own_name := module_of(imported)) is not None
        if within(module, APPS) and not loaded(own_name) - loaded(module)
    ]
    assert needless == []


def test_every_import_is_absolute():
    assert [(module, name) for module, name, _ in IMPORTS if name[0] == "."] == []
    assert arrows(APPS, "apps") == []


def test_tensorflow_stays_where_it_belongs():
    for module, imported, inside_function in IMPORTS:
        if within(imported, "tensorflow"):
            assert module in TENSORFLOW, (module, imported)
            assert TENSORFLOW[module] or inside_function, (module, imported)


def test_jax_is_imported_for_several_hosts_only():
    imports = [x for x in IMPORTS if within(x[1], "jax")]

    assert {(module, inside) for module, _, inside in imports} == {
        (f"{APPS}.common.distribution", True)
    }


def test_pytorch_is_never_imported():
    assert [x for x in IMPORTS if within(x[1], "torch")] == []


def test_matplotlib_is_imported_inside_functions_only():
    imports = [x for x in IMPORTS if within(x[1], "matplotlib")]

    assert imports
    assert [x for x in imports if not x[2]] == []


def test_the_page_on_the_architecture_names_files_and_names_that_exist():
    page = read("docs/architecture.md")
    file = r"`((?:apps/keras_attention_apps|keras_attention)/[\w/]+\.py)`"
    files = re.findall(file, page)
    names = re.findall(rf"`(\w+)` of {file}", page)

    assert files and names
    assert [x for x in files if not (ROOT / x).is_file()] == []
    assert [x for x in names if x[0] not in read(x[1])] == []


# Where code may depend on the backend: the operations that differ, the loop, and the
# conversion to LiteRT, which names the backend that it needs.
DIFFERENCES = {"backends", "loops", "litert"}


def test_equations_ask_for_no_backend():
    asked = ("keras.backend.backend(", "is_symbol(", "traces_for_cpu(", "sys._getframe")
    modules = set()
    for path in folder_of(LIBRARY).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        modules |= {path.stem for name in asked if name in text}

    assert modules == DIFFERENCES


def test_private_parts_of_keras_are_left_alone():
    assert [x for x in IMPORTS if within(x[1], "keras.src")] == []


SETUP = {LIBRARY: "setup.cfg", APPS: "apps/setup.cfg"}


def read_setup(package):
    setup = configparser.ConfigParser()
    setup.read_string(read(SETUP[package]))
    return setup


def test_every_folder_with_modules_is_a_package_that_is_installed():
    for package in (LIBRARY, APPS):
        folders = {path.parent for path in folder_of(package).rglob("*.py")}
        assert [x for x in folders if not (x / "__init__.py").exists()] == []
        patterns = read_setup(package)["options.packages.find"]["include"]
        assert patterns == f"{package}, {package}.*"


def test_every_data_file_is_installed():
    missing = []
    for package in (LIBRARY, APPS):
        patterns = read_setup(package)["options.package_data"]
        folder = folder_of(package)
        for path in folder.rglob("*"):
            if path.is_dir() or path.suffix == ".py" or "__pycache__" in path.parts:
                continue
            # The folder of its package: folders of presets are no packages.
            home = next(x for x in path.parents if (x / "__init__.py").exists())
            parts = home.relative_to(folder).parts
            name = path.relative_to(home)
            suffixes = patterns.get(".".join([package, *parts]), "").split()
            if not any(name.match(pattern) for pattern in suffixes):
                missing.append(str(path))

    assert missing == []


@pytest.mark.parametrize(("package", "limit"), [(LIBRARY, 0.5e6), (APPS, 90e6)])
def test_wheels_stay_below_their_limits(package, limit):
    """A package index takes files of up to 100 MB; models are most of the programs."""
    size = 0
    for folder, _, names in os.walk(folder_of(package), followlinks=True):
        for path in (Path(folder, name) for name in names):
            content = path.read_bytes() if path.suffix != ".pyc" else b""
            # Weights in .npz are compressed already.
            size += min(len(content), len(zlib.compress(content, 1)))

    assert size < limit
