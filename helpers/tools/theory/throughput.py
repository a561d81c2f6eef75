"""FLOPs per token, and what part of a machine's peak a training run reaches.

With N parameters, L blocks of width C and sequences of T tokens, the matrix products with weights take 2 N
FLOPs per token and pass (Kaplan et al., arXiv 2001.08361, section 2.1), a multiply-add being two, and the
products of attention, q k^T and scores v, take 4 L C T.  By convention the latter count all T x T scores,
although a causal model needs half of them: `causal=True` counts that half.
"""

from __future__ import annotations

from helpers.tools.theory.gpt_size import GPTSize
from helpers.tools.theory.layers import gpt_parameters
from helpers.tools.whole import check_choice, positive

# what is computed, in units of a forward pass; a backward pass is two
PASSES = {"forward": 1, "step": 3, "checkpointed step": 4}


def flops_per_token(size: GPTSize, sequence: int, passes: str = "step", causal: bool = False) -> float:
    """FLOPs of one token: 2 N + 4 L C T in a "forward" pass, 6 N + 12 L C T in a "step", 8 N + 16 L C T in a
    "checkpointed step", where every block is computed again.

    N is all parameters of a GPT with a tied head: the token table is looked up without FLOPs, and multiplied
    with as the head.  The third form counts the head as computed again too, as is usual; the course's
    checkpointing leaves it alone.  Attention as in Chowdhery et al., PaLM, arXiv 2204.02311, appendix B;
    recomputation as in Korthikanti et al., arXiv 2205.05198, section 6.
    """
    check_choice("passes", passes, PASSES)
    scores = 4 * size.layers * size.width * sequence * (0.5 if causal else 1)
    return PASSES[passes] * (2 * gpt_parameters(size) + scores)


def mfu(size: GPTSize, sequence: int, tokens_per_second: float, peak: float) -> float:
    """Model FLOPs utilisation: the FLOPs that a step *needs*, per second, as a part of the machine's peak
    (arXiv 2204.02311, section 4.1 and appendix B).

    Work that is done twice (checkpointing) does not count, so that it cannot look like speed.

    Args:
        tokens_per_second: of all devices that `peak` covers, or of one.
        peak: FLOPs per second, of the same devices: the manufacturer's, or one that was measured (say which).
    """
    positive(peak=peak)
    return tokens_per_second * flops_per_token(size, sequence) / peak
