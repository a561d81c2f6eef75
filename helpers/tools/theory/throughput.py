"""FLOPs per token, and what part of a machine's peak a training run reaches.

One multiply-add counts as two FLOPs.  With N parameters, L blocks of width C and sequences of T tokens, the
matrix products with weights take 2 N FLOPs per token and pass (Kaplan et al., arXiv 2001.08361, section 2.1),
and the products of attention, q k^T and scores v, take 4 L C T.  By convention the latter count all T x T
scores, although a causal model needs half of them: `causal=True` counts that half.
"""

from __future__ import annotations

from helpers.tools.theory.layers import Size, gpt_parameters

# what is computed, in units of a forward pass; a backward pass is two
PASSES = {"forward": 1, "step": 3, "checkpointed step": 4}


def flops_per_token(size: Size, sequence: int, passes: str = "step", causal: bool = False) -> float:
    """FLOPs of one token: 2 N + 4 L C T in a forward pass, 6 N + 12 L C T in a step, 8 N + 16 L C T where
    every block is computed again.

    N is all parameters of a GPT with a tied head: the token table is looked up without FLOPs, and multiplied
    with as the head.  The third form counts the head as computed again too, as is usual; the course's
    checkpointing leaves it alone.

    Args:
        sequence: T, tokens.
        passes: "forward", "step" (forward and backward) or "checkpointed step".
        causal: count only the scores that a causal model needs.
    Source: Kaplan et al., arXiv 2001.08361, section 2.1; attention as in Chowdhery et al., PaLM, arXiv
        2204.02311, appendix B; recomputation as in Korthikanti et al., arXiv 2205.05198, section 6.
    """
    if passes not in PASSES:
        raise ValueError(f"passes must be one of {', '.join(PASSES)}; not {passes!r}")
    scores = 4 * size.layers * size.width * sequence * (0.5 if causal else 1)
    return PASSES[passes] * (2 * gpt_parameters(size) + scores)


def mfu(size: Size, sequence: int, tokens_per_second: float, peak: float, causal: bool = False) -> float:
    """Model FLOPs utilisation: the FLOPs that a step *needs*, per second, as a part of the machine's peak
    (Chowdhery et al., PaLM, arXiv 2204.02311, section 4.1 and appendix B).

    Work that is done twice (checkpointing) does not count, so that it cannot look like speed.

    Args:
        tokens_per_second: of all devices that `peak` covers, or of one.
        peak: FLOPs per second, of the same devices: the manufacturer's, or one that was measured (say which).
        size, sequence, causal: as in `flops_per_token`.
    """
    return tokens_per_second * flops_per_token(size, sequence, causal=causal) / _positive(peak)


def hfu(
    size: Size,
    sequence: int,
    tokens_per_second: float,
    peak: float,
    checkpointing: bool = False,
    causal: bool = False,
) -> float:
    """Hardware FLOPs utilisation: the FLOPs that are *done*, recomputation included, as a part of the peak
    (arXiv 2204.02311, section 4.1; Korthikanti et al., arXiv 2205.05198, section 6.3).  Without checkpointing
    it is `mfu`; arguments as there."""
    passes = "checkpointed step" if checkpointing else "step"
    return tokens_per_second * flops_per_token(size, sequence, passes, causal) / _positive(peak)


def _positive(peak):
    if not peak > 0:
        raise ValueError(f"peak must be a positive number of FLOPs per second, not {peak!r}")
    return peak
