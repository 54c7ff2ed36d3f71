// Helpers for tests of messages.
#pragma once

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace coupler::testing {

// Expects an Error of that code whose text contains this part.
inline void expect_error(ErrorCode code, const std::string& part,
                         const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no Error with '" << part << "'";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

}  // namespace coupler::testing
