#include "accelerator/launch_call.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

namespace coupler {
namespace {

using detail::ObjectBytes;
using nlohmann::json;

constexpr std::string_view kTitle = "coupler call 1\n";

[[noreturn]] void fail(const std::string& what, int error, std::string hint) {
  throw Error(ErrorCode::kIo,
              fmt::format("launch: {}: {}", what, std::generic_category().message(error)),
              {.subject = "launch", .hint = std::move(hint)});
}

UniqueFd memory_file() {
  const UniqueFd made(::memfd_create("coupler-call", MFD_CLOEXEC));
  // Moves the descriptor above the standard streams. If the program has closed one of these, its
  // output would otherwise go into the file.
  UniqueFd file(made ? ::fcntl(made.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : -1);
  if (!file || ::fchmod(file.get(), 0600) != 0)  // created accessible to everyone
    fail("cannot make a memory file", errno, "the limit on open files may be reached (ulimit -n)");
  return file;
}

// Returns fewer bytes at the end of the file.
std::string text_at(int file, int64_t at, uint64_t size) {
  std::string text(size, '\0');
  size_t have = 0;
  while (have < size) {
    const ssize_t count = ::pread(file, text.data() + have, size - have, at + have);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot read the memory file of the call", errno, "");
    if (count == 0) break;
    have += static_cast<size_t>(count);
  }
  text.resize(have);
  return text;
}

void write_at(int file, int64_t at, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::pwrite(file, text.data(), text.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot write the memory file of the call", errno, "free some memory");
    text.remove_prefix(static_cast<size_t>(count));
    at += count;
  }
}

int64_t size_of(int file) { return ::lseek(file, 0, SEEK_END); }

std::string to_text(const ObjectBytes& bytes) { return {bytes.begin(), bytes.end()}; }
ObjectBytes to_bytes(const std::string& text) { return {text.begin(), text.end()}; }

json to_json(const RankFailure& failure) {
  const ErrorDetail& detail = failure.error.detail();
  return {{"rank", failure.rank},
          {"when", failure.when},
          {"code", static_cast<int>(failure.error.code())},
          {"message", failure.error.what()},
          {"subject", detail.subject}};
}

RankFailure from_json(const json& value) {
  const int rank = value.at("rank").get<int>();
  // what() already contains the hint.
  return {.rank = rank,
          .when = value.at("when").get<int64_t>(),
          .error = Error(static_cast<ErrorCode>(value.at("code").get<int>()),
                         fmt::format("rank {}: {}", rank, value.at("message").get<std::string>()),
                         {.rank = rank, .subject = value.at("subject").get<std::string>()})};
}

}  // namespace

LaunchCall::LaunchCall(const std::string& function, const ObjectBytes& arguments)
    : file_(memory_file()), outcome_(memory_file()) {
  write_at(file_.get(), 0, kTitle);
  append(Kind::kFunction, function);
  append(Kind::kArguments, to_text(arguments));
}

LaunchCall::LaunchCall(const std::string& path) : file_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
  const std::string hint = "it exists only while the launching program runs: restart that program";
  if (!file_) fail(fmt::format("cannot open the call file {}", path), errno, hint);
  if (text_at(file_.get(), 0, kTitle.size()) != kTitle)  // the number was reused
    throw Error(ErrorCode::kIo, fmt::format("launch: {} is not a call file of launch", path),
                {.subject = path, .hint = hint});
}

std::string LaunchCall::path() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get());
}

int64_t LaunchCall::walk(const std::function<void(const Header& header, int64_t at)>& found) const {
  const int64_t end = size_of(file_.get());
  auto at = static_cast<int64_t>(kTitle.size());
  for (Header header{};;) {
    const auto body = static_cast<int64_t>(at + sizeof header);
    if (body > end) return at;
    text_at(file_.get(), at, sizeof header).copy(reinterpret_cast<char*>(&header), sizeof header);
    if (header.size > static_cast<uint64_t>(end - body)) return at;
    found(header, body);
    at = body + static_cast<int64_t>(header.size);
  }
}

std::optional<std::string> LaunchCall::last(Kind kind) const {
  std::optional<std::pair<int64_t, uint64_t>> place;
  walk([&](const Header& header, int64_t at) {
    if (header.kind == kind) place = {at, header.size};
  });
  return place ? std::optional(text_at(file_.get(), place->first, place->second)) : std::nullopt;
}

void LaunchCall::append(Kind kind, std::string_view bytes) const {
  // The process owns this lock: it ends with the process, even if others inherited the file.
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  while (::fcntl(file_.get(), F_SETLKW, &lock) != 0) {
    if (errno != EINTR) fail("cannot lock the memory file of the call", errno, "");
  }
  const int64_t end = walk([](const Header&, int64_t) {});
  const Header header{kind, bytes.size()};
  const bool cut = ::ftruncate(file_.get(), end) == 0;  // drops an incomplete record
  if (!cut) fail("cannot truncate the memory file of the call", errno, "");
  write_at(file_.get(), end, {reinterpret_cast<const char*>(&header), sizeof header});
  write_at(file_.get(), static_cast<int64_t>(end + sizeof header), bytes);
  lock.l_type = F_UNLCK;
  ::fcntl(file_.get(), F_SETLK, &lock);
}

std::string LaunchCall::function() const { return last(Kind::kFunction).value(); }

ObjectBytes LaunchCall::arguments() const { return to_bytes(last(Kind::kArguments).value()); }

void LaunchCall::write_result(const ObjectBytes& result) const {
  append(Kind::kResult, to_text(result));
}

std::string LaunchCall::outcome() const {
  return text_at(outcome_.get(), 0, static_cast<uint64_t>(size_of(outcome_.get())));
}

std::optional<ObjectBytes> LaunchCall::result() const {
  const auto text = last(Kind::kResult);
  return text ? std::optional(to_bytes(*text)) : std::nullopt;
}

void LaunchCall::write_failure(const RankFailure& failure) const {
  append(Kind::kFailure, to_json(failure).dump(-1, ' ', true, json::error_handler_t::replace));
}

std::optional<RankFailure> LaunchCall::failure() const {
  std::map<int, RankFailure> of_ranks;  // the last one of each, if the job was restarted
  walk([&](const Header& header, int64_t at) {
    if (header.kind != Kind::kFailure) return;
    RankFailure found = from_json(json::parse(text_at(file_.get(), at, header.size)));
    of_ranks.insert_or_assign(found.rank, std::move(found));
  });
  const auto place = [](const auto& of_rank) {
    return std::pair(of_rank.second.is_consequence(), of_rank.second.when);
  };
  const auto first = std::min_element(
      of_ranks.begin(), of_ranks.end(),
      [&](const auto& one, const auto& other) { return place(one) < place(other); });
  return first == of_ranks.end() ? std::nullopt : std::optional(std::move(first->second));
}

}  // namespace coupler
