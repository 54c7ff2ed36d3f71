// Operations on device memory that the backend supports: streams wait for them, threads do not.
#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "base/span.h"
#include "ranks.h"

namespace coupler::comm {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): the helpers of this folder

// A device whose memory is host memory. Each thread has a stream: a counter of its waits.
class CountingDevice final : public DeviceMemory {
 public:
  static std::atomic<int>& waits() {
    static thread_local std::atomic<int> count{0};
    return count;
  }
  int index() const override { return 0; }
  bool is_cuda() const override { return true; }
  void* stream() const override { return &waits(); }
  std::shared_ptr<void> host_buffer(size_t) const override { return nullptr; }
  void copy_to_host(void*, const void*, size_t) const override { ADD_FAILURE(); }
  void copy_from_host(void*, const std::shared_ptr<void>&, size_t) const override { ADD_FAILURE(); }
  void copy(void*, const void*, size_t) const override { ADD_FAILURE(); }
};

// A communicator with one backend for device memory and another for host memory.
std::shared_ptr<Communicator> mixed(const RankSetup& setup) {
  CommunicatorOptions options = options_of(setup);
  options.device = std::make_shared<CountingDevice>();
  options.host_side = [] {
    config::BackendConfig backend;
    backend.use = double_path("double");
    return plugin::Plugin::load(backend);
  };
  return Communicator::create(options);
}

db_op in_device_memory(db_op op) {
  op.memory = DB_MEMORY_CUDA;
  return op;
}

void run_mixed(int world_size, const std::function<void(Communicator&)>& function,
               std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  auto store = std::make_shared<store::MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      RankSetup setup = setup_of(rank, world_size, store, "double_of_devices");
      setup.backend.timeout = timeout;
      const auto communicator = mixed(setup);
      function(*communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Rank 1 starts after rank 0 has issued both of its operations.
TEST(Streams, RunAndSubmit_OnTheDevice_DoNotWaitForOtherRanks) {
  std::atomic<bool> returned{false};
  run_mixed(2, [&](Communicator& c) {
    if (c.rank() == 1) {
      while (!returned) std::this_thread::yield();
    }
    std::vector<float> first(3, 1.0f), second(5, 2.0f);
    c.run(in_device_memory(all_reduce(first)));
    c.submit(in_device_memory(all_reduce(second))).wait();
    EXPECT_EQ(CountingDevice::waits(), 2);
    if (c.rank() == 0) returned = true;
    c.run(barrier());  // on the host side: both are complete once it returns
    EXPECT_EQ(first, std::vector<float>(3, 2.0f));
    EXPECT_EQ(second, std::vector<float>(5, 4.0f));
    EXPECT_EQ(CountingDevice::waits(), 2) << "host operations were issued to the stream";
  });
}

TEST(Streams, HostMemory_GoesOverTheHostSide_AlsoOfAPart) {
  run_mixed(2, [&](Communicator& c) {
    const auto part = c.split(0, c.rank(), "part");
    for (Communicator* each : {&c, part.get()}) {
      std::vector<float> values(3, 1.0f), there(3, 1.0f);
      each->run(all_reduce(values));
      EXPECT_EQ(values, std::vector<float>(3, 2.0f));
      each->run(in_device_memory(all_reduce(there)));
      each->run(barrier());
      EXPECT_EQ(there, std::vector<float>(3, 2.0f));
      EXPECT_TRUE(each->supports(in_device_memory(all_reduce(there))));
      EXPECT_TRUE(each->supports(all_reduce(values)));
    }
    EXPECT_EQ(CountingDevice::waits(), 2);
  });
}

TEST(Streams, Abort_EndsTheHostSide_Too) {
  run_mixed(2, [&](Communicator& c) {
    if (c.rank() == 0) c.abort("it is over");
    try {
      c.run(barrier());
      ADD_FAILURE() << "rank " << c.rank() << " passed a barrier";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kAborted) << error.what();
      EXPECT_NE(std::string(error.what()).find("it is over"), std::string::npos) << error.what();
    }
  });
}

// Counts the recorded spans by name and group.
class SpanCounter final : public SpanRecorder {
 public:
  SpanCounter() { set_span_recorder(this); }
  ~SpanCounter() override { set_span_recorder(nullptr); }
  void record(const SpanRecord& span) override {
    const std::lock_guard lock(mutex_);
    ++counts_[span.name];
    if (span.group != nullptr) ++counts_[std::string(span.name) + " of " + span.group];
  }
  int of(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return counts_[name];
  }
  int of(const std::string& name, const std::string& group) { return of(name + " of " + group); }

 private:
  std::mutex mutex_;
  std::map<std::string, int> counts_;
};

TEST(Streams, Spans_AreToldOnce_WhicheverWayTheOperationGoes) {
  SpanCounter spans;
  run_mixed(2, [&](Communicator& c) {
    std::vector<float> here(3, 1.0f), there(3, 1.0f);
    c.run(all_reduce(here));
    c.run(in_device_memory(all_reduce(there)));
    c.submit(all_reduce(here)).wait();
    c.submit(in_device_memory(all_reduce(there))).wait();
    c.run(barrier());
  });
  EXPECT_EQ(spans.of("all_reduce"), 2 * 4);
  EXPECT_EQ(spans.of("barrier"), 2);
}

// The host side's operations and waits count for the same ranks.
TEST(Streams, Spans_NameTheGroupThatCommunicates) {
  SpanCounter spans;
  run_mixed(2, [&](Communicator& c) {
    const auto part = c.split(0, c.rank(), "part", "tensor");
    const auto copy = part->split(0, c.rank(), "copy");
    const auto alone = c.split(c.rank(), 0, "alone", "data");
    std::vector<float> here(3, 1.0f), there(3, 1.0f);
    for (Communicator* each : {&c, part.get(), copy.get(), alone.get()}) {
      each->run(all_reduce(here));
      each->submit(all_reduce(here)).wait();
      each->run(in_device_memory(all_reduce(there)));
      each->submit(in_device_memory(all_reduce(there))).wait();
    }
    c.run(barrier());  // the buffers are no longer used
  });
  EXPECT_EQ(spans.of("all_reduce", "world"), 2 * 4);
  EXPECT_EQ(spans.of("all_reduce", "tensor"), 2 * 2 * 4);
  EXPECT_EQ(spans.of("wait", "tensor"), 2 * 2 * 3) << "one for all but a blocking operation";
  EXPECT_EQ(spans.of("all_reduce", "data"), 0) << "a rank alone does not communicate";
}

// The stream waits, so the error is not known at once: the next operation reports it.
TEST(Streams, AnOperationThatNobodyJoins_IsTheErrorOfTheNext) {
  std::atomic<bool> over{false};
  run_mixed(
      2,
      [&](Communicator& c) {
        if (c.rank() == 1) {
          while (!over) std::this_thread::yield();
          return;
        }
        std::vector<float> values(3, 1.0f);
        c.run(in_device_memory(all_reduce(values)));
        std::string text;
        while (text.empty()) {
          try {
            c.run(in_device_memory(all_reduce(values)));
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kTimeout) << error.what();
            text = error.what();
          }
          std::this_thread::yield();
        }
        EXPECT_NE(text.find("operation 1"), std::string::npos) << text;
        EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
        over = true;
      },
      std::chrono::milliseconds(300));
}

