"""Latency of captioning one image, by stage and by runtime.

Prints three tables of medians.

Cold: the command `captioner caption PHOTO --runtime keras` in a fresh process, from
start to end, and the stages of the same work, in other fresh processes. The remainder
is the start and the end of Python.

Warm: repeated calls of `Captioner.caption` in one process, from the path of the file to
the text, and the parts of a call. The search alone starts from features; the time of
the CNN is the difference between a search from pixels and one from features. The
remainder converts the result to words and maps.

By runtime: warm calls of Keras, of the LiteRT file, and of ONNX Runtime in float32 and
int8 with our network and search, converted by tf2onnx. They take turns, and LiteRT and
ONNX Runtime run with one thread and with one for each core. Models without a LiteRT
file lack this table; ONNX Runtime needs `pip install onnxruntime tf2onnx`.

    python benchmarks/caption_latency.py dog.jpg --preset flickr8k-coco-ensemble
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time

import workers
from onnx_search import session, to_onnx

WARM_CALLS = 10


class Stopwatch:
    """Seconds of consecutive stages, by name."""

    def __init__(self):
        self.seconds = {}
        self._start = time.perf_counter()

    def lap(self, name):
        now = time.perf_counter()
        self.seconds[name] = now - self._start
        self._start = now


def stages(photo, preset, beam_size, precision):
    """Return the seconds of every stage up to the first caption, in a fresh process."""
    watch = Stopwatch()
    import keras_attention_apps.captioner.main  # noqa: F401
    from keras_attention_apps.common.cli import quiet_tensorflow

    watch.lap("import the command line")
    quiet_tensorflow()
    import keras  # noqa: F401

    watch.lap("import Keras and TensorFlow")
    from keras_attention_apps.captioner.inference import Captioner

    watch.lap("import the captioner")
    captioner = Captioner.from_preset(preset, precision=precision)
    watch.lap("build the network, load its weights")
    captioner.caption(photo, beam_size=beam_size)
    watch.lap("first caption")
    return watch.seconds


def run(command):
    """Return the wall time and the standard output of a fresh process."""
    start = time.perf_counter()
    finished = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if finished.returncode:
        sys.exit(f"failed: {command}\n{finished.stderr}")
    return seconds, finished.stdout


def cold(photo, preset, beam_size, precision, rounds):
    """Return medians in seconds: the whole command, its stages and the remainder."""
    shared = ["--preset", preset, "--beam-size", str(beam_size)]
    shared += ["--precision", precision]
    runs = []
    for _ in range(rounds):
        command = workers.program("captioner", "caption", photo, *shared)
        whole, _ = run([*command, "--runtime", "keras"])
        _, output = run([sys.executable, __file__, photo, *shared, "--stages"])
        runs.append({"whole command": whole, **json.loads(output.splitlines()[-1])})
    seconds = medians(runs)
    left = 2 * seconds["whole command"] - sum(seconds.values())
    return {**seconds, "start and end of Python": left}


def warm(photo, preset, beam_size, precision, calls):
    """Return medians in seconds: the whole call and its parts."""
    import keras

    from keras_attention_apps.captioner.images import image_to_array, read_image
    from keras_attention_apps.captioner.inference import Captioner

    captioner = Captioner.from_preset(preset, precision=precision)
    search = captioner.search_model(beam_size=beam_size)

    def read():
        return image_to_array(read_image(photo), captioner.config.image_size)[None]

    pixels = {"images": read()}
    grid = captioner.network.backbone(pixels["images"])
    features = {"features": keras.ops.convert_to_numpy(grid)}

    def call():
        watch = Stopwatch()
        captioner.caption(photo, beam_size=beam_size)
        watch.lap("whole caption")
        read()
        watch.lap("read and resize the image")
        search.predict_on_batch(pixels)
        watch.lap("CNN and search")
        search.predict_on_batch(features)
        watch.lap("beam search")
        return watch.seconds

    call()  # traces and compiles
    return medians([_parts(call()) for _ in range(calls)])


def by_runtime(photo, preset, beam_size, precision, rounds):
    """Return medians in seconds of a warm call on each runtime.

    In a turn, each has several calls, since the threads of the one before wait actively
    for a while.
    """
    import tensorflow as tf

    from keras_attention_apps.captioner.captions import LiteCaptioner
    from keras_attention_apps.captioner.inference import Captioner
    from keras_attention_apps.common.errors import UserError

    captioner = Captioner.from_preset(preset, precision=precision)
    candidates = {"Keras": captioner}
    counts = sorted({1, workers.CORES})
    try:
        for count in counts:
            name = f"LiteRT, threads {count}"
            candidates[name] = LiteCaptioner.from_preset(preset, threads=count)
            candidates[name].search_options(beam_size=beam_size)
    except UserError as error:
        print(f"{error}\n")
        return {}
    if all(map(importlib.util.find_spec, ("onnxruntime", "tf2onnx"))):
        # In float32, whatever the precision of the other measurements.
        captioner = Captioner.from_preset(preset)
        captioner.network.backbone.freeze()
        search = captioner.search_model(beam_size=beam_size)
        size = captioner.image_size
        specs = {"images": tf.TensorSpec([1, size, size, 3], tf.uint8)}
        for kind in "float32", "int8":
            content = to_onnx(lambda images: search({"images": images}), specs, kind)
            for count in counts:
                lite = LiteCaptioner.from_preset(preset)
                run = session(content, count)
                lite.runtime = lambda signature, run=run, **inputs: run(**inputs)
                candidates[f"ONNX Runtime, {kind}, threads {count}"] = lite
    else:
        print("ONNX Runtime or tf2onnx is not installed and left out.\n")

    seconds = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            calls = [
                workers.timed(lambda x=candidate: x.caption(photo, beam_size=beam_size))
                for _ in range(2 * WARM_CALLS)
            ]
            seconds[name] += calls[WARM_CALLS:]
    return {name: statistics.median(values) for name, values in seconds.items()}


def _parts(seconds):
    both = seconds.pop("CNN and search")
    reading = seconds["read and resize the image"]
    return {
        **seconds,
        "CNN": both - seconds["beam search"],
        "rest": seconds["whole caption"] - reading - both,
    }


def medians(runs):
    return {name: statistics.median(x[name] for x in runs) for name in runs[0]}


def report(title, seconds):
    if not seconds:
        return
    print(f"| {title} | ms |")
    print("|---|---:|")
    for name, value in seconds.items():
        print(f"| {name} | {1000 * value:.1f} |")
    print()


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("photo")
    parser.add_argument(
        "--preset",
        default="flickr8k-coco-ensemble",
        help="name of a preset, or a folder",
    )
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument(
        "--precision", default="float32", help="dtype policy, such as mixed_bfloat16"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help=f"fresh processes of each kind, and {WARM_CALLS} warm calls for each",
    )
    parser.add_argument("--stages", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = ("photo", "preset", "beam_size", "precision")
    what = [getattr(arguments, name) for name in names]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.stages:
        print(json.dumps(stages(*what)))
        return
    rounds, calls = arguments.rounds, arguments.rounds * WARM_CALLS
    report(f"cold, medians of {rounds}", cold(*what, rounds))
    report(f"warm, medians of {calls}", warm(*what, calls))
    report(f"by runtime, medians of {calls}", by_runtime(*what, rounds))


if __name__ == "__main__":
    main()
