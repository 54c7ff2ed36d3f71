#include "datasets/arrow_table.h"

#include <coupler/error.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "datasets/arrow_abi.h"
#include "datasets/arrow_values.h"
#include "datasets/features.h"
#include "datasets/watched_file.h"
#include "plugin/resolve.h"

namespace coupler::datasets {

class ArrowChunk {
 public:
  explicit ArrowChunk(const ArrowArray& array) : array_(array) {}
  ArrowChunk(const ArrowChunk&) = delete;
  ArrowChunk& operator=(const ArrowChunk&) = delete;
  ~ArrowChunk() { array_.release(&array_); }

  const ArrowArray& array() const { return array_; }

 private:
  ArrowArray array_;
};

size_t ChunkCache::size() {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

bool ChunkCache::contains(const void* owner, size_t chunk) {
  const std::lock_guard lock(mutex_);
  return places_.contains({owner, chunk});
}

std::shared_ptr<const ArrowChunk> ChunkCache::find(const void* owner, size_t chunk) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find({owner, chunk});
  if (found == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->value;
}

void ChunkCache::insert(const void* owner, size_t chunk, std::shared_ptr<const ArrowChunk> value,
                        uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const Key key{owner, chunk};
  if (places_.contains(key)) return;
  entries_.push_front({key, std::move(value), bytes});
  places_[key] = entries_.begin();
  bytes_ += bytes;
  // Those that take no memory of their own stay: making room by them is impossible.
  for (auto entry = entries_.end(); bytes_ > most_bytes_ && entry != std::next(entries_.begin());) {
    --entry;
    if (entry->bytes == 0) continue;
    bytes_ -= entry->bytes;
    places_.erase(entry->key);
    entry = entries_.erase(entry);
  }
}

void ChunkCache::erase(const void* owner) {
  const std::lock_guard lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->key.first != owner) {
      ++entry;
      continue;
    }
    bytes_ -= entry->bytes;
    places_.erase(entry->key);
    entry = entries_.erase(entry);
  }
}

namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libcoupler_arrow.so";

[[noreturn]] void refuse_library(const std::string& problem) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("Parquet and Arrow files need {}, {}", kLibrary, problem),
      {.subject = kLibrary,
       .hint = "in a checkout of Coupler, run scripts/setup --arrow and then scripts/build; "
               "or store the data as JSON lines or CSV"});
}

const CouplerArrowReader* open_library() {
  // Next to libcoupler, or to a program in bin/ or bin/tests/.
  const fs::path own = plugin::own_folder();
  for (const char* folder : {".", "../lib", "../../lib"}) {
    const fs::path path = own / folder / kLibrary;
    std::error_code failed;
    if (!fs::exists(path, failed)) continue;
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) refuse_library(fmt::format("which cannot be opened: {}", ::dlerror()));
    const auto entry = reinterpret_cast<CouplerArrowEntry>(::dlsym(library, COUPLER_ARROW_ENTRY));
    const CouplerArrowReader* const reader = entry == nullptr ? nullptr : entry();
    if (reader == nullptr || reader->version != COUPLER_ARROW_VERSION)
      refuse_library(fmt::format("but {} belongs to another version of Coupler", path.string()));
    return reader;
  }
  refuse_library("which is not part of this build");
}

// Stays open for the life of the process.
const CouplerArrowReader& library() {
  static const CouplerArrowReader* const kReader = open_library();
  return *kReader;
}

class ArrowFile {
 public:
  ArrowFile(const std::string& path, bool is_parquet) : bytes_(WatchedFile::open(path)) {
    check(reader_.open(bytes_->bytes(), bytes_->size(), is_parquet ? 1 : 0, &file_),
          is_parquet ? "is not a complete Parquet file" : "is not a complete Arrow file");
    try {
      check(reader_.schema(file_, &schema_), "has columns that cannot be read");
      for (int64_t chunk = 0; chunk < reader_.chunks(file_); ++chunk) {
        ends_.push_back(size() + static_cast<size_t>(reader_.chunk_rows(file_, chunk)));
      }
    } catch (...) {
      release();
      throw;
    }
  }
  ArrowFile(const ArrowFile&) = delete;
  ArrowFile& operator=(const ArrowFile&) = delete;
  ~ArrowFile() { release(); }

  const std::string& path() const { return bytes_->path(); }
  const ArrowSchema& schema() const { return schema_; }
  size_t size() const { return ends_.empty() ? 0 : ends_.back(); }

