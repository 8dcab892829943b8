"""Mutation check: share of faults in the library that the quick tests find.

Draws a sample of the mutants of `keras_attention/ops`, `layers`, `search` and
`decoder`, each one small change of a line by an operator of cosmic-ray. For every
mutant it runs the quick tests that reach the changed line, the fastest first, until one
fails. Prints how many mutants were found, and every survivor.

    python -m pip install cosmic-ray coverage
    python benchmarks/mutation_testing.py --sample 300 --seed 1 --backend torch

A mutant is found if a test fails or exceeds its time limit. If the tests of a mutant
take more than `--budget` seconds together, the slowest are left out, so a survivor may
be a mutant that only a slow test finds. Nothing is written to the repository: tests run
in a copy, in processes forked from one that has imported Keras.
"""

import ast
import collections
import contextlib
import dataclasses
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import workers

ROOT = Path(__file__).parents[1]
MUTATED = "ops", "layers", "search", "decoder"
TESTS = [
    *("ops", "search", "decoder", "layers", "losses"),
    *("test_loops.py", "test_encoder.py", "test_split_cells.py"),
]
# Tests that run together before the next ones start, in seconds.
BATCH = 3.0
# A mutant may take longer than the tests did: this factor, and seconds for the start.
SLOWER, START = 5, 30


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of a file: an operator of cosmic-ray at one of its positions."""

    path: str
    line: int
    operator: str
    occurrence: int


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("--sample", type=int, default=300, help="Number of mutants.")
    parser.add_argument("--seed", type=int, default=1, help="Random seed.")
    parser.add_argument(
        "--backend", default="torch", choices=["tensorflow", "jax", "torch"]
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=60.0,
        help="Maximum duration of the tests of a mutant, in seconds.",
    )
    options = parser.parse_args()
    os.environ["KERAS_BACKEND"] = options.backend
    # A stale .pyc file is used if a mutant has the same size and time of writing.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        os.chdir(folder)
        # Forked processes share these modules; the library itself is imported by each.
        import hypothesis  # noqa: F401
        import keras  # noqa: F401
        import pytest  # noqa: F401

        started = time.monotonic()
        reached, durations = in_fork(measure_tests, limit=3600)
        if not durations:
            raise SystemExit("The quick suite fails without any mutant.")
        mutants = all_mutants()
        sample = random.Random(options.seed).sample(
            mutants, min(options.sample, len(mutants))
        )
        check_names(sample, reached, durations)
        print(
            f"{len(durations)} quick tests, {sum(durations.values()):.0f} s; "
            f"{len(mutants)} mutants, {len(sample)} sampled",
            flush=True,
        )
        fates = collections.Counter()
        # After an interrupt, the mutants so far are reported.
        with contextlib.suppress(KeyboardInterrupt):
            for mutant in sample:
                result = judged(mutant, reached, durations, options.budget)
                fates[result[2]] += 1
                report_survivor(*result)
        report(fates, time.monotonic() - started)


def copy_tree(folder):
    """Copy what the tests need; Python imports the library from this copy."""
    for name in ("keras_attention", "tests"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "setup.cfg", folder)
    (folder / "keras_attention_apps").symlink_to(ROOT / "apps/keras_attention_apps")
    # Instead of the folder of this script.
    sys.path[0] = str(folder)
    os.environ["PYTHONPATH"] = str(folder)


def in_fork(function, *arguments, limit):
    """Return the result of a function in a process of its own.

    Raises:
        TimeoutError: If it takes longer than `limit` seconds. Its process ends, and all
            processes that it has started.
        RuntimeError: If the process ends without a result.
    """
    receiver, sender = os.pipe()
    process = os.fork()
    if not process:
        os.setsid()
        os.close(receiver)
        try:
            result = pickle.dumps(function(*arguments))
            with os.fdopen(sender, "wb") as stream:
                stream.write(result)
        finally:
            os._exit(0)
    os.close(sender)
    signal.signal(signal.SIGALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        with os.fdopen(receiver, "rb") as stream:
            result = stream.read()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # Where the process has not come as far as its own group, it is on its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    if not result:
        raise RuntimeError("a process of tests ended without a result")
    return pickle.loads(result)


def _raise_timeout(number, frame):
    raise TimeoutError


def run_tests(names, plugin=None):
    """Run tests without any output and return the exit code of pytest."""
    import pytest

    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    options = ["-x", "-p", "no:cacheprovider", "-p", "no:warnings", "--rootdir", "."]
    return int(pytest.main([*options, *names], plugins=[plugin] if plugin else []))


class Recorder:
    """Plugin of pytest: the lines that each test reaches, and its duration."""

    def __init__(self, coverage):
        self.coverage = coverage
        self.durations = collections.Counter()

    def pytest_runtest_logstart(self, nodeid):
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        self.durations[report.nodeid] += report.duration


class InOrder:
    """Plugin of pytest: tests run in a given order."""

    def __init__(self, names):
        self.places = {name: place for place, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: self.places.get(item.nodeid, len(self.places)))


def measure_tests():
    """Return the tests that reach each line, by file and line, and their durations."""
    import coverage

    measured = coverage.Coverage(data_file=None, source=["keras_attention"])
    recorder = Recorder(measured)
    measured.start()
    code = run_tests([f"tests/keras_attention/{name}" for name in TESTS], recorder)
    measured.stop()
    if code:
        return {}, {}
    data = measured.get_data()
    reached = {}
    for path in data.measured_files():
        relative = str(Path(path).relative_to(Path.cwd().resolve()))
        # The empty context is the import, before the first test.
        reached[relative] = {
            line: {name for name in names if name}
            for line, names in data.contexts_by_lineno(path).items()
        }
    return reached, dict(recorder.durations)


def all_mutants():
    """Return the mutants of all mutated files, in a fixed order."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    mutants = []
    for package in MUTATED:
        for path in sorted(Path("keras_attention", package).rglob("*.py")):
            tree = get_ast(path.read_text())
            for name in sorted(plugins.operator_names()):
                operator = plugins.get_operator(name)
                if operator.arguments():
                    continue
                positions = [
                    start
                    for node in ast_nodes(tree)
                    for start, _ in operator().mutation_positions(node)
                ]
                for occurrence, (line, _) in enumerate(positions):
                    mutants.append(Mutant(str(path), line, name, occurrence))
    return mutants


