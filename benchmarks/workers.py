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
        "sys.exit(main(sys.argv[1:]))"
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
        rounds, steps: Default numbers of turns, and of timed steps in a turn; there is
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
    """A candidate in its own process; `first` is the time of its first step.

    Args:
        script: File that calls `work` when it is run with `--work name`.
        name: Name of the candidate.
        arguments: Further command-line arguments of the file.
    """

    def __init__(self, script, name, arguments=()):
        self.name = name
        self.times = []
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
            },
        )
        self.first, self.memory = self._answer()

    def run(self, steps):
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        self.times += self._answer()

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


def work(step):
    """Run a candidate: time as many steps as each line of the input requests.

    The first answer is the time of the first step, and by how many bytes steps raise
    the largest memory of the process.
    """
    before = _peak()
    first = timed(step)
    step()
    print(json.dumps([first, _peak() - before]), flush=True)
    for line in sys.stdin:
        step()
        print(json.dumps([timed(step) for _ in range(int(line))]), flush=True)


def take_turns(script, names, rounds, steps, arguments=()):
    """Run all rounds, and return a dict of workers by name."""
    workers = {name: Worker(script, name, arguments) for name in names}
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
