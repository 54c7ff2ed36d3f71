#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "accelerator/agreement.h"
#include "accelerator/checkpoints.h"
#include "base/durable_file.h"
#include "base/log.h"
#include "checkpoint/restore.h"
#include "precision/precision.h"

namespace coupler {
namespace {

// The same for every file of one save. For older checkpoints without an identity: the step.
int64_t number_of_save(const checkpoint::Manifest& manifest) {
  constexpr size_t kDigits = 15;  // hex digits of the identity that fit into an int64_t
  return manifest.save.empty() ? manifest.steps
                               : std::stoll(manifest.save.substr(0, kDigits), nullptr, 16);
}

// saves: by rank. On several machines, the same path may be a different folder on each.
void check_same_save(const std::string& path, const std::vector<int64_t>& saves) {
  const auto other =
      std::find_if(saves.begin(), saves.end(), [&](int64_t save) { return save != saves.front(); });
  if (other == saves.end()) return;
  const auto rank = static_cast<int>(other - saves.begin());
  throw Error(ErrorCode::kMismatch,
              fmt::format("rank {} finds a different save in {} than rank 0", rank, path),
              {.rank = rank,
               .subject = path,
               .hint = "put checkpoint.dir on a file system that all machines share"});
}

}  // namespace

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

// What `action` returns on each rank. If it throws on one rank, every rank throws.
std::vector<int64_t> Checkpoints::on_all_ranks(const std::function<int64_t()>& action) {
  int64_t number = 0;
  std::optional<Error> problem;
  try {
    number = action();
  } catch (const Error& error) {
    problem = error;
  } catch (const std::exception& error) {
    problem = Error(ErrorCode::kInternal, error.what());
  }
  return agree(*impl_.comm, {.operation = "load_state", .number = number, .problem = problem});
}

// Empty if it was loaded on all ranks. Otherwise the reason why not.
std::optional<Error> Checkpoints::try_load(const std::string& path) {
  try {
    checkpoint::Manifest manifest;
    const checkpoint::TrainingState state = job();
    const auto saves = on_all_ranks([&] {
      manifest = checkpoint::open_checkpoint(path);
      checkpoint::check_fits(state, manifest, path);
      return number_of_save(manifest);
    });
    check_same_save(path, saves);
    on_all_ranks([&] {
      for (const Hook& hook : load_hooks) hook(path);
      checkpoint::restore(state, manifest, path);
      return 0;
    });
  } catch (const Error& error) {
    return error;
  }
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
        if (!one) checkpoint::open_checkpoint(folder);  // throws an error that describes the folder
        return folder;
      }))) {
    throw Error(*problem);
  }
}

// Loads the newest readable checkpoint; returns false if there is none.
bool Checkpoints::load_newest(const std::string& folder) {
  std::optional<int64_t> below;  // checkpoints from this number on are damaged
  while (true) {
    const std::string path = of_rank_0([&]() -> std::string {
      std::error_code error;
      if (!std::filesystem::exists(folder, error)) {
        if (error) throw_io("open", folder, error.value());
        return "";
      }
      auto entries = checkpoint::list(folder);
      for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
        if (below && entry->number >= *below) continue;
        if (entry->manifest) return entry->path;
        log(LogLevel::kWarning, "checkpoint",
            fmt::format("{} is skipped: {}", entry->path, entry->reason));
      }
      return "";
    });
    if (path.empty()) return false;
    const auto problem = try_load(path);
    if (!problem) return true;
    if (problem->code() != ErrorCode::kIo) throw Error(*problem);
    if (impl_.process.rank == 0) {
      log(LogLevel::kWarning, "checkpoint",
          fmt::format("{} is skipped: {}", path, problem->what()));
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
