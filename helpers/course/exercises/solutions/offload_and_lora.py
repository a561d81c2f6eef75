"""The course's own answers of lesson 12."""

import numpy
import torch


class LoRA_solution(torch.nn.Module):
    def __init__(self, frozen, rank, alpha):
        super().__init__()
        self.frozen, self.scale = frozen.requires_grad_(False), alpha / rank
        self.down = torch.nn.Linear(frozen.in_features, rank, bias=False)
        self.up = torch.nn.Linear(rank, frozen.out_features, bias=False)
        torch.nn.init.zeros_(self.up.weight)  # training starts from the frozen layer

    def forward(self, x_bsh):
        return self.frozen(x_bsh) + self.scale * self.up(self.down(x_bsh))

    def merged(self):
        import copy

        layer = copy.deepcopy(self.frozen)  # the frozen layer itself stays as it is
        layer.weight.data += self.scale * self.up.weight.data @ self.down.weight.data
        return layer


class FrozenLinear_solution(torch.autograd.Function):
    @staticmethod
    def forward(context, x_bsh, weight, bias):
        context.save_for_backward(weight)  # x would be needed for the weight's gradient only
        return torch.nn.functional.linear(x_bsh, weight, bias)

    @staticmethod
    def backward(context, gradient):
        (weight,) = context.saved_tensors
        return gradient @ weight, None, None  # weight and bias are frozen: they have no gradients


def offloaded_bytes_solution(trained, ranks):
    return 12 * trained / ranks  # 4 of master weights, 8 of Adam; ZeRO has sharded them before


class AdamInFiles_solution:
    def __init__(self, parameters, folder, lr):
        self.lr, self.steps, self.files = lr, 0, []
        for index, parameter in enumerate(parameters):
            paths = [folder / f"{name}-{index}" for name in ("master", "mean", "square")]
            files = [numpy.memmap(path, "float32", "w+", shape=(parameter.numel(),)) for path in paths]
            files[0][:] = parameter.detach().float().flatten().numpy()
            self.files.append((parameter, files))

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for parameter, files in self.files:
            master, mean, square = (torch.from_numpy(file) for file in files)  # no copies: they are the files
            gradient, parameter.grad = parameter.grad.float().flatten(), None
            mean.lerp_(gradient, 0.1)
            square.lerp_(gradient.square_(), 0.001)
            root = (square / (1 - 0.999**self.steps)).sqrt_().add_(1e-8)
            master.mul_(1 - 0.01 * self.lr).addcdiv_(mean, root, value=-self.lr / (1 - 0.9**self.steps))
            parameter.copy_(master.view_as(parameter))


def longest_sequence_solution(memory, fixed, per_token):
    return (memory - fixed) / per_token  # with fused attention, all that grows is linear in the tokens


def adapter_parameters_solution(inputs, outputs, rank):
    return rank * (inputs + outputs)  # down: rank x inputs; up: outputs x rank
