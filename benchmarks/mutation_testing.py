"""Mutation check: share of faults in the library or the programs that quick tests find.

Draws a sample of the mutants of `keras_attention/ops`, `layers`, `search` and
`decoder`, or of all modules of the programs. A mutant is one small change of a line by
an operator of cosmic-ray. For every mutant the check runs the quick tests that reach
the changed line, the fastest first, until one fails. With `--choose imports` it runs
the test files that import the changed module instead, the nearest first. Prints how
many mutants were found, and every survivor.

    python -m pip install cosmic-ray coverage
    python benchmarks/mutation_testing.py --mutate library --sample 150 --seed 3
    python benchmarks/mutation_testing.py --mutate programs --choose imports \
        --sample 100 --seed 3

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
import itertools
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
    parser.add_argument(
        "--choose",
        choices=["coverage", "imports"],
        default="coverage",
        help="Tests of a mutant: those that reach its line, or the files that import "
        "its module, the nearest first; no tests are measured then.",
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
        if chosen is None:
            mutants = all_mutants(target.mutated)
            random.Random(options.seed).shuffle(mutants)
            sample = list(itertools.islice(filter(compiles, mutants), options.sample))
            print(f"{len(mutants)} mutants, {len(sample)} sampled", flush=True)
        else:
            sample = [Mutant(**mutant) for mutant in chosen]
        judge = JUDGES[options.choose](target, sample, options)
        fates, waiting = {}, sample
        # After an interrupt, the mutants so far are reported.
        with contextlib.suppress(KeyboardInterrupt):
            while waiting:
                for mutant in waiting:
                    if time.monotonic() - started > 60 * options.minutes:
                        break
                    fates[mutant] = judged(judge, mutant)
                waiting = judge.wrongly_found()
                for mutant in waiting:
                    del fates[mutant]
        if survivors_file:
            survivors = [
                dataclasses.asdict(mutant)
                for mutant, fate in fates.items()
                if fate == "survived"
            ]
            survivors_file.write_text(json.dumps(survivors, indent=1))
        report(collections.Counter(fates.values()), time.monotonic() - started)


def judged(judge, mutant):
    """Return the fate of a mutant, and print it."""
    path = Path(mutant.path)
    before, after = path.read_text("utf-8"), mutated_code(mutant)
    path.write_text(after, "utf-8")
    try:
        fate, reason = judge(mutant)
    finally:
        path.write_text(before, "utf-8")
    report_mutant(mutant, change(before, after), fate, reason)
    return fate


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


def compiles(mutant):
    """Return whether a mutant is Python; some operators change `*` in a signature."""
    try:
        compile(mutated_code(mutant), mutant.path, "exec")
    except SyntaxError:
        return False
    return True


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


def failing_tests(names, *options):
    """Return which tests fail; all of them if pytest cannot run them."""
    plugin = InOrder(names)
    code = run_tests(names, plugin, *options)
    if code == pytest.ExitCode.TESTS_FAILED:
        return plugin.failed
    is_fine = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return set() if is_fine else set(names)


class ByCoverage:
    """Judges a mutant by the quick tests that reach its line, the fastest first."""

    def __init__(self, target, sample, options):
        started = time.monotonic()
        longest = options.longest
        self.reached, self.durations = in_fork(
            measure_tests, target, longest, limit=7200
        )
        leave_out_failing_tests(sample, self.reached, self.durations)
        self.budget = options.budget
        print(
            f"{len(self.durations)} quick tests, {sum(self.durations.values()):.0f} s, "
            f"measured in {(time.monotonic() - started) / 60:.0f} minutes",
            flush=True,
        )

    def wrongly_found(self):
        """Return no mutants: tests that fail without any were left out before."""
        return []

    def __call__(self, mutant):
        """Return "found", "timed out" or "survived", and what was run."""
        names = tests_of(mutant, self.reached, self.durations)
        for batch, seconds in batches(names, self.durations, self.budget):
            limit = SLOWER * seconds + START
            try:
                code = in_fork(run_tests, batch, InOrder(batch), "-x", limit=limit)
            except TimeoutError:
                return "timed out", f"{len(batch)} tests"
            except RuntimeError:
                return "found", "the tests crashed"
            if code:
                return "found", f"one of {len(batch)} tests"
        return "survived", f"{len(names)} tests"


class ByImports:
    """Judges a mutant by the test files that import its module, the nearest first.

    The file with the name of the module is the nearest one. Others are ordered by the
    number of imports from the test to the module. They run up to a budget in all; a
    file that does not end within it finds nothing.
    """

    def __init__(self, target, sample, options):
        self.budget = options.budget
        self.files = nearest_tests(target)
        self.found_by = {}
        self.left_out = set()

    def __call__(self, mutant):
        """Return "found" or "survived", and the test, or what was run."""
        started = time.monotonic()
        files = self.files.get(mutant.path, [])
        options = ("-x", *(f"--deselect={name}" for name in sorted(self.left_out)))
        for count, file in enumerate(files):
            left = self.budget - (time.monotonic() - started)
            if left <= 0:
                return "survived", f"{count} of {len(files)} files"
            try:
                failed = in_fork(failing_tests, [file], *options, limit=left)
            except TimeoutError:
                return "survived", f"{count} of {len(files)} files, and part of another"
            except RuntimeError:
                failed = {file}
            if failed:
                self.found_by[mutant] = min(failed)
                return "found", min(failed)
        return "survived", f"{len(files)} files"

    def wrongly_found(self):
        """Return the mutants that a test found which fails without any, too.

        Such tests are left out from now on.
        """
        names = sorted(set(self.found_by.values()))
        failing = in_fork(failing_tests, names, limit=3600) if names else set()
        for name in failing:
            print(f"Left out: {name}, which fails without any mutant", flush=True)
        self.left_out |= failing
        mutants = [x for x, name in self.found_by.items() if name in failing]
        self.found_by.clear()
        return mutants


JUDGES = {"coverage": ByCoverage, "imports": ByImports}


def nearest_tests(target):
    """Return the test files that import each mutated file, the nearest first."""
    root = Path("apps") if "apps" in target.copied else Path()
    paths = [path for folder in target.mutated for path in Path(folder).rglob("*.py")]
    modules = {}
    for path in paths:
        inner = path.parent if path.stem == "__init__" else path.with_suffix("")
        modules[".".join(inner.relative_to(root).parts)] = path
    imports = {name: imported(path, modules) for name, path in modules.items()}
    nearest = {str(path): [] for path in paths}
    tests = [
        path for folder in target.tests for path in Path(folder).rglob("test_*.py")
    ]
    for test in sorted(tests, key=lambda path: path.stat().st_size):
        seen, names, distance = set(), imported(test, modules), 1
        while names:
            for name in names:
                is_namesake = test.stem == f"test_{modules[name].stem}"
                rank = 0 if is_namesake else distance
                nearest[str(modules[name])].append((rank, str(test)))
            seen |= names
            names = set().union(*(imports[name] for name in names)) - seen
            distance += 1
    return {
        path: [test for _, test in sorted(pairs, key=lambda pair: pair[0])]
        for path, pairs in nearest.items()
    }


def imported(path, modules):
    """Return the names of the modules that a file imports, also in its functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{x.name}" for x in node.names)}
    return names & modules.keys()


def change(before, after):
    """Return the first line that differs, before and after."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    for old, new in pairs:
        if old != new:
            return f"{old.strip()}  ->  {new.strip()}"
    return "lines removed"


def report_mutant(mutant, changed, fate, reason):
    """Print a survivor, or on the standard error how a mutant was found."""
    operator = mutant.operator.split("/")[-1]
    stream = sys.stdout if fate == "survived" else sys.stderr
    print(f"{mutant.path}:{mutant.line}  {operator}  {fate} ({reason})", file=stream)
    print(f"    {changed}", file=stream, flush=True)


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
