"""Lion, which torch lacks: the update of "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675, with the options and the
rounding of the authors' version for PyTorch."""
import torch


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                param.mul_(1 - group["lr"] * group["weight_decay"])
                momentum = self.state[param].setdefault("exp_avg", torch.zeros_like(param))
                direction = (momentum * beta1 + param.grad * (1 - beta1)).sign()
                param.add_(direction, alpha=-group["lr"])
                momentum.mul_(beta2).add_(param.grad, alpha=1 - beta2)
        return loss
