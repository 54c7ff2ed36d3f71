// coupler setup-torch: fetches the LibTorch that this Coupler was built for, with the script that
// also sets up a checkout.
#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/machine/torch_info.h"
#include "cli/process/run_and_read.h"

namespace coupler::cli {

const char kSetupTorchHelp[] =
    R"help(usage: coupler setup-torch [--prefix DIR] [--torch VERSION] [--cuda]

Downloads LibTorch )help" COUPLER_TORCH_WHEEL
    R"help( (PyTorch's wheel, with pip; 1.5 GB on disk) into DIR/torch-)help" COUPLER_TORCH_WHEEL
    R"help(,
where programs and find_package(Coupler) find it. DIR defaults to /opt/coupler for root, and to
~/.local/share/coupler for others. With another DIR, set COUPLER_TORCH_ROOT=DIR/torch-)help" COUPLER_TORCH_WHEEL
    R"help(/torch.
An existing installation is not downloaded again.

  --prefix DIR     install into DIR
  --torch VERSION  another LibTorch, 2.11.0 or later, to build a Coupler against; this Coupler needs
                   the version it was built for, except for the patch number
  --cuda           also install what LibTorch needs on machines with a GPU (4 GB more)

  sudo coupler setup-torch
)help";

namespace {

[[noreturn]] void refuse(const std::string& word, const std::string& problem) {
  throw Error(ErrorCode::kUsage, problem,
              {.subject = word, .hint = "see 'coupler setup-torch --help'"});
}

// It is in libexec/ next to bin/, both in an installation and in a build folder.
std::string script() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto path = self.parent_path() / "../libexec/coupler/install-torch";
  if (access(path.c_str(), X_OK) == 0) return path;
  throw Error(ErrorCode::kIo, fmt::format("{} does not exist", path.string()),
              {.subject = path.string(), .hint = "reinstall Coupler, which includes it"});
}

}  // namespace

int run_setup_torch(int argc, char** argv) {
  std::string prefix = default_torch_prefix();
  std::string version = COUPLER_TORCH_WHEEL;
  bool cuda = false;
  int i = 1;
  // Whether the word is that option; its value is the next word or follows "=".
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
      refuse(std::string(word), fmt::format("unknown argument '{}'", word));
    }
  }
  std::vector<std::string> command = {script(), "--torch", version};
  if (cuda) command.emplace_back("--cuda");
  command.push_back(prefix);
  become(command, "install bash: it is a bash script");
}

}  // namespace coupler::cli
