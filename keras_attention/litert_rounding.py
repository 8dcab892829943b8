r"""Rounding of kernels to integers that keeps the outputs of a convolution close.

A convolution multiplies patches $x$ of its input, $K$ numbers each, by the rows of a
matrix $W$. Rounding each weight to the nearest integer makes the errors of the weights
small, but not those of the outputs. Here the columns are rounded one after the other,
and those that follow make up for the error so far, so that

$$\sum_x \lVert (W - \hat W) x \rVert^2 = \mathrm{tr}\,(W - \hat W) H (W - \hat W)^\top,
\qquad H = \sum_x x x^\top$$

becomes small for the patches of typical inputs.

Reference: [Frantar et al., 2023](https://arxiv.org/abs/2210.17323), section 3.
"""

from typing import Any

import numpy as np

# Patches of one input that count, drawn from all positions.
PATCHES = 256
# What is added to the diagonal of H, relative to its mean: the patches of the samples
# do not span all directions.
DAMPING = 0.01
# Larger patches would take too much memory and time.
MAX_NUMBERS = 2304


def patches_of(
    images: Any, size: tuple[int, int], strides: tuple[int, int], is_padded: bool
) -> Any:
    """Return patches of images `(B, H, W, C)` as `(patches, kernel height * width, C)`.

    At most `PATCHES` are drawn from all positions. With padding, these are those of a
    convolution with the padding "same".
    """
    if is_padded:
        pads = [
            max((-(-length // stride) - 1) * stride + kernel - length, 0)
            for length, kernel, stride in zip(
                images.shape[1:3], size, strides, strict=True
            )
        ]
        padding = [(0, 0), *((pad // 2, pad - pad // 2) for pad in pads), (0, 0)]
        images = np.pad(images, padding)
    windows = np.lib.stride_tricks.sliding_window_view(images, size, axis=(1, 2))
    windows = windows[:, :: strides[0], :: strides[1]]
    count, rows, columns, depth = windows.shape[:4]
    chosen = np.arange(count * rows * columns)
    if len(chosen) > PATCHES:
        # Every n-th position would be in few columns if n divides their number.
        random = np.random.default_rng(0)
        chosen = random.choice(chosen, PATCHES, replace=False)
    patches = windows[np.unravel_index(chosen, (count, rows, columns))]
    return np.moveaxis(patches.reshape(len(chosen), depth, -1), 1, 2)


def products_of(patches: Any, is_depthwise: bool) -> Any:
    """Return the sum H of the products of patches `(patches, K, C)` with themselves.

    It is `(1, K * C, K * C)`, or `(C, K, K)` for a depthwise convolution, in which each
    channel has its own kernel.
    """
    if is_depthwise:
        rows = np.moveaxis(patches, 2, 0).astype("float32")
    else:
        rows = patches.reshape(1, len(patches), -1).astype("float32")
    return np.swapaxes(rows, 1, 2) @ rows


def rounded(weights: Any, products: Any, limit: int = 127) -> Any:
    """Round weights `(G, N, K)` of G groups to integers from `-limit` to `limit`.

    `products` is H of each group, `(G, K, K)`.
    """
    weights = weights.astype("float64")
    products = products.astype("float64")
    size = weights.shape[-1]
    # Columns with large inputs are rounded first, while most others can make up for it.
    order = np.argsort(-np.einsum("gkk->gk", products), axis=-1, kind="stable")
    weights = np.take_along_axis(weights, order[:, None], axis=2)
    products = np.take_along_axis(products, order[:, None], axis=2)
    products = np.take_along_axis(products, order[:, :, None], axis=1)
    mean = np.einsum("gkk->g", products) / size
    damping = np.where(mean > 0, DAMPING * mean, 1.0)
    inverse = np.linalg.inv(products + damping[:, None, None] * np.eye(size))
    factors = np.swapaxes(np.linalg.cholesky(inverse), 1, 2)
    integers = np.empty_like(weights)
    for column in range(size):
        values = weights[..., column]
        integers[..., column] = np.clip(np.round(values), -limit, limit)
        row = factors[:, column, column:]
        error = (values - integers[..., column]) / row[:, :1]
        weights[..., column:] -= error[..., None] * row[:, None]
    restored = np.empty_like(integers)
    np.put_along_axis(restored, order[:, None], integers, axis=2)
    return restored
