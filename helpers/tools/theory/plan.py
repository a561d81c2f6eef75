"""One way to train a GPT on a cluster, and the bytes that follow from it.

Coarse on purpose: parameters divide evenly, so that thousands of plans can be tried in a second.
`model_states` has the exact formulas, for one plan; a rehearsal has everything but the numbers.

In bf16 with Adam as DeepSpeed 0.19 does it.  Tensor parallelism comes with sequence parallelism, unless a
plan says otherwise (Korthikanti et al., arXiv 2205.05198, section 4.2.2), pipelines run 1F1B (Narayanan et
al., arXiv 2104.04473, section 2.2) and take ZeRO's stages 0 and 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from helpers.tools.theory.checks import shared, whole, zero_stage
from helpers.tools.theory.layers import (
    BF16,
    Size,
    block_parameters,
    embedding_parameters,
    head_activation_bytes,
    repeated_block_bytes,
)
from helpers.tools.theory.tensor_parallel import (
    sequence_parallel_block_activation_bytes,
    tensor_parallel_block_activation_bytes,
)

AT_ONCE = 1_000_000_000  # elements: DeepSpeed's `stage3_max_live_parameters` and `sub_group_size`
# By stage, bytes for each element that is stepped: the fp32 gradient, 4, and a square root, 4, which comes
# when the flat bf16 copy is gone, and at stages 1 and 2 the bf16 gradients, 2, with it.
UNFUSED_COPIES = {0: 8, 1: 6, 2: 6, 3: 8}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to train a GPT.

    Attributes:
        size: the model's shape.
        gpus: in all.
        batch: sequences of a step, of all GPUs together.
        sequence: tokens of each.
        stage: of ZeRO, 0 to 3.
        micro: sequences of a micro-batch, of each replica.
        checkpointed: whether each block keeps its input alone and is computed again.
        tensor: t, GPUs that share each layer.
        pipeline: p, stages of consecutive layers, as equal as can be (DeepSpeed's
            `partition_method="type:Block"`, with the class of the blocks).
        bucket: `reduce_bucket_size`, elements; DeepSpeed's own by default.
        sequence_parallel: the t GPUs share the tokens where they do not share a layer, the embedding and the
            vocabulary of the loss (Megatron); without it, as in DeepSpeed's own tensor parallelism, each has
            all of these.
        fused: torch's fused AdamW (`"fused": true`), which needs no memory for square roots.
        trained: the share of the parameters that are trained, such as adapters (lesson 11); the token table
            is, if all are.
        offload: the optimizer, with its states and the gradients it takes, is the host's (ZeRO-Offload); for
            stages 1 to 3.
        ulysses: u, GPUs that share the tokens of each sequence (lesson 12) and are replicas for ZeRO.

    Raises:
        ValueError: where the numbers do not divide, or DeepSpeed refuses the combination.
    """

    size: Size
    gpus: int
    batch: int
    sequence: int
    stage: int = 0
    micro: int = 1
    checkpointed: bool = False
    tensor: int = 1
    pipeline: int = 1
    bucket: int = 500_000_000
    sequence_parallel: bool = True
    fused: bool = True
    trained: float = 1.0
    offload: bool = False
    ulysses: int = 1

    def __post_init__(self):
        zero_stage(self.stage)
        whole(gpus=self.gpus, batch=self.batch, sequence=self.sequence, micro=self.micro)
        whole(tensor=self.tensor, pipeline=self.pipeline, ulysses=self.ulysses)
        whole(0, bucket=self.bucket)
        if self.pipeline > 1 and self.stage > 1:
            raise ValueError(f"DeepSpeed's pipelines refuse ZeRO's stage {self.stage}: use 0 or 1")
        if self.gpus % (self.tensor * self.pipeline):
            raise ValueError(f"{self.gpus} GPUs cannot form replicas of {self.tensor} x {self.pipeline}")
        if self.size.heads % self.tensor or self.pipeline > self.size.layers:
            raise ValueError(
                f"{self.size.heads} heads and {self.size.layers} layers cannot be shared by "
                f"{self.tensor} x {self.pipeline} GPUs"
            )
        if not 0 < self.trained <= 1:
            raise ValueError(f"trained is a share, above 0 and up to 1, not {self.trained!r}")
        if self.offload and self.stage == 0:
            raise ValueError("DeepSpeed offloads the optimizer at ZeRO's stages 1 to 3, not at 0")
        if self.ulysses > 1 and self.tensor * self.pipeline > 1:
            raise ValueError(
                "the planner has Ulysses with data parallelism alone: use tensor=1 and pipeline=1"
            )
        if self.replicas % self.ulysses or self.sequence % self.ulysses or self.size.heads % self.ulysses:
            raise ValueError(
                f"{self.replicas} GPUs, {self.sequence} tokens and {self.size.heads} heads cannot "
                f"be shared by {self.ulysses} each"
            )
        if self.sequence_parallel:
            shared(self.tensor, tokens=self.sequence)
        groups = self.replicas // self.ulysses
        if self.batch % (groups * self.micro):
            raise ValueError(
                f"{self.batch} sequences are no whole number of micro-batches of {self.micro} on "
                f"{groups} replicas"
            )

    # --- how the work is shared

    @property
    def replicas(self) -> int:
        """N: copies of the model, among which ZeRO shards; those of one Ulysses group have the same
        sequences."""
        return self.gpus // (self.tensor * self.pipeline)

    @property
    def micro_batches(self) -> int:
        """m: of a step, on each replica."""
        return self.batch * self.ulysses // (self.replicas * self.micro)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sequences, tokens of each and width of what a GPU has of a micro-batch: with Ulysses a part of the
        tokens."""
        return self.micro, self.sequence // self.ulysses, self.size.width

    @property
    def unit(self) -> int:
        """Bytes of the residual stream of a micro-batch, 2 b s h."""
        return BF16 * math.prod(self.shape)

    @property
    def layers(self) -> int:
        """Of the longest pipeline stage."""
        return -(-self.size.layers // self.pipeline)

    @property
    def imbalance(self) -> float:
        """Layers of the longest pipeline stage over those of all stages on average: 1 where p divides the
        layers."""
        return self.layers * self.pipeline / self.size.layers

    @property
    def _tokens_shared_by(self) -> int:
        """GPUs that share what tensor parallelism by itself leaves whole."""
        return self.tensor if self.sequence_parallel else 1

    @property
    def parameters(self) -> float:
        """P: elements of one GPU before ZeRO shards anything, those of the largest pipeline stage."""
        size = self.size
        ends = embedding_parameters(size.vocabulary, size.context, size.width) + 2 * size.width
        return self.layers * block_parameters(size.width) / self.tensor + ends / self._tokens_shared_by

    # --- activations

    @property
    def kept(self) -> float:
        """Bytes that one block keeps of a micro-batch for its backward pass; checkpointed its input alone."""
        if self.checkpointed:
            return self.unit / self._tokens_shared_by
        block = tensor_parallel_block_activation_bytes
        if self.sequence_parallel:
            block = sequence_parallel_block_activation_bytes
        kept = block(*self.shape, self.size.heads, BF16, self.tensor, device="cuda")
        # attention's result, by heads and by tokens: as in `ulysses_activation_bytes`
        return kept + (self.unit if self.ulysses > 1 else 0)

    @property
    def activations(self) -> float:
        """The most bytes of activations that a GPU has at once: those that are kept and, at the loss, 8 bytes
        more for each logit.

        In a pipeline the first stage keeps min(p, m) micro-batches, and the last has the loss: the larger of
        the two.
        """
        tokens, vocabulary = math.prod(self.shape[:2]), self.size.vocabulary
        head = head_activation_bytes(*self.shape, vocabulary, BF16, device="cuda") + 8 * tokens * vocabulary
        stage = self.layers * self.kept
        return max(stage + head / self._tokens_shared_by, min(self.pipeline, self.micro_batches) * stage)

    @property
    def _tensors(self) -> tuple[int, int, int]:
        """Bytes in bf16 of the token table, of a block's largest matrix, and of a block's parameters."""
        width = self.size.width
        return BF16 * self.size.vocabulary * width, BF16 * 4 * width**2, BF16 * block_parameters(width)

    @property
    def again(self) -> float:
        """Bytes that only the backward pass has, beside all gradients that stay: those of one block, computed
        again where blocks are checkpointed.

        Stage 0: the first block, complete.  Stage 1: that one, whose own gradients come when it goes; or,
        when they are there, two gradients more of the token table, which is tied: one from the head, one from
        the embedding, and their sum.  Stages 2 and 3, where gradients are shards and come complete only for a
        moment: these three gradients of the table; or the last block, the first to run, when all others still
        keep what they keep, beside the head's gradient of the table and that of a matrix before it is
        reduced.
        """
        complete = self.unit + repeated_block_bytes(*self.shape, self.size.heads, BF16, device="cuda")
        others = (self.layers - 1) * self.kept
        _, matrix, parameters = self._tensors
        in_use = parameters if self.checkpointed else 7 / 4 * matrix  # of stage 3, in the backward pass
        others -= self.gathered - self._gathered(in_use)
        if self.stage == 0:
            return complete / self.tensor
        if self.trained < 1:  # gradients of adapters are too small to be counted
            return others + complete / self.tensor
        return (
            self._again_of_stage_1(complete) if self.stage == 1 else self._again_of_shards(complete, others)
        )

    def _again_of_stage_1(self, complete: float) -> float:
        """The partition's gradients are not yet copied at that moment."""
        copied = 0 if self.offload else BF16 * self.parameters / self.replicas
        table, matrix, parameters = self._tensors
        tables = 2 * table / self.tensor
        first = (complete - parameters + matrix) / self.tensor
        if self.micro_batches > 1 and self.checkpointed:
            tables = max(tables, (self.layers - 1) * self.kept + complete / self.tensor + tables)
        return max(first, tables - copied, 0)

    def _again_of_shards(self, complete: float, others: float) -> float:
        """`others`: what the other blocks keep, less what is not gathered any more."""
        (table, matrix, parameters), bucket = self._tensors, BF16 * self.bucket
        waiting = bucket if parameters <= bucket else min(bucket, 3 / 4 * matrix)  # until it is full
        if self.stage == 3:
            waiting += matrix
        else:
            waiting = matrix + (max(matrix, waiting) if self.offload else matrix)
        first = 5 * self.unit + waiting
        if self.checkpointed:
            first = max(complete + (matrix if self.stage == 3 else 0), 8 * self.unit + waiting)
        # stage 2 lets the last gradient of the micro-batch before live
        left = table if self.stage == 2 and self.micro_batches > 1 else 0
        last_block = others + (first + table + left) / self.tensor
        return max(last_block, max(complete + table, 3 * table) / self.tensor)

    # --- what ZeRO and the optimizer add

    @property
    def gathered(self) -> float:
        """Bytes of parameters that stage 3 has gathered at once: DeepSpeed's limit of 10^9 elements, or what
        is in use, if that is more.

        In use are the token table of the head, and the block that comes first in the backward pass where it
        is computed again, else that block's largest matrix.
        """
        table, matrix, parameters = self._tensors
        return self._gathered(table + (parameters if self.checkpointed else matrix))

    def _gathered(self, in_use: float) -> float:
        if self.stage < 3 or self.replicas == 1:
            return 0.0
        return max(BF16 * min(self.parameters, AT_ONCE), in_use / self.tensor)

    @property
    def copies(self) -> int:
        """Bytes for each element that the optimizer steps at once: its gradient in fp32, 4; above stage 0
        once more flat in bf16, 2; without the fused AdamW `UNFUSED_COPIES`."""
        if self.fused:
            return 6 if self.stage else 4
        return UNFUSED_COPIES[self.stage]

    @property
    def host(self) -> float:
        """Bytes of the host's memory that offload takes for one GPU, as in `offload_bytes`.

        For each element of its partition 18: master weights, Adam, gradients in fp32, new parameters; 2 more
        at stage 2 with several micro-batches. At stages 1 and 2 also a buffer of the largest parameter.
        """
        if not self.offload:
            return 0.0
        each = 20 if self.stage == 2 and self.micro_batches > 1 else 18
        return each * self.trained * self.parameters / self.replicas + self.offload_buffer

    @property
    def offload_buffer(self) -> float:
        """Bytes of a buffer of the largest parameter, on the device and in the host, with which stages 1 and
        2 offload."""
        if not self.offload or self.stage == 3:
            return 0.0
        return max(self._tensors[:2]) / self.tensor

    @property
    def name(self) -> str:
        """In words, for a table: "stage 3, checkpointed, 2 x 4, t = 8, p = 4"."""
        parts = [f"stage {self.stage}"]
        if self.checkpointed:
            parts.append("checkpointed")
        parts.append(f"{self.micro_batches} x {self.micro}")
        shares = {"t": self.tensor, "p": self.pipeline, "u": self.ulysses}
        parts += [f"{letter} = {count}" for letter, count in shares.items() if count > 1]
        if self.offload:
            parts.append("offload")
        if self.trained < 1:
            parts.append(f"{100 * self.trained:.3g} % trained")
        return ", ".join(parts)
