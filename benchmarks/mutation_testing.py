"""Mutation check: share of faults in the library or the programs that quick tests find.

Draws a sample of the mutants of `keras_attention/ops`, `layers`, `search` and
`decoder`, or of all modules of the programs. A mutant is one small change of a line by
an operator of cosmic-ray. For every mutant the check runs the quick tests that reach
the changed line, the fastest first, until one fails. Prints how many mutants were
found, and every survivor.

    python -m pip install cosmic-ray coverage
    python benchmarks/mutation_testing.py --mutate library --sample 150 --seed 3
    python benchmarks/mutation_testing.py --mutate programs --sample 100 --seed 3

A mutant is found if a test fails or exceeds its time limit. If the tests of a mutant
take more than `--budget` seconds together, the slowest are left out, so a survivor may
be a mutant that only a slow test finds. `--survivors` writes the survivors to a file,
and `--mutants` reads them, to check them on another backend or with new tests.

Nothing is written to the repository: tests run in a copy, with temporary files of their
own, in processes forked from one that has imported Keras.
"""

import ast
import collections
import contextlib
import dataclasses
import gc
import importlib
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
import workers

ROOT = Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Target:
    """A part of the repository: the folders that are mutated, and their tests."""

    mutated: tuple[str, ...]
    tests: tuple[str, ...]
    # What the tests need beside `keras_attention` and `tests`.
    copied: tuple[str, ...]
    # Modules that are imported before the tests, once.
    imported: tuple[str, ...]
    backend: str


