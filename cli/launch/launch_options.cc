#include "cli/launch/launch_options.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "config/value.h"

namespace coupler::cli {
namespace {

constexpr int kMaxMachines = 1 << 20;
constexpr int kMaxRestarts = 1 << 20;

// The meaning of a value, or an error that lists all values.
template <typename T>
T choose(const std::string& value, const std::string& as_written,
         const std::vector<std::pair<std::string, T>>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, meaning] : choices) {
    if (value == name) {
      return meaning;
    }
    names.push_back(name);
  }
  fail_usage(fmt::format("{}: '{}' is not one of {}{}", as_written, value, fmt::join(names, ", "),
                         did_you_mean(value, names)),
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

void set_via(LaunchOptions& options, const std::string& value, const std::string& as_written) {
  options.via = choose<Via>(value, as_written,
                            {{"local", Via::kLocal},
                             {"mpirun", Via::kMpirun},
                             {"slurm", Via::kSlurm},
                             {"torchrun", Via::kTorchrun},
                             {"k8s", Via::kKubernetes}});
}

using O = LaunchOptions;
using S = const std::string;
constexpr std::string_view kMachines = "several machines, with `coupler launch` on each";
constexpr std::string_view kThrough = "through another launcher";

}  // namespace

const std::vector<LaunchOption>& own_launch_options() {
  static const std::vector<LaunchOption> options = {
      {{"-n N", "total number of processes on all machines (default: launch.processes)"},
       [](O& o, S& v, S& w) {
         o.processes = parse_number(v, 1, kMaxProcesses, w, "number of processes");
       }},
      {{"--config FILE", "configuration for launcher and processes (default: ./train.toml)"},
       [](O& o, S& v, S&) { o.request.file = v; }},
      {{"-o KEY=VALUE", "override one configuration key; may be repeated"}, set_override},
      {{"--interface NAME", "network interface for connections: -o backend.interface=NAME"},
       [](O& o, S& v, S& w) {
         o.request.overrides.push_back(text_override("backend.interface", not_empty(v, w)));
       }},
      {{"--bind none|core|numa",
        "bind each process to its own cores (core) or to one NUMA node (numa) (default: none)"},
       [](O& o, S& v, S& w) {
         o.bind = choose<Bind>(
             v, w, {{"none", Bind::kNone}, {"core", Bind::kCore}, {"numa", Bind::kNuma}});
       }},
      {{"--log-dir FOLDER", "also append each rank's output to FOLDER/rank-N.log"},
       [](O& o, S& v, S& w) { o.log_dir = not_empty(v, w); }},
      {{"--outcome FILE", "if the job fails, write to FILE, as JSON, which rank failed and how"},
       [](O& o, S& v, S& w) { o.outcome = not_empty(v, w); }},
      {{"--max-restarts N", "restart a failed job up to N times"},
       [](O& o, S& v, S& w) {
         o.max_restarts = parse_number(v, 0, kMaxRestarts, w, "number of restarts");
       }},
      {{"--prefix", "prefix each line of output with its rank: \"[rank 0] \""},
       [](O& o, S&, S&) { o.prefix = true; }},
      {{"--dry-run", "print what would be started, but start nothing"},
       [](O& o, S&, S&) { o.dry_run = true; }},
      {{"--print-env", "print the variables each process would get, but start nothing"},
       [](O& o, S&, S&) { o.print_env = true; }},

      {{"--machines M", "number of machines", kMachines},
       [](O& o, S& v, S& w) {
         o.machines = parse_number(v, 1, kMaxMachines, w, "number of machines");
       }},
      {{"--machine-rank R", "index of this machine, from 0", kMachines},
       [](O& o, S& v, S& w) {
         o.machine_rank = parse_number(v, 0, kMaxMachines, w, "machine rank");
       }},
      {{"--main-address H", "address of machine 0", kMachines},
       [](O& o, S& v, S& w) { o.main_address = not_empty(v, w); }},
      {{"--main-port P", "free port on machine 0", kMachines},
       [](O& o, S& v, S& w) { o.main_port = parse_number(v, 0, 65535, w, "port"); }},
      {{"--per-machine N", "number of processes on each machine, instead of -n", kMachines},
       [](O& o, S& v, S& w) {
         o.per_machine = parse_number(v, 1, kMaxProcesses, w, "number of processes");
       }},

      {{"--via local", "no other launcher: start the processes directly (default)", kThrough},
       set_via},
      {{"--via mpirun", "mpirun of Open MPI or MPICH", kThrough}, set_via},
      {{"--via slurm", "srun inside an allocation; with --print, an sbatch script", kThrough},
       set_via},
      {{"--via torchrun", "torchrun", kThrough}, set_via},
      {{"--via k8s", "print a Kubernetes manifest", kThrough}, set_via},
      {{"--hostfile FILE", "machines for mpirun, one per line: \"node1 slots=4\"", kThrough},
       [](O& o, S& v, S& w) { o.hostfile = not_empty(v, w); }},
      {{"--print", "with --via slurm: print an sbatch script, but start nothing", kThrough},
       [](O& o, S&, S&) { o.print = true; }},
      {{"--image IMAGE", "container image for the manifest", kThrough},
       [](O& o, S& v, S& w) { o.image = not_empty(v, w); }},
      {{"--manifest jobset|pytorchjob", "kind of manifest (default: jobset)", kThrough},
       [](O& o, S& v, S& w) {
         o.manifest =
             choose<std::string>(v, w, {{"jobset", "jobset"}, {"pytorchjob", "pytorchjob"}});
       }},
      {{"--name NAME", "job name in a script or manifest (default: the program's name)", kThrough},
       [](O& o, S& v, S& w) { o.name = not_empty(v, w); }},
  };
  return options;
}

void fail_usage(const std::string& message, const std::string& subject, const std::string& hint) {
  throw Error(ErrorCode::kUsage, message,
              {.subject = subject,
               .hint = hint.empty() ? "`coupler launch --help` lists the options" : hint});
}

int parse_number(const std::string& text, int least, int most, const std::string& word,
                 const std::string& meaning) {
  const auto number = to_number<int>(text);
  if (!number || *number < least || *number > most) {
    fail_usage(
        fmt::format("{}: '{}' is not a valid {} ({} to {})", word, text, meaning, least, most),
        word);
  }
  return *number;
}

std::string text_override(const std::string& key, const std::string& text) {
  return fmt::format("{}={}", key, config::render(config::OptionValue(text)));
}

std::vector<Option> launch_options() {
  std::vector<Option> all;
  for (const auto* table : {&own_launch_options(), &accelerate_options()}) {
    for (const LaunchOption& one : *table) all.push_back(one.option);
  }
  return all;
}

LaunchOptions read_launch_options(const Arguments& arguments) {
  LaunchOptions options;
  for (const Arguments::Given& given : arguments.given) {
    for (const auto* table : {&own_launch_options(), &accelerate_options()}) {
      for (const LaunchOption& one : *table) {
        if (one.option.spec == given.option.spec) one.apply(options, given.value, given.as_written);
      }
    }
  }
  options.program = arguments.program;
  return options;
}

}  // namespace coupler::cli
