"""Attention, training steps and searches on a GPU, next to Keras and PyTorch.

Prints the median time in milliseconds, in float32 and in mixed bfloat16, of

- additive, dot, multi-head and sliding-window attention: the forward pass, and forward
  and backward pass together. The peers are the layers of Keras (with two projections
  for additive attention, and a mask for the window), which use flash attention where
  Keras finds it; and PyTorch with `scaled_dot_product_attention`, which uses it, too.
  On a GPU, PyTorch uses `torch.compile` for additive attention, and `flex_attention`
  for the window;
- the training steps of the captioner and of the translator, as in
  `caption_train_step.py` and `translation_train_step.py`, and their peers in PyTorch;
- greedy and beam search of 30 words with an attention decoder, and the same searches in
  PyTorch, also for all rows at once.

Our code and Keras run on TensorFlow (as a graph or under XLA, whichever is faster), on
JAX (compiled) and on PyTorch (eagerly). The backends run one after the other, each in a
process of its own, in which we and Keras take turns. Below the table are the errors of
what failed. Without a GPU, everything runs on the processor, with smaller batches and
lengths.

The backends share the minutes. A process that has used up its share is stopped, and
the table is followed by what it did not reach.

    python benchmarks/gpu.py
    python benchmarks/gpu.py multi-head "beam search" --backends jax PyTorch --minutes 4
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import caption_train_step
import translation_train_step
import workers

DEPTH, HEADS, WINDOW = 512, 8, 128
UNITS, REGIONS, VOCABULARY, STEPS, BEAM_SIZE = 256, 20, 10_000, 30, 5
LAYERS = "additive", "dot", "multi-head", "sliding window"
TRAININGS = {
    "training step of the captioner": caption_train_step,
    "training step of the translator": translation_train_step,
}
SEARCHES = {"greedy search": 1, "beam search": BEAM_SIZE}
CASES = *LAYERS, *TRAININGS, *SEARCHES
PASSES = "forward", "both"
PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
PYTORCH = "PyTorch"
BACKENDS = "tensorflow", "jax", "torch", PYTORCH
OURS, KERAS = "ours", "Keras"


def sizes_of(on_gpu):
    """Return the batch sizes and lengths of the cases."""
    if on_gpu:
        return {
            **dict.fromkeys(LAYERS, (16, 512, 512)),
            "additive": (16, 128, 512),
            "sliding window": (4, 4096, 4096),
            **dict.fromkeys([*TRAININGS, *SEARCHES], (64,)),
        }
    return {
        **dict.fromkeys(LAYERS, (2, 128, 128)),
        "additive": (2, 32, 128),
        "sliding window": (1, 1024, 1024),
        **dict.fromkeys([*TRAININGS, *SEARCHES], (4,)),
    }


def rows_of(case):
    """Return the names of the rows of a case."""
    if case in LAYERS:
        return [f"{case}, {passes}" for passes in PASSES]
    return [case]


# Each of the following builders returns a function without arguments that computes a
# result and waits for it.


class Keras:
    """Our code and the layers of Keras, on one backend of Keras.

    Attributes:
        device: Name of the GPU, or `None`.
        compilers: By name, functions that compile a function of tensors.
    """

    def __init__(self):
        import keras

        self.backend = keras.backend.backend()
        find = {"tensorflow": tensorflow_gpu, "jax": jax_gpu, "torch": torch_gpu}
        self.device = find[self.backend]()
        self.compilers = {"": lambda function: function}
        if self.backend == "jax":
            import jax

            self.compilers = {"": jax.jit}
        elif self.backend == "tensorflow":
            import tensorflow as tf

            self.compilers = {
                "graph": tf.function,
                "XLA": lambda function: tf.function(function, jit_compile=True),
            }

    def fastest(self, function, tensors):
        """Return a step that computes `function(*tensors)`, compiled if possible."""
        import keras

        def build(compiler):
            compiled = self.compilers[compiler](function)

            def step():
                for output in keras.tree.flatten(compiled(*tensors)):
                    wait(output)

            return step

        settings = [{"compiler": name} for name in self.compilers]
        return workers.fastest(build, settings)[0]

    def gradients(self, model, upstream):
        """Return a function from inputs to the gradients of all weights and inputs."""
        if self.backend == "tensorflow":
            import tensorflow as tf

            def both(*inputs):
                with tf.GradientTape() as tape:
                    tape.watch(inputs)
                    outputs = model(list(inputs))
                weights = [weight.value for weight in model.trainable_weights]
                return tape.gradient(outputs, [*inputs, *weights], upstream)

        elif self.backend == "jax":
            import jax

            trained = [x.value for x in model.trainable_variables]
            others = [x.value for x in model.non_trainable_variables]

            def product(inputs, weights):
                outputs, _ = model.stateless_call(weights, others, list(inputs))
                return (outputs * upstream).astype("float32").sum()

            def both(*inputs):
                return jax.grad(product, argnums=(0, 1))(inputs, trained)

        else:
            import torch

            def both(*inputs):
                inputs = [x.detach().requires_grad_() for x in inputs]
                weights = [weight.value for weight in model.trainable_weights]
                outputs = model(inputs)
                return torch.autograd.grad(outputs, [*inputs, *weights], upstream)

        return both

    def layer(self, case, passes, whose, sizes):
        import keras
        import numpy as np

        batch, queries, positions = sizes[case]
        shapes = [(queries, DEPTH), (positions, DEPTH)]
        inputs = [keras.Input(shape) for shape in shapes]
        if case in ("multi-head", "sliding window"):
            inputs = inputs[:1]
        model = keras.Model(inputs, KERAS_LAYERS[case][whose](*inputs))
        random = np.random.default_rng(0)
        dtype = keras.config.dtype_policy().compute_dtype
        tensors = [
            keras.ops.convert_to_tensor(
                random.normal(size=(batch, *x.shape[1:])), dtype
            )
            for x in inputs
        ]
        if passes == "forward":
            return self.fastest(lambda *tensors: model(list(tensors)), tensors)
        upstream = random.normal(size=(batch, queries, DEPTH))
        upstream = keras.ops.convert_to_tensor(upstream, dtype)
        return self.fastest(self.gradients(model, upstream), tensors)

    def training(self, case, sizes):
        """Return our training step, compiled by XLA or not, whichever is faster."""
        module = TRAININGS[case]
        (module.BATCH,) = sizes[case]
        compiled = {"tensorflow": [False, True], "jax": [True], "torch": [False]}
        settings = [{"jit_compile": value} for value in compiled[self.backend]]
        return workers.fastest(module.our_step, settings)[0]

    def search(self, case, sizes):
        """Return our search with an `AttentionCell`, whose hypotheses never end."""
        from keras import layers, ops

        from keras_attention import (
            AdditiveAttention,
            AttentionCell,
            Ban,
            beam_search,
            greedy_search,
        )

        (batch,) = sizes[case]
        embedding = layers.Embedding(VOCABULARY, UNITS)
        readout = layers.Dense(VOCABULARY, dtype="float32")
        cell = AttentionCell(layers.GRUCell(UNITS), AdditiveAttention(UNITS))
        value = ops.ones((batch, REGIONS, UNITS), cell.compute_dtype)

        def search(value):
            memory = cell.attention.memory(value)

            def step(token_ids, state):
                outputs, state = cell(embedding(token_ids), state, memory)
                log_probs = ops.log_softmax(readout(outputs["output"]))
                return log_probs, state, outputs["weights"]

            options = {"start": 0, "end": 1, "max_length": STEPS}
            options["constraints"] = [Ban([1])]
            state = cell.get_initial_state(batch_size=batch)
            if case == "greedy search":
                return greedy_search(step, state, **options)["token_ids"]
            options["beam_size"] = SEARCHES[case]
            return beam_search(step, state, **options)["token_ids"]

        # Creates the weights, which compiled functions cannot do.
        state = cell.get_initial_state(batch_size=1)
        first = embedding(ops.zeros((1,), "int32"))
        readout(cell(first, state, cell.attention.memory(value[:1]))[0]["output"])
        return self.fastest(search, [value])

    def pairs(self, case, passes, sizes):
        """Return the builders of the candidates of a row, by whose they are."""
        if case in LAYERS:
            return {
                whose: lambda whose=whose: self.layer(case, passes, whose, sizes)
                for whose in (OURS, KERAS)
            }
        build = self.training if case in TRAININGS else self.search
        return {OURS: lambda: build(case, sizes)}

    def use(self, precision):
        import keras

        keras.config.set_dtype_policy(PRECISIONS[precision])


def tensorflow_gpu():
    import tensorflow as tf

    devices = tf.config.list_physical_devices("GPU")
    if not devices:
        return None
    details = tf.config.experimental.get_device_details(devices[0])
    return details.get("device_name", "GPU")


def jax_gpu():
    import jax

    device = jax.devices()[0]
    return None if device.platform == "cpu" else device.device_kind


def torch_gpu():
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def wait(tensor):
    """Wait until a tensor has been computed."""
    if hasattr(tensor, "block_until_ready"):
        tensor.block_until_ready()
    elif hasattr(tensor, "is_cuda"):
        if tensor.is_cuda:
            import torch

            torch.cuda.synchronize()
    elif tensor is not None:
        # Copies one number from the device.
        import tensorflow as tf

        tf.reshape(tf.convert_to_tensor(tensor), (-1,))[:1].numpy()


def our_additive(query, value):
    from keras_attention import AdditiveAttention

    return AdditiveAttention(DEPTH)(query, value)


def their_additive(query, value):
    from keras import layers

    query, key = (layers.Dense(DEPTH, use_bias=False)(x) for x in (query, value))
    return layers.AdditiveAttention()([query, value, key])


def our_dot(query, value):
    from keras_attention import LuongAttention

    return LuongAttention("dot")(query, value)


def their_dot(query, value):
    from keras import layers

    return layers.Attention()([query, value])


def our_multi_head(x, window=None):
    from keras_attention import SelfAttention

    layer = SelfAttention(HEADS, DEPTH // HEADS, causal=True, window_size=window)
    return layer(x)


def their_multi_head(x, mask=None):
    from keras import layers

    layer = layers.MultiHeadAttention(HEADS, DEPTH // HEADS)
    return layer(x, x, attention_mask=mask, use_causal_mask=mask is None)


def their_window(x):
    return their_multi_head(x, window_mask(x.shape[1])[None])


def window_mask(length):
    """Return a causal mask `(length, length)` of the last positions."""
    import numpy as np

    distance = np.arange(length)[:, None] - np.arange(length)
    return (distance >= 0) & (distance < WINDOW)


KERAS_LAYERS = {
    "additive": {OURS: our_additive, KERAS: their_additive},
    "dot": {OURS: our_dot, KERAS: their_dot},
    "multi-head": {OURS: our_multi_head, KERAS: their_multi_head},
    "sliding window": {
        OURS: lambda x: our_multi_head(x, WINDOW),
        KERAS: their_window,
    },
}


class PyTorch:
    """The peers that are written in PyTorch."""

    def __init__(self):
        import torch

        self.device = torch_gpu()
        self.kind = "cuda" if self.device else "cpu"
        torch.set_default_device(self.kind)
        torch.set_num_threads(workers.CORES)

    def use(self, precision):
        import torch

        half = precision == "bfloat16"
        self.dtype = torch.bfloat16 if half else torch.float32
        self.autocast = torch.autocast(self.kind, torch.bfloat16, enabled=half)

    def pairs(self, case, passes, sizes):
        if case in LAYERS:
            return {PYTORCH: lambda: self.layer(case, passes, sizes)}
        build = self.training if case in TRAININGS else self.search
        return {PYTORCH: lambda: build(case, sizes)}

    def layer(self, case, passes, sizes):
        import torch

        batch, queries, positions = sizes[case]
        tensors = (
            torch.randn(batch, queries, DEPTH),
            torch.randn(batch, positions, DEPTH),
        )
        tensors = [x.to(self.dtype) for x in tensors]
        if case in ("multi-head", "sliding window"):
            tensors = tensors[:1]
        module = self.module(case, queries).to(self.dtype)
        upstream = torch.randn(batch, queries, DEPTH).to(self.dtype)

        def both():
            inputs = [x.detach().requires_grad_() for x in tensors]
            outputs = module(*inputs)
            wait(
                torch.autograd.grad(outputs, [*inputs, *module.parameters()], upstream)[
                    0
                ]
            )

        @torch.no_grad()
        def forward():
            wait(module(*tensors))

        return forward if passes == "forward" else both

    def module(self, case, length):
        """Return the module of an attention layer."""
        import torch
        from torch import nn
        from torch.nn import functional

        class Additive(nn.Module):
            def __init__(self):
                super().__init__()
                self.query = nn.Linear(DEPTH, DEPTH, bias=False)
                self.key = nn.Linear(DEPTH, DEPTH, bias=False)
                self.score = nn.Linear(DEPTH, 1, bias=False)

            def forward(self, query, value):
                query, key = self.query(query)[:, :, None], self.key(value)[:, None]
                scores = self.score(torch.tanh(query + key)).squeeze(-1)
                return torch.softmax(scores, dim=-1) @ value

        class Dot(nn.Module):
            def forward(self, query, value):
                attend = functional.scaled_dot_product_attention
                return attend(query[:, None], value[:, None], value[:, None], scale=1)[
                    :, 0
                ]

        class MultiHead(nn.Module):
            def __init__(self, attend):
                super().__init__()
                self.inputs = nn.Linear(DEPTH, 3 * DEPTH)
                self.output = nn.Linear(DEPTH, DEPTH)
                self.attend = attend

            def forward(self, x):
                heads = self.inputs(x).unflatten(-1, (3, HEADS, -1))
                query, key, value = heads.permute(2, 0, 3, 1, 4)
                context = self.attend(query, key, value)
                return self.output(context.transpose(1, 2).flatten(2))

        def causal(query, key, value):
            attend = functional.scaled_dot_product_attention
            return attend(query, key, value, is_causal=True)

        if case == "additive":
            module = Additive()
            return torch.compile(module) if self.device else module
        if case == "dot":
            return Dot()
        return MultiHead(causal if case == "multi-head" else self.window(length))

    def window(self, length):
        """Return attention with a sliding window, from heads to contexts."""
        import torch
        from torch.nn.attention import flex_attention as flex
        from torch.nn.functional import scaled_dot_product_attention

        if not self.device:
            mask = torch.tensor(window_mask(length))
            return lambda *heads: scaled_dot_product_attention(*heads, attn_mask=mask)

        def visible(batch, head, query, key):
            return (query >= key) & (query - key < WINDOW)

        mask = flex.create_block_mask(visible, None, None, length, length)
        attend = torch.compile(flex.flex_attention)
        return lambda *heads: attend(*heads, block_mask=mask)

    def training(self, case, sizes):
        module = TRAININGS[case]
        (module.BATCH,) = sizes[case]
        train = module.peer_step()

        def step():
            # A step returns its loss, for which it waits.
            with self.autocast:
                train()

        return step

    def search(self, case, sizes):
        """Return a search for all rows at once, whose hypotheses never end."""
        import torch
        from torch import nn

        (batch,) = sizes[case]
        beam = SEARCHES[case]
        embedding = nn.Embedding(VOCABULARY, UNITS)
        project_value, project_state = (nn.Linear(UNITS, UNITS) for _ in range(2))
        energy, cell = nn.Linear(UNITS, 1), nn.GRUCell(2 * UNITS, UNITS)
        readout = nn.Linear(UNITS, VOCABULARY)
        value = torch.ones(batch, 1, REGIONS, UNITS)
        first = torch.arange(batch)[:, None] * beam

        @torch.no_grad()
        def search():
            keys = project_value(value)
            words = torch.zeros(batch * beam, 1, dtype=torch.long)
            state = torch.zeros(batch * beam, UNITS)
            scores = torch.full((batch, beam), -1e9)
            scores[:, 0] = 0
            for _ in range(STEPS):
                query = project_state(state).view(batch, beam, 1, UNITS)
                weights = energy(torch.tanh(keys + query)).softmax(dim=2)
                context = (weights * value).sum(dim=2).flatten(0, 1)
                inputs = torch.cat([embedding(words[:, -1]), context], dim=1)
                state = cell(inputs, state)
                logits = readout(state)
                logits[:, 1] = -1e9
                log_probs = torch.log_softmax(logits.float(), dim=1)
                totals = scores[:, :, None] + log_probs.view(batch, beam, VOCABULARY)
                scores, best = totals.flatten(1).topk(beam)
                rows = (first + best // VOCABULARY).flatten()
                chosen = (best % VOCABULARY).flatten()[:, None]
                words = torch.cat([words[rows], chosen], dim=1)
                state = state[rows]
            return words

        def step():
            with self.autocast:
                wait(search())

        return step


def work(backend, cases, precisions, rounds, steps):
    """Time all cases on a backend, and print a line of JSON for each result."""

    def print_result(**fields):
        print(json.dumps(fields), flush=True)

    machine = PyTorch() if backend == PYTORCH else Keras()
    print_result(device=machine.device)
    sizes = sizes_of(machine.device)
    for case in cases:
        passes = PASSES if case in LAYERS else [None]
        for precision in precisions:
            machine.use(precision)
            for row, each in zip(rows_of(case), passes, strict=True):
                where = {"row": row, "precision": precision}
                candidates = {}
                for whose, build in machine.pairs(case, each, sizes).items():
                    try:
                        step = build()
                        step()
                        candidates[whose] = step, []
                    # A candidate that fails is a result, too.
                    except Exception as error:
                        message = f"{type(error).__name__}: {error}".splitlines()[0]
                        print_result(**where, whose=whose, error=message[:300])
                for _ in range(rounds):
                    for step, times in candidates.values():
                        times += [workers.timed(step) for _ in range(steps)]
                for whose, (_, times) in candidates.items():
                    milliseconds = 1000 * statistics.median(times)
                    print_result(**where, whose=whose, milliseconds=milliseconds)


def results_of(backend, arguments, seconds):
    """Run `work` in a process, and yield its results until its time is over."""
    keras_backend = "torch" if backend == PYTORCH else backend
    command = [sys.executable, __file__, *arguments.cases, "--work", backend]
    command += ["--precisions", *arguments.precisions]
    command += ["--rounds", str(arguments.rounds), "--steps", str(arguments.steps)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={
                **os.environ,
                "KERAS_BACKEND": keras_backend,
                "TF_CPP_MIN_LOG_LEVEL": "3",
            },
        )
        timer = threading.Timer(seconds, process.kill)
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
            process.wait()
        finally:
            in_time = timer.is_alive()
            timer.cancel()
            process.kill()
        if not in_time:
            yield {"error": f"stopped after {seconds:.0f} s"}
        elif process.returncode:
            errors.seek(0)
            yield {"error": "".join(errors.read().splitlines()[-1:])}


def table(rows, precisions, backends, milliseconds):
    """Print the times of all rows."""
    columns = []
    for backend in backends:
        whose = [PYTORCH] if backend == PYTORCH else [OURS, KERAS]
        columns += [(backend, each) for each in whose]
    names = [x if x == y else f"{x}, {y}" for x, y in columns]
    print(f"| ms | | {' | '.join(names)} |")
    print(f"|---|---|{'---:|' * len(columns)}")
    for row in rows:
        for precision in precisions:
            times = (milliseconds.get((row, precision, *column)) for column in columns)
            cells = ["" if time is None else f"{time:.2f}" for time in times]
            print(f"| {row} | {precision} | {' | '.join(cells)} |")


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    parser.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, default=[*PRECISIONS]
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of each candidate")
    parser.add_argument("--steps", type=int, default=3, help="timed steps in a turn")
    parser.add_argument("--minutes", type=float, default=8, help="for all backends")
    parser.add_argument("--work", choices=BACKENDS, help="time one backend (internal)")
    arguments = parser.parse_args()
    workers.check_names(parser, arguments.cases, CASES)
    arguments.cases = arguments.cases or CASES
    if arguments.work:
        options = arguments.precisions, arguments.rounds, arguments.steps
        work(arguments.work, arguments.cases, *options)
        return
    packages = {backend: backend for backend in BACKENDS} | {PYTORCH: "torch"}
    backends = [x for x in arguments.backends if importlib.util.find_spec(packages[x])]
    for backend in sorted({*arguments.backends} - {*backends}):
        print(f"{backend}: not installed, left out")
    end = time.monotonic() + 60 * arguments.minutes
    rows = [row for case in arguments.cases for row in rows_of(case)]
    milliseconds, notes = {}, []
    for number, backend in enumerate(backends):
        seconds = (end - time.monotonic()) / (len(backends) - number)
        due = {(row, x) for row in rows for x in arguments.precisions}
        for result in results_of(backend, arguments, seconds):
            if "device" in result:
                device = result["device"] or "no GPU, runs on the processor"
                print(f"{backend}: {device}", flush=True)
                continue
            where = (result.get("row"), result.get("precision"))
            due.discard(where)
            if "error" in result:
                group = [backend, *where, result.get("whose")]
                notes.append(f"{', '.join(filter(None, group))}: {result['error']}")
            else:
                milliseconds[*where, backend, result["whose"]] = result["milliseconds"]
        notes += [f"{backend}, {row}, {x}: not run" for row, x in sorted(due)]
    print()
    table(rows, arguments.precisions, backends, milliseconds)
    for note in notes:
        print(f"\n{note}", end="")
    print()


if __name__ == "__main__":
    main()
