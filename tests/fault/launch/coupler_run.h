// CouplerRun: the coupler program, run by a test. Single-threaded.
//
// All its processes carry a mark in their environment, by which a test finds those that remain. The
// destructor kills them by process id.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace coupler::testing_launch {

// A rank that only meets the others.
inline const std::string kMeet = COUPLER_BINARY_DIR "/bin/tests/rendezvous_meet";

struct RunResult {
  int code = -1;  // exit code, or 128 + signal; -1: it did not end in time
  std::string output, error;
};

class CouplerRun {
 public:
  // Starts `coupler arguments…` in its own folder. environment is added to the test's ("" removes a
  // variable); input becomes standard input.
  explicit CouplerRun(const std::vector<std::string>& arguments,
                      const std::map<std::string, std::string>& environment = {},
                      const std::string& input = "");
  ~CouplerRun();
  CouplerRun(const CouplerRun&) = delete;
  CouplerRun& operator=(const CouplerRun&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& folder() const { return folder_; }
  RunResult wait(std::chrono::milliseconds timeout = std::chrono::seconds(30));
  void signal(int number) const;

  // Waits until a file in the folder has text, and returns it; "" if that takes too long, which is
  // a failure with a description.
  std::string wait_for_file(const std::string& name) const;
  pid_t wait_for_pid(const std::string& name) const;

  // For a failed assertion: what was printed so far, and what each living process does.
  std::string describe() const;

  // Living processes with our mark, the launcher included.
  std::vector<pid_t> alive() const;
  // The time from now until all are gone; nullopt if that takes longer than `most`.
  std::optional<std::chrono::milliseconds> time_until_gone(std::chrono::milliseconds most) const;
  // Whether all are gone within ten times the second that is promised.
  bool is_all_gone() const { return time_until_gone(std::chrono::seconds(10)).has_value(); }

 private:
  std::string folder_;
  pid_t pid_ = -1;
  bool ended_ = false;
  RunResult result_;
};

// Starts coupler and waits for its end.
RunResult run_coupler(const std::vector<std::string>& arguments,
                      const std::map<std::string, std::string>& environment = {},
                      const std::string& input = "");

// "launch", "-o", "backend.use=BACKEND", "-n", N, then the rest.
std::vector<std::string> launch(int processes, const std::vector<std::string>& rest,
                                const std::string& backend = "gloo_cpu");
// Like launch, for a shell script.
std::vector<std::string> launch_script(int processes, const std::string& script,
                                       const std::string& backend = "gloo_cpu");

std::string read_file(const std::string& path);  // "" if it does not exist
pid_t parent_of(pid_t pid);
char state_of(pid_t pid);  // as in /proc/PID/stat; 'Z' also if it is gone
// How often a kill is repeated: `usual`, or COUPLER_TEST_KILLS if set.
int kill_count(int usual);

}  // namespace coupler::testing_launch
