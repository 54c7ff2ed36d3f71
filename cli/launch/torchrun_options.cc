// The options of torchrun (PyTorch 2.11) that `coupler launch` takes, and the reasons for the
// others.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "cli/launch/launch_options.h"
#include "cli/machine/system_info.h"

namespace coupler::cli {
namespace {

using O = LaunchOptions;
using S = const std::string;
using Apply = std::function<void(LaunchOptions&, const std::string&, const std::string&)>;

constexpr std::string_view kTorchrun = "options of torchrun";

Apply same_as(const char* words) {
  return [words](O& o, S& v, S& w) { apply_words(o, words, v, w); };
}

Apply refuse_always(const char* why, const char* hint = "omit it") {
  return [why, hint](O&, S& v, S& w) { refuse_option(w, v, why, hint); };
}

// Takes only the values that ask for what is done anyway.
Apply only(std::vector<std::string> values, const char* why, const char* hint = "omit it") {
  return [values = std::move(values), why, hint](O&, S& v, S& w) {
    if (std::find(values.begin(), values.end(), v) == values.end()) refuse_option(w, v, why, hint);
  };
}

void node_count(O& o, S& v, S& w) {
  const std::vector<std::string> range = split(v, ':');
  if (range.size() == 2 && range[0] != range[1])
    refuse_option(w, v, "the number of machines is fixed for a job",
                  fmt::format("give one number: {} {}", w, range[1]));
  apply_words(o, "--machines {}", range.size() == 2 ? range[0] : v, w);
}

void processes_per_node(O& o, S& v, S& w) {
  constexpr std::array kWords = {"auto", "cpu", "gpu", "xpu"};
  if (std::find(kWords.begin(), kWords.end(), v) == kWords.end())
    return apply_words(o, "--per-machine {}", v, w);
  if (v == "xpu") refuse_option(w, v, "Coupler's transports do not know such devices", "omit it");
  size_t count = v == "cpu" ? 0 : visible_gpus().size();
  if (v == "gpu" && count == 0)
    refuse_option(w, v, "no NVIDIA GPU was found", fmt::format("give a number: {} 2", w));
  if (count == 0) count = usable_cpus().size();  // "auto" without a GPU, too
  apply_words(o, "--per-machine {}", std::to_string(count), w);
}

// HOST or HOST:PORT; an IPv6 address is in brackets. Torchrun's default is "".
void endpoint(O& o, S& v, S& w) {
  if (v.empty()) return;
  const size_t colon = v.rfind(':');
  const bool has_port = colon != std::string::npos && v.find(']', colon) == std::string::npos;
  std::string host = has_port ? v.substr(0, colon) : v;
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    refuse_option(w, v, "an IPv6 address must be in brackets", "write [::1]:29500");
  }
  const std::string port = has_port ? v.substr(colon + 1) : "29400";  // torchrun's default
  apply_words(o, "--main-address {}", host, w);
  apply_words(o, "--main-port {}", port, w);
}

// "rank=1,timeout=900".
void rendezvous_settings(O& o, S& v, S& w) {
  if (v.empty()) return;
  for (const std::string& setting : split(v, ',')) {
    const size_t equals = setting.find('=');
    const std::string key = setting.substr(0, equals);
    if (equals == std::string::npos)
      refuse_option(w, v, fmt::format("'{}' is not key=value", setting), "write rank=1");
    if (key != "rank")
      refuse_option(w, v,
                    fmt::format("'{}' has no counterpart: ranks meet in Coupler's store", key),
                    "omit it; backend.timeout limits how long an operation waits");
    apply_words(o, "--machine-rank {}", setting.substr(equals + 1), w);
  }
}

void monitor_interval(O&, S& v, S& w) {
  const auto seconds = to_number<double>(v);
  if (!seconds || !(*seconds > 0)) refuse_option(w, v, "expected seconds, such as 0.1", "omit it");
}

// 0: the terminal, 3: both outputs to a file and the terminal, which --log-dir does.
void tee(O& o, S& v, S& w) {
  if (v == "0") return;
  if (v != "3")
    refuse_option(w, v, "both outputs of every rank are written to its log",
                  "use --log-dir FOLDER, and omit it or write --tee 3");
  o.needs_log_dir = w + " " + v;
}

void signals(O&, S& v, S& w) {
  constexpr std::array kPassedOn = {"SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"};
  for (const std::string& one : split(v, ',')) {
    if (std::find(kPassedOn.begin(), kPassedOn.end(), one) == kPassedOn.end())
      refuse_option(w, v, fmt::format("{} is not passed on to the ranks", one),
                    "SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 always are: omit it");
  }
}

LaunchOption row(std::string_view spec, std::string_view doc, Apply apply) {
  return {{.spec = spec, .doc = doc, .group = kTorchrun, .more = true}, std::move(apply)};
}

}  // namespace

