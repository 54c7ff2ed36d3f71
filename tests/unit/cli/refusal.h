// The message of the Error that a call throws, for tests of messages.
#pragma once

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <string>

namespace coupler::cli {

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2) << error.what();
    EXPECT_FALSE(error.detail().hint.empty()) << error.what();
    return error.what();
  }
  return "no error";
}

}  // namespace coupler::cli

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)
