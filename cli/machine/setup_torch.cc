// coupler setup-torch: fetches the LibTorch that this Coupler was built for, by the script that
// set-up of a checkout uses, too.
#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/machine/torch_root.h"
#include "cli/process/become.h"

namespace coupler::cli {

const char kSetupTorchHelp[] =
    R"help(usage: coupler setup-torch [--prefix DIR] [--torch VERSION] [--cuda]

Fetches LibTorch )help" COUPLER_TORCH_WHEEL
    R"help( (PyTorch's wheel, by pip; 1.5 GB on the disk) into DIR/torch-)help" COUPLER_TORCH_WHEEL
    R"help(,
where programs and find_package(Coupler) find it: /opt/coupler for root, ~/.local/share/coupler for
others. With another DIR set COUPLER_TORCH_ROOT=DIR/torch-)help" COUPLER_TORCH_WHEEL
    R"help(/torch. What is there already is
not fetched again.

  --prefix DIR     where to put it
  --torch VERSION  another LibTorch, from 2.11.0 on: for a Coupler to be built against it, since this
                   one needs the LibTorch that it was built for, but for the last number
  --cuda           what LibTorch's CUDA part needs as well, for machines with a GPU (4 GB more)

  sudo coupler setup-torch
)help";

namespace {

[[noreturn]] void refuse(const std::string& word, const std::string& problem) {
  throw Error(ErrorCode::kUsage, problem,
              {.subject = word, .hint = "'coupler setup-torch --help' explains the command"});
}

// Installed, and in the folder of a build, it lies in libexec/ beside bin/.
std::string script() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto path = self.parent_path() / "../libexec/coupler/install-torch";
  if (access(path.c_str(), X_OK) == 0) return path;
  throw Error(ErrorCode::kIo, fmt::format("{} is not there", path.string()),
              {.subject = path.string(), .hint = "install Coupler again: it is a part of it"});
}

}  // namespace

int run_setup_torch(int argc, char** argv) {
  std::string prefix = default_torch_prefix();
  std::string version = COUPLER_TORCH_WHEEL;
  bool cuda = false;
  int i = 1;
  // Whether the word is that option, whose value follows it or its "=".
  const auto takes = [&](const std::string& option, const char* needed, std::string& value) {
    const std::string_view word = argv[i];
    if (word == option && i + 1 < argc) {
      value = argv[++i];
    } else if (word.starts_with(option + "=")) {
      value = word.substr(option.size() + 1);
    } else if (word == option) {
      value.clear();
    } else {
      return false;
    }
    if (value.empty() || value[0] == '-')
      refuse(option, fmt::format("{} needs {}", option, needed));
    return true;
  };
  for (; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--help" || word == "-h") {
      std::fputs(kSetupTorchHelp, stdout);
      return 0;
    }
    if (word == "--cuda") {
      cuda = true;
    } else if (!takes("--prefix", "a folder", prefix) && !takes("--torch", "a version", version)) {
      refuse(std::string(word), fmt::format("'{}' is no option", word));
    }
  }
  std::vector<std::string> command = {script(), "--torch", version};
  if (cuda) command.emplace_back("--cuda");
  command.push_back(prefix);
  become(command, "it is a bash script: install bash");
}

}  // namespace coupler::cli
