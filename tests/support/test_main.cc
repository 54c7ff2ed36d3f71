// main of a program with the tests of several ctest entries: --sources=a.cc,b.cc runs the tests of
// these sources (the ends of their paths suffice) that also pass --gtest_filter. Without it this is
// gtest_main.
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace {

std::vector<std::string> split(std::string_view list, char separator) {
  std::vector<std::string> parts;
  while (!list.empty()) {
    const size_t end = list.find(separator);
    parts.emplace_back(list.substr(0, end));
    list = end == list.npos ? "" : list.substr(end + 1);
  }
  return parts;
}

bool is_of(const testing::TestInfo& test, const std::vector<std::string>& sources) {
  return std::any_of(sources.begin(), sources.end(), [&](const std::string& source) {
    return std::string_view(test.file()).ends_with(source);
  });
}

bool is_one_of(const std::string& name, std::string_view patterns) {
  const std::vector<std::string> all = split(patterns, ':');
  return std::any_of(all.begin(), all.end(), [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

// As GoogleTest does: patterns, then, after a minus, the patterns to leave out.
bool passes(const std::string& name, std::string_view filter) {
  const size_t minus = filter.find('-');
  const std::string_view in = minus == 0 ? "*" : filter.substr(0, minus);
  const std::string_view out = minus == filter.npos ? "" : filter.substr(minus + 1);
  return is_one_of(name, in) && !is_one_of(name, out);
}

// The names of the tests, in the form of --gtest_filter.
std::string tests_of(const std::vector<std::string>& sources, std::string_view filter) {
  std::string names;
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      const std::string name = std::string(suite.name()) + '.' + test.name();
      if (!is_of(test, sources) || !passes(name, filter)) continue;
      if (!names.empty()) names += ':';
      names += name;
    }
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kSources = "--sources=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with(kSources)) continue;
    const std::string filter = testing::GTEST_FLAG(filter);
    const std::string names = tests_of(split(word.substr(kSources.size()), ','), filter);
    if (names.empty()) {
      std::fprintf(stderr, "no test of %s passes the filter %s\n", argv[i] + kSources.size(),
                   filter.c_str());
      return 2;
    }
    testing::GTEST_FLAG(filter) = names;
  }
  return RUN_ALL_TESTS();
}