const std::vector<LaunchOption>& torchrun_options() {
  static const std::vector<LaunchOption> options = {
      row("--nproc_per_node N", "same as --per-machine N; cpu: one for each processor",
          processes_per_node),
      row("--nnodes M", "same as --machines M", node_count),
      row("--node_rank R", "same as --machine-rank R", same_as("--machine-rank {}")),
      row("--master_addr H", "same as --main-address H", same_as("--main-address {}")),
      row("--master_port P", "same as --main-port P", same_as("--main-port {}")),
      row("--local_addr H", "same as --interface H", same_as("--interface {}")),
      row("--rdzv_endpoint H:P", "same as --main-address H --main-port P", endpoint),
      row("--rdzv_conf SETTINGS", "rank=R is the same as --machine-rank R", rendezvous_settings),
      row("--standalone", "same as --machines 1", same_as("--machines 1")),
      row("-t, --tee WHAT", "3: what --log-dir does; 0: nothing", tee),
      row("--numa_binding node", "same as --bind numa",
          [](O& o, S& v, S& w) {
            if (v != "node")
              refuse_option(w, v, "processes are bound to NUMA nodes or to cores",
                            "use --bind core, or --numa_binding node");
            apply_words(o, "--bind numa", v, w);
          }),

      row("--rdzv_backend static|c10d", "",
          only({"static", "c10d", ""}, "ranks meet in Coupler's own store",
               "omit it; --main-address and --main-port say where")),
      row("--rdzv_id ID", "", [](O&, S&, S&) {}),  // every job has a store of its own
      row("--monitor_interval S", "", monitor_interval),
      row("--start_method spawn", "",
          only({"spawn"}, "ranks are new processes, not copies of a Python process")),
      row("--role NAME", "",
          only({"default", ""}, "ranks have no roles",
               "omit it; ranks differ by accelerator.rank()")),
      row("-r, --redirects WHAT", "",
          only(
              {"0"}, "output is never taken from the terminal",
              "use --log-dir FOLDER, which also writes it to files, and redirect the command's own "
              "output")),
      row("--local_ranks_filter RANKS", "",
          only({""}, "all ranks write to the terminal",
               "use --prefix to tell them apart, or --log-dir FOLDER for a file each")),
      row("--duplicate_stdout_filters WORDS", "",
          only({""}, "output is not filtered", "use --log-dir FOLDER, and grep its files")),
      row("--duplicate_stderr_filters WORDS", "",
          only({""}, "error output is not filtered", "use --log-dir FOLDER, and grep its files")),
      row("--event_log_handler NAME", "",
          only({"null"}, "events are not logged by handlers",
               "use --outcome FILE to learn which rank failed")),
      row("--logs_specs NAME", "", only({"default"}, "logs have one form", "use --log-dir FOLDER")),
      row("--run_path", "",
          refuse_always("programs are executables, not Python scripts", "give the program's path")),
      row("--signals_to_handle SIGNALS", "", signals),
      row("--virtual_local_rank", "",
          refuse_always("each rank uses the device of its local rank",
                        "omit it, and choose devices with --gpu-ids")),
  };
  return options;
}

}  // namespace coupler::cli
