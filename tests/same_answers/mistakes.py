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
    "06": (
        Mistake(
            "micro-batches' losses are added, not averaged",
            "y = models.next_token_loss(y, self.targets[micro]) / len(self.ids)",
            "y = models.next_token_loss(y, self.targets[micro])",
            ("def one_stage(rank, ranks)", 'ran["GPipe", ranks] = launch('),
            "do NOT equal",
        ),
        Mistake(
            "gradients are twice as large",
            "y.backward(gradient)  # from here",
            "(2 * y).backward(gradient)  # from here",
            ("pass_back = exercises.pass_back.check", 'ran["1F1B", ranks] = launch('),
            "do NOT equal",
        ),
        Mistake(
            "DeepSpeed's gradients are twice as large",
            '    engine = report.pop("engine")\n',
            '    engine = report.pop("engine")\n'
            "    for state in engine.optimizer.state.values():\n"
            '        state["exp_avg"] *= 2\n',
            ("deep = {stages: launch(train, ranks=stages",),
            "do NOT equal",
        ),
        Mistake(
            "a tied table's gradient is counted twice",
            "    return deepspeed.initialize(model=model, config=config)[0]",
            "    engine = deepspeed.initialize(model=model, config=config)[0]\n"
            "    summed = engine._exec_reduce_tied_grads\n"
            "    engine._exec_reduce_tied_grads = lambda: (summed(), summed())\n"
            "    engine._INSTRUCTION_MAP = {\n"
            "        **engine._INSTRUCTION_MAP,\n"
            "        deepspeed.runtime.pipe.schedule.ReduceTiedGrads: lambda engine: (summed(), summed()),\n"
            "    }\n"
            "    return engine",
            ("tied_runs[stages] = launch(train",),
            r"2  no",
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
