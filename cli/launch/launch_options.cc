#include "cli/launch/launch_options.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
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
  const std::string key = value.substr(0, value.find('='));
  std::string set = value.substr(std::min(key.size() + 1, value.size()));
  if (set.size() > 1 && set.front() == '"' && set.back() == '"')
    set = set.substr(1, set.size() - 2);
  note_setter(options, key, {as_written, set, as_written + " " + value});
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

// "0,1", or identifiers such as GPU-8932f937; "all" leaves the choice to CUDA_VISIBLE_DEVICES.
void set_devices(LaunchOptions& options, const std::string& value, const std::string& as_written) {
  if (value == "all") return;
  for (const std::string& one : split(value, ',')) {
    const bool is_id = !one.empty() && std::all_of(one.begin(), one.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == ':' || c == '/';
    });
    if (!is_id)
      refuse_option(as_written, value, "expected device numbers such as 0,1",
                    "separate them by commas, without blanks");
  }
  options.visible_devices = value;
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
      {{"--gpu-ids IDS", "CUDA devices of this machine to use, such as 0,1: CUDA_VISIBLE_DEVICES"},
       set_devices},
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

namespace {

// "--nproc_per_node 2", or the name alone if it takes no value.
std::string with_its_value(const std::string& name, const std::string& value) {
  return value.empty() ? name : fmt::format("{} {}", name, value);
}

// Our own option's first name, in whatever form it was written.
const LaunchOption* find_own(std::string_view name) {
  const auto& own = own_launch_options();
  const auto found =
      std::find_if(own.begin(), own.end(), [&](const auto& one) { return one.option.is(name); });
  return found == own.end() ? nullptr : &*found;
}

void apply_own(LaunchOptions& options, const LaunchOption& one, const std::string& value,
               const LaunchOptions::Setter& setter) {
  const std::string name = one.option.names()[0];
  if (name != "-o") note_setter(options, name, setter);
  one.apply(options, value, setter.name);
}

// The option of ours that sets this key, so that -o KEY=VALUE counts as that option.
const std::string& option_for_key(const std::string& key) {
  static const std::map<std::string, std::string, std::less<>> options = {
      {"launch.processes", "-n"}, {"backend.interface", "--interface"}};
  const auto found = options.find(key);
  return found == options.end() ? key : found->second;
}

// "2" and "02" do.
bool says_the_same(const std::string& one, const std::string& other) {
  const auto number = to_number<int64_t>(one);
  return one == other || (number && number == to_number<int64_t>(other));
}

// --cpu and --multi_gpu decide about the device only once the configuration is known.
void check_device(const LaunchOptions& options) {
  const auto device = options.setters.find("training.device");
  if (device == options.setters.end()) return;
  const std::string& value = device->second.value;
  const bool fits_cpu = !options.backend.cpu || value == "cpu";
  const bool fits_gpu = !options.backend.multi_gpu || value.starts_with("cuda");
  if (fits_cpu && fits_gpu) return;
  fail_usage(fmt::format("{} and {} contradict each other", fits_cpu ? "--multi_gpu" : "--cpu",
                         device->second.text),
             "training.device", "omit one of them: both set training.device");
}

std::array<const std::vector<LaunchOption>*, 4> all_tables() {
  return {&own_launch_options(), &torchrun_options(), &deepspeed_options(), &accelerate_options()};
}

}  // namespace

void note_setter(LaunchOptions& options, const std::string& what,
                 const LaunchOptions::Setter& setter) {
  const std::string& target = option_for_key(what);
  const auto [known, is_new] = options.setters.emplace(target, setter);
  if (is_new) return;
  std::vector<LaunchOptions::Setter>& others = options.others[target];
  others.push_back(known->second);
  std::erase_if(others, [&](const auto& other) { return other.name == setter.name; });
  for (const LaunchOptions::Setter& other : others) {
    if (says_the_same(other.value, setter.value)) continue;
    fail_usage(fmt::format("{} and {} contradict each other", other.text, setter.text), setter.name,
               fmt::format("omit one of them: both set {}", what));
  }
  known->second = setter;
}

std::string as_written(const LaunchOptions& options, const std::string& ours) {
  const auto found = options.setters.find(ours);
  return found == options.setters.end() ? ours : found->second.text;
}

void apply_words(LaunchOptions& options, std::string_view words, const std::string& value,
                 const std::string& as_written) {
  const std::vector<std::string> parts = split(words, ' ');
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = parts[i];
    const LaunchOption* own = find_own(name);
    const bool takes = i + 1 < parts.size() && !parts[i + 1].starts_with("--");
    const std::string given = !takes ? "" : parts[i + 1] == "{}" ? value : parts[i + 1];
    i += takes ? 1 : 0;
    if (own != nullptr) {
      apply_own(options, *own, given, {as_written, given, with_its_value(as_written, value)});
      continue;
    }
    for (const LaunchOption& one : deepspeed_options()) {
      if (one.option.is(name)) one.apply(options, given, as_written);
    }
  }
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

void refuse_option(const std::string& as_written, const std::string& value, const std::string& why,
                   const std::string& hint) {
  fail_usage(fmt::format("{}: {}", with_its_value(as_written, value), why), as_written, hint);
}

std::string text_override(const std::string& key, const std::string& text) {
  return fmt::format("{}={}", key, config::render(config::OptionValue(text)));
}

std::vector<Option> launch_options() {
  std::vector<Option> all;
  for (const auto* table : all_tables()) {
    for (const LaunchOption& one : *table) all.push_back(one.option);
  }
  return all;
}

LaunchOptions read_launch_options(const Arguments& arguments) {
  LaunchOptions options;
  for (const Arguments::Given& given : arguments.given) {
    for (const auto* table : all_tables()) {
      const auto found = std::find_if(table->begin(), table->end(), [&](const LaunchOption& one) {
        return one.option.spec == given.option.spec;
      });
      if (found == table->end()) continue;
      if (table == &own_launch_options()) {
        apply_own(options, *found, given.value,
                  {given.as_written, given.value, with_its_value(given.as_written, given.value)});
      } else {
        found->apply(options, given.value, given.as_written);
      }
      break;
    }
  }
  check_device(options);
  options.program = arguments.program;
  return options;
}

}  // namespace coupler::cli
