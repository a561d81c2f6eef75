"""The mistakes to plant, by lesson."""

from tests.same_answers.planting import Mistake

LINED = ("class Worker:", "def train(", "def one_step(")  # of lesson 06
TRAINED = ("class Llama(nn.Module)", "def train(", "def autotp(")  # of lesson 05

MISTAKES = {
    "00": (
        Mistake(
            "each rank changes its weights by itself",
            "        differ.append(",
            "        with torch.no_grad():\n"
            "            engine.module.embedding.tokens.weight += torch.distributed.get_rank()\n"
            "        differ.append(",
            ("train = exercises.train.check",),
            "after each step: [1-9]",
        ),
        Mistake(
            "no rank gets rank 0's weights at the start",
            "    deepspeed.init_distributed()\n    model",
            "    deepspeed.init_distributed()\n"
            "    deepspeed.runtime.engine.DeepSpeedEngine._broadcast_model = lambda engine: None\n    model",
            ("differing = exercises.differing.check",),
            "'in the engine': [1-9]",
        ),
    ),
    "02": (
        Mistake(
            "gradients by hand stay",
            "weight.grad.float(), None  # the optimizer",
            "weight.grad.float(), weight.grad  # the optimizer",
            ("mixed_step = exercises.mixed_step.check", 'CONFIG = {"train_batch_size": 8'),
            "the same weights, bit by bit: False",
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
            "(bucket / dist.get_world_size())",
            "bucket",
            ("start = exercises.start.check", "replicas = exercises.replicas.check", "distance, units ="),
            "It is [1-9]",
        ),
        Mistake(
            "micro-batches' gradients are added, not averaged",
            "loss = model(*rows) / len(micro_batches)",
            "loss = model(*rows)",
            ("one_step = exercises.one_step.check", "replicated.beside_each_other("),
            " off",
        ),
        Mistake(
            "the ranks' losses are weighed by rows, not by tokens",
            "(targets >= 0).sum()",
            "(targets >= 0).any(-1).sum()",
            ("off = replicated.against_one_process(",),
            "length: False",
        ),
    ),
    "more/04": (
        Mistake(
            "DeepSpeed's gradients are twice as large",
            "engine.backward(engine(*rows))",
            "engine.backward(2 * engine(*rows))",
            ("replicated.beside_each_other(",),
            " off",
        ),
    ),
    "05": (
        Mistake(
            "f does not sum the gradient of its input",
            "dist.all_reduce(total)  # one x was used on all ranks",
            "# one x was used on all ranks",
            (
                "CopyToRanks = exercises.CopyToRanks.check",
                "row_parallel = exercises.row_parallel.check",
                "shared_block = exercises.shared_block.check",
                *TRAINED,
            ),
            "NO",
        ),
        Mistake(
            "q, k and v are cut in the middle",
            "torch.cat([part.chunk(ranks)[rank] for part in (q, k, v)])",
            "stacked.chunk(ranks)[rank]",
            (
                "own_rows = exercises.own_rows.check",
                "shared_block = exercises.shared_block.check",
                *TRAINED,
            ),
            "NO",
        ),
        Mistake(
            "gradients come back twice",
            "        loss.backward()\n        report.note(loss)",
            "        (2 * loss).backward()\n        report.note(loss)",
            ("def autotp(",),
            "NO",
        ),
    ),
    "more/05": (
        Mistake(
            "the norm counts a replicated parameter t times",
            "RULES = {",
            "before = divided_gpt.train\n\n\n"
            "def train(**choice):\n"
            "    import deepspeed\n\n"
            "    deepspeed.runtime.utils.is_model_parallel_parameter = lambda parameter: True\n"
            "    return before(**choice)\n\n\n"
            "divided_gpt.train = train\n"
            "RULES = {",
            ("own_runs = same_losses(",),
            "t = 2 .*: no",
        ),
    ),
    "06": (
        Mistake(
            "micro-batches' losses are added, not averaged",
            "worker.loss(y, worker.targets[micro]) / worker.count",
            "worker.loss(y, worker.targets[micro])",
            ("forward = exercises.forward.check", *LINED, "def on(ranks, order_of"),
            "NO",
        ),
        Mistake(
            "gradients are twice as large",
            "    y.backward(gradient)",
            "    (2 * y).backward(gradient)",
            ("backward = exercises.backward.check", *LINED, "def on(ranks, order_of"),
            "NO",
        ),
        Mistake(
            "DeepSpeed's gradients are twice as large",
            "    return executed.end()",
            "    for state in engine.optimizer.state.values():\n"
            '        state["exp_avg"] *= 2\n'
            "    return executed.end()",
            ("def on(ranks, order_of", "def by_deepspeed(", "deep = {p: launch"),
            "NO",
        ),
    ),
    "more/06": (
        Mistake(
            "a tied table's gradient is counted twice",
            "def logits(table, x_bsh):",
            "def twice(engine):\n"
            "    engine._exec_reduce_tied_grads_once()\n"
            "    engine._exec_reduce_tied_grads_once()\n\n\n"
            "def doubled(**choice):\n"
            "    from deepspeed.runtime.pipe.engine import PipelineEngine\n"
            "    from deepspeed.runtime.pipe.schedule import ReduceTiedGrads\n\n"
            "    PipelineEngine._exec_reduce_tied_grads_once = PipelineEngine._exec_reduce_tied_grads\n"
            "    PipelineEngine._INSTRUCTION_MAP = dict(PipelineEngine._INSTRUCTION_MAP)\n"
            "    PipelineEngine._INSTRUCTION_MAP[ReduceTiedGrads] = twice\n"
            "    return train_before(**choice)\n\n\n"
            "train_before, pipelines.train = pipelines.train, doubled\n"
            "def logits(table, x_bsh):",
            ("tied_runs[stages] = reports = launch(",),
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
            "(message.float() / ranks).split(",
            "message.float().split(",
            (
                "reduce_to_owners = exercises.reduce_to_owners.check",
                "reduce_and_release = exercises.reduce_and_release.check",
                "for ranks, limit, words in",
            ),
            "differ",
        ),
        Mistake(
            "micro-batches' gradients are added, not averaged",
            "gradient = own / len(passes)",
            "gradient = own.clone()",
            ("zero_2_step = exercises.zero_2_step.check", "for ranks, limit, words in"),
            "differ",
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
