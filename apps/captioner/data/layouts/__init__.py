"""Readers of data sets of captioned images, one for each layout.

- Official Flickr8k and Flickr30k: `*.token.txt` or `*.token` with lines
  `name.jpg#0<TAB>caption`, and optionally `*trainImages.txt`, `*devImages.txt` and
  `*testImages.txt` with one name per line.
- Kaggle: `captions.txt`, a CSV file with the header `image,caption`, or that of
  Flickr30k, `results.csv` with `image_name|comment_number|comment`, also with commas;
  with or without split files as above.
- Karpathy: `dataset*.json`, which holds the captions and the splits.
- COCO: `captions_*train*.json`, `captions_*val*.json`, `captions_*test*.json`.
- Hugging Face: `metadata.csv` or `metadata.jsonl`, with `file_name` (or `filename`,
  `file` or `image`), one of the keys `caption`, `captions` and `text`, and optionally
  `split`; in the folder, or one in each of its folders `train`, `validation` and
  `test`. JSON may also have `boxes`: for words of the captions, lists of
  `[left, top, right, bottom]` as fractions of width
  and height.
- WebDataset: `*.tar`, in which an image and its captions share a name: `0001.jpg` with
  `0001.txt`, one caption per line, or `0001.json`, with the same keys as above. The
  name of an archive, such as `train-000.tar` or `val-000.tar`, begins with the split.

COCO, Hugging Face and WebDataset may lack dev; all layouts but Karpathy's and COCO's
may have no splits. Then a hash of its name decides the split of an image. The layout is
recognised by these files. If there are several, the order is Karpathy, COCO, official,
Kaggle, Hugging Face, WebDataset.

All readers follow the same rules. An image in two splits is an error. So is an
ambiguous file, such as one with two columns of the same name, two images with the same
id, or an id that is text in one place and a number in another. Captions and images that
are left out are counted in a warning.
"""

from keras_attention_apps.captioner.data.layouts.coco import read_coco
from keras_attention_apps.captioner.data.layouts.flickr import read_flickr
from keras_attention_apps.captioner.data.layouts.kaggle import read_kaggle
from keras_attention_apps.captioner.data.layouts.karpathy import read_karpathy
from keras_attention_apps.captioner.data.layouts.metadata import read_metadata
from keras_attention_apps.captioner.data.layouts.webdataset import read_webdataset

# In the order in which they are tried. A reader returns the `Listing` of a data set, or
# `None` if it does not recognise its layout.
LAYOUTS = (
    read_karpathy,
    read_coco,
    read_flickr,
    read_kaggle,
    read_metadata,
    read_webdataset,
)
