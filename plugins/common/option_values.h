// Values of options that need more than a type check: one of several words, a number in a range,
// the name of a data type. A wrong value is DB_ERR_INVALID_ARGUMENT with the option, its value and
// the valid values. Pure functions; [any-thread].
#pragma once

#include <initializer_list>

#include "common/options.h"

namespace db {

// *index: which of the words the string option is.
Failure read_word(const Options& options, const char* key, std::initializer_list<const char*> words,
                  size_t* index);

// An integer option between least and most.
Failure read_number(const Options& options, const char* key, int64_t least, int64_t most,
                    int64_t* value);

// A floating-point type by name: bf16, f16 (fp16), f32 (fp32), f64 (fp64); 0 for an empty string.
Failure read_dtype(const Options& options, const char* key, db_dtype* dtype);

}  // namespace db
