#include "hub/model_files.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "formats/weight_index.h"
#include "hub/download.h"
#include "hub/file_lock.h"
#include "hub/model_cache.h"

namespace coupler::hub {
namespace {

namespace fs = std::filesystem;

struct Missing {
  std::string what;
  bool needed = true;  // otherwise the model can be used without it
};

// Goes through the files that a use needs. obtain: whether a file is there, or can be got; read:
// the contents of one that is.
class FileWalk {
 public:
  FileWalk(std::function<bool(const std::string&)> obtain,
           std::function<std::string(const std::string&)> read)
      : obtain_(std::move(obtain)), read_(std::move(read)) {}

  std::vector<Missing> missing(ModelUse use) {
    switch (use) {
      case ModelUse::kConfig:
        config("");
        break;
      case ModelUse::kTokenizer:
        tokenizer("", /*needed=*/true);
        break;
      case ModelUse::kWeights:
        weights("", kModelWeights);
        break;
      case ModelUse::kLanguageModel:
        config("");
        tokenizer("", /*needed=*/false);
        weights("", kModelWeights);
        break;
      case ModelUse::kEncoder:
        config("");
        tokenizer("", /*needed=*/true);
        sentence_modules();
        weights("", kModelWeights);
        break;
      case ModelUse::kTextToImage:
        need("scheduler/scheduler_config.json");
        tokenizer("tokenizer/", /*needed=*/true);
        for (const char* part : {"text_encoder/", "unet/", "vae/"}) need(part + kConfigName);
        weights("text_encoder/", kModelWeights);
        weights("unet/", kDiffusionWeights);
        weights("vae/", kDiffusionWeights);
        break;
    }
    return std::move(missing_);
  }

 private:
  using Names = std::vector<std::string>;
  inline static const std::string kConfigName = "config.json";
  // In the order in which open_weights looks for them.
  inline static const Names kModelWeights = {"model.safetensors", "model.safetensors.index.json",
                                             "pytorch_model.bin", "pytorch_model.bin.index.json"};
  inline static const Names kDiffusionWeights = {"diffusion_pytorch_model.safetensors",
                                                 "diffusion_pytorch_model.safetensors.index.json",
                                                 "diffusion_pytorch_model.fp16.safetensors"};

  void need(const std::string& file) {
    if (!obtain_(file)) missing_.push_back({file});
  }

  void config(const std::string& folder) {
    need(folder + kConfigName);
    obtain_(folder + "generation_config.json");
  }

  void tokenizer(const std::string& folder, bool needed) {
    if (!obtain_(folder + "tokenizer.json")) {
      const bool clip = obtain_(folder + "vocab.json") && obtain_(folder + "merges.txt");
      if (!clip) missing_.push_back({folder + "tokenizer.json", needed});
    }
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
      obtain_(folder + name);
    }
  }

  void weights(const std::string& folder, const Names& names) {
    for (const std::string& name : names) {
      const std::string file = folder + name;
      if (!obtain_(file)) continue;
      if (!name.ends_with(".index.json")) return;
      std::set<std::string> parts;
      for (const auto& [tensor, part] : formats::parse_weight_index(read_(file), file).weight_map) {
        parts.insert(part);  // plain names, which parse_weight_index checks
      }
      for (const std::string& part : parts) need(folder + part);
      return;
    }
    missing_.push_back({fmt::format("{}weights ({})", folder, fmt::join(names, ", "))});
  }

  // modules.json lists folders of a sentence encoder's further steps.
  void sentence_modules() {
    obtain_("sentence_bert_config.json");
    if (!obtain_("modules.json")) return;
    const auto modules = nlohmann::json::parse(read_("modules.json"), nullptr, false);
    if (!modules.is_array()) return;  // who opens the file says what is wrong with it
    for (const auto& module : modules) {
      const auto path = module.is_object() ? module.find("path") : module.end();
      if (path == module.end() || !path->is_string()) continue;
      const std::string folder = path->get<std::string>();
      if (!folder.empty()) obtain_(fmt::format("{}/{}", folder, kConfigName));
    }
  }

  std::function<bool(const std::string&)> obtain_;
  std::function<std::string(const std::string&)> read_;
  std::vector<Missing> missing_;
};

std::string contents_of(const std::string& path) {
  const auto file = MappedFile::open(path);
  return {file->data(), file->data() + file->size()};
}

// What the cache has.
struct Found {
  std::string commit;  // "": the revision is not known
  std::vector<Missing> missing;

