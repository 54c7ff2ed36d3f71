// What an uncaught exception does to a process, seen from outside: each test runs one in a child.
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

namespace coupler {
namespace {

using ::testing::ExitedWithCode;
using ::testing::KilledBySignal;

// "threadsafe" starts the child from scratch, so that it may have its own threads.
class TerminateDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

// noexcept, so that GoogleTest cannot catch the exception.
template <typename F>
// NOLINTNEXTLINE(bugprone-exception-escape): on purpose
void uncaught(F throwing) noexcept {
  install_terminate_handler();
  install_terminate_handler();
  throwing();
}

TEST_F(TerminateDeathTest, CouplerError_EndsWithItsMessageAndExitCode) {
  EXPECT_EXIT(
      uncaught([] { throw Error(ErrorCode::kTimeout, "rank 1 never came", {.hint = "look"}); }),
      ExitedWithCode(4), "^coupler: error: rank 1 never came\n  hint: look\n$");
}

TEST_F(TerminateDeathTest, CouplerErrorOnAnotherThread_EndsTheSameWay) {
  EXPECT_EXIT(uncaught([] {
                std::thread([] { throw Error(ErrorCode::kPlugin, "no such plugin"); }).join();
              }),
              ExitedWithCode(3), "^coupler: error: no such plugin\n$");
}

TEST_F(TerminateDeathTest, StandardException_EndsWithItsTypeItsTextAndOne) {
  EXPECT_EXIT(uncaught([] { throw std::out_of_range("index 7"); }), ExitedWithCode(1),
              "^coupler: error: uncaught std::out_of_range: index 7\n$");
}

TEST_F(TerminateDeathTest, OtherException_EndsWithItsTypeAndOne) {
  EXPECT_EXIT(uncaught([] { throw 7; }), ExitedWithCode(1), "^coupler: error: uncaught int\n$");
}

TEST_F(TerminateDeathTest, NoException_Aborts) {
  EXPECT_EXIT(uncaught([] { std::terminate(); }), KilledBySignal(SIGABRT),
              "^coupler: error: std::terminate was called without an exception");
}

TEST_F(TerminateDeathTest, TwoThreadsAtOnce_EndOnce) {
  EXPECT_EXIT(uncaught([] {
                const auto fail = [] { throw Error(ErrorCode::kTimeout, "late"); };
                std::thread first(fail);
                std::thread second(fail);
                first.join();
                second.join();
              }),
              ExitedWithCode(4), "^coupler: error: late\n$");
}

// Standard output is the fully buffered pipe that the test reads.
TEST_F(TerminateDeathTest, OutputBufferedByStdio_IsFlushed) {
  EXPECT_EXIT(uncaught([] {
                std::fflush(stdout);
                dup2(STDERR_FILENO, STDOUT_FILENO);
                setvbuf(stdout, nullptr, _IOFBF, 4096);
                std::printf("from stdio\n");
                throw Error(ErrorCode::kIo, "disk full");
              }),
              ExitedWithCode(1), "disk full\nfrom stdio\n");
}

TEST_F(TerminateDeathTest, OutputBufferedByCout_IsFlushed) {
  EXPECT_EXIT(uncaught([] {
                std::fflush(stdout);
                dup2(STDERR_FILENO, STDOUT_FILENO);
                std::ios::sync_with_stdio(false);
                std::cout << "from cout\n";
                throw Error(ErrorCode::kIo, "disk full");
              }),
              ExitedWithCode(1), "disk full\nfrom cout\n");
}

TEST_F(TerminateDeathTest, StreamHeldByAnotherThread_DoesNotHoldTheProcess) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer delays a signal while fflush waits";
#endif
  EXPECT_EXIT(uncaught([] {
                std::thread([] {
                  flockfile(stdin);
                  for (;;) pause();
                }).detach();
                while (ftrylockfile(stdin) == 0) funlockfile(stdin);
                throw Error(ErrorCode::kPeerLost, "rank 2 died");
              }),
              ExitedWithCode(4), "^coupler: error: rank 2 died\n$");
}

}  // namespace
}  // namespace coupler
