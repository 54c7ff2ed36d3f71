// CouplerRun: the coupler program, run by a test. Single-threaded.
//
// All its processes carry a mark in their environment, by which a test finds those that are left;
// the destructor kills them by process id.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace coupler::testing_launch {

// A rank that does nothing but meet the others.
inline const std::string kMeet = COUPLER_BINARY_DIR "/bin/tests/rendezvous_meet";

struct RunResult {
  int code = -1;  // 128 + signal; -1: it did not end in time
  std::string output, error;
};

class CouplerRun {
 public:
  // Starts `coupler arguments…` in a folder of its own. environment is added to ours ("" removes);
  // input is a file's text.
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

  // The text of a file in the folder, once it has one; "" when that takes too long.
  std::string wait_for_file(const std::string& name) const;
  pid_t wait_for_pid(const std::string& name) const;

  // Living processes with our mark, the launcher included.
  std::vector<pid_t> alive() const;
  // From now on, until they are all gone; nothing where that takes longer than `most`.
  std::optional<std::chrono::milliseconds> time_until_gone(std::chrono::milliseconds most) const;
  // Whether they are all gone within two seconds.
  bool is_all_gone() const { return time_until_gone(std::chrono::seconds(2)).has_value(); }

 private:
  std::string folder_;
  pid_t pid_ = -1;
  bool ended_ = false;
  RunResult result_;
};

// Runs to the end.
RunResult run_coupler(const std::vector<std::string>& arguments,
                      const std::map<std::string, std::string>& environment = {},
                      const std::string& input = "");

// "launch", "-o", "backend.use=BACKEND", "-n", N, then the rest.
std::vector<std::string> launch(int processes, const std::vector<std::string>& rest,
                                const std::string& backend = "gloo_cpu");
// As launch, of a shell script.
std::vector<std::string> launch_script(int processes, const std::string& script,
                                       const std::string& backend = "gloo_cpu");

std::string read_file(const std::string& path);  // "" where it is not there
pid_t parent_of(pid_t pid);
char state_of(pid_t pid);  // as in /proc/PID/stat; 'Z' where it is gone, too
// How often a kill is repeated: 20, or COUPLER_TEST_KILLS.
int kill_count(int usual);

}  // namespace coupler::testing_launch