TEST(Streams, ABackendOfDeviceMemoryOnly_WithoutADevice_IsRefused) {
  auto store = std::make_shared<store::MemoryStore>();
  const RankSetup setup = setup_of(0, 1, store, "double_of_devices");
  CommunicatorOptions options = options_of(setup);
  options.host_side = [] { return plugin::Plugin::single(); };
  try {
    Communicator::create(options);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    const std::string text = error.what();
    EXPECT_NE(text.find("moves CUDA memory, but the tensors of rank 0 are in host memory"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("set backend.use to a transport for host memory"), std::string::npos)
        << text;
  }
}

// Memory that the backend registers, and unregisters before it is freed.
TEST(Streams, Registrations_EndWithTheirObjects_AndNeverMatter) {
  const std::string path = double_path("double_of_devices");
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto& count = *static_cast<std::atomic<int>*>(dlsym(library, "double_registrations"));
  run_mixed(1, [&](Communicator& c) {
    std::vector<float> values(3, 1.0f);
    const auto of_values = [&] {
      return c.register_memory(values.data(), values.size() * sizeof(float));
    };
    {
      Registration first = of_values();
      EXPECT_EQ(count, 1);
      Registration moved = std::move(first);
      const Registration second = of_values();
      EXPECT_EQ(count, 2);
      const Registration refused = of_values();  // the double accepts only two
      EXPECT_EQ(count, 2);
      moved = of_values();  // also refused; it releases what it held
      EXPECT_EQ(count, 1);
      const Registration nothing = c.register_memory(values.data(), 0);
      EXPECT_EQ(count, 1);
    }
    EXPECT_EQ(count, 0);
    Registration late = of_values();
    c.abort();
    EXPECT_THROW(of_values(), Error);
  });
  EXPECT_EQ(count, 1) << "unregistered with a communicator that has ended";
  EXPECT_EQ(dlclose(library), 0);
}

TEST(Streams, Registrations_OfABackendWithout_AreEmpty) {
  const auto errors = run_ranks(1, [](Communicator& c) {
    std::vector<float> values(3, 1.0f);
    const Registration empty = c.register_memory(values.data(), 12);
  });
  EXPECT_FALSE(errors[0].has_value());
}

}  // namespace
}  // namespace coupler::comm
