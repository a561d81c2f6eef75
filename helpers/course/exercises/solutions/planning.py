"""The course's own answers of lesson 17."""

from helpers.tools import theory


def moments_solution(plan):
    states = theory.ideal_bytes(plan.parameters, plan.replicas, plan.stage)
    always = states["parameters"] + states["master weights"] + states["optimizer states"]
    gradients = states["gradients"]
    part = plan.parameters / plan.replicas if plan.stage else plan.parameters  # stage 0 updates everything
    bucket = 2 * plan.bucket if plan.stage else 0  # gradients wait in it until they are reduced together
    loss = always + plan.gathered + plan.activations
    if plan.micro_batches > 1 or plan.stage == 3:  # gradients of earlier micro-batches; stage 3 always
        loss += gradients + (bucket if plan.stage in (1, 3) else 0)  # stage 2 has it in backward alone
    copied = 2 * part if plan.stage in (1, 2) else 0  # cut out of full gradients; stage 3 reduces into place
    backward = always + plan.gathered + gradients + bucket + copied + plan.again
    stepped = min(part, 1e9) if plan.stage == 3 else part  # one sub-group after another
    step = always + 2 * part + plan.copies * stepped + (bucket if plan.stage == 3 else 0)  # stage 3 keeps it
    return {"loss": loss, "backward": backward, "step": step}


def step_seconds_solution(plan, cluster):
    passes = "checkpointed step" if plan.checkpointed else "step"
    flops = theory.flops_per_token(plan.size, plan.sequence, passes, causal=True) * plan.batch * plan.sequence
    work = flops / (plan.gpus * cluster.rate)
    unit = 2 * plan.micro * plan.sequence * plan.size.width  # bytes of the residual stream
    s, m, t = plan.imbalance, plan.micro_batches, plan.tensor
    reduces = 6 if plan.checkpointed else 4  # checkpointing repeats 2 of them
    reduces += plan.sequence_parallel  # the backward pass gathers inputs: two halves more
    sums = m * plan.layers * reduces * theory.wire_bytes("all_reduce", unit, t)
    all_cards = min(cluster.within, cluster.host * cluster.link)
    zero = theory.zero_wire_bytes(plan.parameters, plan.replicas, plan.stage, 2, m, whole_buckets=True)
    cards = min(cluster.within, max(1, cluster.host // t) * cluster.link)
    in_a_host = plan.gpus // plan.pipeline <= cluster.host  # the GPUs of a stage are neighbours
    between_stages = cluster.within if plan.gpus <= cluster.host else cluster.link
    return {
        "work": work,
        "bubble": work * (s - 1 + (plan.pipeline - s) / m),
        "tensor parallelism": sums / (cluster.within if t <= cluster.host else all_cards),
        "pipeline": 2 * m * unit / t / between_stages if plan.pipeline > 1 else 0.0,
        "ZeRO": zero / (cluster.within if in_a_host else cards),
    }


def cheapest_that_fits_solution(plans, needed, seconds, memory):
    took = {plan: seconds(plan) for plan in plans if needed(plan) <= memory}  # the simplest stays first
    return next((plan for plan in took if took[plan] <= 1.05 * min(took.values())), None)
