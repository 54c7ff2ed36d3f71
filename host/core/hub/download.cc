#include "hub/download.h"

#include <coupler/error.h>
#include <coupler/tracker.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/units.h"
#include "hub/file_lock.h"

namespace coupler::hub {
namespace {

namespace fs = std::filesystem;

constexpr int kMostBreaks = 5;  // in a row, without new bytes
constexpr uint64_t kMegabyte = 1'000'000;
constexpr uint64_t kShownFrom = 20 * kMegabyte;  // smaller files need no progress bar
constexpr uint64_t kLargestUnannounced = uint64_t{64} << 20;
constexpr const char* kMoreSpace =
    "set HF_HOME or HF_HUB_CACHE to a folder with more space, on another disk";

bool is_hash(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string hex_of(const unsigned char* bytes, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

// The hash of `prefix` and the file, in hexadecimal.
std::string hash_of(const std::string& path, const EVP_MD* kind, const std::string& prefix,
                    const Beat& beat) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) throw_io("read", path, errno);
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                   EVP_MD_CTX_free);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  bool good = context != nullptr && EVP_DigestInit_ex(context.get(), kind, nullptr) == 1 &&
              EVP_DigestUpdate(context.get(), prefix.data(), prefix.size()) == 1;
  std::vector<char> piece(size_t{1} << 20);
  while (good) {
    const ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_io("read", path, errno);
    if (got == 0) break;
    good = EVP_DigestUpdate(context.get(), piece.data(), static_cast<size_t>(got)) == 1;
    beat();
  }
  good = good && EVP_DigestFinal_ex(context.get(), digest.data(), &size) == 1;
  if (!good) {
    throw Error(ErrorCode::kInternal, fmt::format("OpenSSL cannot hash {}", path),
                {.subject = path, .hint = "check that OpenSSL offers SHA-1 and SHA-256"});
  }
  return hex_of(digest.data(), size);
}

uint64_t size_of(const std::string& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

// The file that is being downloaded, from the bytes that it already has.
class Incomplete {
 public:
  explicit Incomplete(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (!file_) throw_io("create", path, errno, kOwnCache);
    size_ = size_of(path);
  }

  uint64_t size() const { return size_; }

  void restart() {
    if (::ftruncate(file_.get(), 0) != 0) throw_io("write", path_, errno);
    size_ = 0;
  }

  void append(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t done =
          ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(size_));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) throw_io("write", path_, errno, kMoreSpace);
      size_ += static_cast<uint64_t>(done);
      bytes.remove_prefix(static_cast<size_t>(done));
    }
  }

  void sync() {
    if (::fsync(file_.get()) != 0) throw_io("write", path_, errno, kMoreSpace);
  }

 private:
  std::string path_;
  UniqueFd file_;
  uint64_t size_ = 0;
};

}  // namespace

std::string content_problem(const std::string& path, const RemoteFile& file, const Beat& beat) {
  const uint64_t size = size_of(path);
  if (file.size && size != *file.size) {
    return fmt::format("it has {} bytes instead of {}", size, *file.size);
  }
  // Git hashes a file with its length.
  const std::string hash =
      is_hash(file.etag, 64) ? hash_of(path, EVP_sha256(), "", beat)
      : is_hash(file.etag, 40)
          ? hash_of(path, EVP_sha1(), fmt::format("blob {}", size) + std::string(1, '\0'), beat)
          : file.etag;
  if (hash == file.etag) return "";
  return fmt::format("its hash is {} instead of {}", hash, file.etag);
}

ModelDownload::ModelDownload(const HubSettings& settings, ModelName model, const ModelCache& cache,
                             Beat beat)
    : settings_(settings),
      model_(std::move(model)),
      cache_(cache),
      beat_(std::move(beat)),
      client_(settings, model_, beat_),
      commit_(cache.commit_of(model_.revision)) {}

bool ModelDownload::obtain(const std::string& file) {
  if (!is_inside(file)) {
    throw Error(
        ErrorCode::kIo,
        fmt::format("'{}' names a file outside of its folder: '{}'", model_.id, for_message(file)),
        {.subject = model_.text(), .hint = "do not use this model"});
  }
  if (!commit_.empty()) {
    const Cached state = cache_.state_of(commit_, file);
    if (state == Cached::kThere) return true;
    if (state == Cached::kAbsent) return false;
  }
  HubClient::Answer answer = client_.find(file, commit_.empty() ? model_.revision : commit_);
  if (!commit_.empty() && !answer.commit.empty() && answer.commit != commit_) {
    throw Error(ErrorCode::kIo,
                fmt::format("asked for {} of '{}' at commit {}, the server has {}", file, model_.id,
                            commit_, answer.commit),
                {.subject = model_.text(), .hint = "check HF_ENDPOINT and the proxy"});
  }
  if (commit_.empty()) commit_ = answer.commit;
  if (!answer.file) {
    if (!commit_.empty()) cache_.set_absent(commit_, file);
    return false;
  }
  download(std::move(*answer.file));
  return true;
}

