"""The mistakes to plant, by lesson."""

from tests.same_answers.planting import Mistake

MISTAKES = {
    "05": (
        Mistake(
            "f does not sum the gradient of its input",
            "        comm.all_reduce(total)  # one x was used on all ranks, so its gradient is the sum of theirs\n",
            "",
            ("CopyToRanks = exercises.CopyToRanks.check", "by_hand = compare("),
            "gradients NO",
        ),
        Mistake(
            "each rank adds the bias before the sum",
            "SumOverRanks_solution.apply(F.linear(x, weight)) + bias",
            "SumOverRanks_solution.apply(F.linear(x, weight, bias))",
            ("row_parallel = exercises.row_parallel.check", "def shard(", "by_hand = compare("),
            "loss NO",
        ),
        Mistake(
            "the norm counts a replicated parameter t times",
            "    model, config = make(), configuration(tensor_ranks, **choice)\n",
            "    deepspeed.runtime.utils.is_model_parallel_parameter = lambda parameter: True\n"
            "    model, config = make(), configuration(tensor_ranks, **choice)\n",
            ("own_runs = same_losses(",),
            "t = 2 .*: no",
        ),
    ),
    "07": (
        Mistake(
            "gradients are summed over the ranks and never divided",
            "master.grad = mine.float() / comm.get_world_size()",
            "master.grad = mine.float()",
            ("zero_1_step = exercises.zero_1_step.check", "hand[dtype, ranks] = launch(by_hand"),
            "no",
        ),
    ),
}
