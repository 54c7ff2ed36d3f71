// A communicator over two bases: bases that are missing or wrong, and memory that ranks reach
// (coupler.memory/1), passed on from a base: which one gives it, that it gets to see the caller's
// buffers and not copies of them, and what happens if there is none. The bases are doubles whose
// other ranks all do what this one does.
#include "hierarchical/communicator.h"

#include <coupler/memory.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/op.h"

namespace db::hierarchical {
namespace {

struct Double : db_communicator {
  Double(int32_t own_rank, int32_t ranks, bool has_memory);

  std::vector<Announcement> said;  // what an all_gather of announcements finds; empty: as usual
  bool gives = false;              // it has the extension
  bool moves = true;               // it supports operations
  bool has_room = true;
  int allocations = 0;
  std::vector<std::vector<uint64_t>> memory;  // all that it gave
  std::vector<db_op> ops;

  bool gave(const void* pointer) const {
    for (const std::vector<uint64_t>& one : memory)
      if (pointer >= one.data() && pointer < one.data() + one.size()) return true;
    return false;
  }
  std::vector<db_op> of_kind(db_kind kind) const {
    std::vector<db_op> found;
    for (const db_op& op : ops)
      if (op.kind == kind) found.push_back(op);
    return found;
  }
};

Double* double_of(db_communicator* base) { return static_cast<Double*>(base); }

db_status supports_any(const db_communicator* base, const db_op*, int32_t* score) {
  *score = static_cast<const Double*>(base)->moves ? 1 : 0;
  return DB_OK;
}

// Only what is exchanged needs a result.
db_status run_at_once(db_communicator* base, const db_op* op, db_request** request, db_error*) {
  Double& self = *double_of(base);
  *request = nullptr;
  self.ops.push_back(*op);
  if (op->kind != DB_ALL_GATHER) return DB_OK;
  if (!self.said.empty()) {
    std::memcpy(op->recv, self.said.data(), self.said.size() * sizeof(Announcement));
    self.said.clear();
    return DB_OK;
  }
  const uint64_t bytes = op->count * (op->dtype == DB_U64 ? 8 : 4);
  for (int32_t rank = 0; rank < self.size; ++rank)
    std::memcpy(static_cast<uint8_t*>(op->recv) + static_cast<uint64_t>(rank) * bytes, op->send,
                bytes);
  return DB_OK;
}

db_status split_in_pairs(db_communicator*, int32_t, int32_t, db_communicator** result, db_error*) {
  *result = new Double(0, 2, false);
  return DB_OK;
}

db_status nothing_to_abort(db_communicator*) { return DB_OK; }
void destroy_split(db_communicator* base) { delete double_of(base); }

db_status give_memory(db_communicator* base, uint64_t bytes, void** memory, void** handle,
                      db_error* error) {
  Double& self = *double_of(base);
  ++self.allocations;
  if (!self.has_room)
    return report(Failure::make(DB_ERR_NO_MEMORY, "the double has no room"), error);
  *memory = self.memory.emplace_back(bytes / 8 + 1).data();
  *handle = &self;
  return DB_OK;
}

int released = 0;
void count_release(void*) { ++released; }

constexpr db_peer_memory kPeerMemory = {sizeof(db_peer_memory), give_memory, count_release};

const void* extension_of_double(const db_communicator* base, const char* id) {
  const bool gives = static_cast<const Double*>(base)->gives;
  return gives && std::string_view(id) == DB_PEER_MEMORY ? &kPeerMemory : nullptr;
}

constexpr db_communicator_functions kDoubleFunctions = {sizeof(db_communicator_functions),
                                                        supports_any,
                                                        run_at_once,
                                                        nullptr,
                                                        nullptr,
                                                        nullptr,
                                                        nullptr,
                                                        split_in_pairs,
                                                        nullptr,
                                                        nothing_to_abort,
                                                        destroy_split,
                                                        extension_of_double};

Double::Double(int32_t own_rank, int32_t ranks, bool has_memory)
    : db_communicator{sizeof(db_communicator), &kDoubleFunctions, own_rank, ranks},
      gives(has_memory) {}

// Creates rank 0 of size, 0 of local_size on its machine, over the bases that are not NULL.
Failure connect_over(Double* local, Double* across, int32_t size, int32_t local_size,
                     db_communicator** result) {
  const db_base inner{sizeof(db_base), "local", local}, outer{sizeof(db_base), "across", across};
  std::vector<const db_base*> bases;
  for (const db_base* base : {&inner, &outer})
    if (base->communicator != nullptr) bases.push_back(base);
  db_communicator_params params{};
  params.struct_size = sizeof params;
  params.size = size;
  params.local_size = local_size;
  params.default_timeout_ns = 1'000'000'000;
  params.bases = bases.data();
  params.base_count = bases.size();
  return create_communicator(params, {4096, 0}, result);
}

void expect_refused(Double* local, Double* across, db_status status, const std::string& text) {
  db_communicator* none = nullptr;
  const Failure failure = connect_over(local, across, 4, 2, &none);
  EXPECT_EQ(failure.status, status);
  EXPECT_NE(failure.message.find(text), std::string::npos) << failure.message;
  EXPECT_EQ(none, nullptr);
}

TEST(HierarchicalBases, MissingOrWrong_AreNamedByRole) {
  Double local(0, 2, false), across(0, 4, false), other(1, 3, false);
  expect_refused(nullptr, &across, DB_ERR_INVALID_ARGUMENT,
                 "the host gave no base of role \"local\"");
  expect_refused(&local, nullptr, DB_ERR_INVALID_ARGUMENT,
                 "the host gave no base of role \"across\"");
  expect_refused(&other, &across, DB_ERR_INVALID_ARGUMENT,
                 "this rank is 1 of 3 in its base of role \"local\", but should be 0 of 2");
  expect_refused(&local, &other, DB_ERR_INVALID_ARGUMENT,
                 "in its base of role \"across\", but should be 0 of 4");
  local.moves = false;
  expect_refused(&local, &across, DB_ERR_UNSUPPORTED,
                 "its base \"local\" does not move host memory");
}

TEST(HierarchicalBases, MachineWhoseRanksSayDifferentSizes_IsRefused) {
  Double local(0, 2, false), across(0, 4, false);
  across.said = {{0, 0, 2, 0}, {0, 1, 3, 0}, {2, 0, 2, 0}, {2, 1, 2, 0}};
  expect_refused(&local, &across, DB_ERR_MISMATCH, "rank 1 is 1 of 3 in its base \"local\"");
}

// Rank 0 of machines with that many ranks each.
class HierarchicalMemory : public ::testing::Test {
 protected:
  void connect(int32_t machines, int32_t each, bool local_gives, bool across_gives) {
    local_ = std::make_unique<Double>(0, each, local_gives);
    across_ = std::make_unique<Double>(0, machines * each, across_gives);
    for (int32_t rank = 0; rank < machines * each; ++rank)
      across_->said.push_back({rank / each * each, rank % each, each, 0});
    const Failure failure =
        connect_over(local_.get(), across_.get(), machines * each, each, &communicator_);
    ASSERT_TRUE(failure.ok()) << failure.message;
    released = 0;
  }
  void TearDown() override {
    if (communicator_ != nullptr) communicator_->functions->destroy(communicator_);
  }

