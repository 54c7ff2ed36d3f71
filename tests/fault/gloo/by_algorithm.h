// ByAlgorithm: tests of gloo_cpu that run with Coupler's collectives, in the rounds of few ranks
// and in those of many, and with libgloo's.
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

inline db_option number_option(const char* key, int64_t value) {
  db_option option{};
  option.struct_size = sizeof option;
  option.key = key;
  option.type = DB_OPTION_I64;
  option.i64 = value;
  return option;
}

// The parameter is the value of the option algorithm, or "halving": as from halving_ranks on.
class ByAlgorithm : public ::testing::TestWithParam<const char*> {
 protected:
  Job job_of(int32_t size) const {
    Job job;
    job.size = size;
    job.options = {&option_};
    return job;
  }

 private:
  const db_option option_ = std::string(GetParam()) == "halving"
                                ? number_option("halving_ranks", 2)
                                : text_option("algorithm", GetParam());
};

inline std::string algorithm_name(const ::testing::TestParamInfo<const char*>& info) {
  return info.param;
}

}  // namespace backend_test
