#pragma once

/// Models for examples, tests and rehearsals: accel::models::mlp, cnn, resnet18, resnet50, gpt. A gpt can have a Llama's
/// shape and load its weights.
#include "reference/models/gpt.hpp"
#include "reference/models/image_models.hpp"
#include "reference/models/resnet.hpp"
