"""The task cifar_like: images of 32x32 with three channels, and ResNet-18 in the form usual for CIFAR
(github.com/kuangliu/pytorch-cifar, models/resnet.py)."""
import torch
from torch import nn
from torch.nn import functional

SIZE = 32


class SmallImages(torch.utils.data.Dataset):
    """Fashion-MNIST (n, 1, 28, 28) uint8, enlarged: each pixel is copied from the scaled position, rounded down."""

    def __init__(self, images, labels):
        places = torch.arange(SIZE) * images.shape[-1] // SIZE
        self.images, self.labels = images.index_select(-2, places).index_select(-1, places), labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index].float().div_(255).expand(3, SIZE, SIZE), self.labels[index].long()


def convolution(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = convolution(outputs, outputs, 3, 1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, images):
        inner = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(images)))))
        return functional.relu(inner + self.shortcut(images))


def stage(inputs, outputs, stride):
    return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))


class ResNet18(nn.Module):
    def __init__(self, width=64, num_classes=10):
        super().__init__()
        self.conv1 = convolution(3, width, 3, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(width, width, 1)
        self.layer2 = stage(width, 2 * width, 2)
        self.layer3 = stage(2 * width, 4 * width, 2)
        self.layer4 = stage(4 * width, 8 * width, 2)
        self.linear = nn.Linear(8 * width, num_classes)

    def forward(self, images):
        values = functional.relu(self.bn1(self.conv1(images)))
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            values = layer(values)
        return self.linear(functional.avg_pool2d(values, 4).flatten(1))
