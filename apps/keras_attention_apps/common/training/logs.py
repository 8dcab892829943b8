"""The log of a training: every step and epoch as CSV, and as events of TensorBoard."""

import csv
import io
import itertools
import math
import sys
import time

from keras_attention_apps.common import files
from keras_attention_apps.common.cli import needing
from keras_attention_apps.common.distribution import is_first_host
from keras_attention_apps.common.errors import UserError, reason
from keras_attention_apps.common.training.report import is_epoch, with_warning

# Files in the output of a training, and the folder of TensorBoard's events.
STEPS, EPOCHS, EVENTS = "steps.csv", "epochs.csv", "tensorboard"
# The first columns of both files, which identify them as those of a training.
PLACE = ("step", "phase", "epoch")
STEP_COLUMNS = (*PLACE, "loss", "reward", "learning_rate", "seconds")


def check_logs(output):
    """Raise a `UserError` if a log would replace a file that is none of a training."""
    for path in (output / STEPS, output / EPOCHS):
        files.check_file(path)
        if path.exists() and not _header(path).startswith(",".join(PLACE)):
            raise UserError(
                f"expected an output folder whose {path.name}, if any, is that of a "
                f"training. Received: {str(output)!r}"
            )


def check_tensorboard(wanted):
    """Raise a `UserError` if TensorBoard is wanted, but not installed."""
    if wanted:
        with needing("train"):
            import tensorboard  # noqa: F401


def _header(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.readline(1000)


class Log:
    """The steps and the epochs of a training, in files that a resumed one continues.

    The checkpoint has the number of its steps and epochs: what an interrupted training
    wrote after it is removed, since it is repeated.

    Args:
        output: Folder of the files.
        progress: The `Progress` of the training, whose steps are counted here.
        tensorboard: Whether to write events for TensorBoard, too.

    Attributes:
        rows: A pair for each step: the title of its phase, and its loss and reward.
    """

    def __init__(self, output, progress, *, tensorboard=False):
        self.output, self.progress, self.tensorboard = output, progress, tensorboard
        self.rows, self._steps, self._events = [], None, None
        with with_warning(output / STEPS):
            for row in csv.DictReader(self._lines()):
                values = {x: float(row[x]) for x in ("loss", "reward") if row.get(x)}
                self.rows.append((row["phase"], values))

    def _lines(self):
        """Return the header and the steps before the checkpoint, if there are any."""
        path = self.output / STEPS
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = itertools.islice(io.StringIO(text, newline=""), self.progress.steps + 1)
        return [line for line in lines if line.endswith("\n")]

    def begin(self):
        """Open the files before the first step or epoch, in the first process."""
        if not is_first_host():
            return
        path = self.output / STEPS
        with with_warning(path):
            header = ",".join(STEP_COLUMNS) + "\n"
            lines = [header, *self._lines()[1:]]
            with files.atomic_path(path) as temporary:
                temporary.write_text("".join(lines), encoding="utf-8")
            # Each line is written at once, for those who watch the training.
            self._steps = open(path, "a", encoding="utf-8", newline="", buffering=1)  # noqa: SIM115
        if self.tensorboard:
            with with_warning(self.output / EVENTS):
                first = self.progress.steps + 1 if self.progress.history else 0
                self._events = Events(self.output / EVENTS, first)

    def add_step(self, phase, epoch, values):
        """Add a step of a phase: `values` are those of the columns after `PLACE`."""
        self.progress.steps += 1
        figures = {x: values[x] for x in ("loss", "reward") if x in values}
        self.rows.append((phase, figures))
        if self._steps:
            position = dict(
                zip(PLACE, (self.progress.steps, phase, epoch), strict=True)
            )
            row = {**position, **{name: f"{x:.6g}" for name, x in values.items()}}
            try:
                table = csv.DictWriter(self._steps, STEP_COLUMNS, lineterminator="\n")
                table.writerow(row)
            except OSError as error:
                print(
                    f"Warning: {self.output / STEPS} could not be written: "
                    f"{reason(error)}. It has no further steps",
                    file=sys.stderr,
                )
                self._steps = None
        if self._events:
            self._events.add(self.progress.steps, values, "step")

    def add_epoch(self, phase, metrics):
        """Add an epoch, or another model that was validated."""
        if not is_first_host():
            return
        path = self.output / EPOCHS
        with with_warning(path):
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            # An epoch without a checkpoint is repeated when the training resumes.
            rows = [*csv.DictReader(io.StringIO(text, newline=""))]
            rows = rows[: len(self.progress.history)]
            epoch = sum(row["phase"] == phase for row in rows) + 1
            epoch = epoch if is_epoch(metrics) else ""
            position = dict(
                zip(PLACE, (self.progress.steps, phase, epoch), strict=True)
            )
            rows.append(
                {**position, **{x: f"{value:.6g}" for x, value in metrics.items()}}
            )
            names = dict.fromkeys(name for row in rows for name in row)
            with (
                files.atomic_path(path) as temporary,
                open(temporary, "w", encoding="utf-8", newline="") as file,
            ):
                table = csv.DictWriter(file, names, lineterminator="\n")
                table.writeheader()
                table.writerows(rows)
        if self._events:
            self._events.add(self.progress.steps, metrics, "epoch")
            self._events.flush()

    def close(self):
        for file in filter(None, (self._steps, self._events)):
            file.close()


class Events:
    """Events of TensorBoard; those of an interrupted training from `first` are void."""

    def __init__(self, folder, first):
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(folder), flush_secs=10)
        self._add(step=first, session_log=SessionLog(status=SessionLog.START))
        self.flush, self.close = self._writer.flush, self._writer.close

    def _add(self, **fields):
        self._writer.add_event(self._event(wall_time=time.time(), **fields))

    def add(self, step, values, group):
        """Add values, whose tags begin with their group."""
        scalars = [
            self._summary.Value(tag=f"{group}/{name}", simple_value=value)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        self._add(step=step, summary=self._summary(value=scalars))
