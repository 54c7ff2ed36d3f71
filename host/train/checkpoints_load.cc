#include <coupler/error.h>
#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "checkpoint/restore.h"
#include "log/log.h"
#include "train/agreement.h"
#include "train/checkpoints.h"
#include "train/precision.h"

namespace coupler {

std::string Checkpoints::of_rank_0(const std::function<std::string()>& find) {
  const std::string key = std::to_string(asked_++);
  std::string found, problem;
  if (impl_.process.rank == 0) {
    try {
      found = find();
    } catch (const Error& error) {
      problem = error.what();
      if (questions_ == nullptr) throw;
    }
    if (questions_ == nullptr) return found;
    questions_->set(key, (problem.empty() ? "+" : "-") + (problem.empty() ? found : problem));
  } else {
    const auto said = questions_->get(key, impl_.config.checkpoint.timeout);
    if (!said || said->empty()) {
      throw Error(ErrorCode::kTimeout, "rank 0 did not say which checkpoint to load",
                  {.rank = 0, .subject = "checkpoint.timeout", .hint = {}});
    }
    (said->front() == '+' ? found : problem) = said->substr(1);
  }
  if (!problem.empty()) {
    throw Error(ErrorCode::kIo, problem, {.rank = 0, .subject = "checkpoint", .hint = {}});
  }
  return found;
}

// Nothing: it is loaded. Else why not, the same on every rank.
std::optional<Error> Checkpoints::try_load(const std::string& path) {
  std::optional<Error> problem;
  try {
    const checkpoint::Manifest manifest = checkpoint::open_checkpoint(path);
    const checkpoint::TrainingState state = job();
    checkpoint::check_fits(state, manifest, path);
    for (const Hook& hook : load_hooks) hook(path);
    checkpoint::restore(state, manifest, path);
  } catch (const Error& error) {
    problem = error;
  } catch (const std::exception& error) {
    problem = Error(ErrorCode::kInternal, error.what());
  }
  try {
    agree(*impl_.comm, {.operation = "load_state", .problem = problem});
  } catch (const Error& error) {
    problem = error;
  }
  if (problem) return problem;
  for (const auto& model : impl_.models) {
    model->parameters_changed();
    model->loaded();
  }
  drop_cast_copies();
  saved_steps_ = steps();
  if (impl_.process.rank == 0) {
    log(LogLevel::kInfo, "checkpoint", fmt::format("loaded {}, step {}", path, saved_steps_));
  }
  return std::nullopt;
}

void Checkpoints::load(const std::string& given) {
  wait();
  const std::string folder = folder_or(given);
  const bool one =
      std::filesystem::exists(std::filesystem::path(folder) / checkpoint::kManifestName);
  if (!one && load_newest(folder)) return;
  if (const auto problem = try_load(of_rank_0([&] {
        if (!one) checkpoint::open_checkpoint(folder);  // throws: says what the folder is instead
        return folder;
      }))) {
    throw Error(*problem);
  }
}

// The newest that can be read whole; false where there is none.
bool Checkpoints::load_newest(const std::string& folder) {
  std::optional<int64_t> below;  // those from there on are damaged
  while (true) {
    const std::string path = of_rank_0([&]() -> std::string {
      if (!std::filesystem::exists(folder)) return "";
      auto entries = checkpoint::list(folder);
      for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
        if (below && entry->number >= *below) continue;
        if (entry->manifest) return entry->path;
        log(LogLevel::kWarning, "checkpoint",
            fmt::format("{} is passed over: {}", entry->path, entry->reason));
      }
      return "";
    });
    if (path.empty()) return false;
    const auto problem = try_load(path);
    if (!problem) return true;
    if (problem->code() != ErrorCode::kIo) throw Error(*problem);
    if (impl_.process.rank == 0) {
      log(LogLevel::kWarning, "checkpoint",
          fmt::format("{} is passed over: {}", path, problem->what()));
    }
    below = std::stoll(path.substr(path.rfind('_') + 1));
  }
}

bool Checkpoints::resume() {
  const std::string& resume = impl_.config.checkpoint.resume;
  if (resume == "no") return false;
  if (resume != "auto") {
    load(resume);
    return true;
  }
  return by_itself() && load_newest(impl_.config.checkpoint.dir);
}

}  // namespace coupler
