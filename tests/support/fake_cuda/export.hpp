#pragma once

/// A function that takes the place of one of the CUDA libraries; everything else in the library is hidden.
#define FAKE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))
