"""How good captions are, in the numbers that captioning papers print."""

import contextlib
import dataclasses
import io
import shutil
import statistics

import numpy as np
from keras_attention_apps.captioner.text import tokenize
from keras_attention_apps.common.files import check_file, write_json


def caption_scores(captions, references, *, meteor=False):
    """Score captions against all their references.

    Both are lower-cased and freed of punctuation. BLEU is the corpus score with
    brevity penalty.

    Args:
        captions: One string for each photograph.
        references: For each photograph, its list of strings.
        meteor: Whether to compute METEOR, too, which needs Java.

    Returns:
        Dict of figures in percent: `"bleu-1"` to `"bleu-4"`, `"cider"`, `"rouge-l"`
        and, if wanted and possible, `"meteor"`.
    """
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    plain = {i: [_plain(text)] for i, text in enumerate(captions)}
    truth = {i: [_plain(text) for text in texts] for i, texts in enumerate(references)}
    # The scorers print their lengths.
    with contextlib.redirect_stdout(io.StringIO()):
        bleu, _ = Bleu(4).compute_score(truth, plain, verbose=0)
        cider, _ = Cider().compute_score(truth, plain)
        rouge, _ = Rouge().compute_score(truth, plain)
    scores = {f"bleu-{n}": 100 * score for n, score in enumerate(bleu, start=1)}
    scores |= {"cider": 100 * float(cider), "rouge-l": 100 * float(rouge)}
    if meteor and shutil.which("java"):
        from pycocoevalcap.meteor.meteor import Meteor

        score, _ = Meteor().compute_score(truth, plain)
        scores["meteor"] = 100 * score
    return scores


def attention_figures(maps):
    """How attention moves from word to word, and how much it is spread out.

    Args:
        maps: For each caption, an array `(words, ...)` of weights that sum to one.

    Returns:
        Dict: `"changes"`, how often a word has another region with the largest weight
        than the word before it, in percent; `"entropy"`, that of the weights of a word,
        in nats, on average.
    """
    changes, entropies = [], []
    for weights in maps:
        weights = weights.reshape(len(weights), np.prod(weights.shape[1:], dtype=int))
        changes += (np.diff(weights.argmax(axis=-1)) != 0).tolist()
        logarithms = np.log(np.where(weights > 0, weights, 1.0))
        entropies += (-weights * logarithms).sum(axis=-1).tolist()
    return {
        "changes": 100 * statistics.mean(changes or [0]),
        "entropy": statistics.mean(entropies or [0]),
    }


def _plain(text):
    return " ".join(tokenize(text))


def evaluate(config):
    """Score a model as an `EvaluateConfig` says; prints and returns the scores."""
    from keras_attention_apps.captioner.boxes import pointing
    from keras_attention_apps.captioner.data import read_dataset, readable
    from keras_attention_apps.captioner.inference import Captioner

    if config.output:
        check_file(config.output)
    images = read_dataset(config.data, config.split)
    images = readable(images, config.max_unreadable)
    chosen = config.captioner
    captioner = Captioner.from_preset(chosen.model, **chosen.options)
    search = config.search
    captions = captioner.caption(
        [image.path for image in images],
        maps="probabilities",
        **dataclasses.asdict(search),
    )
    texts = [caption.text for caption in captions]
    scores = caption_scores(texts, [image.captions for image in images], meteor=True)
    attention = attention_figures([caption.weights for caption in captions])
    print(
        f"{chosen.model} on {len(images)} photographs of {config.split}, "
        f"beam {search.beam_size}, length penalty {search.length_penalty}"
    )
    for name, score in scores.items():
        print(f"{name:8} {score:6.2f}")
    if "meteor" not in scores:
        print("meteor   needs Java, which was not found")
    changes, entropy = attention["changes"], attention["entropy"]
    print(f"changes  {changes:6.2f} % of the words look at another region")
    print(f"entropy  {entropy:6.2f} nats of the attention of a word")
    hits, count = pointing(captions, [image.boxes for image in images])
    if count:
        attention["pointing"] = 100 * hits / count
        told = f"{attention['pointing']:6.2f} % of {count} words with a box"
        print(f"pointing {told} look at it")
    if config.output:
        results = [
            {"image_id": image.image_id, "caption": text}
            for image, text in zip(images, texts, strict=True)
        ]
        write_json(config.output, results)
    return scores | attention