  bool complete() const { return !commit.empty() && missing.empty(); }
  bool usable() const {
    return !commit.empty() && std::none_of(missing.begin(), missing.end(),
                                           [](const Missing& each) { return each.needed; });
  }
};

Found look(const ModelCache& cache, const ModelName& name, ModelUse use) {
  Found found{.commit = cache.commit_of(name.revision), .missing = {}};
  if (found.commit.empty()) return found;
  const auto read = [&](const std::string& file) {
    return contents_of((fs::path(cache.snapshot(found.commit)) / file).string());
  };
  const auto there = [&](const std::string& file) {
    return is_inside(file) && cache.state_of(found.commit, file) == Cached::kThere;
  };
  found.missing = FileWalk(there, read).missing(use);
  return found;
}

std::string list_of(const std::vector<Missing>& missing) {
  std::vector<std::string> names;
  for (const Missing& each : missing) {
    if (each.needed) names.push_back(for_message(each.what));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// "the Hugging Face cache CACHE has no 'gpt2'", and what it has instead.
std::string state_of(const ModelCache& cache, const ModelName& name, const Found& found,
                     const HubSettings& settings) {
  std::error_code error;
  if (!fs::exists(cache.folder(), error)) {
    return fmt::format("the Hugging Face cache {} does not have it", settings.cache);
  }
  if (found.commit.empty()) {
    return fmt::format("the Hugging Face cache has {}, but not its revision '{}'", cache.folder(),
                       name.revision);
  }
  return fmt::format("the Hugging Face cache lacks {} in {}{}", list_of(found.missing),
                     cache.snapshot(found.commit),
                     cache.has_incomplete() ? ", of which a download was interrupted" : "");
}

[[noreturn]] void refuse_offline(const ModelCache& cache, const ModelName& name, const Found& found,
                                 const HubSettings& settings) {
  throw Error(
      ErrorCode::kIo,
      fmt::format("there is no folder '{}', and HF_HUB_OFFLINE allows no download of the model of "
                  "this name: {}",
                  name.text(), state_of(cache, name, found, settings)),
      {.subject = name.text(),
       .hint =
           fmt::format("unset HF_HUB_OFFLINE, or run `hf download {}{}` where there is a "
                       "network; HF_HOME and HF_HUB_CACHE say where the cache is",
                       name.id, name.revision == "main" ? "" : " --revision " + name.revision)});
}

// Downloads what is missing; the lock is held.
std::string fetch(const ModelCache& cache, const ModelName& name, ModelUse use,
                  const HubSettings& settings, FileLock& lock) {
  log(LogLevel::kInfo, "hub",
      fmt::format("downloading {} from {} into {}", name.text(), settings.endpoint,
                  cache.folder()));
  ModelDownload download(settings, name, cache, [&] { lock.beat(); });
  const auto read = [&](const std::string& file) {
    return contents_of((fs::path(cache.snapshot(download.commit())) / file).string());
  };
  const auto missing =
      FileWalk([&](const std::string& file) { return download.obtain(file); }, read).missing(use);
  const std::string list = list_of(missing);
  if (!list.empty()) {
    throw Error(ErrorCode::kIo, fmt::format("on the Hub it has no {}", list),
                {.subject = name.text(),
                 .hint = "choose a model with files that transformers or diffusers saved"});
  }
  // Last, so that a revision is known only with its files.
  cache.set_revision(name.revision, download.commit());
  return cache.snapshot(download.commit());
}

std::string fetch_once(const ModelCache& cache, const ModelName& name, ModelUse use,
                       const HubSettings& settings) {
  cache.make_folders();
  FileLock lock(cache.lock_path("coupler"), "downloads " + name.id, settings.patience);
  if (lock.waited()) {
    const Found found = look(cache, name, use);
    if (found.usable()) return cache.snapshot(found.commit);
    // The holder's error is everyone's, so that many ranks do not repeat its attempts in turn.
    std::string failure = lock.left();
    if (failure.starts_with(name.text() + "\n")) {
      failure.erase(0, name.text().size() + 1);
      const size_t hint = failure.find(kHintMark);
      throw Error(
          ErrorCode::kIo, failure.substr(0, hint),
          {.subject = name.text(),
           .hint = hint == std::string::npos ? "" : failure.substr(hint + kHintMark.size())});
    }
  }
  lock.leave("");
  try {
    return fetch(cache, name, use, settings, lock);
  } catch (const Error& error) {
    lock.leave(name.text() + "\n" + error.what());
    throw;
  }
}

}  // namespace

std::string model_folder(const std::string& path_or_name, ModelUse use,
                         const HubSettings& settings) {
  std::error_code error;
  if (fs::exists(path_or_name, error)) return path_or_name;
  const auto name = parse_model_name(path_or_name);
  if (!name) return path_or_name;
  const ModelCache cache(settings.cache, name->id);
  const Found found = look(cache, *name, use);
  if (found.complete() || (settings.offline && found.usable())) {
    return cache.snapshot(found.commit);
  }
  if (settings.offline) refuse_offline(cache, *name, found, settings);
  try {
    return fetch_once(cache, *name, use, settings);
  } catch (const Error& problem) {
    if (found.usable()) {
      log(LogLevel::kWarning, "hub",
          fmt::format("{} is used as the cache has it, without {}: {}", name->text(),
                      found.missing.front().what, without_hint(problem.what())));
      return cache.snapshot(found.commit);
    }
    std::string message = fmt::format(
        "there is no folder '{}', and the model of this name could not be downloaded: {}",
        name->text(), without_hint(problem.what()));
    if (!found.commit.empty()) message += "; " + state_of(cache, *name, found, settings);
    throw Error(problem.code(), message, {.subject = name->text(), .hint = problem.detail().hint});
  }
}

std::string cached_model_folder(const std::string& text, ModelUse use,
                                const HubSettings& settings) {
  const auto name = parse_model_name(text);
  if (!name) return "";
  const ModelCache cache(settings.cache, name->id);
  const Found found = look(cache, *name, use);
  return found.usable() ? cache.snapshot(found.commit) : "";
}

std::string model_folder(const std::string& path_or_name, ModelUse use) {
  std::error_code error;
  if (fs::exists(path_or_name, error) || !parse_model_name(path_or_name)) return path_or_name;
  return model_folder(path_or_name, use, hub_settings());
}

}  // namespace coupler::hub
