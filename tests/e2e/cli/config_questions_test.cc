// coupler config: questions in a terminal with arrow keys, in a terminal that is too small, and in
// a pipe; what is written, and that nothing is written if the user quits.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "run_program.h"

namespace coupler {
namespace {

// coupler config in its own terminal; keys are pressed once an expected text has appeared.
class Terminal {
 public:
  Terminal(const Workplace& here, unsigned short rows, unsigned short columns,
           const char* no_color = "") {
    winsize size{};
    size.ws_row = rows;
    size.ws_col = columns;
    pid_ = forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      if (chdir(here.path().c_str()) != 0) _exit(9);
      setenv("TERM", "xterm", 1);
      setenv("NO_COLOR", no_color, 1);
      execl(COUPLER_PROGRAM, "coupler", "config", nullptr);
      _exit(9);
    }
  }
  ~Terminal() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(fd_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Waits for the text, then presses the keys.
  void answer(const std::string& text, const std::string& keys) {
    const size_t from = seen_;
    while (output_.find(text, from) == std::string::npos) {
      if (!read_more()) {
        ADD_FAILURE() << "'" << text << "' did not appear:\n" << output_;
        return;
      }
    }
    seen_ = output_.find(text, from) + text.size();
    ASSERT_EQ(write(fd_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  int end() {
    while (read_more()) {
    }
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& output() const { return output_; }

 private:
  bool read_more() {
    pollfd poll_fd{fd_, POLLIN, 0};
    if (poll(&poll_fd, 1, 20'000) <= 0) return false;
    char buffer[4096];
    const ssize_t got = read(fd_, buffer, sizeof buffer);
    if (got <= 0) return false;
    output_.append(buffer, static_cast<size_t>(got));
    return true;
  }

  int fd_ = -1;
  pid_t pid_ = -1;
  std::string output_;
  size_t seen_ = 0;
};

constexpr const char* kDown = "\033[B";
constexpr const char* kUp = "\033[A";

TEST(ConfigQuestions, InATerminal_AreAnsweredByArrowKeys) {
  const Workplace here;
  Terminal terminal(here, 24, 100);
  terminal.answer("How many processes", "3\r");
  terminal.answer("Which backend connects them?", "\r");
  terminal.answer("Which mixed precision?", std::string(kDown) + kDown + kUp + "\r");
  terminal.answer("How many batches", "4\r");
  terminal.answer("Where do checkpoints go?", "-\r");
  EXPECT_EQ(terminal.end(), 0) << terminal.output();
  const std::string toml = text_of(here.path() / "train.toml");
  for (const char* key : {"use = \"auto\"", "mixed_precision = \"bf16\"",
                          "gradient_accumulation_steps = 4", "processes = 3"})
    EXPECT_TRUE(has(toml, key)) << key << " is not in\n" << toml;
  EXPECT_FALSE(has(toml, "[checkpoint]")) << toml;
  EXPECT_TRUE(has(toml, "# How many processes `coupler launch` starts."))
      << "the key has no comment";
  EXPECT_EQ(here.coupler({"config", "check"}).exit_code, 0);
}

TEST(ConfigQuestions, WithNoColor_HaveNone) {
  for (const char* no_color : {"", "1"}) {
    const Workplace here;
    Terminal terminal(here, 24, 100, no_color);
    terminal.answer("How many processes", "\r");
    terminal.answer("Which backend connects them?", "\r");
    terminal.answer("Which mixed precision?", "\x03");
    EXPECT_EQ(terminal.end(), 130) << terminal.output();
    EXPECT_TRUE(has(terminal.output(), "> ")) << "the choice is not marked";
    EXPECT_EQ(has(terminal.output(), "\033[36m"), *no_color == '\0') << terminal.output();
  }
}

TEST(ConfigQuestions, InATerminalThatIsTooSmall_AreLists) {
  const Workplace here;
  Terminal terminal(here, 3, 20);
  terminal.answer("]: ", "\r");
  terminal.answer("number or name", "nonsense\r");
  terminal.answer("'nonsense' is not one of the choices", "1\r");
  terminal.answer("number or name", "fp16\r");
  terminal.answer("]: ", "0\r");
  terminal.answer("'0' is not a whole number", "2\r");
  terminal.answer("checkpoints", "runs\r");
  terminal.answer("How many steps between checkpoints", "\r");
  terminal.answer("How many checkpoints to keep", "\r");
  EXPECT_EQ(terminal.end(), 0) << terminal.output();
  const std::string toml = text_of(here.path() / "train.toml");
  EXPECT_TRUE(has(toml, "mixed_precision = \"fp16\"")) << toml;
  EXPECT_TRUE(has(toml, "dir = \"runs\"")) << toml;
}

TEST(ConfigQuestions, LeftByCtrlC_WriteNothing_AndLeaveTheTerminalAsItWas) {
  const Workplace here;
  Terminal terminal(here, 24, 100);
  terminal.answer("How many processes", "\r");
  terminal.answer("Which backend connects them?", "\x03");
  EXPECT_EQ(terminal.end(), 130) << terminal.output();
  EXPECT_TRUE(has(terminal.output(), "Nothing was written")) << terminal.output();
  EXPECT_TRUE(has(terminal.output(), "\033[?25h")) << "the cursor is hidden";
  for (const auto& entry : std::filesystem::directory_iterator(here.path()))
    ADD_FAILURE() << entry.path() << " was left";
}

TEST(ConfigQuestions, WithoutAnswers_WriteNothing) {
  const Workplace here;
  const Outcome outcome = here.coupler({"config"});  // its input is empty
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(has(outcome.err, "the answers end before this one; nothing was written"))
      << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(here.path() / "train.toml"));
}

TEST(ConfigQuestions, OverAFile_AreNotAsked) {
  const Workplace here;
  here.write("train.toml", "# mine\n");
  const Outcome outcome = here.coupler({"config"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(has(outcome.err, "train.toml exists")) << outcome.err;
}

TEST(ConfigDefault, IsARightConfiguration) {
  const Workplace here;
  const Outcome outcome = here.coupler({"config", "default"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "Wrote train.toml")) << outcome.out;
  const Outcome checked = here.coupler({"config", "check"});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_EQ(here.coupler({"config", "default"}).exit_code, 2);
  EXPECT_EQ(here.coupler({"config", "default", "--force"}).exit_code, 0);
}

TEST(ConfigCheck, LooksAtTheBackendsOptions) {
  const Workplace here;
  here.write(
      "train.toml",
      "[backend]\nuse = \"gloo_cpu\"\n[backend.gloo_cpu]\nchunk = 5\n[launch]\nprocesses = 2\n");
  const Outcome outcome = here.coupler({"config", "check"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(has(outcome.err, "chunk")) << outcome.err;
}

}  // namespace
}  // namespace coupler
