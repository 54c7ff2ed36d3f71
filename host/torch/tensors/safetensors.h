// Converts between the dtypes of safetensors files and of LibTorch. Pure functions, any thread.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "formats/safetensors_header.h"

namespace coupler::safetensors {

// Both throw Error(kUnsupported) naming `where` for a dtype that the other side lacks.
at::ScalarType scalar_type(DType dtype, const std::string& where);
DType dtype_of(at::ScalarType type, const std::string& where);

}  // namespace coupler::safetensors
