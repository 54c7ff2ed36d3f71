#include "rank.h"

#include <fmt/format.h>

#include <algorithm>

namespace coupler::bench::simulated {
namespace {

namespace s4u = simgrid::s4u;

// What a message carries if there is data.
using Values = std::vector<double>;

Values values_of(const std::vector<double>* data, const Part& part) {
  Values values;
  if (data == nullptr) return values;
  for (const Block& block : part)
    values.insert(values.end(), data->begin() + static_cast<std::ptrdiff_t>(block.begin),
                  data->begin() + static_cast<std::ptrdiff_t>(block.begin + block.count));
  return values;
}

}  // namespace

std::pair<int, int> Rank::stand_in(int peer) const {
  const int index = layout_.index_of[static_cast<size_t>(peer)];
  const int machine = layout_.machine_of[static_cast<size_t>(peer)];
  if (!job_.is_folded) return {machine, index};
  // This rank's machine is 0 or 1, and the other of the two stands for every other machine.
  const int own = this->machine();
  return {machine == own ? own : 1 - own, index};
}

s4u::Mailbox* Rank::mailbox(int from, int to) {
  s4u::Mailbox*& found = mailboxes_[{from, to}];
  if (found == nullptr) found = s4u::Mailbox::by_name(fmt::format("{}>{}", from, to));
  return found;
}

void Rank::store(const std::vector<double>& values, const Receive& receive) {
  auto value = values.begin();
  for (const Block& block : receive.part) {
    for (uint64_t i = block.begin; i < block.begin + block.count; ++i, ++value)
      (*data_)[i] = receive.adds ? (*data_)[i] + *value : *value;
  }
}

void Rank::round(const std::vector<Send>& sends, const std::vector<Receive>& receives) {
  const double overhead = cluster_.costs().message_overhead;
  if (!sends.empty()) s4u::this_actor::sleep_for(overhead * static_cast<double>(sends.size()));
  const auto number = [&](int peer) {
    const auto [machine, index] = stand_in(peer);
    return layout_.on(machine)[static_cast<size_t>(index)];
  };
  std::vector<s4u::CommPtr> pending;
  std::vector<Values*> arrived;
  std::map<int, uint64_t> bytes;  // folded: by who stands for the peers
  if (job_.is_folded) {
    // Equal messages that share all links take as long as one of their size together.
    for (const Receive& receive : receives) bytes[number(receive.from)] = 0;
    arrived.reserve(bytes.size());
    for (const auto& [peer, none] : bytes)
      pending.push_back(mailbox(peer, rank_)->get_async<Values>(&arrived.emplace_back(nullptr)));
    bytes.clear();
    for (const Send& send : sends)
      bytes[number(send.to)] += bytes_of(send.part) + cluster_.costs().header_bytes;
    for (const auto& [peer, size] : bytes)
      pending.push_back(
          mailbox(rank_, peer)->put_async(std::make_unique<Values>().release(), size));
  } else {
    arrived.reserve(receives.size());
    for (const Receive& receive : receives)
      pending.push_back(
          mailbox(receive.from, rank_)->get_async<Values>(&arrived.emplace_back(nullptr)));
    for (const Send& send : sends)
      pending.push_back(
          mailbox(rank_, send.to)
              ->put_async(std::make_unique<Values>(values_of(data_, send.part)).release(),
                          bytes_of(send.part) + cluster_.costs().header_bytes));
  }
  for (const s4u::CommPtr& one : pending) one->wait();
  for (size_t i = 0; i < arrived.size(); ++i) {
    const std::unique_ptr<Values> values(arrived[i]);
    if (data_ != nullptr) store(*values, receives[i]);
  }
  if (!receives.empty())
    s4u::this_actor::sleep_for(overhead * static_cast<double>(receives.size()));
}

void Rank::meet_within() {
  machine_->barrier->wait();
  s4u::this_actor::sleep_for(cluster_.costs().synchronization * (local_size() - 1));
}

// Reads the part of every rank and writes the sum.
void Rank::reduce_within(const std::vector<Part>& parts) {
  meet_within();
  const Part& own = parts[static_cast<size_t>(index())];
  if (data_ != nullptr) {
    for (const Rank* const other : machine_->ranks) {
      if (other != this) store(values_of(other->data_, own), {0, own, true});
    }
  }
  move_memory(bytes_of(own) * static_cast<uint64_t>(local_size() + 1));
  machine_->barrier->wait();
}

// Writes the parts of the others; to read them, they are in caches.
void Rank::gather_within(const std::vector<Part>& parts) {
  meet_within();
  uint64_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Rank* const other = machine_->ranks[i];
    if (other == this) continue;
    bytes += bytes_of(parts[i]);
    if (data_ != nullptr) store(values_of(other->data_, parts[i]), {0, parts[i], false});
  }
  move_memory(bytes);
  machine_->barrier->wait();
}

uint64_t Rank::room(uint64_t elements) {
  if (data_ == nullptr) return 0;
  data_->resize(data_->size() + elements);
  return data_->size() - elements;
}

void Rank::store_sum(const std::vector<Block>& blocks, const Block& to) {
  if (data_ == nullptr) return;
  Values sum(to.count);
  for (const Block& block : blocks) {
    for (uint64_t i = 0; i < to.count; ++i) sum[i] += (*data_)[block.begin + i];
  }
  store(sum, {0, {to}, false});
}

void Rank::move_memory(uint64_t bytes) {
  if (bytes == 0) return;
  s4u::Host* const here = host();
  s4u::Comm::sendto_init()
      ->set_rate(cluster_.costs().core_rate)
      ->set_payload_size(bytes)
      ->set_source(here)
      ->set_destination(here)
      ->wait();
}

void Rank::compute(double seconds) { s4u::this_actor::sleep_for(seconds); }

uint64_t Rank::repeats(uint64_t total) {
  *repeats_ = total;
  return job_.repeat_limit == 0 ? total : std::min(total, job_.repeat_limit);
}

Worker::Worker(const Rank& rank) {
  actor_ = s4u::Actor::create("worker", rank.host(), [this] {
    for (;;) {
      posted_->acquire();
      const Entry entry = std::move(entries_.front());
      entries_.pop_front();
      if (!entry.job) return;
      entry.job();
      entry.done->release();
    }
  });
}

Worker::~Worker() {
  post({});
  actor_->join();
}

s4u::SemaphorePtr Worker::post(std::function<void()> job) {
  s4u::SemaphorePtr done = s4u::Semaphore::create(0);
  entries_.push_back({std::move(job), done});
  posted_->release();
  return done;
}

}  // namespace coupler::bench::simulated
