// The effect of a tracker on a run: none, however slow, broken or stuck it is.
#include "track/tracker_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "captured_error.h"
#include "track/trackers.h"

namespace coupler::track {
namespace {

using std::chrono::milliseconds;
using Clock = TrackerQueue::Clock;

// Does what the test specifies.
class Scripted : public Tracker {
 public:
  std::string name() const override { return "scripted"; }
  void connect() override { run(on_connect); }
  void log(const TrackedStep& entry) override {
    if (on_log) on_log(entry);
    const std::lock_guard lock(mutex);
    steps.push_back(entry.step);
  }
  void flush() override { run(on_flush); }
  void finish() override {
    run(on_finish);
    finished = true;
  }

  std::vector<int64_t> seen() const {
    const std::lock_guard lock(mutex);
    return steps;
  }

  std::function<void()> on_connect, on_flush, on_finish;
  std::function<void(const TrackedStep&)> on_log;
  std::atomic<bool> finished = false;

 private:
  static void run(const std::function<void()>& what) {
    if (what) what();
  }
  mutable std::mutex mutex;
  std::vector<int64_t> steps;
};

class QueuedTracker : public ::testing::Test {
 protected:
  void push(TrackerQueue& queue, int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      auto entry = std::make_shared<TrackedStep>();
      entry->step = step;
      queue.push(entry);
    }
  }
  static void end(TrackerQueue& queue, milliseconds within = milliseconds(20000)) {
    queue.end(Clock::now() + within);
    queue.wait_ended();
  }

