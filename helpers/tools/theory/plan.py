"""One way to train a model on a cluster, and the bytes that follow from it.

Coarse on purpose: parameters divide evenly, so that thousands of plans can be tried in a second
(`model_states` has the exact formulas).  In bf16 with Adam as DeepSpeed 0.19 does it.  Tensor parallelism
comes with sequence parallelism, unless a plan says otherwise (Korthikanti et al., arXiv 2205.05198, section
4.2.2); pipelines run 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2) and take ZeRO's stages 0 and 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..whole import shared, whole
from .gpt_size import GPTSize
from .layers import BF16, activation_parts, random_state_bytes, tensors
from .llama import LlamaSize

AT_ONCE = 1_000_000_000  # elements: DeepSpeed's `stage3_max_live_parameters` and `sub_group_size`
# By stage, bytes for each element that is stepped: the fp32 gradient, 4, and a square root, 4, which replaces
# the flat bf16 copy and, at stages 1 and 2, the bf16 gradients, 2
UNFUSED_COPIES = {0: 8, 1: 6, 2: 6, 3: 8}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to train a GPT or a Llama; a ValueError where it does not divide, or DeepSpeed refuses it."""

    size: GPTSize | LlamaSize
    gpus: int  # in all
    batch: int  # sequences of a step, of all GPUs together
    sequence: int  # tokens of each
    stage: int = 0  # of ZeRO, 0 to 3
    micro: int = 1  # sequences of a micro-batch, of each replica
    checkpointed: bool = False  # whether each block keeps its input alone and is computed again
    tensor: int = 1  # t, GPUs that share each layer
    # p, stages of consecutive layers, as equal as can be (DeepSpeed's `partition_method="type:Block"`)
    pipeline: int = 1
    bucket: int = 500_000_000  # `reduce_bucket_size`, elements
    # t GPUs share tokens where they do not share a layer, the embedding, and the vocabulary of the loss; in
    # DeepSpeed's own tensor parallelism each has all of these
    sequence_parallel: bool = True
    # Adam makes no temporary beside gradients in fp32: torch's fused AdamW, and DeepSpeed's under ZeRO
    lean: bool = True
    trained: float = 1.0  # the share of the parameters that are trained, such as adapters (lesson 12)
    offload: bool = False  # optimizer, states and gradients are the host's (ZeRO-Offload, stages 1 to 3)
    ulysses: int = 1  # u, GPUs that share the tokens of each sequence (lesson 13) and are replicas for ZeRO

    def __post_init__(self):
        whole(self.stage, "stage", 0, 3)
        whole(self.bucket, "bucket", 0)
        for name in ("gpus", "batch", "sequence", "micro", "tensor", "pipeline", "ulysses"):
            whole(getattr(self, name), name)
        if refusal := self._refusal():
            raise ValueError(refusal)
        if self.sequence_parallel:
            shared(self.tensor, tokens=self.sequence)

    def _refusal(self) -> str:
        """Why the GPUs cannot share the work like this; "" where they can."""
        tensor, pipeline, heads, layers = self.tensor, self.pipeline, self.size.heads, self.size.layers
        if pipeline > 1 and self.stage > 1:
            return f"DeepSpeed's pipelines refuse ZeRO's stage {self.stage}: use 0 or 1"
        if self.gpus % (tensor * pipeline):
            return f"{self.gpus} GPUs cannot form replicas of {tensor} x {pipeline}"
        if heads % tensor or self.size.kv_heads % tensor or pipeline > layers:
            return f"{heads} heads and {layers} layers cannot be shared by {tensor} x {pipeline} GPUs"
        if not 0 < self.trained <= 1:
            return f"trained is a share, above 0 and up to 1, not {self.trained!r}"
        if self.offload and self.stage == 0:
            return "DeepSpeed offloads the optimizer at ZeRO's stages 1 to 3, not at 0"
        if self.ulysses > 1 and not isinstance(self.size, GPTSize):
            return "the planner has Ulysses for a GPT alone: use ulysses=1"
        if self.ulysses > 1 and tensor * pipeline > 1:
            return "the planner has Ulysses with data parallelism alone: use tensor=1 and pipeline=1"
        if any(number % self.ulysses for number in (self.replicas, self.sequence, heads)):
            amounts = f"{self.replicas} GPUs, {self.sequence} tokens and {heads} heads"
            return f"{amounts} cannot be shared by {self.ulysses} each"
        groups, batch, micro = self.replicas // self.ulysses, self.batch, self.micro
        refusal = f"{batch} sequences are no whole number of micro-batches of {micro} on {groups} replicas"
        return refusal if batch % (groups * micro) else ""

    @property
    def replicas(self) -> int:
        """N: copies of the model, among which ZeRO shards; a Ulysses group has the same sequences."""
        return self.gpus // (self.tensor * self.pipeline)

    @property
    def micro_batches(self) -> int:
        """m: of a step, on each replica."""
        return self.batch * self.ulysses // (self.replicas * self.micro)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sequences, tokens of each (with Ulysses a part) and width of what a GPU has of a micro-batch."""
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
        """Layers of the longest pipeline stage over the average: 1 where p divides the layers."""
        return self.layers * self.pipeline / self.size.layers

    @property
    def _tokens_shared_by(self) -> int:
        """GPUs that share what tensor parallelism by itself leaves whole."""
        return self.tensor if self.sequence_parallel else 1

    @property
    def parameters(self) -> float:
        """P: elements of one GPU before ZeRO shards anything, those of the largest pipeline stage."""
        parts = {name: sum(sizes) for name, sizes in tensors(self.size).items()}
        ends = parts["embedding"] + parts["head"]
        if self.pipeline > 1 and not self.size.tied:  # no stage has both tables
            ends = max(parts["embedding"], parts["head"])
        return self.layers * parts["block"] / self.tensor + ends / self._tokens_shared_by

    @property
    def is_data_parallel(self) -> bool:
        """Whether ZeRO alone divides the training, on GPUs that hold and train everything that is theirs."""
        others = self.tensor, self.pipeline, self.ulysses
        return others == (1, 1, 1) and self.trained == 1 and not self.offload

    @cached_property
    def _parts(self) -> dict[str, int]:
        """`activation_parts` of a micro-batch."""
        return activation_parts(self.size, *self.shape[:2], BF16, device="cuda")

    @property
    def kept(self) -> float:
        """Bytes that one block keeps of a micro-batch for its backward pass; checkpointed its input alone."""
        if self.checkpointed:
            return self.unit / self._tokens_shared_by
        shared_by_all = random_state_bytes(BF16, "cuda")
        shared_by_all += 0 if self.sequence_parallel else self._parts["whole"]
        kept = shared_by_all + (self._parts["block"] - shared_by_all) // self.tensor
        # attention's result, by heads and by tokens: as in `ulysses_activation_bytes`
        return kept + (self.unit if self.ulysses > 1 else 0)

    @property
    def activations(self) -> float:
        """The most bytes of activations that a GPU has at once: those that are kept and, at the loss, 8 bytes
        more for each logit; of a pipeline's first stage, which keeps min(p, m) micro-batches, and its last,
        which has the loss, the larger."""
        tokens, vocabulary = math.prod(self.shape[:2]), self.size.vocabulary
        head = self._parts["head"] + 8 * tokens * vocabulary
        stage = self.layers * self.kept
        return max(stage + head / self._tokens_shared_by, min(self.pipeline, self.micro_batches) * stage)

    @property
    def _tensors(self) -> tuple[int, int, int]:
        """Bytes in bf16 of the token table, of a block's largest matrix, and of a block's parameters."""
        block = tensors(self.size)["block"]
        return BF16 * self.size.vocabulary * self.size.width, BF16 * max(block), BF16 * sum(block)

    @property
    def again(self) -> float:
        """Bytes that only the backward pass has, beside all gradients that stay: those of one block, computed
        again where blocks are checkpointed.

        Stage 0: the first block, complete.  Stage 1: that one, whose own gradients come when it goes; or,
        when they are there, two gradients more of the token table, which is tied: one from the head, one from
        the embedding, and their sum.  Stages 2 and 3, where gradients come complete only for a moment: these
        three; or the last block, the first to run, when all others still keep what they keep, beside the
        head's gradient of the table and that of a matrix before it is reduced.
        """
        complete = self.unit + self._parts["block"] + self._parts["again"]
        others = (self.layers - 1) * self.kept
        _, matrix, parameters = self._tensors
        in_use = parameters if self.checkpointed else 7 / 4 * matrix  # of stage 3, in the backward pass
        others -= self.gathered - self._gathered(in_use)
        if self.stage == 0:
            return complete / self.tensor
        if self.trained < 1:  # gradients of adapters are too small to be counted
            return others + complete / self.tensor
        return self._again_whole(complete) if self.stage == 1 else self._again_of_shards(complete, others)

    def _again_whole(self, complete: float) -> float:
        """Stage 1: the partition's gradients are not yet copied at that moment."""
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
        first = self._parts["again"] + (3 * self.unit if self.checkpointed else 0) + waiting
        if self.checkpointed:
            first = max(complete + (matrix if self.stage == 3 else 0), first)
        # stage 2 lets the last gradient of the micro-batch before live
        left = table if self.stage == 2 and self.micro_batches > 1 else 0
        last_block = others + (first + table + left) / self.tensor
        return max(last_block, max(complete + table, 3 * table) / self.tensor)

    @property
    def gathered(self) -> float:
        """Bytes of parameters that stage 3 has gathered at once: DeepSpeed's limit of 10^9 elements or, if
        that is more, the token table with a block, where that is computed again, else its largest matrix."""
        table, matrix, parameters = self._tensors
        return self._gathered(table + (parameters if self.checkpointed else matrix))

    def _gathered(self, in_use: float) -> float:
        if self.stage < 3 or self.replicas == 1:
            return 0.0
        return max(BF16 * min(self.parameters, AT_ONCE), in_use / self.tensor)

    @property
    def copies(self) -> int:
        """Bytes per element that is stepped at once: its gradient in fp32, 4; above stage 0 once more flat in
        bf16, 2; where Adam is not `lean` `UNFUSED_COPIES`."""
        return (6 if self.stage else 4) if self.lean else UNFUSED_COPIES[self.stage]

    @property
    def host(self) -> float:
        """Bytes of the host's memory that offload takes for one GPU, as in `offload_bytes`: 18 per element of
        its partition (master weights, Adam, gradients in fp32, new parameters), 2 more at stage 2 with
        several micro-batches."""
        if not self.offload:
            return 0.0
        each = 20 if self.stage == 2 and self.micro_batches > 1 else 18
        return each * self.trained * self.parameters / self.replicas + self.offload_buffer

    @property
    def offload_buffer(self) -> float:
        """Bytes of a buffer of the largest parameter, on either side, with which stages 1 and 2 offload."""
        return max(self._tensors[:2]) / self.tensor if self.offload and self.stage < 3 else 0.0

    def __str__(self):
        lean = "" if self.lean else ", Adam not lean"
        return f"{self.parameters / 1e9:.3g} billion parameters, {self.name}{lean}"

    @property
    def name(self) -> str:
        """In words, for a table: "stage 3, checkpointed, 2 x 4, t = 8, p = 4"."""
        shares = {"t": self.tensor, "p": self.pipeline, "u": self.ulysses}
        parts = [f"stage {self.stage}", *["checkpointed"] * self.checkpointed]
        parts.append(f"{self.micro_batches} x {self.micro}")
        parts += [f"{letter} = {count}" for letter, count in shares.items() if count > 1]
        parts += ["offload"] * self.offload
        parts += [f"{100 * self.trained:.3g} % trained"] if self.trained < 1 else []
        return ", ".join(parts)