def mutated_code(mutant):
    """Return the source of a file with a mutant."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    operator = plugins.get_operator(mutant.operator)()
    return mutate_code(Path(mutant.path).read_text(), operator, mutant.occurrence)


def tests_of(mutant, reached, durations):
    """Return the tests that reach the statement of a mutant, the quickest first.

    A default or a decorator belongs to its function; a line that only the import of its
    module reaches belongs to the whole module.
    """
    lines = reached.get(mutant.path, {})
    for extent in extents(Path(mutant.path).read_text(), mutant.line):
        names = set().union(*(lines.get(line, ()) for line in extent))
        if names:
            return sorted(names, key=durations.get)
    return []


def extents(source, line):
    """Yield the lines of a statement, and those in which its effect shows.

    Statements within functions have one extent only: if no test reaches it, none can
    find the mutant. The signature of a function is followed by its body, and
    statements of modules and classes by the whole file.
    """
    statement, inside = None, False
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        first = min([node.lineno, *(x.lineno for x in decorators(node))])
        if not first <= line <= node.end_lineno:
            continue
        is_function = isinstance(node, ast.FunctionDef)
        body = getattr(node, "body", None)
        if is_function and line >= body[0].lineno:
            inside = True
        # The walk goes from the outside to the inside, so the last one is innermost.
        statement = node, range(first, body[0].lineno if body else node.end_lineno + 1)
    if statement is None:
        return
    node, header = statement
    if isinstance(node, ast.FunctionDef):
        yield range(node.body[0].lineno, node.end_lineno + 1)
    elif inside:
        yield header if line in header else range(line, line + 1)
    if not inside:
        yield range(1, len(source.splitlines()) + 1)


def decorators(node):
    return getattr(node, "decorator_list", [])


def batches(names, durations, budget):
    """Yield lists of tests of a few seconds, up to a budget in all."""
    batch, seconds, total = [], 0.0, 0.0
    for name in names:
        if total + durations[name] > budget and total:
            break
        batch.append(name)
        seconds += durations[name]
        total += durations[name]
        if seconds > BATCH:
            yield batch, seconds
            batch, seconds = [], 0.0
    if batch:
        yield batch, seconds


def check_names(sample, reached, durations):
    """Exit if tests fail without any mutant when they run by name, in their order."""
    names = {
        name for mutant in sample for name in tests_of(mutant, reached, durations)[:3]
    }
    names = sorted(names, key=durations.get)
    if in_fork(run_tests, names, InOrder(names), limit=600):
        raise SystemExit("Tests fail without any mutant when they run by name.")


def judged(mutant, reached, durations, budget):
    """Return a mutant, its change, and "found", "timed out" or "survived"."""
    names = tests_of(mutant, reached, durations)
    path = Path(mutant.path)
    before, after = path.read_text(), mutated_code(mutant)
    path.write_text(after)
    try:
        fate = "survived"
        for batch, seconds in batches(names, durations, budget):
            limit = SLOWER * seconds + START
            code = in_fork(run_tests, batch, InOrder(batch), limit=limit)
            if code:
                fate = "found"
                break
    except TimeoutError:
        fate = "timed out"
    except RuntimeError:
        # The tests have crashed.
        fate = "found"
    finally:
        path.write_text(before)
    return mutant, change(before, after), fate, len(names)


def change(before, after):
    """Return the first line that differs, before and after."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    for old, new in pairs:
        if old != new:
            return f"{old.strip()}  ->  {new.strip()}"
    return "lines removed"


def report_survivor(mutant, changed, fate, count):
    """Print a mutant that no test has found."""
    if fate == "survived":
        operator = mutant.operator.split("/")[-1]
        print(f"{mutant.path}:{mutant.line}  {operator}  ({count} tests)")
        print(f"    {changed}", flush=True)


def report(fates, seconds):
    """Print how many mutants were found."""
    count, killed = fates.total(), fates["found"] + fates["timed out"]
    print(
        f"{count} mutants in {seconds / 60:.0f} minutes: {killed} found "
        f"({fates['timed out']} of them timed out), {fates['survived']} survived; "
        f"{100 * killed / max(count, 1):.1f} % found"
    )


if __name__ == "__main__":
    main()
