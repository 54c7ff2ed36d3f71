// examples/migration: the port changes at most six lines, and resuming after a kill takes three
// more. docs/from-accelerate.md shows all of them. The programs learn, the ported one under every
// backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "run_program.h"

namespace coupler {
namespace {

using Lines = std::vector<std::string>;

Lines matching_lines(const std::string& path) {
  std::istringstream text(text_of(path));
  Lines lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

struct Difference {
  Lines removed, added;
};

// Uses the longest common subsequence, like diff.
Difference difference(const Lines& before, const Lines& after) {
  const size_t rows = before.size(), columns = after.size();
  std::vector<std::vector<int>> common(rows + 1, std::vector<int>(columns + 1, 0));
  for (size_t i = rows; i-- > 0;) {
    for (size_t j = columns; j-- > 0;) {
      common[i][j] = before[i] == after[j] ? common[i + 1][j + 1] + 1
                                           : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  Difference result;
  for (size_t i = 0, j = 0; i < rows || j < columns;) {
    if (i < rows && j < columns && before[i] == after[j]) {
      ++i, ++j;
    } else if (j == columns || (i < rows && common[i + 1][j] >= common[i][j + 1])) {
      result.removed.push_back(before[i++]);
    } else {
      result.added.push_back(after[j++]);
    }
  }
  return result;
}

Difference between(const std::string& before, const std::string& after) {
  const std::string folder = COUPLER_SOURCE_DIR "/examples/migration/";
  return difference(matching_lines(folder + before), matching_lines(folder + after));
}
Difference of_the_port() { return between("before.cc", "after.cc"); }
Difference of_resuming() { return between("after.cc", "resuming.cc"); }

// A line that is replaced by another counts once.
TEST(Migration, ChangesAtMostSixLines) {
  const Difference port = of_the_port();
  EXPECT_LE(std::max(port.removed.size(), port.added.size()), 6u);
  EXPECT_GE(port.added.size(), 3u) << "the two programs are the same";
}

TEST(Migration, ToGoOnAfterAKill_ChangesThreeLines) {
  const Difference resuming = of_resuming();
  EXPECT_EQ(resuming.added.size(), 3u);
  EXPECT_EQ(resuming.removed.size(), 1u);
}

TEST(Migration, PageShowsWhatChanges) {
  const Lines page = matching_lines(COUPLER_SOURCE_DIR "/docs/from-accelerate.md");
  std::multiset<std::string> for_message;
  bool in_block = false;
  for (const std::string& line : page) {
    if (line.rfind("```", 0) == 0) {
      in_block = line == "```diff";
    } else if (in_block && !line.empty() && (line[0] == '-' || line[0] == '+')) {
      for_message.insert(line);
    }
  }
  std::multiset<std::string> expected;
  for (const Difference& difference : {of_the_port(), of_resuming()}) {
    for (const std::string& line : difference.removed) expected.insert("-" + line);
    for (const std::string& line : difference.added) expected.insert("+" + line);
  }
  EXPECT_EQ(for_message, expected);
}

void expect_migrated_learns(const std::string& program, const Lines& options) {
  const Workplace here;
  Lines arguments{"launch"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.push_back(program);
  const Outcome outcome = here.coupler(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string name = "test accuracy: ";
  const size_t at = outcome.out.find(name);
  ASSERT_NE(at, std::string::npos) << outcome.out << outcome.err;
  EXPECT_GT(std::strtod(outcome.out.c_str() + at + name.size(), nullptr), 0.85);
}

TEST(Migration, Before_Learns) { expect_migrated_learns(BEFORE_PROGRAM, {"-n", "1"}); }

TEST(Migration, After_OneProcess_Learns) { expect_migrated_learns(AFTER_PROGRAM, {"-n", "1"}); }

class MigrationOver : public ::testing::TestWithParam<const char*> {};

TEST_P(MigrationOver, TwoProcesses_Learn) {
  expect_migrated_learns(AFTER_PROGRAM,
                         {"-n", "2", "-o", std::string("backend.use=") + GetParam()});
}

INSTANTIATE_TEST_SUITE_P(Backends, MigrationOver,
                         ::testing::Values("gloo_cpu", "mpi", "fsdp", "deepspeed_like"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace coupler
