#include "config_questions.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "ask.h"
#include "plugin/plugin.h"

namespace coupler::cli {
namespace {

namespace fs = std::filesystem;

int count_gpus() {
  int count = 0;
  std::error_code absent;
  for (fs::directory_iterator entry("/proc/driver/nvidia/gpus", absent), end;
       !absent && entry != end; entry.increment(absent)) {
    ++count;
  }
  return count;
}

std::string whole_number(const std::string& text) {
  int value = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  return status == std::errc() && stop == text.data() + text.size() && value >= 1
             ? ""
             : fmt::format("'{}' is no whole number of at least 1.", text);
}

int64_t ask_number(const std::string& question, int64_t first) {
  return std::stoll(ask_text(question, std::to_string(first), whole_number));
}

// A GPU for each; without one two, so that a first try shows what this is for.
int default_processes(const MachineFacts& facts) {
  return facts.gpus > 0 ? facts.gpus : std::min(2, facts.cores);
}

std::vector<Choice> backend_choices(const MachineFacts& facts) {
  std::vector<Choice> choices = {{"auto", "what is best here: nccl, else mpi, else gloo_cpu"}};
  for (const std::string& name : facts.backends) {
    std::string meaning;
    if (name == "gloo_cpu") meaning = "CPUs, over TCP";
    if (name == "mpi") meaning = "CPUs, over Open MPI";
    if (name == "nccl") meaning = "NVIDIA's GPUs";
    if (name == "fsdp") meaning = "parameters, gradients and state divided over processes";
    if (name == "deepspeed_like") meaning = "the same by ZeRO's stages";
    choices.push_back({name, meaning});
  }
  return choices;
}

void ask_about_sharding(ConfigDraft& draft, const std::string& use, const MachineFacts& facts) {
  if (use == "fsdp") {
    draft.set("backend.fsdp.strategy",
              ask_choice("What is divided?",
                         {{"full_shard", "parameters, gradients and the optimizer's state"},
                          {"shard_grad_op", "the same, but parameters stay whole during a step"},
                          {"hybrid_shard", "within a machine; machines hold copies"},
                          {"no_shard", "nothing"}},
                         0));
  } else {
    const std::string stage = ask_choice("Which stage of ZeRO?",
                                         {{"1", "the optimizer's state is divided"},
                                          {"2", "and gradients"},
                                          {"3", "and parameters"}},
                                         1);
    draft.set("backend.deepspeed_like.stage", static_cast<int64_t>(std::stoll(stage)));
  }
  std::vector<Choice> bases = {{"auto", "what is best here"}};
  for (const std::string& name : facts.backends) {
    if (name != "fsdp" && name != "deepspeed_like") bases.push_back({name, ""});
  }
  const std::string base = ask_choice("Over which transport?", bases, 0);
  if (base != "auto") draft.set(fmt::format("backend.{}.base", use), base);
}

}  // namespace

MachineFacts machine_facts() {
  MachineFacts facts;
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof usable, &usable) == 0) facts.cores = CPU_COUNT(&usable);
  facts.gpus = count_gpus();
  for (const PluginReport& report : list_plugins(BackendConfig())) {
    if (report.usable && report.name != "single") facts.backends.push_back(report.name);
  }
  return facts;
}

ConfigDraft default_draft(const MachineFacts& facts) {
  ConfigDraft draft;
  draft.set("backend.use", std::string("auto"));
  draft.set("training.mixed_precision", std::string(facts.gpus > 0 ? "bf16" : "no"));
  draft.set("training.gradient_accumulation_steps", static_cast<int64_t>(1));
  draft.set("launch.processes", static_cast<int64_t>(default_processes(facts)));
  return draft;
}

ConfigDraft ask_for_draft(const MachineFacts& facts) {
  ConfigDraft draft;
  const int64_t processes = ask_number(
      fmt::format(
          "How many processes, on all machines together? This one has {} cores and {} GPUs.",
          facts.cores, facts.gpus),
      default_processes(facts));
  const std::string use = ask_choice("Over what do they talk?", backend_choices(facts), 0);
  draft.set("backend.use", use);
  if (use == "fsdp" || use == "deepspeed_like") ask_about_sharding(draft, use, facts);
  draft.set("training.mixed_precision",
            ask_choice("In which type is computed where that is safe?",
                       {{"no", "the model's own"},
                        {"bf16", "half the memory, the range of fp32"},
                        {"fp16", "for GPUs without bf16; losses are scaled"},
                        {"fp8", "linear layers, on devices that have it"}},
                       facts.gpus > 0 ? 1 : 0));
  draft.set("training.gradient_accumulation_steps",
            ask_number("How many batches are accumulated before a step?", 1));
  const std::string folder = ask_text("Where do checkpoints go? - for none", "checkpoints");
  if (folder != "-") {
    draft.set("checkpoint.dir", folder);
    draft.set("checkpoint.every", ask_number("After how many steps is one made?", 1000));
    draft.set("checkpoint.total_limit", ask_number("How many are kept?", 3));
  }
  draft.set("launch.processes", processes);
  return draft;
}

}  // namespace coupler::cli
