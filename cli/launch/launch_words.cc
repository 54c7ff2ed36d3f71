// The options of `coupler launch` itself; launch_usage.cc has their help.
#include <fmt/format.h>

#include "base/text.h"
#include "cli/launch/launch_options.h"

namespace coupler::cli {
namespace {

constexpr int kMostMachines = 1 << 20;
constexpr int kMostRestarts = 1 << 20;

// The meaning of a value, or an error that lists all values.
template <typename T>
T choose(const std::string& value, const std::string& as_written,
         const std::vector<std::pair<std::string, T>>& choices) {
  std::string all;
  std::vector<std::string> names;
  for (const auto& [name, meaning] : choices) {
    if (value == name) {
      return meaning;
    }
    all += (all.empty() ? "" : ", ") + name;
    names.push_back(name);
  }
  const std::string nearest = nearest_name(value, names);
  fail_usage(fmt::format("{}: '{}' is not one of {}{}", as_written, value, all,
                         nearest.empty() ? "" : "; did you mean '" + nearest + "'?"),
             as_written);
}

std::string not_empty(const std::string& value, const std::string& as_written) {
  if (value.empty()) {
    fail_usage(fmt::format("{} needs a value, not an empty string", as_written), as_written);
  }
  return value;
}

void set_override(LaunchOptions& options, const std::string& value, const std::string& as_written) {
  if (value.find('\n') != std::string::npos) {
    fail_usage(fmt::format("{}: a value must be on one line", as_written), as_written);
  }
  options.request.overrides.push_back(value);
}

}  // namespace

const std::vector<LaunchWord>& launch_words() {
  using O = LaunchOptions;
  using S = const std::string;
  static const std::vector<LaunchWord> words = {
      {"-n", true,
       [](O& o, S& v, S& w) {
         o.processes = parse_number(v, 1, kMostProcesses, w, "number of processes");
       }},
      {"--per-machine", true,
       [](O& o, S& v, S& w) {
         o.per_machine = parse_number(v, 1, kMostProcesses, w, "number of processes");
       }},
      {"--machines", true,
       [](O& o, S& v, S& w) {
         o.machines = parse_number(v, 1, kMostMachines, w, "number of machines");
       }},
      {"--machine-rank", true,
       [](O& o, S& v, S& w) {
         o.machine_rank = parse_number(v, 0, kMostMachines, w, "machine rank");
       }},
      {"--main-address", true, [](O& o, S& v, S& w) { o.main_address = not_empty(v, w); }},
      {"--main-port", true,
       [](O& o, S& v, S& w) { o.main_port = parse_number(v, 0, 65535, w, "port"); }},
      {"--interface", true,
       [](O& o, S& v, S& w) {
         o.request.overrides.push_back(text_override("backend.interface", not_empty(v, w)));
       }},
      {"--config", true, [](O& o, S& v, S&) { o.request.file = v; }},
      {"-o", true, set_override},
      {"--via", true,
       [](O& o, S& v, S& w) {
         o.via = choose<Via>(v, w,
                             {{"local", Via::kLocal},
                              {"mpirun", Via::kMpirun},
                              {"slurm", Via::kSlurm},
                              {"torchrun", Via::kTorchrun},
                              {"k8s", Via::kKubernetes}});
       }},
      {"--hostfile", true, [](O& o, S& v, S& w) { o.hostfile = not_empty(v, w); }},
      {"--bind", true,
       [](O& o, S& v, S& w) {
         o.bind = choose<Bind>(
             v, w, {{"none", Bind::kNone}, {"core", Bind::kCore}, {"numa", Bind::kNuma}});
       }},
      {"--outcome", true, [](O& o, S& v, S& w) { o.outcome = not_empty(v, w); }},
      {"--log-dir", true, [](O& o, S& v, S& w) { o.log_dir = not_empty(v, w); }},
      {"--max-restarts", true,
       [](O& o, S& v, S& w) {
         o.max_restarts = parse_number(v, 0, kMostRestarts, w, "number of restarts");
       }},
      {"--prefix", false, [](O& o, S&, S&) { o.prefix = true; }},
      {"--dry-run", false, [](O& o, S&, S&) { o.dry_run = true; }},
      {"--print-env", false, [](O& o, S&, S&) { o.print_env = true; }},
      {"--print", false, [](O& o, S&, S&) { o.print = true; }},
      {"--image", true, [](O& o, S& v, S& w) { o.image = not_empty(v, w); }},
      {"--name", true, [](O& o, S& v, S& w) { o.name = not_empty(v, w); }},
      {"--manifest", true,
       [](O& o, S& v, S& w) {
         o.manifest =
             choose<std::string>(v, w, {{"jobset", "jobset"}, {"pytorchjob", "pytorchjob"}});
       }},
      {"--help", false, [](O& o, S&, S&) { o.help = true; }},
      {"-h", false, [](O& o, S&, S&) { o.help = true; }},
  };
  return words;
}

}  // namespace coupler::cli
