"""Command lines of benchmarks, and candidates that take turns.

Each candidate runs in a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

# Environment variable with the number of cores that the process of a candidate may use.
LIMIT = "BENCHMARK_CORES"

if LIMIT in os.environ and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(os.environ[LIMIT])])

CORES = len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))(0))


def command_line(document):
    """Return an argument parser that prints the docstring of a benchmark as help."""
    return argparse.ArgumentParser(
        description=document, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def program(name, *arguments):
    """Return the command that runs a program, such as `"captioner"`, in this Python."""
    code = (
        f"import sys; from keras_attention_apps.{name}.main import main; "
        "sys.exit(main())"
    )
    return [sys.executable, "-c", code, *map(str, arguments)]


def check_names(parser, names, known):
    """Exit with an error of the parser unless all names are known."""
    if unknown := set(names) - set(known):
        parser.error(
            f"names must be among {', '.join(known)}. "
            f"Received: {', '.join(sorted(unknown))}"
        )


def parse(parser, build_step, *, rounds, steps=None, cases=()):
    """Parse the arguments of a benchmark whose candidates take turns.

    In the process of a candidate, run the candidate and exit.

    Args:
        parser: Argument parser, such as `command_line` returns it.
        build_step: Function from the name of a candidate to the function to time.
        rounds, steps: Default numbers of turns, and of timed steps in a turn. There is
            no option for the steps if they are `None`.
        cases: Names of the cases that a user may choose from, all by default.
    """
    if cases:
        parser.add_argument("cases", nargs="*", help=", ".join(cases))
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="turns of each candidate"
    )
    if steps is not None:
        parser.add_argument(
            "--steps", type=int, default=steps, help="timed steps in a turn"
        )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(build_step(arguments.work))
        sys.exit()
    if cases:
        check_names(parser, arguments.cases, cases)
        arguments.cases = arguments.cases or cases
    return arguments


class Worker:
    """A candidate in its own process.

    Args:
        script: File that calls `work` when it is run with `--work name`.
        name: Name of the candidate.
        arguments: Further command-line arguments of the file.
        cores: Number of cores that it may use; all by default.

    Attributes:
        times, processor_times: Seconds of each step, of the clock and of all threads.
        first: Seconds of the first step.
        memory: Bytes by which steps raise the largest memory of the process.
        settings: Those that the candidate has tried, as of `fastest`.
    """

    def __init__(self, script, name, arguments=(), cores=CORES):
        self.name = name
        self.times, self.processor_times = [], []
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (see close)
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments, "--work", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "-1",
                "KERAS_BACKEND": "tensorflow",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                LIMIT: str(cores),
            },
        )
        self.first, self.memory, self.settings = self._answer()

    def run(self, steps):
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        for seconds, processor_seconds in self._answer():
            self.times.append(seconds)
            self.processor_times.append(processor_seconds)

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            sys.exit(f"{self.name} failed:\n{self._errors.read()}")
        return json.loads(line)


def work(step, settings=()):
    """Run a candidate: time as many steps as each line of the input requests.

    The answers are the attributes of `Worker`, which reads them.

    Args:
        step: Function to time.
        settings: Those that were tried for it, as of `fastest`.
    """
    before = _peak()
    first = timed(step)
    step()
    print(json.dumps([first, _peak() - before, settings]), flush=True)
    for line in sys.stdin:
        step()
        times = []
        for _ in range(int(line)):
            start = time.process_time()
            seconds = timed(step)
            times.append([seconds, time.process_time() - start])
        print(json.dumps(times), flush=True)


def fastest(build, settings):
    """Return the fastest step that a function builds, and the settings that were tried.

    Args:
        build: Function from the options of a setting to a step.
        settings: List of dicts of options.

    Returns:
        The step, and a list of pairs of a setting and its seconds, the fastest first.
    """
    tried = []
    for setting in settings:
        step = build(**setting)
        step()
        seconds = min(timed(step) for _ in range(2 if len(settings) > 1 else 1))
        name = ", ".join(f"{option} {value}" for option, value in setting.items())
        tried.append((seconds, len(tried), step, name))
    tried.sort()
    return tried[0][2], [(name, seconds) for seconds, _, _, name in tried]


def take_turns(script, names, rounds, steps, arguments=(), cores=CORES):
    """Run all rounds, and return a dict of workers by name."""
    workers = {name: Worker(script, name, arguments, cores) for name in names}
    for _ in range(rounds):
        for worker in workers.values():
            worker.run(steps)
    for worker in workers.values():
        worker.close()
    return workers


def timed(step):
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _peak():
    """Return the peak memory of this process in bytes; 0 on Windows."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
