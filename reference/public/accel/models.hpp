#pragma once

/// Models for examples, tests and rehearsals: accel::models::mlp, cnn, resnet18, gpt.
#include "reference/models/gpt.hpp"
#include "reference/models/image_models.hpp"
