#include "power_loss.h"

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace coupler::testing_checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNone = ~size_t{0};
constexpr size_t kRoot = 0;

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

PowerLoss::PowerLoss(std::string folder, Lies lies) : folder_(std::move(folder)), lies_(lies) {
  nodes_.push_back({.is_folder = true});
}

size_t PowerLoss::find(const std::string& path) const {
  size_t node = kRoot;
  for (size_t at = folder_.size(); at < path.size();) {
    const size_t end = std::min(path.find('/', at + 1), path.size());
    const auto& names = nodes_[node].names;
    const auto found = names.find(path.substr(at + 1, end - at - 1));
    if (found == names.end()) return kNone;
    node = found->second;
    at = end;
  }
  return node;
}

void PowerLoss::change(std::map<std::string, size_t>& names, const NameChange& change) {
  if (!change.removed.empty()) {
    // The removed name does not exist, since an earlier change was lost: nothing to rename.
    if (names.erase(change.removed) == 0 && !change.added.empty()) return;
  }
  if (!change.added.empty()) names[change.added] = change.node;
}

void PowerLoss::change(std::string& data, const DataChange& change) {
  if (change.is_size) {
    data.resize(change.offset);
    return;
  }
  if (data.size() < change.offset + change.data.size())
    data.resize(change.offset + change.data.size());
  data.replace(change.offset, change.data.size(), change.data);
}

void PowerLoss::change_names(size_t folder, const NameChange& change) {
  PowerLoss::change(nodes_[folder].names, change);
  nodes_[folder].name_changes.push_back(change);
}

size_t PowerLoss::add(const std::string& path, bool is_folder) {
  const size_t folder = find(parent_of(path));
  if (folder == kNone) throw std::runtime_error("no parent folder of " + path);
  nodes_.push_back({.is_folder = is_folder});
  change_names(folder, {"", name_of(path), nodes_.size() - 1});
  return nodes_.size() - 1;
}

void PowerLoss::apply(const Operation& operation) {
  if (operation.result < 0 || operation.path.ends_with(" (deleted)")) return;
  const std::string& name = operation.name;
  if (name == "open" || name == "hint" || name == "close" || name == "report") return;
  if (name == "create" || name == "mkdir") {
    add(operation.path, name == "mkdir");
    return;
  }
  const size_t at = find(operation.path);
  if (at == kNone) throw std::runtime_error(name + " of a missing path: " + operation.path);
  Node& node = nodes_[at];
  if (name == "write") {
    node.data_changes.push_back({false, static_cast<size_t>(operation.offset), operation.data});
  } else if (name == "truncate" || name == "empty") {
    node.data_changes.push_back({true, static_cast<size_t>(operation.offset), ""});
  } else if (name == "fsync") {
    if (node.is_folder ? lies_.folders : lies_.files) return;
    for (const DataChange& change : node.data_changes) PowerLoss::change(node.kept_data, change);
    node.data_changes.clear();
    node.kept_names = node.names;
    node.name_changes.clear();
  } else if (name == "remove") {
    change_names(find(parent_of(operation.path)), {name_of(operation.path), "", 0});
  } else if (name == "rename") {
    if (parent_of(operation.path) != parent_of(operation.other))
      throw std::runtime_error("renames between folders are not supported");
    change_names(find(parent_of(operation.path)),
                 {name_of(operation.path), name_of(operation.other), at});
  } else {
    throw std::runtime_error("unknown operation " + name);
  }
}

void PowerLoss::leave(const std::string& folder, Pending pending, uint64_t seed) const {
  std::mt19937_64 random(seed);
  leave_node(nodes_[kRoot], folder, pending, random);
}

void PowerLoss::leave_node(const Node& node, const std::string& path, Pending pending,
                           std::mt19937_64& random) const {
  const auto chance = [&] { return random() % 2 == 0; };
  if (node.is_folder) {
    fs::create_directories(path);
    auto names = node.kept_names;
    for (const NameChange& change : node.name_changes) {
      const bool is_kept = pending == Pending::kRandom
                               ? chance()
                               : pending != Pending::kLost && pending != Pending::kDataOnly;
      if (is_kept) PowerLoss::change(names, change);
    }
    for (const auto& [name, child] : names)
      leave_node(nodes_[child], path + "/" + name, pending, random);
    return;
  }
  std::string data = node.kept_data;
  for (DataChange change : node.data_changes) {
    const bool is_kept = pending == Pending::kRandom
                             ? chance()
                             : pending != Pending::kLost && pending != Pending::kNamesOnly;
    if (!is_kept) continue;
    if (pending == Pending::kRandom && !change.data.empty() && chance())
      change.data.resize(random() % change.data.size());
    if (pending == Pending::kZeros || (pending == Pending::kRandom && random() % 4 == 0))
      change.data.assign(change.data.size(), '\0');
    PowerLoss::change(data, change);
  }
  std::ofstream(path, std::ios::binary) << data;
}

}  // namespace coupler::testing_checkpoint
