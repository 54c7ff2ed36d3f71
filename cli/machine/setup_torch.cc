// coupler setup-torch: fetches the LibTorch that this Coupler was built for, with the script that
// also sets up a checkout.
#include <string>
#include <vector>

#include "cli/machine/torch_info.h"
#include "cli/process/capture_output.h"
#include "cli/text/command.h"

namespace coupler::cli {

namespace {

int run_setup_torch(const Arguments& arguments) {
  const std::string prefix = arguments.value("--prefix", default_torch_prefix());
  const std::string version = arguments.value("--torch", COUPLER_TORCH_WHEEL);
  if (prefix.empty()) arguments.refuse("--prefix needs a folder", "--prefix");
  if (version.empty()) arguments.refuse("--torch needs a version", "--torch");
  // The same place in an installation and in a build folder.
  const std::string script =
      installed_file({"../libexec/coupler/install-torch"}, "reinstall Coupler, which includes it");
  std::vector<std::string> command = {script, "--torch", version};
  if (arguments.has("--cuda")) command.emplace_back("--cuda");
  command.push_back(prefix);
  exec_program(command, "install bash: it is a bash script");
}

}  // namespace

Command setup_torch_command() {
  return {
      .name = "setup-torch",
      .summary = "install LibTorch if Coupler was installed without it",
      .options = {{"--prefix DIR", "install into DIR"},
                  {"--torch VERSION",
                   "another LibTorch, 2.11.0 or later, to build a Coupler against; this Coupler "
                   "needs the version it was built for, except for the patch number"},
                  {"--cuda",
                   "also install what LibTorch needs on machines with a GPU (4 GB more)"}},
      .description = {"Downloads LibTorch " COUPLER_TORCH_WHEEL
                      " (PyTorch's wheel, with pip; 1.5 GB on disk) into "
                      "DIR/torch-" COUPLER_TORCH_WHEEL
                      ", where programs and find_package(Coupler) find it. DIR defaults to "
                      "/opt/coupler for root, and to ~/.local/share/coupler for others. With "
                      "another DIR, set COUPLER_TORCH_ROOT=DIR/torch-" COUPLER_TORCH_WHEEL
                      "/torch. An existing installation is not downloaded again."},
      .examples = {"sudo coupler setup-torch"},
      .run = run_setup_torch};
}

}  // namespace coupler::cli
