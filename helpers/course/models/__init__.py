"""The models that the course trains: a GPT in plain torch (`gpt`), the ways to build one (`factories`),
ChatGLM with adapters (`finetuning`), the parts of a Llama block (`llama`), experts in the place of a
feed-forward layer (`experts`), and models whose matrices (`tensor_parallel`) or sequences
(`sequence_parallel`) some ranks share.  What a CPU computes for them in bf16 is in `products`."""

# ruff: noqa: F401  these names are what the package offers

from helpers.course.models import products
from helpers.course.models.experts import (
    RoutedFeedForward,
    choices,
    expert,
    name_in_one_process,
    router,
    with_experts,
)
from helpers.course.models.factories import build, module_sizes
from helpers.course.models.finetuning import (
    ADAPTED,
    CHATGLM_6B,
    TINY_CHATGLM,
    WithLoss,
    chatglm,
    elements_by_kind,
    rehearsed,
    with_adapters,
)
from helpers.course.models.gpt import (
    GPT,
    GPT2,
    GPT2_XL,
    GPT3,
    TINY,
    Attention,
    Block,
    Embedding,
    FeedForward,
    GPTSize,
    Head,
    Linear,
    NextTokenLoss,
    Table,
    Untied,
    explicit_attention,
    next_token_loss,
)
from helpers.course.models.llama import LlamaParts, attend, rotated
from helpers.course.models.sequence_parallel import share_sequence
from helpers.course.models.tensor_parallel import AUTOTP_RULES, TensorBlock, tensor_part
from helpers.tools.rehearsal.of_transformers import build_transformers, checkpointed