  const db_peer_memory* extension() const {
    return static_cast<const db_peer_memory*>(
        communicator_->functions->get_extension(communicator_, DB_PEER_MEMORY));
  }

  void run(db_op op) {
    op.struct_size = sizeof op;
    op.memory = DB_MEMORY_HOST;
    op.flags = DB_OP_BLOCKING;
    db_request* request = nullptr;
    HostError error;
    const db_status status =
        communicator_->functions->submit(communicator_, &op, &request, &error.error);
    ASSERT_EQ(status, DB_OK) << error.text.data();
  }

  std::unique_ptr<Double> local_, across_;
  db_communicator* communicator_ = nullptr;
};

db_op reduction_of(db_kind kind, const float* send, float* recv, uint64_t count) {
  db_op op{};
  op.kind = kind;
  op.dtype = DB_F32;
  op.reduce = DB_SUM;
  op.send = send;
  op.recv = recv;
  op.count = count;
  return op;
}

TEST_F(HierarchicalMemory, LocalBaseGivesIt_AndSeesTheBuffersThemselves) {
  constexpr uint64_t kChunk = 1024, kChunks = 3;  // elements
  connect(2, 2, true, true);
  ASSERT_NE(extension(), nullptr);
  void *memory = nullptr, *handle = nullptr;
  ASSERT_EQ(extension()->allocate(communicator_, kChunks * kChunk * sizeof(float), &memory, &handle,
                                  nullptr),
            DB_OK);
  EXPECT_TRUE(local_->gave(memory));
  EXPECT_EQ(across_->allocations, 0);
  auto* const data = static_cast<float*>(memory);
  run(reduction_of(DB_ALL_REDUCE, data, data, kChunks * kChunk));
  const std::vector<db_op> first = local_->of_kind(DB_REDUCE_SCATTER_V);
  const std::vector<db_op> last = local_->of_kind(DB_ALL_GATHER_V);
  ASSERT_EQ(first.size(), kChunks);
  ASSERT_EQ(last.size(), kChunks);
  for (uint64_t i = 0; i < kChunks; ++i) {
    EXPECT_EQ(first[i].send, data + i * kChunk);
    EXPECT_EQ(first[i].recv, data + i * kChunk) << "its own part, where it is in the result";
    EXPECT_EQ(last[i].send, data + i * kChunk);
    EXPECT_EQ(last[i].recv, data + i * kChunk);
  }
  extension()->release(handle);
  EXPECT_EQ(released, 1);
}

TEST_F(HierarchicalMemory, OneRankOnEachMachine_TheOtherBaseGivesIt) {
  connect(2, 1, false, true);
  ASSERT_NE(extension(), nullptr);
  void *memory = nullptr, *handle = nullptr;
  ASSERT_EQ(extension()->allocate(communicator_, 100, &memory, &handle, nullptr), DB_OK);
  EXPECT_TRUE(across_->gave(memory));
}

TEST_F(HierarchicalMemory, LocalBaseWithoutIt_NoExtension) {
  connect(2, 2, false, true);
  EXPECT_EQ(extension(), nullptr);
  EXPECT_EQ(communicator_->functions->get_extension(communicator_, "coupler.other/1"), nullptr);
}

// What is between the stages of parts is read by the machine's ranks, too.
TEST_F(HierarchicalMemory, MemoryBetweenStages_IsTheBases_UntilTheCommunicatorEnds) {
  connect(2, 2, true, false);
  std::vector<float> data(4096), part(1024);
  for (int i = 0; i < 2; ++i)
    run(reduction_of(DB_REDUCE_SCATTER, data.data(), part.data(), part.size()));
  const std::vector<db_op> first = local_->of_kind(DB_REDUCE_SCATTER_V);
  ASSERT_EQ(first.size(), 8u) << "chunks of 1,024 elements, twice";
  for (const db_op& op : first) EXPECT_TRUE(local_->gave(op.send));
  EXPECT_EQ(local_->allocations, 1) << "the second operation uses it again";
  EXPECT_EQ(released, 0);
  communicator_->functions->destroy(std::exchange(communicator_, nullptr));
  EXPECT_EQ(released, 1);
}

TEST_F(HierarchicalMemory, NoRoom_IsSaid_AndOperationsGoOn) {
  connect(2, 2, true, false);
  local_->has_room = false;
  void *memory = nullptr, *handle = nullptr;
  HostError error;
  EXPECT_EQ(extension()->allocate(communicator_, 100, &memory, &handle, &error.error),
            DB_ERR_NO_MEMORY);
  EXPECT_NE(std::string_view(error.text.data()).find("its base \"local\": the double has no room"),
            std::string_view::npos)
      << error.text.data();
  std::vector<float> data(4096), part(1024);
  run(reduction_of(DB_REDUCE_SCATTER, data.data(), part.data(), part.size()));
}

TEST_F(HierarchicalMemory, FailedCommunicator_GivesNoneAndSaysWhy) {
  connect(2, 2, true, false);
  communicator_->functions->abort(communicator_);
  void *memory = nullptr, *handle = nullptr;
  HostError error;
  EXPECT_EQ(extension()->allocate(communicator_, 100, &memory, &handle, &error.error),
            DB_ERR_ABORTED);
  EXPECT_EQ(local_->allocations, 0);
}

}  // namespace
}  // namespace db::hierarchical
