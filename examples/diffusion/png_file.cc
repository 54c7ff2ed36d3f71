#include "png_file.h"

#include <coupler/error.h>
#include <png.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

PngFile::PngFile(std::string path)
    : path_(std::move(path)),
      partial_(path_ + ".partial"),
      file_(std::filesystem::is_directory(path_) ? nullptr : std::fopen(partial_.c_str(), "wb")) {
  if (file_ == nullptr)
    fail(std::filesystem::is_directory(path_) ? "it is a folder" : std::strerror(errno));
}

PngFile::~PngFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::remove(partial_.c_str());
}

void PngFile::write(const uint8_t* pixels, int64_t height, int64_t width) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.format = PNG_FORMAT_RGB;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  if (png_image_write_to_stdio(&image, file_, /*convert_to_8bit=*/0, pixels, /*row_stride=*/0,
                               /*colormap=*/nullptr) == 0)
    fail(image.message);
  if (std::fflush(file_) != 0) fail(std::strerror(errno));
  std::fclose(std::exchange(file_, nullptr));
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) fail(std::strerror(errno));
}

void PngFile::fail(const std::string& reason) const {
  throw coupler::Error(coupler::ErrorCode::kIo, path_ + " cannot be written: " + reason,
                       {.subject = path_,
                        .hint = "set --output to a file in an existing folder "
                                "that you may write to"});
}