void ModelDownload::download(RemoteFile file) {
  const std::string blob = cache_.blob(file.etag);
  // The same lock as huggingface_hub's, which may be downloading this file, too.
  FileLock lock(cache_.lock_path(file.etag),
                fmt::format("downloads {} of {}", file.name, model_.id), settings_.patience * 60);
  std::error_code error;
  if (!fs::is_regular_file(blob, error)) {
    const std::string path = blob + ".incomplete";
    for (bool first = true;; first = false) {
      const bool resumed = size_of(path) > 0;
      const std::string broken = transfer(file, path);
      if (!broken.empty()) {
        throw Error(
            ErrorCode::kIo,
            fmt::format("{} of '{}' could not be downloaded: {}", file.name, model_.id, broken),
            {.subject = model_.text(),
             .hint = "check the network and try again: what has arrived is kept"});
      }
      const std::string problem = content_problem(path, file, beat_);
      if (problem.empty()) break;
      fs::remove(path, error);
      if (first && resumed) {  // perhaps the earlier part was wrong
        log(LogLevel::kWarning, "hub",
            fmt::format("{} of '{}' is downloaded again from the start: {}", file.name, model_.id,
                        problem));
        continue;
      }
      throw Error(ErrorCode::kIo,
                  fmt::format("{} of '{}' arrived damaged and was removed: {}", file.name,
                              model_.id, problem),
                  {.subject = model_.text(),
                   .hint = "try again; if it stays so, check HF_ENDPOINT and the proxy"});
    }
    rename_durably(path, blob);
  }
  cache_.link(commit_, file.name, file.etag);
}

// Returns what broke the last attempt, or "".
std::string ModelDownload::transfer(const RemoteFile& announced, const std::string& path) {
  RemoteFile file = announced;
  Incomplete out(path);
  if (file.size && out.size() > *file.size) out.restart();
  const uint64_t left = file.size.value_or(0) - (file.size ? out.size() : 0);
  std::error_code error;
  const fs::space_info space = fs::space(fs::path(path).parent_path(), error);
  if (!error && left > space.available) {
    throw Error(
        ErrorCode::kIo,
        fmt::format("{} of '{}' needs {} in {}, which has {} free", file.name, model_.id,
                    format_byte_size(left), cache_.folder(), format_byte_size(space.available)),
        {.subject = cache_.folder(), .hint = kMoreSpace});
  }
  ProgressBar bar(fmt::format("{}: {}", model_.id, file.name),
                  static_cast<int64_t>(file.size.value_or(0) / kMegabyte),
                  settings_.progress && file.size.value_or(0) >= kShownFrom);
  bar.set_suffix("MB");
  uint64_t shown = 0;
  const auto show = [&] {
    const uint64_t now = out.size() / kMegabyte;
    if (now > shown) bar.advance(static_cast<int64_t>(now - std::exchange(shown, now)));
  };
  const auto take = [&](std::string_view piece) {
    if (out.size() + piece.size() > file.size.value_or(kLargestUnannounced)) {
      out.restart();
      throw Error(ErrorCode::kIo,
                  fmt::format("{} of '{}' is longer than the announced {} bytes", file.name,
                              model_.id, file.size.value_or(kLargestUnannounced)),
                  {.subject = model_.text(), .hint = "check HF_ENDPOINT and the proxy"});
    }
    out.append(piece);
    show();
  };
  std::string broken;
  for (int breaks = 0; !file.size || out.size() < *file.size;) {
    const uint64_t before = out.size();
    broken = client_.receive(file, before, take, [&] { out.restart(); });
    const bool short_reply = broken.empty() && file.size && out.size() < *file.size;
    if (broken.empty() && !short_reply) break;
    if (short_reply) {
      broken = fmt::format("the reply ended after {} of {} bytes", out.size(), *file.size);
    }
    breaks = out.size() > before ? 1 : breaks + 1;
    if (breaks >= kMostBreaks) break;
    client_.pause(breaks);
    // A fresh address: that of the first answer may have expired.
    const HubClient::Answer again = client_.find(file.name, commit_);
    if (!again.file || again.file->etag != file.etag) {
      broken = "the Hub now answers with another file";
      break;
    }
    file.url = again.file->url;
  }
  if (file.size && out.size() == *file.size) broken.clear();
  if (broken.empty()) out.sync();
  return broken;
}

}  // namespace coupler::hub
