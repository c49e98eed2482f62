"""The task cifar_like: images of 32x32 with three channels, ResNet-18 in the form usual for CIFAR (github.com/kuangliu/pytorch-cifar,
models/resnet.py), and torchvision's ResNet-18 and ResNet-50 (torchvision/models/resnet.py), which the environment lacks."""
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


class TorchvisionBasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs, channels, stride, downsample):
        super().__init__()
        self.conv1 = convolution(inputs, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = convolution(channels, channels, 3, 1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = downsample

    def forward(self, images):
        values = self.relu(self.bn1(self.conv1(images)))
        values = self.bn2(self.conv2(values))
        values += images if self.downsample is None else self.downsample(images)
        return self.relu(values)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, channels, stride, downsample):
        super().__init__()
        self.conv1 = convolution(inputs, channels, 1, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = convolution(channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = convolution(channels, channels * self.expansion, 1, 1)
        self.bn3 = nn.BatchNorm2d(channels * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, images):
        values = self.relu(self.bn1(self.conv1(images)))
        values = self.relu(self.bn2(self.conv2(values)))
        values = self.bn3(self.conv3(values))
        values += images if self.downsample is None else self.downsample(images)
        return self.relu(values)


class TorchvisionResNet(nn.Module):
    def __init__(self, block, blocks, width=64, num_classes=1000, small_images=False):
        super().__init__()
        self.inputs = width
        self.conv1 = convolution(3, width, 3, 1) if small_images else convolution(3, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self.make_layer(block, width, blocks[0], 1)
        self.layer2 = self.make_layer(block, 2 * width, blocks[1], 2)
        self.layer3 = self.make_layer(block, 4 * width, blocks[2], 2)
        self.layer4 = self.make_layer(block, 8 * width, blocks[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width * block.expansion, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, 1)
                nn.init.constant_(module.bias, 0)

    def make_layer(self, block, channels, count, stride):
        downsample, outputs = None, channels * block.expansion
        if stride != 1 or self.inputs != outputs:
            downsample = nn.Sequential(convolution(self.inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        layers = [block(self.inputs, channels, stride, downsample)]
        self.inputs = outputs
        layers += [block(outputs, channels, 1, None) for _ in range(1, count)]
        return nn.Sequential(*layers)

    def forward(self, images):
        values = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        values = self.layer4(self.layer3(self.layer2(self.layer1(values))))
        return self.fc(torch.flatten(self.avgpool(values), 1))


def torchvision_resnet18(**options):
    return TorchvisionResNet(TorchvisionBasicBlock, (2, 2, 2, 2), **options)


def torchvision_resnet50(**options):
    return TorchvisionResNet(Bottleneck, (3, 4, 6, 3), **options)
