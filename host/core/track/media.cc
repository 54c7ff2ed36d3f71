#include "track/media.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/beast/zlib.hpp>
#include <boost/crc.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "track/file_trackers.h"

namespace coupler {
namespace track {
namespace {

namespace fs = std::filesystem;

void add_big_endian(std::string& out, uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
}

// RFC 1950: a header, deflated data, and Adler-32 of the original.
std::string zlib_of(const std::string& data) {
  namespace zlib = boost::beast::zlib;
  zlib::deflate_stream stream;
  std::string out(2 + zlib::deflate_upper_bound(data.size()), '\0');
  out[0] = 0x78;
  out[1] = 0x01;
  zlib::z_params params{};
  params.next_in = data.data();
  params.avail_in = data.size();
  params.next_out = out.data() + 2;
  params.avail_out = out.size() - 2;
  boost::system::error_code error;
  stream.write(params, zlib::Flush::finish, error);
  if (error && error != zlib::error::end_of_stream) {
    throw Error(ErrorCode::kInternal, "deflate: " + error.message());
  }
  out.resize(out.size() - params.avail_out);
  uint32_t a = 1, b = 0;
  for (const char byte : data) {
    a = (a + static_cast<unsigned char>(byte)) % 65521;
    b = (b + a) % 65521;
  }
  add_big_endian(out, b << 16 | a);
  return out;
}

void add_png_chunk(std::string& out, const char* kind, const std::string& data) {
  add_big_endian(out, static_cast<uint32_t>(data.size()));
  const std::string checked = kind + data;
  out += checked;
  boost::crc_32_type crc;
  crc.process_bytes(checked.data(), checked.size());
  add_big_endian(out, crc.checksum());
}

// Unique, since several trackers of a run write the same files.
std::string temporary_name(const fs::path& path) {
  static std::atomic<int> count{0};
  return fmt::format("{}.{}.{}.part", path.string(), ::getpid(), count++);
}

void make_media_folder(const fs::path& folder, const char* hint) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_media_error(folder.string(), error.value(), hint);
}

void copy_one(const fs::path& from, const fs::path& to) {
  make_media_folder(to.parent_path(), kOwnFolder);
  // Removed if it fails, so that no half of a file is left.
  const fs::path temporary = temporary_name(to);
  std::error_code error;
  fs::copy_file(from, temporary, fs::copy_options::overwrite_existing, error);
  if (!error) fs::rename(temporary, to, error);
  if (!error) return;
  const int number = error.value();
  fs::remove(temporary, error);
  throw_media_error(to.string(), number, kOwnFolder);
}

}  // namespace

std::string png_of(int64_t width, int64_t height, int64_t channels,
                   const std::vector<uint8_t>& pixels) {
  std::string header;
  add_big_endian(header, static_cast<uint32_t>(width));
  add_big_endian(header, static_cast<uint32_t>(height));
  const char color = channels == 1 ? 0 : channels == 3 ? 2 : 6;
  header += {8, color, 0, 0, 0};
  const auto row = static_cast<size_t>(width * channels);
  std::string lines;
  lines.reserve((row + 1) * static_cast<size_t>(height));
  for (size_t y = 0; y < static_cast<size_t>(height); ++y) {
    lines += '\0';  // no filter
    lines.append(reinterpret_cast<const char*>(pixels.data()) + y * row, row);
  }
  std::string png("\x89PNG\r\n\x1a\n", 8);
  add_png_chunk(png, "IHDR", header);
  add_png_chunk(png, "IDAT", zlib_of(lines));
  add_png_chunk(png, "IEND", "");
  return png;
}

std::string media_name(const std::string& name, int64_t step, const std::string& ending) {
  std::string plain = name.substr(0, 80);
  std::replace_if(
      plain.begin(), plain.end(),
      [](char c) {
        return !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                 c == '-' || c == '_');
      },
      '_');
  boost::crc_32_type crc;
  crc.process_bytes(name.data(), name.size());
  return fmt::format("{}_{}_{:08x}.{}", plain, step, crc.checksum(), ending);
}

void throw_media_error(const std::string& path, int number, const char* hint) {
  const std::string message =
      fmt::format("{} cannot be written: {}", path, std::generic_category().message(number));
  if (number == ENOSPC || number == EDQUOT) {
    throw TrackerUnavailable(message, {.subject = path, .hint = "free some space on its disk"});
  }
  throw Error(ErrorCode::kIo, message, {.subject = path, .hint = hint});
}

void write_media(const std::string& folder, const std::string& name, const std::string& bytes,
                 const char* hint) {
  make_media_folder(folder, hint);
  const fs::path path = fs::path(folder) / name, temporary = temporary_name(path);
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    errno = 0;
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.close();
    if (!out) {
      const int number = errno != 0 ? errno : EIO;
      std::error_code ignored;
      fs::remove(temporary, ignored);
      throw_media_error(path.string(), number, hint);
    }
  }
  std::error_code error;
  fs::rename(temporary, path, error);
  if (error) throw_media_error(path.string(), error.value(), hint);
}

