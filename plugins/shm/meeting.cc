#include "shm/meeting.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/op.h"
#include "shm/segment.h"
#include "shm/version.h"

namespace db::shm {
namespace {

constexpr const char* kFormat = "coupler-shm";  // first word of an announcement
constexpr int64_t kPublishNs = 500'000'000;     // rank 0 ends first, so that its reason arrives

std::string rank_key(int32_t rank) { return "shm/" + std::to_string(rank); }

std::string namespace_of(const char* kind) {
  struct stat status {};
  const std::string link = std::string("/proc/self/ns/") + kind;
  return stat(link.c_str(), &status) == 0 ? std::to_string(status.st_ino) : "?";
}

std::string hex_of(const std::string& text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  for (const char c : text) {
    result += kDigits[static_cast<uint8_t>(c) >> 4];
    result += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return result;
}

std::string text_of(const std::string& hex) {
  std::string result;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    result += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return result;
}

// Rank 0's value under "shm/verdict".
struct Verdict {
  Failure failure;
  Reach reach = Reach::kProc;
  MeetingPlace place;

  std::string encode() const {
    std::ostringstream text;
    text << failure.status << ' ' << failure.failed_rank << ' ' << static_cast<int32_t>(reach)
         << ' ' << to_hex(place.id) << ' ' << (place.path.empty() ? "-" : hex_of(place.path)) << ' '
         << failure.message;
    return text.str();
  }
  bool decode(const std::string& text) {
    std::istringstream words(text);
    int32_t how = 0;
    std::string id, path;
    if (!(words >> failure.status >> failure.failed_rank >> how >> id >> path) ||
        !from_hex(id, &place.id) || path.find_first_not_of("-0123456789abcdef") != path.npos)
      return false;
    reach = static_cast<Reach>(how);
    if (path != "-") place.path = text_of(path);
    std::getline(words >> std::ws, failure.message);
    return true;
  }
};

Failure never_announced(int32_t rank, const char* what, int64_t timeout_ns) {
  return Failure::make(DB_ERR_TIMEOUT,
                       "rank " + std::to_string(rank) + " did not " + what + " within " +
                           std::to_string(timeout_ns / 1'000'000) +
                           " ms; check that it is running and uses the same backend",
                       0, rank);
}

bool is_absent(const Failure& failure) {
  return failure.status == DB_ERR_TIMEOUT || failure.status == DB_ERR_NOT_FOUND;
}

// Rank 0: reads what all ranks announce, and opens its socket if they can meet.
Verdict judge(const MeetingOptions& options, const BootstrapStore& store, const Announcement& own,
              Listening* listening) {
  Verdict verdict;
  const int64_t until =
      options.deadline_ns - std::min<int64_t>(kPublishNs, options.timeout_ns / 10);
  for (int32_t rank = 1; rank < options.size; ++rank) {
    std::string text;
    Failure failure = store.get(rank_key(rank), std::max<int64_t>(until - now_ns(), 0), &text);
    if (is_absent(failure))
      failure = never_announced(rank, "announce itself in the store", options.timeout_ns);
    Announcement theirs;
    Reach reach = Reach::kProc;
    if (failure.ok() && !Announcement::decode(text, &theirs))
      failure = Failure::make(DB_ERR_MISMATCH,
                              "rank " + std::to_string(rank) +
                                  " announced itself in a format that rank 0 does not know; "
                                  "install the same version of the plugin for all ranks",
                              0, rank);
    if (failure.ok()) failure = compare(own, theirs, rank, &reach);
    if (!failure.ok()) {
      verdict.failure = std::move(failure);
      return verdict;
    }
    if (reach == Reach::kAbstract) verdict.reach = reach;
  }
  verdict.failure = Listening::open(verdict.reach, listening);
  verdict.place = listening->place;
  return verdict;
}

}  // namespace

Announcement Announcement::own(int32_t size) {
  Announcement own;
  own.version = std::string(kVersion) + "-" + std::to_string(kLayoutVersion);
  own.size = size;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> own.boot_id;
  if (own.boot_id.empty()) own.boot_id = "?";
  own.pid_space = namespace_of("pid");
  own.net_space = namespace_of("net");
  own.user_space = namespace_of("user");
  own.user = geteuid();
  own.pid = getpid();
  std::array<char, 256> name{};
  own.host = gethostname(name.data(), name.size() - 1) == 0 && name[0] != 0 ? name.data() : "?";
  return own;
}

bool Announcement::sees(const Announcement& other) const {
  // In another PID namespace, that number is another process.
  const std::string files = "/proc/" + std::to_string(other.pid) + "/fd";
  return other.boot_id == boot_id && other.pid_space == pid_space &&
         faccessat(AT_FDCWD, files.c_str(), X_OK, AT_EACCESS) == 0;
}

std::string Announcement::encode() const {
  std::ostringstream text;
  text << kFormat << ' ' << version << ' ' << size << ' ' << boot_id << ' ' << pid_space << ' '
       << net_space << ' ' << user_space << ' ' << user << ' ' << pid << ' ' << sees_host << ' '
       << host;
  return text.str();
}

bool Announcement::decode(const std::string& text, Announcement* result) {
  std::istringstream words(text);
  std::string format;
  return (words >> format >> result->version >> result->size >> result->boot_id >>
          result->pid_space >> result->net_space >> result->user_space >> result->user >>
          result->pid >> result->sees_host >> result->host) &&
         format == kFormat;
}

Failure compare(const Announcement& own, const Announcement& theirs, int32_t other, Reach* reach) {
  const std::string who = "rank " + std::to_string(other);
  const auto differ = [&](db_status status, const std::string& what) {
    return Failure::make(status, who + " " + what, 0, other);
  };
  if (theirs.version != own.version)
    return differ(DB_ERR_MISMATCH, "has version " + theirs.version +
                                       " of the shm plugin, rank 0 has " + own.version +
                                       "; install the same version for all ranks");
  if (theirs.size != own.size)
    return differ(DB_ERR_MISMATCH, "has " + std::to_string(theirs.size) +
                                       " ranks, but rank 0 has " + std::to_string(own.size));
  if (theirs.boot_id != own.boot_id)
    return differ(DB_ERR_UNSUPPORTED,
                  "runs on the machine " + theirs.host + ", rank 0 on " + own.host +
                      ", but shm connects the ranks of one machine; for several machines set "
                      "backend.use to \"hierarchical\", which keeps shm within each machine, or to "
                      "another transport, such as gloo_cpu");
  if (theirs.user_space == own.user_space && theirs.user != own.user)
    return differ(DB_ERR_UNSUPPORTED, "runs as user " + std::to_string(theirs.user) +
                                          ", rank 0 as user " + std::to_string(own.user) +
                                          "; start all ranks as the same user");
  *reach = theirs.sees_host ? Reach::kProc : Reach::kAbstract;
  if (!theirs.sees_host && theirs.net_space != own.net_space)
    return differ(DB_ERR_UNSUPPORTED,
                  "runs in another container than rank 0 (" + theirs.host + ", " + own.host +
                      "): let the containers share their network (docker: --network host) or "
                      "their processes (--pid host), or set backend.use to another transport");
  return {};
}

Failure Listening::open(Reach reach, Listening* result) {
  Listening made;
  made.place.id = random_bytes32();
  if (reach == Reach::kAbstract) {
    made.socket = listen_abstractly("shm", &made.place.path);
  } else {
    made.socket = listen_locally("shm", &made.file);
    made.place.path =
        "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(made.file.get());
  }
  if (!made.socket) {
    const int error = errno;
    return Failure::make(DB_ERR_SYSTEM,
                         std::string("rank 0 cannot create a Unix socket in /dev/shm, TMPDIR or "
                                     "/tmp: ") +
                             std::strerror(error) + "; set TMPDIR to a folder you can write to",
                         0, 0, error);
  }
  *result = std::move(made);
  return {};
}

Failure meet(const MeetingOptions& options, const BootstrapStore& store, MeetingPlace* place,
             Reach* reach, Listening* listening) {
  Announcement own = Announcement::own(options.size);
  if (options.rank == 0) {
    if (Failure failure = store.set(rank_key(0), own.encode()); !failure.ok()) return failure;
    const Verdict verdict = judge(options, store, own, listening);
    *place = verdict.place;
    *reach = verdict.reach;
    Failure told = store.set("shm/verdict", verdict.encode());
    return verdict.failure.ok() ? told : verdict.failure;
  }
  const auto get = [&](const std::string& key, std::string* text) {
    return store.get(key, std::max<int64_t>(options.deadline_ns - now_ns(), 0), text);
  };
  std::string text;
  Failure failure = get(rank_key(0), &text);
  if (is_absent(failure))
    return never_announced(0, "announce itself in the store", options.timeout_ns);
  // What this version cannot read, rank 0's verdict explains.
  Announcement host;
  if (failure.ok() && Announcement::decode(text, &host)) own.sees_host = own.sees(host);
  if (failure.ok()) failure = store.set(rank_key(options.rank), own.encode());
  if (!failure.ok()) return failure;
  failure = get("shm/verdict", &text);
  if (is_absent(failure)) return never_announced(0, "say where it waits", options.timeout_ns);
  if (!failure.ok()) return failure;
  Verdict verdict;
  if (!verdict.decode(text))
    return Failure::make(
        DB_ERR_MISMATCH,
        "rank 0 announced itself in a format that this rank does not know; install "
        "the same version of the plugin for all ranks",
        0, 0);
  *place = verdict.place;
  *reach = verdict.reach;
  if (!verdict.failure.ok()) verdict.failure.flags |= DB_ERROR_REMOTE;
  return verdict.failure;
}

}  // namespace db::shm