TARGETS = {
    "library": Target(
        mutated=tuple(
            f"keras_attention/{name}" for name in ("ops", "layers", "search", "decoder")
        ),
        tests=tuple(
            f"tests/keras_attention/{name}"
            for name in (
                *("ops", "search", "decoder", "layers", "losses"),
                *("test_loops.py", "test_encoder.py", "test_split_cells.py"),
            )
        ),
        copied=(),
        imported=("hypothesis", "keras"),
        backend="torch",
    ),
    "programs": Target(
        mutated=tuple(
            f"apps/keras_attention_apps/{name}"
            for name in ("captioner", "nmt", "common")
        ),
        tests=tuple(f"tests/apps/{name}" for name in ("captioner", "nmt", "common")),
        copied=("apps", "benchmarks", "docs"),
        imported=("hypothesis", "keras", "PIL.Image", "sacrebleu", "sentencepiece"),
        backend="tensorflow",
    ),
}
# Tests that run together before the next ones start, in seconds.
BATCH = 3.0
# A mutant may take longer than the tests did: this factor, and seconds for the start.
SLOWER, START = 5, 60
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of a file: an operator of cosmic-ray at one of its positions."""

    path: str
    line: int
    operator: str
    occurrence: int


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("--mutate", choices=TARGETS, default="library")
    parser.add_argument("--sample", type=int, default=150, help="Number of mutants.")
    parser.add_argument("--seed", type=int, default=1, help="Random seed.")
    parser.add_argument(
        "--backend",
        choices=["tensorflow", "jax", "torch"],
        help="Backend of Keras; by default torch for the library, else tensorflow.",
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=60.0,
        help="Maximum duration of the tests of a mutant, in seconds.",
    )
    parser.add_argument(
        "--longest",
        type=float,
        default=5.0,
        help="Maximum duration of a test, in seconds; slower ones are left out.",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=120.0,
        help="Time after which no further mutant is tried.",
    )
    parser.add_argument("--survivors", type=Path, help="JSON file to write.")
    parser.add_argument("--mutants", type=Path, help="JSON file to read the sample of.")
    options = parser.parse_args()
    target = TARGETS[options.mutate]
    os.environ["KERAS_BACKEND"] = options.backend or target.backend
    # A stale .pyc file is used if a mutant has the same size and time of writing.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    chosen = json.loads(options.mutants.read_text("utf-8")) if options.mutants else None
    survivors_file = options.survivors and options.survivors.absolute()
    with tempfile.TemporaryDirectory() as folder:
        enter_copy(Path(folder), target)
        # Forked processes share these modules; the code itself is imported by each.
        for module in target.imported:
            importlib.import_module(module)
        gc.collect()
        gc.freeze()

        started = time.monotonic()
        reached, durations = in_fork(measure_tests, target, options.longest, limit=7200)
        if chosen is None:
            mutants = all_mutants(target.mutated)
            size = min(options.sample, len(mutants))
            sample = random.Random(options.seed).sample(mutants, size)
            print(f"{len(mutants)} mutants, {size} sampled", flush=True)
        else:
            sample = [Mutant(**mutant) for mutant in chosen]
        leave_out_failing_tests(sample, reached, durations)
        print(
            f"{len(durations)} quick tests, {sum(durations.values()):.0f} s, "
            f"measured in {(time.monotonic() - started) / 60:.0f} minutes",
            flush=True,
        )
        fates, survivors = collections.Counter(), []
        # After an interrupt, the mutants so far are reported.
        with contextlib.suppress(KeyboardInterrupt):
            for mutant in sample:
                if time.monotonic() - started > 60 * options.minutes:
                    break
                result = judged(mutant, reached, durations, options.budget)
                fates[result[2]] += 1
                report_survivor(*result)
                if result[2] == "survived":
                    survivors.append(dataclasses.asdict(mutant))
        if survivors_file:
            survivors_file.write_text(json.dumps(survivors, indent=1))
        report(fates, time.monotonic() - started)


def enter_copy(folder, target):
    """Copy what the tests need, and work there; Python imports the code from it."""
    ignored = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in ("keras_attention", "tests", *target.copied):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "setup.cfg", folder)
    if "apps" not in target.copied:
        (folder / "apps").symlink_to(ROOT / "apps")
    # A mutant may delete temporary files, or files of its user.
    for variable in ("TMPDIR", "XDG_CACHE_HOME"):
        (folder / variable).mkdir()
        os.environ[variable] = str(folder / variable)
    tempfile.tempdir = None
    # Instead of the folder of this script.
    sys.path[:1] = [str(folder), str(folder / "apps")]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    os.chdir(folder)


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


def run_tests(names, plugin, *options):
    """Run tests without any output and return the exit code of pytest."""
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    # Assertions are not rewritten, which would take longer than most tests.
    options += ("--assert", "plain", "--rootdir", ".")
    options += ("-p", "no:cacheprovider", "-p", "no:warnings")
    return int(pytest.main([*options, *names], plugins=[plugin]))


class Recorder:
    """Plugin of pytest: the lines that each test reaches, and its duration.

    A test that takes longer than `longest` seconds, without its fixtures, fails.
    """

    def __init__(self, coverage, longest):
        self.coverage = coverage
        self.longest = longest
        self.durations = collections.Counter()
        self.failed = set()

    def pytest_runtest_logstart(self, nodeid):
        self.coverage.switch_context(nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self):
        signal.signal(signal.SIGALRM, _raise_timeout)
        signal.setitimer(signal.ITIMER_REAL, self.longest)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def pytest_runtest_logreport(self, report):
        self.durations[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


class InOrder:
    """Plugin of pytest: runs tests in the order of their names, and notes failures."""

    def __init__(self, names):
        self.ranks = {name: rank for rank, name in enumerate(names)}
        self.failed = set()

    def pytest_collection_modifyitems(self, items):
        items.sort(key=lambda item: self.ranks.get(item.nodeid, len(self.ranks)))

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed.add(report.nodeid)


def measure_tests(target, longest):
    """Return the tests that reach each line, by file and line, and their durations.

    Tests that fail without any mutant, or take more than `longest` seconds, are left
    out.
    """
    import coverage

    sources = [str(Path(folder).resolve()) for folder in target.mutated]
    measured = coverage.Coverage(data_file=None, source_dirs=sources)
    recorder = Recorder(measured, longest)
    measured.start()
    run_tests(target.tests, recorder)
    measured.stop()
    data = measured.get_data()
    reached = {}
    for path in data.measured_files():
        relative = str(Path(path).relative_to(Path.cwd().resolve()))
        # The empty context is the import, before the first test.
        reached[relative] = {
            line: {name for name in names if name} - recorder.failed
            for line, names in data.contexts_by_lineno(path).items()
        }
    passed = recorder.durations.keys() - recorder.failed
    return reached, {name: recorder.durations[name] for name in passed}


def all_mutants(folders):
    """Return the mutants of all files in the folders, in a fixed order."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    names = sorted(plugins.operator_names())
    operators = {name: plugins.get_operator(name) for name in names}
    mutants = []
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            nodes = list(ast_nodes(get_ast(path.read_text("utf-8"))))
            for name, operator in operators.items():
                if operator.arguments():
                    continue
                positions = [
                    start
                    for node in nodes
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
    return mutate_code(
        Path(mutant.path).read_text("utf-8"), operator, mutant.occurrence
    )


def tests_of(mutant, reached, durations):
    """Return the tests that reach the statement of a mutant, the quickest first.

    A default or a decorator belongs to its function; a line that only the import of its
    module reaches belongs to the whole module.
    """
    lines = reached.get(mutant.path, {})
    for extent in extents(Path(mutant.path).read_text("utf-8"), mutant.line):
        names = set().union(*(lines.get(line, ()) for line in extent))
        names &= durations.keys()
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
        is_function = isinstance(node, FUNCTIONS)
        body = getattr(node, "body", None)
        if is_function and line >= body[0].lineno:
            inside = True
        # The walk goes from the outside to the inside, so the last one is innermost.
        statement = node, range(first, body[0].lineno if body else node.end_lineno + 1)
    if statement is None:
        return
    node, header = statement
    if isinstance(node, FUNCTIONS):
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


def leave_out_failing_tests(sample, reached, durations):
    """Remove tests from `durations` that fail without any mutant when run by name.

    The first tests of each mutant run, in the order of their durations.

    Raises:
        SystemExit: If half of all tests, or of these, fail.
    """
    names = {
        name for mutant in sample for name in tests_of(mutant, reached, durations)[:3]
    }
    names = sorted(names, key=durations.get)
    failed = in_fork(failing_tests, names, limit=1800) if names else names
    if not names or 2 * len(failed) > len(names):
        raise SystemExit(
            f"Without any mutant, {len(failed)} of {len(names)} quick tests fail that "
            f"reach the mutants; {len(durations)} pass in the whole suite."
        )
    for name in failed:
        print(f"Left out, since it fails without any mutant: {name}")
        del durations[name]


def failing_tests(names):
    plugin = InOrder(names)
    code = run_tests(names, plugin)
    have_run = code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    return plugin.failed if have_run else names


def judged(mutant, reached, durations, budget):
    """Return a mutant, its change, and "found", "timed out" or "survived"."""
    names = tests_of(mutant, reached, durations)
    path = Path(mutant.path)
    before, after = path.read_text("utf-8"), mutated_code(mutant)
    path.write_text(after, "utf-8")
    try:
        fate = "survived"
        for batch, seconds in batches(names, durations, budget):
            limit = SLOWER * seconds + START
            code = in_fork(run_tests, batch, InOrder(batch), "-x", limit=limit)
            if code:
                fate = "found"
                break
    except TimeoutError:
        fate = "timed out"
    except RuntimeError:
        # The tests have crashed.
        fate = "found"
    finally:
        path.write_text(before, "utf-8")
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
