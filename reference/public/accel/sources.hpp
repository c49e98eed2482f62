#pragma once

/// Datasets in files: IDX, CSV, text, images, tar shards, safetensors, and tokens with their tokenizer. Datasets in
/// Parquet and Arrow files are in `<accel/parquet.hpp>`.
#include "reference/sources/csv_dataset.hpp"
#include "reference/sources/idx.hpp"
#include "reference/sources/image.hpp"
#include "reference/sources/image_folder.hpp"
#include "reference/sources/safetensors_dataset.hpp"
#include "reference/sources/tar_shards.hpp"
#include "reference/sources/text_lines.hpp"
#include "reference/sources/token_blocks.hpp"
#include "reference/sources/tokenizer/tokenizer.hpp"
