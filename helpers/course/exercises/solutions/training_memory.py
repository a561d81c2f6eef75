"""The course's own answers of lesson 02."""


def mixed_step_solution(weights, masters, optimizer):
    import torch

    for weight, master in zip(weights, masters):
        master.grad, weight.grad = weight.grad.float(), None  # the optimizer needs fp32; bf16 is freed
    optimizer.step()
    with torch.no_grad():
        for weight, master in zip(weights, masters):
            weight.copy_(master)  # rounds to bf16
            master.grad = None


def checkpoint_solution(function, x):
    import torch

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return function(x)  # autograd is off: nothing inside is kept

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            x = x.detach().requires_grad_()  # the new graph ends here
            with torch.enable_grad():
                y = function(x)
            torch.autograd.backward(y, gradient)
            return x.grad

    return Again.apply(x)


def at_the_loss_solution(plan):
    gradients = 2 if plan.micro_batches > 1 else 0  # of the micro-batch before
    lasting = (2 + gradients + 4 + 8) * plan.parameters
    logits = plan.micro * plan.sequence * plan.size.vocabulary
    return lasting + plan.layers * plan.kept + (4 + 4 + 4) * logits


def in_the_step_solution(plan):
    copies = 4 if plan.lean else 4 + 4  # gradients in fp32; another temporary for each parameter
    return (16 + copies) * plan.parameters


at_the_loss, in_the_step = at_the_loss_solution, in_the_step_solution


def peak_solution(plan):
    return max(at_the_loss(plan), in_the_step(plan))


mixed_step = mixed_step_solution


def forgetful_step_solution(weights, masters, optimizer):
    for weight, master in zip(weights, masters):
        master.copy_(weight.detach())
    mixed_step(weights, masters, optimizer)


def seeded_checkpoint_solution(function, x):
    import torch

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            context.random = torch.get_rng_state()  # before anything is drawn
            return function(x)

        @staticmethod
        def backward(context, gradient):
            (x,) = context.saved_tensors
            x = x.detach().requires_grad_()  # a leaf, where the new graph ends: x.grad is its gradient
            present = torch.get_rng_state()  # what would have been drawn next, without checkpointing
            torch.set_rng_state(context.random)  # so that dropout drops the same elements again
            with torch.enable_grad():
                y = function(x)
            torch.set_rng_state(present)  # so that nobody notices that numbers were drawn twice
            torch.autograd.backward(y, gradient)
            return x.grad

    return Again.apply(x)
