"""The pooling calls of known networks, as data: network, layer, shape of one sample (channels first), arguments.

They are written down from the papers and from public definitions (torchvision, timm, the authors' own code), at the
input size that each is usual with: 224 x 224 pictures where nothing else is said. A layer that occurs several times
with one shape is listed once, and so is a part that two relatives share (all ResNets have one stem). Every axis after
the channels is pooled; where neighbours of points were gathered they are the last axis. Nothing here is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import ndpool

Pool = Callable[..., ndpool.Op]  # a record that lacks its axes


@dataclass(frozen=True)
class Call:
    """One pooling call; `sample` is the shape without the batch."""

    network: str
    layer: str
    sample: tuple[int, ...]
    op: ndpool.Op

    @property
    def name(self) -> str:
        return f"{self.network} {self.layer}"


def max_(kernel: int | tuple[int, ...], stride: int | tuple[int, ...] | None = None,
         padding: int | tuple[int, ...] = 0, ceil: bool = False) -> Pool:  # fmt: skip
    return partial(ndpool.MaxPool, kernel, stride, padding, ceil_mode=ceil)


def avg(kernel: int | tuple[int, ...], stride: int | tuple[int, ...] | None = None,
        padding: int | tuple[int, ...] = 0, ceil: bool = False, counted: bool = True) -> Pool:  # fmt: skip
    """`counted` says whether padding counts as zeros in the mean."""
    return partial(ndpool.AvgPool, kernel, stride, padding, ceil_mode=ceil, count_include_pad=counted)


def lp(norm: int, kernel: int, stride: int) -> Pool:
    return partial(ndpool.LpPool, norm, kernel, stride)


def bins(outputs: int | tuple[int, ...]) -> Pool:
    return partial(ndpool.AdaptiveAvgPool, outputs)


def max_bins(outputs: int | tuple[int, ...]) -> Pool:
    return partial(ndpool.AdaptiveMaxPool, outputs)


mean = ndpool.GlobalAvgPool
most = partial(ndpool.GlobalMaxPool, ties="first")  # as torch has it

NETWORKS: dict[str, list[tuple[str, tuple[int, ...], Pool]]] = {
    # -- classification ------------------------------------------------------------------------------------------------
    "LeNet-5": [
        ("S2", (6, 28, 28), avg(2)),
        ("S4", (16, 10, 10), avg(2)),
    ],
    "AlexNet": [
        ("pool1", (64, 55, 55), max_(3, 2)),
        ("pool2", (192, 27, 27), max_(3, 2)),
        ("pool5", (256, 13, 13), max_(3, 2)),
        ("bins", (256, 6, 6), bins(6)),
    ],
    "ZFNet": [
        ("pool1", (96, 110, 110), max_(3, 2, 1)),
        ("pool2", (256, 26, 26), max_(3, 2, 1)),
        ("pool5", (256, 13, 13), max_(3, 2)),
    ],
    "Network in Network": [
        ("pool1", (96, 54, 54), max_(3, 2, ceil=True)),
        ("pool2", (256, 27, 27), max_(3, 2, ceil=True)),
        ("pool3", (384, 13, 13), max_(3, 2, ceil=True)),
        ("head", (1000, 6, 6), mean),
    ],
    "VGG-16": [
        ("pool1", (64, 224, 224), max_(2)),
        ("pool2", (128, 112, 112), max_(2)),
        ("pool3", (256, 56, 56), max_(2)),
        ("pool4", (512, 28, 28), max_(2)),
        ("pool5", (512, 14, 14), max_(2)),
        ("bins", (512, 7, 7), bins(7)),
    ],
    "GoogLeNet": [
        ("pool1", (64, 112, 112), max_(3, 2, ceil=True)),
        ("pool2", (192, 56, 56), max_(3, 2, ceil=True)),
        ("3a branch", (192, 28, 28), max_(3, 1, 1)),
        ("3b branch", (256, 28, 28), max_(3, 1, 1)),
        ("pool3", (480, 28, 28), max_(3, 2, ceil=True)),
        ("4b branch", (512, 14, 14), max_(3, 1, 1)),
        ("auxiliary", (512, 14, 14), bins(4)),
        ("pool4", (832, 14, 14), max_(2, ceil=True)),
        ("5a branch", (832, 7, 7), max_(3, 1, 1)),
        ("head", (1024, 7, 7), mean),
    ],
    "Inception v3": [
        ("pool1", (64, 147, 147), max_(3, 2)),
        ("pool2", (192, 71, 71), max_(3, 2)),
        ("5b branch", (192, 35, 35), avg(3, 1, 1)),
        ("5d branch", (288, 35, 35), avg(3, 1, 1)),
        ("6a branch", (288, 35, 35), max_(3, 2)),
        ("6b branch", (768, 17, 17), avg(3, 1, 1)),
        ("7a branch", (768, 17, 17), max_(3, 2)),
        ("auxiliary", (768, 17, 17), avg(5, 3)),
        ("7b branch", (1280, 8, 8), avg(3, 1, 1)),
        ("7c branch", (2048, 8, 8), avg(3, 1, 1)),
        ("head", (2048, 8, 8), mean),
    ],
    "Inception v4": [
        ("A branch", (384, 35, 35), avg(3, 1, 1, counted=False)),
        ("A reduction", (384, 35, 35), max_(3, 2)),
        ("B branch", (1024, 17, 17), avg(3, 1, 1, counted=False)),
        ("B reduction", (1024, 17, 17), max_(3, 2)),
        ("C branch", (1536, 8, 8), avg(3, 1, 1, counted=False)),
        ("head", (1536, 8, 8), mean),
    ],
    "Inception-ResNet v2": [
        ("5b branch", (192, 35, 35), avg(3, 1, 1, counted=False)),
        ("6a branch", (320, 35, 35), max_(3, 2)),
        ("7a branch", (1088, 17, 17), max_(3, 2)),
    ],
    "ResNet-18": [
        ("stem", (64, 112, 112), max_(3, 2, 1)),
        ("head", (512, 7, 7), mean),
    ],
    "ResNet-50": [
        ("head", (2048, 7, 7), mean),
    ],
    "ResNet-50-D": [
        ("shortcut2", (256, 56, 56), avg(2, ceil=True, counted=False)),
        ("shortcut3", (512, 28, 28), avg(2, ceil=True, counted=False)),
        ("shortcut4", (1024, 14, 14), avg(2, ceil=True, counted=False)),
    ],
    "ResNet-20 (CIFAR)": [
        ("head", (64, 8, 8), mean),
    ],
    "Wide ResNet-28-10": [
        ("head", (640, 8, 8), avg(8)),
    ],
    "ResNet-9 (CIFAR)": [
        ("pool1", (128, 32, 32), max_(2)),
        ("pool2", (256, 16, 16), max_(2)),
        ("pool3", (512, 8, 8), max_(2)),
        ("head", (512, 4, 4), max_(4)),
    ],
    "Res2Net-50": [
        ("layer2", (52, 56, 56), avg(3, 2, 1)),
        ("layer3", (104, 28, 28), avg(3, 2, 1)),
        ("layer4", (208, 14, 14), avg(3, 2, 1)),
    ],
    "ResNeSt-50": [
        ("layer2", (128, 56, 56), avg(3, 2, 1)),
        ("layer3", (256, 28, 28), avg(3, 2, 1)),
        ("layer4", (512, 14, 14), avg(3, 2, 1)),
        ("attention1", (64, 56, 56), mean),
        ("attention2", (128, 28, 28), mean),
    ],
    "SE-ResNet-50": [
        ("stem", (64, 112, 112), max_(3, 2, ceil=True)),
        ("squeeze1", (256, 56, 56), mean),
        ("squeeze2", (512, 28, 28), mean),
        ("squeeze3", (1024, 14, 14), mean),
        ("squeeze4", (2048, 7, 7), mean),
    ],
    "CBAM-ResNet-50": [
        ("attention1", (256, 56, 56), most),
        ("attention2", (512, 28, 28), most),
        ("attention3", (1024, 14, 14), most),
        ("attention4", (2048, 7, 7), most),
    ],
    "DenseNet-121": [
        ("transition1", (128, 56, 56), avg(2)),
        ("transition2", (256, 28, 28), avg(2)),
        ("transition3", (512, 14, 14), avg(2)),
        ("head", (1024, 7, 7), mean),
    ],
    "SqueezeNet 1.0": [
        ("pool1", (96, 109, 109), max_(3, 2, ceil=True)),
        ("pool4", (256, 54, 54), max_(3, 2, ceil=True)),
        ("pool8", (512, 27, 27), max_(3, 2, ceil=True)),
        ("head", (1000, 13, 13), mean),
    ],
    "SqueezeNet 1.1": [
        ("pool1", (64, 111, 111), max_(3, 2, ceil=True)),
        ("pool3", (128, 55, 55), max_(3, 2, ceil=True)),
        ("pool5", (256, 27, 27), max_(3, 2, ceil=True)),
    ],
    "ShuffleNet v1": [
        ("stem", (24, 112, 112), max_(3, 2, 1)),
        ("shortcut2", (24, 56, 56), avg(3, 2, 1)),
        ("shortcut3", (240, 28, 28), avg(3, 2, 1)),
        ("shortcut4", (480, 14, 14), avg(3, 2, 1)),
        ("head", (960, 7, 7), mean),
    ],
    "ShuffleNet v2": [
        ("stem", (24, 112, 112), max_(3, 2, 1)),
        ("head", (1024, 7, 7), mean),
    ],
    "MobileNet v1": [
        ("head", (1024, 7, 7), mean),
    ],
    "MobileNet v2": [
        ("head", (1280, 7, 7), mean),
    ],
    "MobileNet v3": [
        ("squeeze4", (72, 28, 28), mean),
        ("squeeze5", (120, 28, 28), mean),
        ("squeeze11", (480, 14, 14), mean),
        ("squeeze12", (672, 14, 14), mean),
        ("squeeze13", (672, 7, 7), mean),
        ("head", (960, 7, 7), mean),
    ],
    "EfficientNet-B0": [
        ("squeeze1", (32, 112, 112), mean),
        ("squeeze2", (96, 56, 56), mean),
        ("squeeze3", (144, 28, 28), mean),
        ("squeeze4", (240, 14, 14), mean),
        ("squeeze5", (480, 14, 14), mean),
        ("squeeze7", (1152, 7, 7), mean),
        ("head", (1280, 7, 7), mean),
    ],
    "EfficientNet-B4": [
        ("squeeze1", (48, 190, 190), mean),
        ("squeeze2", (192, 95, 95), mean),
        ("squeeze3", (336, 48, 48), mean),
        ("squeeze5", (960, 24, 24), mean),
        ("squeeze7", (2688, 12, 12), mean),
        ("head", (1792, 12, 12), mean),
    ],
    "RegNetY-400MF": [
        ("squeeze1", (48, 56, 56), mean),
        ("squeeze2", (104, 28, 28), mean),
        ("squeeze3", (208, 14, 14), mean),
        ("squeeze4", (440, 7, 7), mean),
    ],
    "ConvNeXt-T": [
        ("head", (768, 7, 7), mean),
    ],
    "NFNet-F0": [
        ("shortcut2", (256, 48, 48), avg(2, ceil=True, counted=False)),
        ("shortcut3", (512, 24, 24), avg(2, ceil=True, counted=False)),
        ("shortcut4", (1536, 12, 12), avg(2, ceil=True, counted=False)),
        ("squeeze3", (1536, 12, 12), mean),
        ("head", (3072, 6, 6), mean),
    ],
    "Xception": [
        ("entry1", (128, 147, 147), max_(3, 2, 1)),
        ("entry2", (256, 74, 74), max_(3, 2, 1)),
        ("entry3", (728, 37, 37), max_(3, 2, 1)),
        ("exit", (1024, 19, 19), max_(3, 2, 1)),
        ("head", (2048, 10, 10), mean),
    ],
    "NASNet-A mobile": [
        ("cell, 28", (44, 28, 28), avg(3, 1, 1, counted=False)),
        ("cell, 14", (88, 14, 14), avg(3, 1, 1, counted=False)),
        ("cell, 7", (176, 7, 7), avg(3, 1, 1, counted=False)),
        ("reduction max", (88, 28, 28), max_(3, 2, 1)),
        ("reduction avg", (88, 28, 28), avg(3, 2, 1, counted=False)),
        ("head", (1056, 7, 7), mean),
    ],
    "DARTS (CIFAR)": [
        ("cell max", (36, 32, 32), max_(3, 1, 1)),
        ("cell avg", (72, 16, 16), avg(3, 1, 1, counted=False)),
        ("reduction", (144, 16, 16), max_(3, 2, 1)),
        ("head", (576, 8, 8), mean),
    ],
    "PoolFormer-S12": [
        ("mixer1", (64, 56, 56), avg(3, 1, 1, counted=False)),
        ("mixer2", (128, 28, 28), avg(3, 1, 1, counted=False)),
        ("mixer3", (320, 14, 14), avg(3, 1, 1, counted=False)),
        ("mixer4", (512, 7, 7), avg(3, 1, 1, counted=False)),
    ],
    "PVT v2 linear": [
        ("attention1", (64, 56, 56), bins(7)),
        ("attention2", (128, 28, 28), bins(7)),
        ("attention3", (320, 14, 14), bins(7)),
    ],
    "Swin-T": [
        ("head", (768, 49), mean),
    ],
    "Prototypical network": [
        ("pool1", (64, 84, 84), max_(2)),
        ("pool2", (64, 42, 42), max_(2)),
        ("pool3", (64, 21, 21), max_(2)),
        ("pool4", (64, 10, 10), max_(2)),
    ],
    "OpenFace nn4.small2": [
        ("3b branch", (256, 12, 12), lp(2, 3, 3)),
        ("4a branch", (640, 6, 6), lp(2, 3, 3)),
        ("5a branch", (1024, 3, 3), lp(2, 3, 3)),
    ],
    # -- detection -----------------------------------------------------------------------------------------------------
    "SPP-net": [
        ("pyramid 1", (256, 13, 13), max_bins(1)),
        ("pyramid 2", (256, 13, 13), max_bins(2)),
        ("pyramid 3", (256, 13, 13), max_bins(3)),
        ("pyramid 6", (256, 13, 13), max_bins(6)),
    ],
    "SSD300": [
        ("pool1", (64, 300, 300), max_(2)),
        ("pool2", (128, 150, 150), max_(2)),
        ("pool3", (256, 75, 75), max_(2, ceil=True)),
        ("pool4", (512, 38, 38), max_(2)),
        ("pool5", (512, 19, 19), max_(3, 1, 1)),
    ],
    "YOLO v2": [
        ("pool1", (32, 416, 416), max_(2)),
        ("pool2", (64, 208, 208), max_(2)),
        ("pool3", (128, 104, 104), max_(2)),
        ("pool4", (256, 52, 52), max_(2)),
        ("pool5", (512, 26, 26), max_(2)),
    ],
    "YOLO v3 tiny": [
        ("pool1", (16, 416, 416), max_(2)),
        ("pool4", (128, 52, 52), max_(2)),
        ("pool6", (512, 14, 14), max_(2, 1)),
    ],
    "YOLO v4": [
        ("SPP 5", (512, 19, 19), max_(5, 1, 2)),
        ("SPP 9", (512, 19, 19), max_(9, 1, 4)),
        ("SPP 13", (512, 19, 19), max_(13, 1, 6)),
    ],
    "YOLO v5s": [
        ("SPPF", (256, 20, 20), max_(5, 1, 2)),
    ],
    "YOLO v7": [
        ("SPP 9", (512, 20, 20), max_(9, 1, 4)),
        ("SPP 13", (512, 20, 20), max_(13, 1, 6)),
        ("pool 160", (256, 160, 160), max_(2)),
        ("pool 80", (512, 80, 80), max_(2)),
        ("pool 40", (1024, 40, 40), max_(2)),
    ],
    "YOLO v8n": [
        ("SPPF", (128, 20, 20), max_(5, 1, 2)),
    ],
    "Faster R-CNN": [
        ("stem", (64, 400, 544), max_(3, 2, 1)),
        ("P6", (256, 25, 34), max_(1, 2)),
        ("region", (512, 14, 20), max_bins(7)),
    ],
    "EfficientDet-D0": [
        ("P4", (64, 64, 64), max_(3, 2, 1)),
        ("P5", (64, 32, 32), max_(3, 2, 1)),
        ("P7", (64, 8, 8), max_(3, 2, 1)),
    ],
    "CenterNet": [
        ("peaks", (80, 128, 128), max_(3, 1, 1)),
    ],
    "SuperPoint": [
        ("pool1", (64, 480, 640), max_(2)),
        ("pool3", (128, 120, 160), max_(2)),
        ("peaks", (1, 480, 640), max_(9, 1, 4)),
    ],
    "MTCNN": [
        ("R-Net pool1", (28, 22, 22), max_(3, 2, ceil=True)),
        ("O-Net pool1", (32, 46, 46), max_(3, 2, ceil=True)),
        ("O-Net pool3", (64, 8, 8), max_(2, ceil=True)),
    ],
    # -- segmentation --------------------------------------------------------------------------------------------------
    "U-Net": [
        ("pool1", (64, 568, 568), max_(2)),
        ("pool2", (128, 280, 280), max_(2)),
        ("pool3", (256, 136, 136), max_(2)),
        ("pool4", (512, 64, 64), max_(2)),
    ],
    "U-Net++": [
        ("pool1", (32, 256, 256), max_(2)),
        ("pool2", (64, 128, 128), max_(2)),
        ("pool3", (128, 64, 64), max_(2)),
        ("pool4", (256, 32, 32), max_(2)),
    ],
    "SegNet": [
        ("pool1", (64, 360, 480), max_(2)),
        ("pool3", (256, 90, 120), max_(2)),
        ("pool4", (512, 45, 60), max_(2, ceil=True)),
        ("pool5", (512, 23, 30), max_(2, ceil=True)),
    ],
    "PSPNet": [
        ("stem", (128, 237, 237), max_(3, 2, 1)),
        ("pyramid 1", (2048, 60, 60), bins(1)),
        ("pyramid 2", (2048, 60, 60), bins(2)),
        ("pyramid 3", (2048, 60, 60), bins(3)),
        ("pyramid 6", (2048, 60, 60), bins(6)),
    ],
    "UPerNet": [
        ("pyramid 2", (768, 16, 16), bins(2)),
        ("pyramid 3", (768, 16, 16), bins(3)),
        ("pyramid 6", (768, 16, 16), bins(6)),
    ],
    "Fast-SCNN": [
        ("pyramid 2", (128, 32, 64), bins(2)),
        ("pyramid 3", (128, 32, 64), bins(3)),
        ("pyramid 6", (128, 32, 64), bins(6)),
    ],
    "DeepLab v3": [
        ("stem", (64, 257, 257), max_(3, 2, 1)),
        ("ASPP", (2048, 33, 33), mean),
    ],
    "ENet": [
        ("initial", (3, 512, 512), max_(2)),
        ("down1", (16, 256, 256), max_(2)),
        ("down2", (64, 128, 128), max_(2)),
    ],
    "BiSeNet v2": [
        ("stem", (16, 256, 512), max_(3, 2, 1)),
        ("context", (128, 16, 32), mean),
    ],
    "DDRNet-23-slim": [
        ("DAPPM 5", (512, 16, 32), avg(5, 2, 2)),
        ("DAPPM 9", (512, 16, 32), avg(9, 4, 4)),
        ("DAPPM 17", (512, 16, 32), avg(17, 8, 8)),
    ],
    # -- volumes and video ---------------------------------------------------------------------------------------------
    "3D U-Net": [
        ("pool1", (64, 64, 64, 64), max_(2)),
        ("pool2", (128, 32, 32, 32), max_(2)),
        ("pool3", (256, 16, 16, 16), max_(2)),
    ],
    "DeepLung": [
        ("pool1", (24, 96, 96, 96), max_(2)),
        ("pool2", (32, 48, 48, 48), max_(2)),
        ("pool3", (64, 24, 24, 24), max_(2)),
        ("pool4", (64, 12, 12, 12), max_(2)),
    ],
    "VoxNet": [
        ("pool", (32, 12, 12, 12), max_(2)),
    ],
    "3D ResNet-18": [
        ("stem", (64, 16, 56, 56), max_(3, 2, 1)),
        ("head", (512, 1, 4, 4), mean),
    ],
    "C3D": [
        ("pool1", (64, 16, 112, 112), max_((1, 2, 2))),
        ("pool2", (128, 16, 56, 56), max_(2)),
        ("pool3", (256, 8, 28, 28), max_(2)),
        ("pool4", (512, 4, 14, 14), max_(2)),
        ("pool5", (512, 2, 7, 7), max_(2, 2, (0, 1, 1))),
    ],
    "I3D": [
        ("pool2", (64, 32, 112, 112), max_((1, 3, 3), (1, 2, 2), (0, 1, 1))),
        ("pool3", (192, 32, 56, 56), max_((1, 3, 3), (1, 2, 2), (0, 1, 1))),
        ("3b branch", (192, 32, 28, 28), max_(3, 1, 1)),
        ("pool4", (480, 32, 28, 28), max_(3, 2, 1)),
        ("4b branch", (480, 16, 14, 14), max_(3, 1, 1)),
        ("pool5", (832, 16, 14, 14), max_(2)),
        ("5b branch", (832, 8, 7, 7), max_(3, 1, 1)),
        ("head", (1024, 8, 7, 7), avg((2, 7, 7), 1)),
    ],
    "R(2+1)D-18": [
        ("head", (512, 2, 7, 7), mean),
    ],
    "SlowFast": [
        ("slow stem", (64, 8, 112, 112), max_((1, 3, 3), (1, 2, 2), (0, 1, 1))),
        ("fast stem", (8, 32, 112, 112), max_((1, 3, 3), (1, 2, 2), (0, 1, 1))),
        ("slow head", (2048, 8, 7, 7), mean),
        ("fast head", (256, 32, 7, 7), mean),
    ],
    "X3D-M": [
        ("squeeze2", (54, 16, 56, 56), mean),
        ("squeeze3", (108, 16, 28, 28), mean),
        ("squeeze4", (216, 16, 14, 14), mean),
        ("head", (432, 16, 7, 7), mean),
    ],
    # -- audio ---------------------------------------------------------------------------------------------------------
    "VGGish": [
        ("pool1", (64, 96, 64), max_(2)),
        ("pool2", (128, 48, 32), max_(2)),
        ("pool3", (256, 24, 16), max_(2)),
        ("pool4", (512, 12, 8), max_(2)),
    ],
    "PANNs CNN14": [
        ("pool1", (64, 1001, 64), avg(2)),
        ("pool2", (128, 500, 32), avg(2)),
        ("pool3", (256, 250, 16), avg(2)),
        ("pool4", (512, 125, 8), avg(2)),
        ("pool5", (1024, 62, 4), avg(2)),
        ("time max", (2048, 31), most),
        ("time mean", (2048, 31), mean),
    ],
    "YAMNet": [
        ("head", (1024, 3, 2), mean),
    ],
    "SincNet": [
        ("pool1", (80, 2950), max_(3)),
        ("pool2", (60, 979), max_(3)),
        ("pool3", (60, 322), max_(3)),
    ],
    "M5": [
        ("pool1", (128, 8000), max_(4)),
        ("pool2", (128, 2000), max_(4)),
        ("pool3", (256, 500), max_(4)),
        ("pool4", (512, 125), max_(4)),
        ("head", (512, 31), mean),
    ],
    "SampleCNN": [
        ("pool1", (128, 19683), max_(3)),
        ("pool3", (256, 2187), max_(3)),
        ("pool6", (256, 81), max_(3)),
    ],
    "CREPE": [
        ("pool1", (1024, 256), max_(2)),
        ("pool2", (128, 128), max_(2)),
        ("pool6", (512, 8), max_(2)),
    ],
    "wav2vec 2.0 classifier": [
        ("time mean", (256, 499), mean),
    ],
    "ECAPA-TDNN": [
        ("squeeze", (1024, 200), mean),
    ],
    "Tacotron CBHG": [
        ("pool", (2048, 100), max_(2, 1, 1)),
    ],
    # -- text ----------------------------------------------------------------------------------------------------------
    "TextCNN": [
        ("width 3", (100, 54), most),
        ("width 5", (100, 52), most),
    ],
    "char-CNN": [
        ("pool1", (256, 1008), max_(3)),
        ("pool2", (256, 330), max_(3)),
        ("pool6", (256, 102), max_(3)),
        ("large pool1", (1024, 1008), max_(3)),
    ],
    "VDCNN": [
        ("pool1", (64, 1024), max_(3, 2, 1)),
        ("pool2", (128, 512), max_(3, 2, 1)),
        ("pool3", (256, 256), max_(3, 2, 1)),
    ],
    "DPCNN": [
        ("block1", (250, 128), max_(3, 2)),
        ("block3", (250, 32), max_(3, 2)),
    ],
    "ELMo characters": [
        ("width 7", (1024, 44), most),
    ],
    "InferSent": [
        ("time max", (4096, 25), most),
    ],
    "Sentence-BERT": [
        ("tokens", (768, 128), mean),
    ],
    "CRNN": [
        ("pool1", (64, 32, 100), max_(2)),
        ("pool3", (256, 8, 25), max_(2, (2, 1), (0, 1))),
        ("pool4", (512, 4, 26), max_(2, (2, 1), (0, 1))),
    ],
    # -- point clouds --------------------------------------------------------------------------------------------------
    "PointNet": [
        ("points", (1024, 1024), most),
        ("parts", (2048, 2048), most),
    ],
    "PointNet++": [
        ("group1", (128, 512, 32), max_((1, 32))),
        ("group2", (256, 128, 64), max_((1, 64))),
        ("group all", (1024, 1, 128), max_((1, 128))),
    ],
    "DGCNN": [
        ("edges1", (64, 1024, 20), max_((1, 20))),
        ("edges4", (256, 1024, 20), max_((1, 20))),
        ("points mean", (1024, 1024), mean),
    ],
    "PointPillars": [
        ("pillars", (64, 12000, 32), max_((1, 32))),
    ],
    "Point Transformer": [
        ("down1", (64, 256, 16), max_((1, 16))),
    ],
    # -- time series and sequences -------------------------------------------------------------------------------------
    "InceptionTime": [
        ("branch", (128, 512), max_(3, 1, 1)),
        ("head", (128, 512), mean),
    ],
    "xResNet1d-101": [
        ("stem", (64, 500), max_(3, 2, 1)),
        ("head max", (256, 32), most),
    ],
    "ECG ResNet": [
        ("shortcut1", (32, 7680), max_(2)),
        ("shortcut3", (64, 1920), max_(2)),
        ("shortcut5", (128, 480), max_(2)),
    ],
    "ED-TCN": [
        ("encoder1", (96, 512), max_(2)),
        ("encoder2", (128, 256), max_(2)),
    ],
    "DLinear": [
        ("trend, 7 series", (7, 120), avg(25, 1)),
        ("trend, 321 series", (321, 360), avg(25, 1)),
    ],
    "Informer": [
        ("distil1", (512, 96), max_(3, 2, 1)),
    ],
    "N-HiTS": [
        ("stack1", (1, 480), max_(16)),
    ],
    "EEGNet": [
        ("pool1", (16, 1, 128), avg((1, 4))),
        ("pool2", (16, 1, 32), avg((1, 8))),
    ],
    "Shallow ConvNet (EEG)": [
        ("pool", (40, 1, 1101), avg((1, 75), (1, 15))),
    ],
    "DeepSEA": [
        ("pool1", (320, 993), max_(4)),
        ("pool2", (480, 241), max_(4)),
    ],
    "DanQ": [
        ("pool", (320, 975), max_(13)),
    ],
    # -- pose, stereo, flow, and others --------------------------------------------------------------------------------
    "Stacked Hourglass": [
        ("stem", (128, 128, 128), max_(2)),
        ("down1", (256, 64, 64), max_(2)),
        ("down2", (256, 32, 32), max_(2)),
        ("down3", (256, 16, 16), max_(2)),
        ("down4", (256, 8, 8), max_(2)),
    ],
    "OSNet": [
        ("stem", (64, 128, 64), max_(3, 2, 1)),
        ("transition1", (256, 64, 32), avg(2)),
        ("transition2", (384, 32, 16), avg(2)),
        ("gate1", (64, 64, 32), mean),
        ("head", (512, 16, 8), mean),
    ],
    "PSMNet": [
        ("SPP 64", (128, 64, 128), avg(64)),
        ("SPP 32", (128, 64, 128), avg(32)),
        ("SPP 16", (128, 64, 128), avg(16)),
        ("SPP 8", (128, 64, 128), avg(8)),
    ],
    "RAFT": [
        ("level1", (2852, 46, 62), avg(2)),
        ("level2", (2852, 23, 31), avg(2)),
        ("level3", (2852, 11, 15), avg(2)),
    ],
    "PatchCore": [
        ("layer2", (512, 28, 28), avg(3, 1, 1)),
        ("layer3", (1024, 14, 14), avg(3, 1, 1)),
        ("features", (784, 4608), bins(1024)),
    ],
    "pix2pixHD": [
        ("scales", (3, 512, 1024), avg(3, 2, 1, counted=False)),
    ],
    "MS-SSIM": [
        ("scale1", (3, 256, 256), avg(2)),
    ],
    "IMPALA": [
        ("pool1", (16, 84, 84), max_(3, 2, 1)),
        ("pool2", (32, 42, 42), max_(3, 2, 1)),
        ("pool3", (32, 21, 21), max_(3, 2, 1)),
    ],
    "MuZero": [
        ("pool1", (256, 24, 24), avg(3, 2, 1)),
        ("pool2", (256, 12, 12), avg(3, 2, 1)),
    ],
}


def calls() -> Iterator[Call]:
    """Every call of every network, in the order of the table."""
    for network, layers in NETWORKS.items():
        for layer, sample, pool in layers:
            yield Call(network, layer, sample, pool(axes=tuple(range(1 - len(sample), 0))))


def distinct() -> dict[tuple[ndpool.Op, tuple[int, ...]], list[Call]]:
    """The calls by what they compute: networks share many, and each is measured once."""
    found: dict[tuple[ndpool.Op, tuple[int, ...]], list[Call]] = {}
    for call in calls():
        found.setdefault((call.op, call.sample), []).append(call)
    return found
