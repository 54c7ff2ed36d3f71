// Checks of strings that print the string on failure.
#pragma once

#include <gtest/gtest.h>

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)
#define EXPECT_SAYS_NOT(text, part) EXPECT_EQ((text).find(part), std::string::npos) << (text)
