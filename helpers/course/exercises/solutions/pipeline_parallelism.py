"""The course's own answers of lesson 06."""


def pass_back_solution(x, y, gradient):
    y.backward(gradient)  # from here, through this stage's layers, to their weights and to x
    return x.grad


def gpipe_solution(rank, ranks, count):
    forwards = [("F", rank, micro) for micro in range(count)]
    backwards = [("B", rank, micro) for micro in range(count)]
    return forwards + backwards  # so every micro-batch is kept until the last has gone forward


def one_f_one_b_solution(rank, ranks, count):
    forwards = [("F", rank, micro) for micro in range(count)]
    backwards = [("B", rank, micro) for micro in range(count)]
    first = min(ranks - rank - 1, count)  # one per later stage: work until a first gradient comes back
    order = forwards[:first]
    for pair in zip(forwards[first:], backwards):
        order += pair  # each new micro-batch is followed by the end of an old one: memory grows no more
    return order + backwards[count - first :]


def micro_batches_for_solution(stages, fraction):
    return (stages - 1) * (1 - fraction) / fraction  # p - 1 idle slots for m useful ones


one_f_one_b = one_f_one_b_solution


def zero_bubble_solution(rank, ranks, count):
    order = []
    for kind, stage, micro in one_f_one_b(rank, ranks, count):
        order.append(("F" if kind == "F" else "I", stage, micro))  # the stage before waits for I
        if kind == "B" and micro >= rank:  # nobody waits for W: it can fill slots that would be idle
            order.append(("W", stage, micro - rank))
    return order + [("W", rank, micro) for micro in range(max(count - rank, 0), count)]
