"""Throughput of captioning: the whole path, its CNN, and its search.

Prints medians for `--count` copies of one image:

- whole path: `Captioner.caption` from files to texts, with beam width 5 and batches of
  64 images; XLA: with `jit_compile`; bfloat16: in half precision;
- CNN: the features of decoded images, in batches of 32 as in `Captioner`; and the same
  CNN in Keras, without folded batch normalisation. The shares are the throughput of the
  whole path relative to each of them, in the same precision;
- search: the beam search alone, from features; XLA: compiled; bfloat16: in half
  precision;
- peer: the same beam search in PyTorch with random weights of the same sizes, written
  as in the usual tutorials. It searches one image at a time, projecting all regions at
  every step, for as many words as our captions have. The ratio is our speed-up.

Every candidate runs in its own process on all cores. The candidates take turns.

    python benchmarks/caption_throughput.py docs/photographer.jpg
"""

import argparse
import functools
import importlib.util
import statistics

import numpy as np
import workers

BATCH, CNN_BATCH, BEAM = 64, 32, 5
# Sizes of the preset: regions and their depth, network, words of a caption.
REGIONS, DEPTH, UNITS, EMBEDDING_UNITS, ATTENTION_UNITS = 81, 512, 512, 256, 512
VOCABULARY, WORDS = 2540, 11


@functools.cache
def captioner(**options):
    from keras_attention_apps.captioner.inference import Captioner

    return Captioner.from_preset("flickr8k-coco-soft", **options)


def pixels(photo, copies):
    from keras_attention_apps.captioner.images import image_to_array, read_image

    array = image_to_array(read_image(photo), captioner().config.image_size)
    return np.stack([array] * copies)


def features(photo):
    return np.repeat(captioner().network.backbone(pixels(photo, 1)), BATCH, axis=0)


def whole_step(photo, count, **options):
    photos, ours = [photo] * count, captioner(**options)
    return lambda: ours.caption(photos, beam_size=BEAM, batch_size=BATCH)


def cnn_step(photo, count, folded=True, **options):
    import keras

    images, backbone = pixels(photo, CNN_BATCH), captioner(**options).network.backbone
    cnn = backbone if folded else backbone.cnn
    model = keras.Sequential([keras.Input(images.shape[1:]), cnn])
    return lambda: [model.predict_on_batch(images) for _ in range(count // CNN_BATCH)]


def search_step(photo, count, **options):
    search = captioner(**options).search_model(beam_size=BEAM)
    batch = {"features": features(photo)}
    return lambda: [search.predict_on_batch(batch) for _ in range(count // BATCH)]


def peer_step(photo, count):
    """The beam search of the PyTorch tutorials, from regions of the same depth."""
    import torch
    from torch import nn

    torch.set_num_threads(workers.CORES)
    linear = nn.Linear
    project_regions = linear(DEPTH, ATTENTION_UNITS)
    project_state = linear(UNITS, ATTENTION_UNITS)
    score, gate = linear(ATTENTION_UNITS, 1), linear(UNITS, DEPTH)
    embedding = nn.Embedding(VOCABULARY, EMBEDDING_UNITS)
    cell = nn.LSTMCell(EMBEDDING_UNITS + DEPTH, UNITS)
    initial = linear(DEPTH, UNITS), linear(DEPTH, UNITS)
    readout = linear(UNITS, VOCABULARY)
    grids = torch.rand(BATCH, REGIONS, DEPTH)

    def caption(grid):
        regions = grid.expand(BEAM, REGIONS, DEPTH)
        output, carry = (layer(regions.mean(dim=1)) for layer in initial)
        words = torch.zeros(BEAM, 1, dtype=torch.long)
        maps = torch.ones(BEAM, 1, REGIONS)
        scores = torch.zeros(BEAM, 1)
        for step in range(WORDS):
            embedded = embedding(words[:, -1])
            query = project_state(output).unsqueeze(1)
            hidden = torch.relu(project_regions(regions) + query)
            weights = torch.softmax(score(hidden).squeeze(2), dim=1)
            context = (regions * weights.unsqueeze(2)).sum(dim=1)
            context = torch.sigmoid(gate(output)) * context
            inputs = torch.cat([embedded, context], dim=1)
            output, carry = cell(inputs, (output, carry))
            totals = scores + torch.log_softmax(readout(output), dim=1)
            # All hypotheses are the same before the first word.
            totals = totals[0] if step == 0 else totals.view(-1)
            scores, best = totals.topk(BEAM)
            rows, scores = best // VOCABULARY, scores.unsqueeze(1)
            chosen = (best % VOCABULARY).unsqueeze(1)
            words = torch.cat([words[rows], chosen], dim=1)
            maps = torch.cat([maps[rows], weights[rows].unsqueeze(1)], dim=1)
            output, carry = output[rows], carry[rows]
        return words[0].tolist(), maps[0]

    @torch.no_grad()
    def step():
        return [caption(grid) for grid in grids for _ in range(count // BATCH)]

    return step


HALF = {"precision": "mixed_bfloat16"}
KINDS = {"": {}, ", XLA": {"jit_compile": True}, ", bfloat16": HALF}
# XLA compiles the search alone: the CNN beside it is the graph's.
CNNS = {"": {}, ", bfloat16": HALF}


def steps_of(name, step, kinds, **options):
    """Return the candidates by name, for each kind."""
    return {
        f"{name}{kind}": functools.partial(step, **options, **kinds[kind])
        for kind in kinds
    }


STEPS = {
    **steps_of("whole path", whole_step, KINDS),
    **steps_of("CNN", cnn_step, CNNS),
    **steps_of("CNN of Keras", cnn_step, CNNS, folded=False),
    **steps_of("search", search_step, KINDS),
    "peer": peer_step,
}


def main():
    parser = workers.command_line(__doc__)
    parser.add_argument("photo")
    parser.add_argument("--count", type=int, default=128, help="number of images")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    count = -(-arguments.count // BATCH) * BATCH
    if arguments.work:
        workers.work(STEPS[arguments.work](arguments.photo, count))
        return
    names = list(STEPS)
    if not importlib.util.find_spec("torch"):
        names.remove("peer")
    options = arguments.photo, "--count", str(count)
    results = workers.take_turns(__file__, names, arguments.rounds, 1, options)
    seconds = {name: statistics.median(results[name].times) for name in names}
    print(f"| {count} images | a second |")
    print("|---|---:|")
    for name, value in seconds.items():
        print(f"| {name} | {count / value:.1f} |")
    print()
    for kind in KINDS:
        precision = kind if kind in CNNS else ""
        for cnn in ("CNN", "CNN of Keras"):
            share = seconds[f"{cnn}{precision}"] / seconds[f"whole path{kind}"]
            print(f"whole path{kind}: {share:.0%} of the {cnn}{precision}")
        if "peer" in seconds:
            ratio = seconds["peer"] / seconds[f"search{kind}"]
            print(f"search{kind}: {ratio:.1f} times as fast as the peer")


if __name__ == "__main__":
    main()
