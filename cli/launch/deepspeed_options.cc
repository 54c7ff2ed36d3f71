// The options of deepspeed's launcher that `coupler launch` takes, and the reasons for the others.
#include <coupler/error.h>
#include <fmt/format.h>

#include "base/text.h"
#include "cli/launch/launch_options.h"

namespace coupler::cli {
namespace {

using O = LaunchOptions;
using S = const std::string;
using Apply = std::function<void(LaunchOptions&, const std::string&, const std::string&)>;

constexpr std::string_view kDeepSpeed = "options of deepspeed";

Apply equal_to(const char* words) {
  return [words](O& o, S& v, S& w) { apply_words(o, words, v, w); };
}

Apply refuse_flag(const char* why, const char* hint = "omit it") {
  return [why, hint](O&, S& v, S& w) { refuse_option(w, v, why, hint); };
}

void nothing(O&, S&, S&) {}

void launcher(O& o, S& v, S& w) {
  const std::string name = lower(v);
  if (name == "openmpi" || name == "mpich" || name == "impi") {
    apply_words(o, "--via mpirun", v, w);
  } else if (name == "slurm") {
    apply_words(o, "--via slurm", v, w);
  } else if (name != "standard" && name != "nossh") {  // these: one launcher on each machine
    refuse_option(w, v, "machines are reached through mpirun or srun",
                  "use openmpi, mpich, impi or slurm, or run `coupler launch --machines` on each "
                  "machine");
  }
}

void include(O& o, S& v, S& w) {
  if (v.empty()) return;
  note_setter(o, "--include", {w, v, w + " " + v});
  o.hosts.include = v;
}

void exclude(O& o, S& v, S& w) {
  if (v.empty()) return;
  note_setter(o, "--exclude", {w, v, w + " " + v});
  o.hosts.exclude = v;
}

// deepspeed's -1 means all.
void node_limit(O& o, S& v, S& w) {
  if (v == "-1") return;
  o.hosts.machines = parse_number(v, 1, kMaxProcesses, w, "number of machines");
  note_setter(o, "--num_nodes", {w, v, w + " " + v});
}

void gpu_limit(O& o, S& v, S& w) {
  if (v == "-1") return;
  o.hosts.slots = parse_number(v, 1, kMaxProcesses, w, "number of processes");
  note_setter(o, "--num_gpus", {w, v, w + " " + v});
}

LaunchOption deepspeed_row(std::string_view spec, std::string_view doc, Apply apply) {
  return {{.spec = spec, .doc = doc, .group = kDeepSpeed, .more = true}, std::move(apply)};
}

}  // namespace

const std::vector<LaunchOption>& deepspeed_options() {
  static const std::vector<LaunchOption> options = {
      deepspeed_row("--num_gpus, --num_accelerators N",
                    "same as --per-machine N; with a hostfile: of each machine", gpu_limit),
      deepspeed_row("--num_nodes M",
                    "the first M machines of the hostfile; without one the same as --machines M",
                    node_limit),
      deepspeed_row("-H FILE", "same as --via mpirun --hostfile FILE",
                    equal_to("--via mpirun --hostfile {}")),
      deepspeed_row("-i, --include HOSTS",
                    "machines and slots of the hostfile, as node1@node2:0,1; without one "
                    "localhost:0,1 is the same as --gpu-ids 0,1 --per-machine 2",
                    include),
      deepspeed_row("-e, --exclude HOSTS", "leave out machines or slots of the hostfile", exclude),
      deepspeed_row("--launcher openmpi|mpich|impi|slurm", "same as --via mpirun or --via slurm",
                    launcher),
      deepspeed_row("--bind_cores_to_rank", "same as --bind core", equal_to("--bind core")),
      deepspeed_row("--enable_each_rank_log FOLDER", "same as --log-dir FOLDER",
                    equal_to("--log-dir {}")),

      deepspeed_row("--force_multi, --no_ssh_check, --no_local_rank, --no_ssh", "", nothing),
      deepspeed_row("--bind_core_list CORES", "",
                    refuse_flag("cores are shared out by the launcher",
                                "use --bind core under taskset -c CORES")),
      deepspeed_row("--launcher_args ARGUMENTS", "",
                    refuse_flag("mpirun's and srun's own settings come from their variables",
                                "set OMPI_MCA_… or SLURM_… variables, or run them directly")),
      deepspeed_row("--ssh_port P", "",
                    refuse_flag("ssh is started by mpirun", "set 'Port P' in ~/.ssh/config")),
      deepspeed_row("--venv_script FILE", "",
                    refuse_flag("programs need no Python environment", "omit it")),
      deepspeed_row("--save_pid", "",
                    refuse_flag("process ids are not written to a file",
                                "use --outcome FILE to learn how the job ended")),
      deepspeed_row("--autotuning MODE", "",
                    refuse_flag("nothing is tuned at launch",
                                "`coupler config recommend` compares configurations")),
      deepspeed_row("--elastic_training", "",
                    refuse_flag("the number of ranks is fixed for a job",
                                "use --max-restarts; a checkpoint resumes on any number of ranks")),
      deepspeed_row("--min_elastic_nodes N", "",
                    refuse_flag("the number of machines is fixed for a job", "use --num_nodes M")),
      deepspeed_row("--max_elastic_nodes N", "",
                    refuse_flag("the number of machines cannot grow", "use --num_nodes M")),
  };
  return options;
}

}  // namespace coupler::cli
