#pragma once

/// Datasets in Parquet and Arrow files, which need Apache Arrow.
///
///     find_package(accel REQUIRED COMPONENTS parquet)
///     target_link_libraries(train PRIVATE accel::parquet)
///
/// The library accel::parquet contains accel::accel. It exists if accel was built with ACCEL_ARROW.
#ifndef ACCEL_PARQUET
#error "<accel/parquet.hpp> needs the target accel::parquet: build accel with -DACCEL_ARROW=ON, and link accel::parquet"
#endif

#include "reference/sources/parquet/parquet_dataset.hpp"
