// The launcher prints lines that several ranks log in order.
#include <gtest/gtest.h>

#include "run_program.h"

namespace coupler {
namespace {

TEST(Log, InOrder_LinesComeInTheOrderOfRanks) {
  const Workplace here;
  const Outcome outcome = here.coupler(
      {"launch", "-n", "3", "-o", "backend.use=gloo_cpu", TRAINING_CHECKS, "logs_in_order"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  size_t from = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const size_t at = outcome.err.find("line of rank " + std::to_string(rank), from);
    ASSERT_NE(at, std::string::npos) << "rank " << rank << " in\n" << outcome.err;
    from = at;
  }
}

}  // namespace
}  // namespace coupler