  std::shared_ptr<Scripted> tracker = std::make_shared<Scripted>();
  TrackerQueueLimits limits = {.flush_every = milliseconds(5), .first_retry = milliseconds(1)};
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(QueuedTracker, Entries_ArriveInOrder_BeforeTheEnd) {
  const CapturedError captured;
  TrackerQueue queue(tracker, limits);
  push(queue, 0, 1000);
  end(queue);
  ASSERT_EQ(tracker->seen().size(), 1000u);
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(tracker->seen()[static_cast<size_t>(i)], i);
  EXPECT_TRUE(tracker->finished);
  EXPECT_EQ(queue.lost(), 0);
  EXPECT_EQ(captured.text(), "");
}

TEST_F(QueuedTracker, OneThatNeverReturns_DropsWhatDoesNotFit_AndIsLeftBehind) {
  // Leaked on purpose: the stuck thread still uses them, and the destructor would wait for it.
  auto& mutex = *new std::mutex;
  auto& never = *new std::condition_variable;
  tracker->on_log = [&mutex, &never](const TrackedStep&) {
    std::unique_lock lock(mutex);
    never.wait(lock, [] { return false; });
  };
  limits.length = 10;
  const CapturedError captured;
  const auto start = Clock::now();
  {
    TrackerQueue queue(tracker, limits);
    push(queue, 0, 1);
    std::this_thread::sleep_for(milliseconds(200));  // it is stuck with that entry now
    push(queue, 1, 101);
    end(queue, milliseconds(50));
  }
  EXPECT_LT(Clock::now() - start, milliseconds(10000));
  const std::string text = captured.text();
  EXPECT_TRUE(has(text, "tracker 'scripted' is too slow: 10 entries are waiting")) << text;
  EXPECT_TRUE(has(text,
                  "it did not finish in time; of 101 entries 90 were dropped, 0 failed and "
                  "11 were not written"))
      << text;
}

TEST_F(QueuedTracker, OneThatIsUnavailable_GetsEverything_OnceItIsBack) {
  std::atomic<int> refusals = 3;
  tracker->on_flush = [&] {
    if (refusals-- > 0) throw TrackerUnavailable("http://nowhere is down", {.hint = "start it"});
  };
  const CapturedError captured;
  TrackerQueue queue(tracker, limits);
  push(queue, 0, 20);
  end(queue);
  EXPECT_EQ(tracker->seen().size(), 20u);
  EXPECT_EQ(queue.lost(), 0);
  const std::string text = captured.text();
  EXPECT_TRUE(has(text, "tracker 'scripted' is unavailable; training continues")) << text;
  EXPECT_TRUE(has(text, "http://nowhere is down\n  hint: start it")) << text;
  EXPECT_EQ(text.find("is unavailable"), text.rfind("is unavailable"))
      << "reported more than once: " << text;
  EXPECT_TRUE(has(text, "tracker 'scripted' works again")) << text;
}

TEST_F(QueuedTracker, OneThatStaysAway_EndsInTime_AndSaysWhatIsLost) {
  tracker->on_connect = [] { throw TrackerUnavailable("http://nowhere is down"); };
  const CapturedError captured;
  const auto start = Clock::now();
  TrackerQueue queue(tracker, limits);
  push(queue, 0, 7);
  end(queue, milliseconds(100));
  EXPECT_LT(Clock::now() - start, milliseconds(10000));
  EXPECT_TRUE(has(captured.text(), "7 were not written")) << captured.text();
}

TEST_F(QueuedTracker, OneThatThrows_IsDisabled_AfterThreeInARow) {
  tracker->on_log = [](const TrackedStep& entry) {
    if (entry.step >= 2) throw std::runtime_error("no more");
  };
  const CapturedError captured;
  TrackerQueue queue(tracker, limits);
  push(queue, 0, 10);
  end(queue);
  EXPECT_EQ(tracker->seen().size(), 2u);
  EXPECT_FALSE(tracker->finished);
  EXPECT_EQ(queue.lost(), 8);
  const std::string text = captured.text();
  EXPECT_TRUE(has(text, "tracker 'scripted' failed in log: no more")) << text;
  EXPECT_TRUE(has(text,
                  "failed in log 3 times in a row and is disabled; training continues without "
                  "it: no more"))
      << text;
  EXPECT_TRUE(has(text, "of 10 entries 5 were dropped, 3 failed and 0 were not written")) << text;
}

TEST_F(QueuedTracker, OneThatThrowsNowAndThen_GoesOn) {
  tracker->on_log = [](const TrackedStep& entry) {
    if (entry.step % 2 == 0) throw 7;  // not a std::exception
  };
  const CapturedError captured;
  TrackerQueue queue(tracker, limits);
  push(queue, 0, 10);
  end(queue);
  EXPECT_EQ(tracker->seen(), (std::vector<int64_t>{1, 3, 5, 7, 9}));
  EXPECT_TRUE(tracker->finished);
  EXPECT_TRUE(has(captured.text(), "failed in log: an exception that is not a std::exception"))
      << captured.text();
}

TEST_F(QueuedTracker, FlushThatFails_CountsWhatItHeld) {
  tracker->on_flush = [] { throw std::runtime_error("refused"); };
  const CapturedError captured;
  TrackerQueue queue(tracker, limits);
  push(queue, 0, 4);
  end(queue);
  EXPECT_EQ(queue.lost(), 4);
  EXPECT_TRUE(has(captured.text(), "failed in flush: refused")) << captured.text();
}

TEST_F(QueuedTracker, Destroyed_WithoutAnEnd_DoesNotWait) {
  tracker->on_connect = [] { std::this_thread::sleep_for(milliseconds(300)); };
  const auto start = Clock::now();
  { TrackerQueue queue(tracker, limits); }
  EXPECT_LT(Clock::now() - start, milliseconds(250));
}

TEST(SeveralTrackers, OneStuck_TheOthersHaveEverything) {
  const CapturedError captured;
  auto good = std::make_shared<Scripted>();
  auto stuck = std::make_shared<Scripted>();
  stuck->on_log = [](const TrackedStep&) { std::this_thread::sleep_for(std::chrono::hours(1)); };
  TrackerOptions options;
  options.end_timeout = milliseconds(300);
  options.flush_every = milliseconds(5);
  Trackers trackers({good, stuck}, {}, options);
  for (int i = 0; i < 50; ++i) trackers.log({{"loss", 0.5}}, std::nullopt);
  trackers.log({{"loss", 0.5}}, 100);
  trackers.log({{"loss", 0.5}}, std::nullopt);
  const auto start = Clock::now();
  trackers.end();
  EXPECT_LT(Clock::now() - start, milliseconds(3000));
  const auto steps = good->seen();
  ASSERT_EQ(steps.size(), 52u);
  EXPECT_EQ(steps[49], 49);
  EXPECT_EQ(steps[50], 100);
  EXPECT_EQ(steps[51], 101);
  EXPECT_TRUE(good->finished);
}

TEST(SeveralTrackers, OptionsOutOfRange_AreRefused) {
  TrackerOptions options;
  options.queue_length = 0;
  try {
    Trackers({}, {}, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(has(error.what(), "queue_length is 0")) << error.what();
  }
  options = {};
  options.flush_every = milliseconds(0);
  EXPECT_THROW(Trackers({}, {}, options), Error);
}

}  // namespace
}  // namespace coupler::track
