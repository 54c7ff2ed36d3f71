// ByAlgorithm: tests of gloo_cpu that run with Coupler's collectives and with libgloo's.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ranks/ranks.h"

namespace backend_test {

inline db_option text_option(const char* key, const char* value) {
  db_option option{};
  option.struct_size = sizeof option;
  option.key = key;
  option.type = DB_OPTION_STRING;
  option.string = value;
  return option;
}

// The parameter is the value of the option algorithm.
class ByAlgorithm : public ::testing::TestWithParam<const char*> {
 protected:
  Job job_of(int32_t size) const {
    Job job;
    job.size = size;
    job.options = {&algorithm_};
    return job;
  }

 private:
  const db_option algorithm_ = text_option("algorithm", GetParam());
};

inline std::string algorithm_name(const ::testing::TestParamInfo<const char*>& info) {
  return info.param;
}

}  // namespace backend_test