  // The chunk of a row, and its first row.
  std::pair<size_t, size_t> find(size_t row) const {
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), row);
    const auto chunk = static_cast<size_t>(end - ends_.begin());
    return {chunk, chunk == 0 ? 0 : ends_[chunk - 1]};
  }

  // Reads columns of a chunk, unless the cache has them.
  std::shared_ptr<const ArrowChunk> read(const void* owner, size_t chunk,
                                         const std::vector<int32_t>& columns,
                                         ChunkCache& cache) const {
    bytes_->check_unchanged();
    if (auto known = cache.find(owner, chunk)) return known;
    const std::lock_guard lock(mutex_);
    if (auto known = cache.find(owner, chunk)) return known;  // another thread has read it
    ArrowArray array{};
    uint64_t own_bytes = 0;
    check(reader_.read(file_, static_cast<int64_t>(chunk), columns.data(),
                       static_cast<int32_t>(columns.size()), &array, &own_bytes),
          fmt::format("cannot be read in its part {}", chunk));
    auto read = std::make_shared<const ArrowChunk>(array);
    cache.insert(owner, chunk, read, own_bytes);
    return read;
  }

 private:
  void check(char* problem, const std::string& what) const {
    if (problem == nullptr) return;
    const std::string reason = problem;
    std::free(problem);
    throw Error(ErrorCode::kIo, fmt::format("{} {}: {}", path(), what, for_message(reason)),
                {.subject = path(),
                 .hint = "the file may be cut off or damaged: fetch or write it "
                         "again"});
  }

  void release() {
    if (schema_.release != nullptr) schema_.release(&schema_);
    reader_.close(file_);
  }

  const CouplerArrowReader& reader_ = library();
  std::shared_ptr<const WatchedFile> bytes_;
  void* file_ = nullptr;
  ArrowSchema schema_{};
  std::vector<size_t> ends_;  // of chunks, in rows
  mutable std::mutex mutex_;  // of file_
};

class ArrowTable : public Table {
 public:
  ArrowTable(std::shared_ptr<const ArrowFile> file, std::shared_ptr<ChunkCache> cache,
             std::vector<int32_t> columns)
      : file_(std::move(file)), cache_(std::move(cache)), columns_(std::move(columns)) {
    for (const int32_t column : columns_)
      features_.push_back(feature_of_arrow(*file_->schema().children[column]));
    check_features(features_);
    names_ = std::make_shared<const std::vector<std::string>>(names_of(features_));
  }
  ~ArrowTable() override { cache_->erase(this); }

  const std::vector<Feature>& features() const override { return features_; }
  size_t size() const override { return file_->size(); }
  std::string place(size_t row) const override {
    return fmt::format("{}, row {}", file_->path(), row);
  }

  Row read(size_t row) const override {
    const auto [chunk, first] = file_->find(row);
    const auto values_of = file_->read(this, chunk, columns_, *cache_);
    std::vector<Value> values;
    values.reserve(columns_.size());
    for (size_t i = 0; i < columns_.size(); ++i) {
      const ArrowSchema& schema = *file_->schema().children[columns_[i]];
      values.push_back(
          value_of_arrow(schema, *values_of->array().children[i],
                         values_of->array().offset + static_cast<int64_t>(row - first)));
    }
    return {names_, std::move(values)};
  }

  std::shared_ptr<const Table> select(const std::shared_ptr<const Table>&,
                                      const std::vector<size_t>& columns) const override {
    std::vector<int32_t> inner;
    inner.reserve(columns.size());
    for (const size_t column : columns) inner.push_back(columns_[column]);
    return std::make_shared<ArrowTable>(file_, cache_, std::move(inner));
  }

 private:
  std::shared_ptr<const ArrowFile> file_;
  std::shared_ptr<ChunkCache> cache_;
  std::vector<int32_t> columns_;
  std::vector<Feature> features_;
  std::shared_ptr<const std::vector<std::string>> names_;
};

}  // namespace

std::shared_ptr<const Table> open_arrow(const std::string& path, bool is_parquet,
                                        std::shared_ptr<ChunkCache> cache) {
  auto file = std::make_shared<const ArrowFile>(path, is_parquet);
  std::vector<int32_t> columns(static_cast<size_t>(file->schema().n_children));
  std::iota(columns.begin(), columns.end(), 0);
  try {
    return std::make_shared<ArrowTable>(std::move(file), std::move(cache), std::move(columns));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", path, without_hint(error.what())),
                {.subject = path, .hint = error.detail().hint});
  }
}

}  // namespace coupler::datasets
