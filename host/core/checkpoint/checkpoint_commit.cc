#include "checkpoint/checkpoint_commit.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/durable_file.h"
#include "base/log.h"
#include "base/sha256.h"
#include "checkpoint/folders.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"

namespace coupler::checkpoint {
namespace {

using nlohmann::json;

// What one rank sends the others: {"path": …, "save": …, "steps": …},
// {"save": …, "models": …, "files": […]} or {"error": …, "code": …}.
std::string failure(const std::exception& thrown, int rank) {
  const auto* error = dynamic_cast<const Error*>(&thrown);
  return json{{"error", thrown.what()},
              {"code", static_cast<int>(error == nullptr ? ErrorCode::kInternal : error->code())},
              {"rank", error == nullptr || error->detail().rank < 0 ? rank : error->detail().rank}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

[[noreturn]] void throw_failure(const json& said, const std::string& folder) {
  throw Error(
      static_cast<ErrorCode>(said.at("code").get<int>()),
      fmt::format("no checkpoint was made in {}: {}", folder, said.at("error").get<std::string>()),
      {.rank = said.at("rank").get<int>(), .subject = folder, .hint = {}});
}

// Of the tensors that the manifest says are saved.
std::string digest_of_models(const Manifest& manifest) {
  return to_hex(Digest().update(manifest.state.value("models", json()).dump()).finish());
}

json describe(const std::string& save, const Manifest& manifest,
              const std::vector<NamedFile>& files) {
  json list = json::array();
  for (const NamedFile& file : files) {
    list.push_back({{"name", file.name},
                    {"bytes", file.written.bytes},
                    {"sha256", to_hex(file.written.sha256)},
                    {"sums", encode_sums(file.written.sums)}});
  }
  return {{"save", save}, {"models", digest_of_models(manifest)}, {"files", std::move(list)}};
}

}  // namespace

CheckpointCommit::CheckpointCommit(std::shared_ptr<store::Store> store, const Options& options)
    : store_(std::move(store)), options_(options) {}

std::string CheckpointCommit::key(const char* what) const {
  return fmt::format("{}/{}", saves_, what);
}

std::string CheckpointCommit::await(const std::string& name, int rank,
                                    std::chrono::nanoseconds most) {
  auto value = store_->get(name, std::max(most, std::chrono::nanoseconds(0)));
  if (value) return *std::move(value);
  throw Error(ErrorCode::kTimeout,
              fmt::format("rank {} made no progress with the checkpoint within {} s", rank,
                          std::chrono::duration<double>(options_.timeout).count()),
              {.rank = rank,
               .subject = "checkpoint.timeout",
               .hint = "raise checkpoint.timeout if the disk takes longer"});
}

// On rank 0.
std::string CheckpointCommit::make_folder(const std::string& folder) {
  if (!folder_ || folder_name_ != folder) {
    folder_.reset();
    folder_.emplace(folder);
  }
  return folder_->begin(folder_->next_number());
}

CheckpointCommit::Save CheckpointCommit::begin(const std::string& folder, int64_t steps) {
  ++saves_;
  std::string begun;
  if (options_.rank == 0) {
    try {
      const std::string path = make_folder(folder);
      begun = json{{"path", path}, {"save", folder_->save()}, {"steps", steps}}.dump();
    } catch (const std::exception& thrown) {
      begun = failure(thrown, 0);
    }
    if (store_ != nullptr) store_->set(key("folder"), begun);
  } else {
    begun = await(key("folder"), 0, options_.timeout);
  }
  folder_name_ = folder;
  const json start = json::parse(begun);
  if (start.contains("error")) throw_failure(start, folder);
  save_ = {start.at("path").get<std::string>(), start.at("save").get<std::string>()};
  own_steps_ = steps;
  steps_ = start.at("steps").get<int64_t>();
  return save_;
}

// Before this rank writes.
void CheckpointCommit::check_save(const Manifest& manifest) const {
  if (own_steps_ != steps_ || manifest.steps != steps_) {
    throw Error(ErrorCode::kUsage,
                fmt::format("rank {} is at step {}, but rank 0 saves step {}", options_.rank,
                            own_steps_ != steps_ ? own_steps_ : manifest.steps, steps_),
                {.rank = options_.rank,
                 .subject = "save_state",
                 .hint = "save on every rank after the same optimizer step"});
  }
  std::error_code error;
  if (!std::filesystem::is_directory(save_.path, error)) {
    throw Error(ErrorCode::kIo,
                fmt::format("rank {} does not see the folder {} that rank 0 made", options_.rank,
                            save_.path),
                {.rank = options_.rank,
                 .subject = "checkpoint.dir",
                 .hint = "put checkpoint.dir on a file system that all machines share"});
  }
}

std::string CheckpointCommit::finish(Manifest manifest,
                                     const std::function<std::vector<NamedFile>()>& write) {
  std::string own;
  try {
    check_save(manifest);
    own = describe(save_.identity, manifest, write()).dump();
  } catch (const std::exception& thrown) {
    own = failure(thrown, options_.rank);
  }
  std::string result;
  if (options_.rank == 0) {
    try {
      result = json{{"path", lead(std::move(manifest), own)}}.dump();
    } catch (const std::exception& thrown) {
      folder_->abandon();
      result = failure(thrown, 0);
    }
    if (store_ != nullptr) store_->set(key("result"), result);
  } else {
    const std::string mine = fmt::format("{}/{}", key("files"), options_.rank);
    store_->set(mine, own);
    // Rank 0 waits this long for the slowest rank, which it then names.
    result = await(key("result"), 0, 2 * options_.timeout);
    store_->set(mine, "");  // rank 0 has read it
  }
  const json end = json::parse(result);
  if (end.contains("error")) throw_failure(end, folder_name_);
  return end.at("path").get<std::string>();
}

// On rank 0: commits the files of all ranks as a checkpoint.
std::string CheckpointCommit::lead(Manifest manifest, const std::string& own) {
  std::vector<std::string> reports = {own};
  const auto latest = std::chrono::steady_clock::now() + options_.timeout;
  for (int rank = 1; rank < options_.world_size; ++rank) {
    reports.push_back(await(fmt::format("{}/{}", key("files"), rank), rank,
                            latest - std::chrono::steady_clock::now()));
  }
  const std::string models = digest_of_models(manifest);
  json sums = json::object();
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const json report = json::parse(reports[rank]);
    if (report.contains("error")) {
      throw Error(static_cast<ErrorCode>(report.at("code").get<int>()),
                  report.at("error").get<std::string>(), {.rank = report.at("rank").get<int>()});
    }
    if (report.at("save") != save_.identity) {
      throw Error(ErrorCode::kInternal,
                  fmt::format("rank {} reported files of save {}, not of save {}", rank,
                              report.at("save").get<std::string>(), save_.identity),
                  {.rank = static_cast<int>(rank)});
    }
    if (report.at("models") != models) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("rank {} saves other tensors of the models than rank 0", rank),
          {.rank = static_cast<int>(rank),
           .subject = "save_state",
           .hint = "leave out the same tensors on every rank (register_save_state_pre_hook)"});
    }
    for (const json& file : report.at("files")) {
      ManifestFile listed{.name = file.at("name"), .bytes = file.at("bytes")};
      listed.rank = static_cast<int>(rank);
      from_hex(file.at("sha256").get_ref<const std::string&>(), listed.sha256);
      sums[listed.name] = file.at("sums");
      manifest.files.push_back(std::move(listed));
    }
  }
  for (const std::string& name : names_in(save_.path)) {
    if (sums.contains(name)) continue;
    const WrittenFile written = hash_file(save_.path + "/" + name);
    manifest.files.push_back({.name = name, .bytes = written.bytes, .sha256 = written.sha256});
    sums[name] = encode_sums(written.sums);
  }
  manifest.state["sums"] = std::move(sums);
  const std::string folder = std::filesystem::path(save_.path).filename();
  manifest.number = read_name(folder)->number;
  manifest.save = save_.identity;
  manifest.world_size = options_.world_size;
  manifest.saved_at = now_utc();
  std::string committed = folder_->commit(manifest);
  if (options_.total_limit > 0) {
    try {
      folder_->prune(options_.total_limit);
    } catch (const Error& error) {
      // The new checkpoint is committed; an old one that stays is not a reason to fail.
      log(LogLevel::kWarning, "checkpoint", fmt::format("in {}: {}", folder_name_, error.what()));
    }
  }
  return committed;
}

}  // namespace coupler::checkpoint