std::vector<ArtifactFile> files_of(const TrackedArtifact& artifact) {
  const fs::path from = artifact.path;
  std::error_code error;
  if (!fs::exists(from, error)) {
    throw Error(ErrorCode::kIo,
                fmt::format("artifact '{}': {} is no longer there", artifact.name, artifact.path),
                {.subject = artifact.path, .hint = "keep it until end_training"});
  }
  if (!fs::is_directory(from, error)) {
    return {{artifact.path, from.filename().string(), artifact.name}};
  }
  std::vector<ArtifactFile> files;
  for (fs::recursive_directory_iterator entry(from, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->is_regular_file() || entry->is_symlink()) continue;
    const fs::path inside = entry->path().lexically_relative(from);
    files.push_back({entry->path().string(), inside.string(), (artifact.name / inside).string()});
  }
  if (error) {
    throw Error(ErrorCode::kIo,
                fmt::format("artifact '{}': {} cannot be read: {}", artifact.name, artifact.path,
                            error.message()),
                {.subject = artifact.path, .hint = "check its permissions"});
  }
  std::sort(files.begin(), files.end(),
            [](const ArtifactFile& a, const ArtifactFile& b) { return a.inside < b.inside; });
  return files;
}

std::vector<std::string> copy_artifact(const TrackedArtifact& artifact, const std::string& folder) {
  std::vector<std::string> copied;
  for (const ArtifactFile& file : files_of(artifact)) {
    copy_one(file.path, fs::path(folder) / file.kept_as);
    copied.push_back(file.kept_as);
  }
  return copied;
}

std::string table_json(const TrackedTable& table) {
  std::string out = "{\"columns\": [";
  const auto comma = [&](bool first) { out += first ? "" : ", "; };
  for (size_t i = 0; i < table.columns.size(); ++i) {
    comma(i == 0);
    append_json_text(out, table.columns[i]);
  }
  out += "], \"data\": [";
  for (size_t r = 0; r < table.rows.size(); ++r) {
    comma(r == 0);
    out += '[';
    for (size_t i = 0; i < table.rows[r].size(); ++i) {
      comma(i == 0);
      append_json_value(out, table.rows[r][i]);
    }
    out += ']';
  }
  return out + "]}";
}

std::string option_of(const TrackerRun& run, const std::string& name, const char* variable) {
  for (const auto& [known, value] : run.options) {
    if (known == name) return text_of(value);
  }
  return *variable != '\0' ? environment_value(variable) : "";
}

void check_options(const TrackerRun& run, const std::string& tracker,
                   const std::vector<std::string>& known) {
  for (const auto& [name, value] : run.options) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    fail_argument(
        fmt::format("init_kwargs: the tracker '{}' has no option '{}'", tracker, for_message(name)),
        name,
        known.empty() ? "it has none: leave it out"
                      : fmt::format("its options are {}", fmt::join(known, ", ")));
  }
}

}  // namespace track

namespace {

constexpr int64_t kLargestSide = 1 << 16;
constexpr uintmax_t kLargestImageFile = uintmax_t{64} << 20;

}  // namespace

TrackedImage image_of_pixels(const std::string& name, int64_t width, int64_t height,
                             int64_t channels, const std::vector<uint8_t>& pixels,
                             const std::string& caption) {
  const bool fits = width >= 1 && width <= kLargestSide && height >= 1 && height <= kLargestSide &&
                    (channels == 1 || channels == 3 || channels == 4) &&
                    pixels.size() == static_cast<size_t>(width * height * channels);
  if (!fits) {
    fail_argument(fmt::format("image '{}': {} bytes are not {} x {} pixels of {} channels", name,
                              pixels.size(), width, height, channels),
                  name, "give width x height x channels bytes, with 1, 3 or 4 channels");
  }
  return {.name = name,
          .bytes = track::png_of(width, height, channels, pixels),
          .format = "png",
          .width = width,
          .height = height,
          .caption = caption};
}

TrackedImage image_of_file(const std::string& name, const std::string& path,
                           const std::string& caption) {
  namespace fs = std::filesystem;
  std::string ending = lower(fs::path(path).extension().string());
  if (!ending.empty()) ending.erase(0, 1);
  constexpr std::array kKnown = {"png", "jpg", "jpeg", "gif", "webp", "bmp", "svg"};
  if (std::find(kKnown.begin(), kKnown.end(), ending) == kKnown.end()) {
    fail_argument(fmt::format("image '{}': {} is not an image file by its name", name, path), path,
                  fmt::format("its ending must be one of {}", fmt::join(kKnown, ", ")));
  }
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in || size > kLargestImageFile) {
    throw Error(ErrorCode::kIo,
                fmt::format("image '{}': {} {}", name, path,
                            error || !in ? "cannot be read" : "is larger than 64 MiB"),
                {.subject = path, .hint = "log another file, or log it as an artifact"});
  }
  TrackedImage image{.name = name, .bytes = {}, .format = ending, .caption = caption};
  image.bytes.assign(std::istreambuf_iterator<char>(in), {});
  const auto number = [&](size_t at) {
    int64_t value = 0;
    for (size_t i = at; i < at + 4; ++i) {
      value = value << 8 | static_cast<unsigned char>(image.bytes[i]);
    }
    return value;
  };
  if (image.bytes.size() >= 24 && image.bytes.starts_with("\x89PNG")) {
    image.width = number(16);
    image.height = number(20);
  }
  return image;
}

}  // namespace coupler
