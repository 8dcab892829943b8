"""`nmt align`: sentence pairs in, their word alignments out."""

import contextlib
import sys

from keras_attention_apps.common import files
from keras_attention_apps.common.errors import UserError, counted, printable
from keras_attention_apps.common.output import note, plots, progress_bar, write_figure
from keras_attention_apps.nmt import alignments
from keras_attention_apps.nmt.data import dataset
from keras_attention_apps.nmt.runtimes import RUNTIMES


def align(config):
    """Align the pairs that an `AlignConfig` describes, and print a line for each."""
    files.check_read_once(config.source, config.target)
    if config.output is not None:
        files.check_file(config.output)
        inputs = [config.source, config.target, config.data]
        files.check_distinct(inputs, config.output)
    if config.plot is not None:
        files.check_file(config.plot / "0001.png")
    sources, targets, _ = dataset.read_chosen(config)
    cut = 0
    with contextlib.ExitStack() as stack:
        file = sys.stdout
        if config.output is not None:
            path = stack.enter_context(files.atomic_path(config.output))
            file = stack.enter_context(open(path, "w", encoding="utf-8", newline=""))
        bar = stack.enter_context(progress_bar(total=len(sources), desc="pairs"))
        pairs = list(zip(sources, targets, strict=True))
        results = aligned(config, pairs, config.model.name)
        for number, (links, alignment) in enumerate(results, start=1):
            print(alignments.pharaoh(links), file=file, flush=config.output is None)
            cut += alignment.cut
            bar.update()
            if config.plot is not None and alignment.weights.any():
                _plot(config.plot / f"{number:04}.png", alignment)
    if cut:
        print(
            f"nmt: warning: {counted(cut, 'pair')} exceeded the maximum length of the "
            "model: their last words have no links",
            file=sys.stderr,
        )
    if config.output is not None:
        note(f"nmt: wrote {printable(config.output)}")
    return 0


def aligned(config, pairs, model):
    """Yield the links of each pair and its `Alignment`, in order.

    `model` is a name. `config` has the reverse model for alignments in both directions.
    """
    reverse = config.reverse_model
    if config.symmetrize is not None and reverse is None:
        raise UserError(
            f"--symmetrize needs --reverse-model. Received: {config.symmetrize}"
        )
    translator = RUNTIMES.keras().from_preset(model, **config.model.options)
    forward = alignments.align(translator, pairs, config.batch_size)
    if reverse is None:
        for alignment in forward:
            yield alignment.links, alignment
        return
    other = RUNTIMES.keras().from_preset(reverse, **config.model.options)
    swapped = [(target, source) for source, target in pairs]
    backward = alignments.align(other, swapped, config.batch_size)
    method = config.symmetrize or alignments.METHODS[-1]
    for alignment, reversed_one in zip(forward, backward, strict=True):
        opposite = {(source, target) for target, source in reversed_one.links}
        links = alignments.symmetrized(alignment.links, opposite, method)
        yield links, alignment.with_reverse(reversed_one)


def _plot(path, alignment):
    write_figure(
        path,
        lambda: plots().attention_heatmap(
            alignment.weights, alignment.source_words, alignment.words
        ),
        dpi=150,
    )
