#pragma once

/// `accelerator.elastic`: training whose bits do not depend on the number of ranks.
#include "reference/accelerator/elastic_run.hpp"
