#pragma once

// Headers that most tests include, compiled once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/torch.hpp"
