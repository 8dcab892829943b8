"""Folders of Marian models, made and trained with Transformers."""

import io
import json
import random

PAD_TOKENS = 1
# Training of small models: Adam, whose learning rate rises and then falls linearly.
LEARNING_RATE, WARM_UP, CLIPPING, LABEL_SMOOTHING = 3e-3, 400, 1.0, 0.1


def write_tokenizers(folder, texts, size):
    """Write a unigram model for each of two texts; return the pieces of both."""
    import sentencepiece

    pieces = {}
    for name, text in zip(("source", "target"), texts, strict=True):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text),
            model_writer=model,
            vocab_size=size,
            hard_vocab_limit=False,
            max_sentence_length=50_000,
            minloglevel=2,
            num_threads=1,
        )
        (folder / f"{name}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces.update(
            dict.fromkeys(processor.id_to_piece(i) for i in range(3, len(processor)))
        )
    return list(pieces)


def write_vocabulary(folder, pieces, size=None):
    """Write the vocabulary with the end, unknown and padding tokens, and return it.

    If a size is given, tokens that no tokenizer produces fill it up.
    """
    size = len(pieces) + 3 if size is None else size
    known = ["</s>", "<unk>", *pieces][: size - PAD_TOKENS]
    others = [f"<{i}>" for i in range(size - PAD_TOKENS - len(known))]
    vocabulary = [*known, *others, "<pad>"]
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    return vocabulary


def new_model(vocabulary_size, *, depth, units, heads, layers, **options):
    """Return a `MarianMTModel` of a vocabulary that ends with the padding."""
    import transformers

    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", layers),
            ("attention_heads", heads),
            ("ffn_dim", units),
        )
    }
    pad = vocabulary_size - 1
    config = transformers.MarianConfig(
        vocab_size=vocabulary_size,
        d_model=depth,
        scale_embedding=True,
        activation_function="swish",
        eos_token_id=0,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        forced_eos_token_id=None,
        **sizes,
        **options,
    )
    return transformers.MarianMTModel(config)


def encode(folder, vocabulary, pairs):
    """Return the token ids of both sides of each pair, ending with the end token."""
    import sentencepiece

    ids = {piece: i for i, piece in enumerate(vocabulary)}
    sides = []
    for name, texts in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        path = str(folder / f"{name}.spm")
        processor = sentencepiece.SentencePieceProcessor(model_file=path)
        rows = processor.encode(list(texts), out_type=str)
        sides.append([[*(ids.get(x, 1) for x in row), 0] for row in rows])
    return list(zip(*sides, strict=True))


def train(model, pairs, *, epochs, batch_size, seed=0):
    """Train a model on pairs of token ids by their cross-entropy alone."""
    import torch

    torch.manual_seed(seed)
    shuffled, pad = random.Random(seed), model.config.pad_token_id
    steps = epochs * -(-len(pairs) // batch_size)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE, (0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(
            (step + 1) / WARM_UP, (steps - step) / max(steps - WARM_UP, 1)
        ),
    )
    loss = torch.nn.CrossEntropyLoss(ignore_index=pad, label_smoothing=LABEL_SMOOTHING)

    def padded(rows):
        columns = max(map(len, rows))
        return torch.tensor([[*x, *[pad] * (columns - len(x))] for x in rows])

    model.train()
    for _ in range(epochs):
        order = shuffled.sample(range(len(pairs)), len(pairs))
        for begin in range(0, len(order), batch_size):
            batch = [pairs[i] for i in order[begin : begin + batch_size]]
            source, target = (padded(side) for side in zip(*batch, strict=True))
            start = torch.full_like(target[:, :1], pad)
            logits = model(
                input_ids=source,
                attention_mask=(source != pad).long(),
                decoder_input_ids=torch.cat([start, target[:, :-1]], dim=1),
            ).logits
            optimizer.zero_grad()
            loss(logits.flatten(0, 1), target.flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIPPING)
            optimizer.step()
            schedule.step()
    return model.eval()
