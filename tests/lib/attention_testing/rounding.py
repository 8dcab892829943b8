"""Bounds for results in half precision, from the format and the number of roundings."""

# Half the distance between 1 and the next number: the error of one rounding.
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def rounding_bound(half, roundings, magnitude=1.0):
    """Return the largest error after a number of roundings of such numbers.

    Each rounding adds at most the unit roundoff times the magnitude. The computation
    has to be well-conditioned: no operation may enlarge the error of its operands.

    Args:
        half: `"float16"`, `"bfloat16"`, or a mixed policy of these.
        roundings: Number of roundings on the longest way from an input to the result.
        magnitude: Largest absolute value on that way.
    """
    return roundings * UNIT_ROUNDOFF[half.removeprefix("mixed_")] * magnitude
