"""Rewards of sampled translations, from their references."""

from keras_attention_apps.nmt.metrics import tokenizer_for


class BleuChrfReward:
    """Sentence-level BLEU plus chrF2.

    Args:
        texts: Strings in the target language.

    Reference:
        [Post, 2018](https://aclanthology.org/W18-6319), whose sacrebleu computes both.
    """

    def __init__(self, texts):
        from sacrebleu.metrics import BLEU, CHRF

        bleu = BLEU(effective_order=True, tokenize=tokenizer_for(texts))
        self._metrics = bleu, CHRF()

    def __call__(self, text, reference):
        """Return the reward of a translation.

        Args:
            text: The translation.
            reference: The reference translation.

        Returns:
            The sum of both, from 0 to 2.
        """
        scores = (x.sentence_score(text, [reference]).score for x in self._metrics)
        return sum(scores) / 100
