#pragma once

/// Models to train and to rehearse with: accel::models::mlp, cnn, resnet18, gpt.
#include "reference/models/gpt.hpp"
#include "reference/models/image_models.hpp"
