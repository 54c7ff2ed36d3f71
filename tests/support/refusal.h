// The message of a refusal, as a user reads it. Any thread.
#pragma once

#include <coupler/error.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace coupler::testing {

// The message of the Error that `action` throws, whose code must be `code`, or "accepted".
inline std::string refusal_of(ErrorCode code, const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_FALSE(error.detail().subject.empty());
    EXPECT_FALSE(error.detail().hint.empty());
    const std::string message = error.what();
    const std::string hint = "\n  hint: " + error.detail().hint;
    EXPECT_TRUE(message.ends_with(hint)) << message;
    return message.substr(0, message.size() - hint.size());
  }
  return "accepted";
}

// The whole message of the Error that `action` throws, or "". Other exceptions pass through.
inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

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
