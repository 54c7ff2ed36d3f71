#include "cli/config/config_questions.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "cli/config/prompt.h"
#include "cli/machine/cpu_binding.h"
#include "cli/machine/system_info.h"
#include "estimate/settings.h"
#include "plugin/bases.h"
#include "plugin/plugin.h"

namespace coupler::cli {
namespace {

std::string whole_number_problem(const std::string& text) {
  return to_number<int>(text).value_or(0) >= 1
             ? ""
             : fmt::format("'{}' is not a whole number of at least 1.", text);
}

int64_t prompt_for_number(Prompter& ask, const std::string& question, int64_t first) {
  return std::stoll(ask.text(question, std::to_string(first), whole_number_problem));
}

std::string written_out(const std::string& folder) {
  return folder[0] == '~' ? "~ is expanded only by shells: write the full path." : "";
}

// One per GPU; without GPUs two, so that a first try runs in parallel.
int default_processes(const MachineInfo& info) {
  return info.gpus > 0 ? info.gpus : std::min(2, info.cores);
}

std::vector<Choice> backend_choices(const MachineInfo& info) {
  std::vector<Choice> choices = {{"auto", "the best transport available"}};
  for (const MachineInfo::Backend& backend : info.backends) {
    choices.push_back({backend.name, backend.description});
  }
  return choices;
}

// A wrapper's own presets, and its base.
void ask_about_wrapper(Prompter& ask, ConfigDraft& draft, const std::string& use,
                       const MachineInfo& info) {
  config::BackendConfig wrapper;
  wrapper.use = use;
  std::vector<estimate::Setting> presets = estimate::presets_of(plugin::Plugin::load(wrapper), "");
  std::erase_if(presets, [](const estimate::Setting& preset) { return preset.needs_disk; });
  std::vector<Choice> choices;
  size_t first = 0;
  for (const estimate::Setting& preset : presets) {
    if (preset.is_default) first = choices.size();
    choices.push_back({preset.name, preset.description});
  }
  const std::string chosen = presets.empty() ? "" : ask.choice("What is sharded?", choices, first);
  for (const estimate::Setting& preset : presets) {
    if (preset.name != chosen) continue;
    for (const auto& [key, value] : preset.options) {
      draft.set(fmt::format("backend.{}.{}", use, key), value);
    }
  }
  config::BackendConfig backend;
  backend.use = use;
  for (const plugin::WantedBase& wanted :
       plugin::wanted_bases(plugin::Plugin::load(backend).table())) {
    std::vector<Choice> bases = {{"auto", "the best available"}};
    if (wanted.otherwise != "auto") bases.insert(bases.begin(), {wanted.otherwise, ""});
    for (const MachineInfo::Backend& other : info.backends) {
      if (!other.needs_base && other.name != wanted.otherwise) bases.push_back({other.name, ""});
    }
    const std::string base =
        ask.choice(wanted.option == "base"
                       ? "Over which transport?"
                       : fmt::format("Over which transport, as its base \"{}\"?", wanted.option),
                   bases, 0);
    if (base != wanted.otherwise) draft.set(fmt::format("backend.{}.{}", use, wanted.option), base);
  }
}

}  // namespace

MachineInfo machine_info() {
  MachineInfo info;
  info.cores = std::max(1, static_cast<int>(usable_cpus().size()));
  info.gpus = static_cast<int>(visible_gpus().size());
  for (const plugin::PluginReport& report : plugin::list_plugins(config::BackendConfig())) {
    if (report.usable && report.name != "single")
      info.backends.push_back({report.name, report.description, report.can(DB_CAP_NEEDS_BASE)});
  }
  return info;
}

ConfigDraft default_draft(const MachineInfo& info) {
  ConfigDraft draft;
  draft.set("backend.use", std::string("auto"));
  draft.set("training.mixed_precision", std::string("no"));
  draft.set("training.gradient_accumulation_steps", static_cast<int64_t>(1));
  draft.set("launch.processes", static_cast<int64_t>(default_processes(info)));
  return draft;
}

ConfigDraft prompt_for_draft(const MachineInfo& info) {
  Prompter ask;
  ConfigDraft draft;
  const int64_t processes = prompt_for_number(
      ask,
      fmt::format("How many processes on all machines together? This one has {} cores and {} GPUs.",
                  info.cores, info.gpus),
      default_processes(info));
  const std::string use = ask.choice("Which backend connects them?", backend_choices(info), 0);
  draft.set("backend.use", use);
  for (const MachineInfo::Backend& backend : info.backends) {
    if (backend.name == use && backend.needs_base) ask_about_wrapper(ask, draft, use, info);
  }
  draft.set("training.mixed_precision",
            ask.choice("Which mixed precision?",
                       {{"no", "the model's own type"},
                        {"bf16", "half the memory, the range of fp32"},
                        {"fp16", "for GPUs without bf16; the loss is scaled"},
                        {"fp8", "linear layers, on devices that support it"}},
                       0));
  draft.set("training.gradient_accumulation_steps",
            prompt_for_number(ask, "How many batches to accumulate per step?", 1));
  const std::string folder =
      ask.text("Where do checkpoints go? (- for none)", "checkpoints", written_out);
  if (folder != "-") {
    draft.set("checkpoint.dir", folder);
    draft.set("checkpoint.every",
              prompt_for_number(ask, "How many steps between checkpoints?", 1000));
    draft.set("checkpoint.total_limit", prompt_for_number(ask, "How many checkpoints to keep?", 3));
  }
  draft.set("launch.processes", processes);
  return draft;
}

}  // namespace coupler::cli
