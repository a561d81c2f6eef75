"""The mistakes to plant, by lesson."""

from tests.same_answers.planting import Mistake

MISTAKES = {
    "00": (
        Mistake(
            "each rank changes its weights by itself",
            "    losses = train(engine, batches)\n",
            "    losses = train(engine, batches)\n"
            "    with torch.no_grad():\n"
            "        engine.module.embedding.tokens.weight += torch.distributed.get_rank()\n",
            ("train = exercises.train.check",),
            "'after 8 steps': [1-9]",
        ),
        Mistake(
            "no rank gets rank 0's weights at the start",
            "    deepspeed.init_distributed()\n    model",
            "    deepspeed.init_distributed()\n"
            "    deepspeed.runtime.engine.DeepSpeedEngine._broadcast_model = lambda engine: None\n    model",
            ("found = launch(lambda: begin()[1]",),
            "'in the engine': [1-9]",
        ),
    ),
    "02": (
        Mistake(
            "gradients by hand stay",
            "weight.grad.float(), None  # the optimizer",
            "weight.grad.float(), weight.grad  # the optimizer",
            ("mixed_step = exercises.mixed_step.check", 'makes = {"AdamW"'),
            "after an empty step - the same weights, bit by bit: False",
        ),
    ),
    "03": (
        Mistake(
            "an all-reduce counts as one of its halves",
            'return 2 * others if collective == "all_reduce" else others',
            "return others",
            ("must_send = exercises.must_send.check", 'due = must_send("all_reduce", 2 *', '{"a step":'),
            "differ",
        ),
    ),
    "04": (
        Mistake(
            "gradients are never divided",
            "parameter.grad /= comm.get_world_size()",
            "pass",
            ("average_gradients = exercises.average_gradients.check", "one_by_one = {"),
            "gradients are off by",
        ),
        Mistake(
            "buckets are never divided",
            "bucket /= comm.get_world_size()",
            "pass",
            ("average_in_buckets = exercises.average_in_buckets.check", "in_buckets = {"),
            "gradients are off by",
        ),
        Mistake(
            "DeepSpeed's gradients are twice as large",
            "        engine.backward(loss)\n        total",
            "        engine.backward(2 * loss)\n        total",
            ('runs["DeepSpeed", ranks] = launch(',),
            "gradients are off by",
        ),
    ),
    "05": (
        Mistake(
            "f does not sum the gradient of its input",
            "comm.all_reduce(total)  # one x was used on all ranks",
            "# one x was used on all ranks",
            (
                "CopyToRanks = exercises.CopyToRanks.check",
                "row_parallel = exercises.row_parallel.check",
                "def shard(",
                "by_hand = compare(",
            ),
            "gradients NO",
        ),
        Mistake(
            "each rank adds the bias before the sum",
            "SumOverRanks.apply(F.linear(x, weight)) + bias",
            "SumOverRanks.apply(F.linear(x, weight, bias))",
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
    ),
    "more/06": (
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
            "step(parameters, flat, master, optimizer, max_norm)",
            "zero_1.planted(step, reduce_to_owner=zero_1.undivided)(\n"
            "                parameters, flat, master, optimizer, max_norm)",
            ("zero_1_step = exercises.zero_1_step.check",),
            "masters beyond",
        ),
        Mistake(
            "every rank trains on the sequences of the first step alone",
            "training.own_rows(number, device)",
            "training.own_rows(0, device)",
            ("zero_1_step = exercises.zero_1_step.check",),
            "masters beyond",
        ),
    ),
    "more/07": (
        Mistake(
            "gradients are summed over the ranks and never divided",
            "master.grad = mine.float() / comm.get_world_size()",
            "master.grad = mine.float()",
            ("hand[dtype, ranks] = launch(by_hand",),
            "no",
        ),
    ),
    "08": (
        Mistake(
            "gradients are summed over the ranks and never divided",
            "(message / ranks).split(sizes)",
            "message.split(sizes)",
            ("reduce_bucket = exercises.reduce_bucket.check", "hand[dtype, ranks] = launch(zero_2"),
            "no",
        ),
        Mistake(
            "micro-batches' gradients are added, not averaged",
            "job.own.float() / len(losses)  # the mean",
            "job.own.float()  # the sum",
            ("hand[dtype, ranks] = launch(zero_2",),
            "no",
        ),
    ),
    "09": (
        Mistake(
            "gradients are summed over the ranks and never divided",
            "return x.grad, mine / sharded.ranks",
            "return x.grad, mine",
            ("sharded_backward = exercises.sharded_backward.check", "hand, rows = {ranks: launch(by_hand"),
            "no",
        ),
    ),
    "10": (
        Mistake(
            "each rank keeps a shard of its own values",
            "        comm.broadcast(parameter.data, 0)  # rank 0's values count\n",
            "",
            (
                "keep_shard = exercises.keep_shard.check",
                "formula, hand[ranks] = walk(modules, ranks)",
                "the gathered shards are rank 0's values",
            ),
            "rank 0's values: no",
        ),
        Mistake(
            "random numbers are not put back",
            '        torch.set_rng_state(state["random, CPU"])\n'
            '        deepspeed.get_accelerator().set_rng_state(state["random, device"])',
            "",
            ("RunState = exercises.RunState.check", "reports = launch(broken_off"),
            r"nothing .* no\n",
        ),
        Mistake(
            "Adam's states are not loaded",
            "tag=tag)\n    return resuming.steps",
            "tag=tag, load_optimizer_states=False)\n    return resuming.steps",
            ("for ranks in (1, 2, 4):\n    losses = resuming.mean(",),
            " no",
        ),
    ),
    "12": (
        Mistake(
            "each micro-batch's gradient is added, not averaged",
            "        loss = engine(ids, targets)\n        look(",
            "        loss = engine(ids, targets) * count\n        look(",
            ("runs = {ranks: together(configs, ranks)", "right = launch(all_alone"),
            "no",
        ),
    ),
    "13": (
        Mistake(
            "a tile's gradient does not reach the vectors",
            "        return F.cross_entropy(head(x).float().flatten(0, 1)",
            "        x = x.detach() + 0 * x\n        return F.cross_entropy(head(x).float().flatten(0, 1)",
            ("tiled_loss = exercises.tiled_loss.check", 'ways = {"tiled_loss": tiled_loss}'),
            "gradients: no",
        ),
        Mistake(
            "gradients are twice as large",
            "    engine.backward(loss)\n    engine.step()\n    return loss.item(), float(",
            "    engine.backward(2 * loss)\n    engine.step()\n    return loss.item(), float(",
            ('theirs = launch(train, ranks=2, arguments={"attend": distributed_attention}',),
            "norms of gradients: no",
        ),
        Mistake(
            "every rank counts positions from zero",
            " + comm.get_rank() * own",
            "",
            ('theirs = launch(train, ranks=2, arguments={"attend": distributed_attention}',),
            "losses right: no",
        ),
    ),
    "16": (
        Mistake(
            "gradients are twice as large",
            "loss = engine(*corpus.batch(step, ranks * BATCH, LENGTH, rank, ranks, device))\n"
            "            engine.backward(loss)\n        engine.step()",
            "loss = engine(*corpus.batch(step, ranks * BATCH, LENGTH, rank, ranks, device))\n"
            "            engine.backward(2 * loss)\n        engine.step()",
            ('found = launch(train_each, ranks=4, arguments={"cases": CASES}',),
            "different",
        ),
    ),
    "15": (
        Mistake(
            "gradients are twice as large",
            'gradients[f"{at}.{name}"] = gathered(parameter, "exp_avg").cpu()',
            'gradients[f"{at}.{name}"] = 2 * gathered(parameter, "exp_avg").cpu()',
            ('reports = launch(train, ranks=8, arguments={"axes": AXES}',),
            "gradients on eight ranks equal theirs, within 1e-4: no",
        ),
    ),
    "18": (
        Mistake(
            "gradients are twice as large",
            "        engine.backward(loss)\n        engine.step()\n        total",
            "        engine.backward(2 * loss)\n        engine.step()\n        total",
            ("script = export(show_steps, folder", "there = on_ssh(through_pdsh)"),
            "the same as by launch: no",
        ),
    ),
}
