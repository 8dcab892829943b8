"""Bulk inference with Ray: no row is lost, and all captions are those of one process.

The clusters are on this machine. Their nodes are processes.
"""

import contextlib
import functools
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_attention_apps.captioner import CaptionBatch, LiteCaptioner
from keras_attention_apps.captioner.main import main
from keras_attention_apps.common import bulk
from keras_attention_apps.common.bulk import Parts
from keras_attention_apps.common.errors import UserError
from keras_attention_apps.common.options import BulkConfig
from keras_attention_apps.nmt import LiteTranslator
from keras_attention_apps.nmt.main import main as nmt

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")
pytest.importorskip("ai_edge_litert")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.exhaustive

COUNT = 23


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Parts of a photograph, and a file that is none."""
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        pixels = rng.integers(0, 256, (3, 4, 3), dtype="uint8")
        Image.fromarray(pixels).resize((64, 48)).save(folder / f"{i:02}.png")
    (folder / "broken.jpg").write_text("broken")
    return folder


@pytest.fixture(scope="module")
def expected(photographs):
    paths = sorted(map(str, photographs.glob("*.png")))
    captioner = LiteCaptioner.from_preset("flickr8k-coco-ensemble", threads=1)
    captions = captioner.caption(paths)
    return {path: x.text for path, x in zip(paths, captions, strict=True)}


@pytest.fixture(scope="module")
def nodes():
    """A cluster of two nodes that work, and a head, to which this process connects."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def caption(photographs, output, actors=1):
    sizes = ["--batch-size", "2", "--part-size", "4", "--actors", str(actors)]
    output = ["--output", str(output), "--engine", "ray"]
    return main(["caption", str(photographs), *output, *sizes])


def rows_of(parts):
    tables = map(parts._read, parts._names())
    return [row for table in tables for row in table.to_pylist()]


def captions(output):
    """The captions in the parts, and a check that no id is there twice."""
    rows = rows_of(Parts(output, CaptionBatch.columns_of(False)))
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["caption"] for row in rows}


def test_stopped_job_goes_on_with_the_same_command(
    nodes, photographs, expected, tmp_path
):
    output = tmp_path / "captions.parquet"
    every = {**expected, str(photographs / "broken.jpg"): None}
    # The broken file is an error of the command, and a row.
    assert caption(photographs, output) == 2
    assert captions(output) == every
    parts = sorted(output.glob("part-*"))
    times = {path: path.stat().st_mtime_ns for path in parts[:3]}
    for path in parts[3:]:
        path.unlink()

    assert caption(photographs, output) == 2

    assert captions(output) == every
    unchanged = [x for x, modified in times.items() if x.stat().st_mtime_ns == modified]
    # The part with the error is written again without it.
    assert len(unchanged) >= 2


def test_damaged_files_are_rows_and_are_tried_again(
    nodes, photographs, expected, tmp_path
):
    paths = list(expected)[:4]
    contents = [open(path, "rb").read() for path in paths]  # noqa: SIM115
    table = pa.table({"id": range(4), "bytes": contents})
    folder = tmp_path / "photographs.parquet"
    folder.mkdir()
    parquet.write_table(table.slice(0, 1), folder / "0.parquet")
    parquet.write_table(table.slice(1, 3), folder / "1.parquet")
    whole = (folder / "1.parquet").read_bytes()
    (folder / "1.parquet").write_bytes(whole[:-20])
    output = tmp_path / "captions.parquet"

    assert caption(folder, output) == 2
    damaged = {str(folder / "1.parquet"): None}
    assert captions(output) == {"0": expected[paths[0]], **damaged}

    (folder / "1.parquet").write_bytes(whole)
    # Everything is finished before the last run.
    for _ in range(2):
        assert caption(folder, output) == 0
        actual = captions(output)
        assert actual == {str(i): expected[path] for i, path in enumerate(paths)}


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (OSError("no space"), "parts"),
        (TypeError("a bug"), "parts"),
        (ValueError("a bug"), "actor"),
    ],
    ids=["file", "bug in a task", "bug in an actor"],
)
def test_only_errors_of_files_are_those_of_the_user(nodes, tmp_path, error, place):
    class Failing(CaptionBatch):
        def __init__(self, **_):
            self.columns = self.columns_of(False)

        def __call__(self, batch):
            if place == "actor":
                raise error
            return {**batch, **{name: [None] for name in self.columns}}

    class FailingParts(Parts):
        def write(self, batch):
            raise error

    parts = FailingParts(tmp_path / "out.jsonl", CaptionBatch.columns_of(False))
    parts.begin({})
    with pytest.raises(
        (UserError, ray.exceptions.RayError), match=str(error)
    ) as raised:
        bulk.run(
            functools.partial(bulk.from_names, ["a"]),
            Failing,
            parts,
            config=BulkConfig(actors=1),
            arguments={"model": "none", "batch_size": 1},
        )
    assert isinstance(raised.value, UserError) == isinstance(error, OSError)


def test_lines_are_translated(nodes, tmp_path):
    lines = ["a dog runs .", "", "two men sit on a bench ."]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    expected = LiteTranslator.from_preset("tatoeba-multi30k-en-de")
    output = tmp_path / "out.jsonl"
    text = ["--input", str(tmp_path / "text.txt"), "--output", str(output)]

    assert nmt(["translate", *text, "--engine", "ray", "--actors", "1"]) == 0

    rows = rows_of(Parts(output, {"translation": str, "error": str}))
    actual = {row["id"]: row["translation"] for row in rows}
    texts = [x.text for x in expected.translate(lines)]
    assert actual == {str(i): text for i, text in enumerate(texts, 1)}


# The last test, since the other ones need both nodes.
@pytest.mark.parametrize("killed", ["actor", "node"])
def test_a_killed_process_changes_nothing(
    nodes, photographs, expected, tmp_path, monkeypatch, killed
):
    marker, output = tmp_path / "killed", tmp_path / "captions.jsonl"
    killing = _killed_once(str(marker), node=killed == "node")

    original = bulk.run_command

    def run_command(program, read, _, *options):
        return original(program, read, killing, *options)

    monkeypatch.setattr(bulk, "run_command", run_command)
    before = dead_nodes()

    assert caption(photographs, output, actors=2) == 2

    assert marker.exists()
    assert captions(output) == {**expected, str(photographs / "broken.jpg"): None}
    assert dead_nodes() == before + (killed == "node")
    if killed == "node":
        nodes.add_node(num_cpus=2)


def dead_nodes():
    return sum(not node["Alive"] for node in ray.nodes())


def _killed_once(marker, node=False):
    """A `CaptionBatch` whose first process, or its node, is killed in a second batch.

    The file `marker` is created before.
    """

    class KilledOnce(CaptionBatch):
        batches = 0

        def rows(self, values):
            self.batches += 1
            if self.batches == 2:
                with contextlib.suppress(FileExistsError):
                    Path(marker).touch(exist_ok=False)
                    os.kill(os.getppid() if node else os.getpid(), signal.SIGKILL)
            return super().rows(values)

    return KilledOnce
