#pragma once

/// Models for examples, tests and rehearsals: accel::models::mlp, cnn, resnet18, resnet50 and gpt, which can have the
/// shape of a Llama and load its weights.
#include "reference/models/gpt.hpp"
#include "reference/models/image_models.hpp"
#include "reference/models/resnet.hpp"
