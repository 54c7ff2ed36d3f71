// For launch_from_code_test.cc: launches what its argument names and prints the result.
#include <coupler/coupler.h>
#include <coupler/launch.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <thread>

namespace {

using Table = std::map<std::string, std::vector<double>>;

// Computes with its arguments, of which every rank must have the same.
Table add_up(int64_t start, const std::string& name, const std::vector<double>& values,
             bool twice) {
  coupler::Accelerator accelerator;
  torch::Tensor sum = torch::tensor(values, torch::kDouble).sum() + start;
  sum = accelerator.reduce(sum * (twice ? 2 : 1));
  return {{name, {sum.item<double>(), static_cast<double>(accelerator.world_size())}}};
}
const coupler::Launchable launchable_add_up("add_up", add_up);

void nothing() { coupler::Accelerator accelerator; }
const coupler::Launchable launchable_nothing("nothing", nothing);

// Rank 1 throws while the others wait for it.
int fail(const std::string& how) {
  coupler::Accelerator accelerator;
  if (accelerator.rank() == 1) {
    if (how == "kill") raise(SIGKILL);
    if (how == "error")
      throw coupler::Error(coupler::ErrorCode::kInvalidArgument, "the data is wrong",
                           {.rank = -1, .subject = "data", .hint = "fix the data"});
    throw std::runtime_error("out of luck");
  }
  accelerator.wait_for_everyone();
  return 1;
}
const coupler::Launchable launchable_fail("fail", fail);

double no_number() { return std::nan(""); }
const coupler::Launchable launchable_no_number("no_number", no_number);

int nested() {
  coupler::Accelerator accelerator;
  coupler::launch(2, nothing);
  return 1;
}
const coupler::Launchable launchable_nested("nested", nested);

// What a rank inherits from the program that launched it: open files and blocked signals.
std::vector<std::string> inherited(const std::string& file) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // this loop's own descriptor may be closed
    if (std::filesystem::read_symlink(entry.path(), gone) == file) found.push_back(file);
  }
  sigset_t blocked;
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  if (sigismember(&blocked, SIGTERM) == 1) found.push_back("SIGTERM is blocked");
  return found;
}
const coupler::Launchable launchable_inherited("inherited", inherited);

std::string same(const std::string& text) { return text; }
const coupler::Launchable launchable_same("same", same);

int leave() { _exit(0); }
const coupler::Launchable launchable_leave("leave", leave);

int forgotten(int value) { return value; }

// Writes its process id for the test, then sleeps.
void sleep_long(const std::string& folder) {
  coupler::Accelerator accelerator;
  std::FILE* file =
      std::fopen((folder + "/pid-" + std::to_string(accelerator.rank())).c_str(), "w");
  std::fprintf(file, "%d", getpid());
  std::fclose(file);
  std::this_thread::sleep_for(std::chrono::seconds(50));
}
const coupler::Launchable launchable_sleep_long("sleep_long", sleep_long);

void print(const Table& table) {
  for (const auto& [name, values] : table)
    std::printf("%s = %g on %g\n", name.c_str(), values[0], values[1]);
}

int run(const std::string& what, const std::string& more) {
  const coupler::LaunchOptions two{.processes = 2, .overrides = {"backend.use=gloo_cpu"}};
  const std::vector<double> values = {1, 2, 3.5};
  if (what == "add_up") {
    // Starts LibTorch's threads in this process.
    const auto warm = torch::randn({512, 512});
    warm.mm(warm);
    print(coupler::launch(two, add_up, 10, "sum", values, false));
    print(coupler::launch(two, add_up, 10, "again", values, true));
  } else if (what == "by_name") {
    coupler::LaunchOptions options = two;
    options.program = more;
    print(coupler::launch<Table>(options, "add_up", 10, "named", values, false));
  } else if (what == "wrong_types") {
    coupler::launch<Table>(two, "add_up", "ten", 3);
  } else if (what == "config") {
    print(coupler::launch({.processes = 2, .config = more}, add_up, 0, "sum", values, false));
  } else if (what == "nothing") {
    coupler::launch(1, nothing);
  } else if (what == "nested") {
    coupler::launch(two, nested);
  } else if (what == "forgotten") {
    coupler::launch(two, forgotten, 1);
  } else if (what == "no_number") {
    std::printf("%g\n", coupler::launch(two, no_number));
  } else if (what == "sleep_long") {
    coupler::launch(two, sleep_long, more);
  } else if (what == "inherited") {
    const int kept = open(more.c_str(), O_RDWR | O_CREAT, 0600);
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    for (const std::string& found : coupler::launch(two, inherited, more))
      std::printf("inherited: %s\n", found.c_str());
    close(kept);
  } else if (what == "ignoring_children") {
    std::signal(SIGCHLD, SIG_IGN);
    print(coupler::launch(two, add_up, 10, "sum", values, false));
    coupler::launch(two, fail, "error");
  } else if (what == "odd_bytes") {
    const std::string odd("a\0\n\"\\\xff\xfe'$", 9);
    std::printf("%s\n", coupler::launch(two, same, odd) == odd ? "the same" : "another");
  } else if (what == "without_standard_files") {
    for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(file);
    const std::string result = coupler::launch(two, same, "came back");
    std::FILE* file = std::fopen(more.c_str(), "w");
    std::fputs(result.c_str(), file);
    std::fclose(file);
  } else if (what == "at_once") {
    std::vector<std::string> results(3);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < results.size(); ++i)
      threads.emplace_back([&, i] { results[i] = coupler::launch(two, same, std::to_string(i)); });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& result : results) std::printf("result %s\n", result.c_str());
  } else if (what == "removed") {
    std::filesystem::remove(more);
    coupler::launch(two, same, "x");
  } else if (what == "leave") {
    coupler::launch(two, leave);
  } else if (what == "none") {
    coupler::launch(0, nothing);
  } else if (what == "unknown") {
    coupler::launch(two, "ad_up", 1);
  } else {
    coupler::launch(two, fail, what);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  coupler::enter_launched();
  coupler::install_terminate_handler();
  try {
    return run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : "");
  } catch (const coupler::Error& error) {
    std::printf("rank %d: %s\n%s\n", error.detail().rank,
                std::string(coupler::to_string(error.code())).c_str(), error.what());
    return 1;
  }
}
