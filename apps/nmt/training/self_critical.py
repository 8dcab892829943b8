"""Self-critical training on sampled translations, and its reward."""

from keras_attention_apps.common.training.self_critical import SelfCritical
from keras_attention_apps.nmt.metrics import tokenizer_for
from keras_attention_apps.nmt.text import pad


class BleuChrfReward:
    """Sentence-level BLEU plus chrF2.

    Reference:
        [Post, 2018](https://aclanthology.org/W18-6319), whose sacrebleu computes both.
    """

    def __init__(self, texts):
        from sacrebleu.metrics import BLEU, CHRF

        bleu = BLEU(effective_order=True, tokenize=tokenizer_for(texts))
        self._metrics = bleu, CHRF()

    def __call__(self, text, reference):
        """Return the reward of a translation, from 0 to 2."""
        scores = (x.sentence_score(text, [reference]).score for x in self._metrics)
        return sum(scores) / 100


class SelfCriticalTranslations(SelfCritical):
    """Trains a translator on the reward of translations that it samples.

    `reward` is a function of a translation and its reference, both strings, such as a
    `BleuChrfReward`. The network of the translator must be compiled.
    """

    def __init__(self, translator, batches, reward, **options):
        super().__init__(
            translator.network,
            "target",
            multiple=8 if batches.few_shapes else 1,
            devices=batches.devices,
            **options,
        )
        self.translator = translator
        self.batches = batches
        self.reward = reward

    def __len__(self):
        return len(self.batches)

    def plan(self, epoch):
        return self.batches.plan(epoch)

    def inputs(self, items, random):
        sources = [source for source, _ in items]
        columns = self.batches.padded_length(max(map(len, sources)))
        return {"source": pad(sources, columns=columns)}

    def max_length(self, inputs):
        return self.translator.max_target_length(inputs["source"].shape[1])

    def padded_length(self, longest):
        return self.batches.padded_length(longest)

    def reward_of(self, item, token_ids):
        source, target = item
        copying = self.translator.copying
        decode = self.translator.tokenizer.decode
        if copying:
            token_ids, target = (
                copying.expand(x, source)[0] for x in (token_ids, target)
            )
        return self.reward(decode(token_ids), decode(target))
